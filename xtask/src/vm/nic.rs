//! The network cards of machines, and their wires.

use anyhow::{Result, bail};

use super::kernel::{Build, Unpacked};

/// The nodes of the test bed. Each has a wire with a card at both ends.
const NODES: u8 = 3;
const ENDS: u8 = 2;

/// A kind of network card that QEMU emulates.
#[derive(Debug, PartialEq, Eq)]
pub struct Nic {
    /// The name that `--nic` takes.
    pub name: &'static str,
    /// The name of its driver.
    pub driver: &'static str,
    /// QEMU's name of the card.
    device: &'static str,
    /// The driver, after the modules that it needs.
    pub modules: &'static [&'static str],
    /// The kernels that have the driver.
    pub build: Build,
    /// How the two cards of a wire are joined.
    pub wire: Wire,
}

/// How QEMU joins the two cards of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// By a hub of its own, which gives a card one queue.
    Hub,
    /// By a bridge of this machine. The emulated machine has so many processors, with a receive queue of each card.
    Bridge { processors: u8 },
}

const VIRTIO: &[&str] = &[
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
];

/// All cards. [`NAMES`] has their names.
pub const NICS: [Nic; 4] = [
    Nic {
        name: "virtio_net",
        driver: "virtio_net",
        device: "virtio-net-pci",
        modules: VIRTIO,
        build: Build::Cloud,
        wire: Wire::Hub,
    },
    Nic {
        name: "virtio_net-queues",
        driver: "virtio_net",
        device: "virtio-net-pci",
        modules: VIRTIO,
        build: Build::Cloud,
        wire: Wire::Bridge { processors: 2 },
    },
    Nic {
        name: "vmxnet3",
        driver: "vmxnet3",
        device: "vmxnet3",
        modules: &["drivers/net/vmxnet3/vmxnet3"],
        build: Build::Cloud,
        wire: Wire::Hub,
    },
    Nic {
        name: "e1000e",
        driver: "e1000e",
        device: "e1000e",
        modules: &["drivers/net/ethernet/intel/e1000e/e1000e"],
        build: Build::Generic,
        wire: Wire::Hub,
    },
];
/// The values of `--nic`.
pub const NAMES: [&str; 4] = ["virtio_net", "virtio_net-queues", "vmxnet3", "e1000e"];

/// The queues of a card for each processor: one, and one more for what XDP sends.
const QUEUES_PER_PROCESSOR: u8 = 2;

/// Both ends of each node's wire.
pub fn ends() -> impl Iterator<Item = (u8, u8)> {
    (1..=NODES).flat_map(|node| (0..ENDS).map(move |end| (node, end)))
}

/// Returns the name of a card, for QEMU and for this machine's bridge.
pub fn card(node: u8, end: u8) -> String {
    format!("card{node}{end}")
}

impl Nic {
    /// Fails if a kernel does not have the driver.
    pub fn require_driver(&self, kernel: &str, unpacked: &Unpacked) -> Result<()> {
        match self.modules.last() {
            Some(driver) if !unpacked.has_module(driver) => {
                bail!("kernel {kernel} has no driver {}: its package has no module {driver}", self.name)
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of receive queues of a card, and of the machine's processors.
    pub const fn processors(&self) -> u8 {
        match self.wire {
            Wire::Hub => 1,
            Wire::Bridge { processors } => processors,
        }
    }

    /// Returns QEMU's arguments for the cards of all nodes.
    ///
    /// The test bed finds a card by its address: the node's number, then the end. The card needs no
    /// firmware (`romfile`), since no machine boots from it.
    pub fn arguments(&self) -> Vec<String> {
        let arguments = ends().flat_map(|(node, end)| {
            let card = card(node, end);
            let (backend, queues) = match self.wire {
                Wire::Hub => (format!("hubport,id={card},hubid={node}"), String::new()),
                Wire::Bridge { processors } => {
                    let queues = processors * QUEUES_PER_PROCESSOR;
                    // An interrupt for each direction of a queue, and two for the card.
                    let vectors = 2 * queues + 2;
                    (
                        format!("tap,id={card},ifname={card},script=no,downscript=no,queues={queues}"),
                        format!(",mq=on,vectors={vectors}"),
                    )
                }
            };
            let device = self.device;
            [
                "-netdev".to_owned(),
                backend,
                "-device".to_owned(),
                format!("{device},netdev={card},mac=52:54:00:d0:0{node}:0{end},romfile={queues}"),
            ]
        });
        arguments.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_can_be_named() {
        assert_eq!(NICS.map(|nic| nic.name), NAMES);
    }

    #[test]
    fn each_node_has_a_wire_with_two_cards() {
        let arguments = NICS[0].arguments().join(" ");
        assert_eq!(arguments.matches("-device virtio-net-pci,").count(), 6);
        assert!(arguments.contains("-netdev hubport,id=card20,hubid=2 "), "{arguments}");
        assert!(arguments.contains("netdev=card31,mac=52:54:00:d0:03:01"), "{arguments}");
        let arguments = NICS[1].arguments().join(" ");
        assert!(arguments.contains("-netdev tap,id=card20,ifname=card20,"), "{arguments}");
        assert!(arguments.contains("queues=4 "), "{arguments}");
    }
}

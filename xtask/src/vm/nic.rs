//! The network cards of machines, and their wires.

use anyhow::{Result, bail};

use super::kernel::{Build, Unpacked};

/// The nodes of the test bed. Each has a wire with a card at both ends.
const NODES: u8 = 3;
const ENDS: u8 = 2;

/// A kind of network card that QEMU emulates.
#[derive(Debug, PartialEq, Eq)]
pub struct Nic {
    /// The name of its driver, which `--nic` takes.
    pub name: &'static str,
    /// QEMU's name of the card.
    device: &'static str,
    /// The driver, after the modules that it needs.
    pub modules: &'static [&'static str],
    /// The kernels that have the driver.
    pub build: Build,
}

/// All cards. [`NAMES`] has their names.
pub const NICS: [Nic; 3] = [
    Nic {
        name: "virtio_net",
        device: "virtio-net-pci",
        modules: &[
            "drivers/virtio/virtio",
            "drivers/virtio/virtio_ring",
            "drivers/virtio/virtio_pci_legacy_dev",
            "drivers/virtio/virtio_pci_modern_dev",
            "drivers/virtio/virtio_pci",
            "net/core/failover",
            "drivers/net/net_failover",
            "drivers/net/virtio_net",
        ],
        build: Build::Cloud,
    },
    Nic {
        name: "vmxnet3",
        device: "vmxnet3",
        modules: &["drivers/net/vmxnet3/vmxnet3"],
        build: Build::Cloud,
    },
    Nic {
        name: "e1000e",
        device: "e1000e",
        modules: &["drivers/net/ethernet/intel/e1000e/e1000e"],
        build: Build::Generic,
    },
];
/// The values of `--nic`.
pub const NAMES: [&str; 3] = ["virtio_net", "vmxnet3", "e1000e"];

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

    /// Returns QEMU's arguments for the cards of all nodes. A hub joins both ends of a wire.
    ///
    /// The test bed finds a card by its address: the node's number, then the end. The card needs no
    /// firmware (`romfile`), since no machine boots from it.
    pub fn arguments(&self) -> Vec<String> {
        let cards = (1..=NODES).flat_map(|node| (0..ENDS).map(move |end| (node, end)));
        let arguments = cards.flat_map(|(node, end)| {
            [
                "-netdev".to_owned(),
                format!("hubport,id=card{node}{end},hubid={node}"),
                "-device".to_owned(),
                format!("{},netdev=card{node}{end},mac=52:54:00:d0:0{node}:0{end},romfile=", self.device),
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
    }
}

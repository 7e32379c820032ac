//! The pod firewall's object on the bench: loaded without pins, filled by the test, and run on single frames.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData, MapError, PerCpuArray, PerCpuValues};
use aya::programs::{ProgramFd, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader, Pod};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use proxy_common::policy::{
    NOT_ISOLATED, POLICY_CONFIG_WORDS, POLICY_COUNTERS_ENTRIES, POLICY_EVENTS_ENTRIES, POLICY_FLAGS,
    POLICY_GENERATION, PolicyDirection, PolicyDrop, PolicyEvent, PolicyFlow, PolicyFlowKey,
    PolicyFragmentKey, PolicyPod, PolicyRule, RULE_ANY_PORT, RULE_ANY_PROTOCOL, RULE_EXACT, allowed_counter,
    guarded_place,
};
use proxy_common::verdict::Counter;
use proxy_common::{Addr4, Addr6};

use super::context::TestContext;
use super::counters::sum;
use super::maps::FamilyMaps;
use super::run::{Hook, Ingress};
use crate::frame::{Frame, show_if_verbose};

/// Beds that no test uses. Verifying the programs takes longer than a test.
static POOL: Mutex<Vec<Ebpf>> = Mutex::new(Vec::new());

/// Entries of the maps of connections and fragments.
const FLOWS: u32 = 1 << 12;

/// The firewall's programs with maps of their own, without pins and attachments.
pub struct PolicyBed {
    /// It goes back to the pool.
    ebpf: Option<Ebpf>,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It passed by what was known.
    Passed,
    /// A judgement allowed it.
    Allowed,
    /// It was dropped.
    Dropped(PolicyDrop),
}

impl PolicyBed {
    /// Returns a bed without pods and rules.
    ///
    /// # Panics
    /// If the object is missing, or the kernel refuses a program.
    #[must_use]
    pub fn new() -> Self {
        let ebpf = pool().pop().unwrap_or_else(load);
        Self { ebpf: Some(ebpf) }
    }

    /// Sets the number of the tables.
    pub fn set_generation(&mut self, generation: u32) {
        self.configure(POLICY_GENERATION, generation);
    }

    /// Sets the flags: `POLICY_OPEN_UNKNOWN` or nothing.
    pub fn set_flags(&mut self, flags: u32) {
        self.configure(POLICY_FLAGS, flags);
    }

    /// Gives a device a pod.
    pub fn set_pod(&mut self, device: u32, pod: PolicyPod) {
        let (word, bit) = guarded_place(device);
        let is_isolated = pod.ingress != NOT_ISOLATED || pod.egress != NOT_ISOLATED;
        let map = self.ebpf_mut().map_mut("POLICY_GUARDED").expect("hints");
        let mut map: Array<&mut MapData, u64> = map.try_into().expect("hints");
        map.set(word, if is_isolated { bit } else { 0 }, 0).expect("hints");
        self.hash::<u32, PolicyPod>("POLICY_PODS").insert(device, pod, 0).expect("POLICY_PODS");
    }

    /// Gives a prefix of peers a value: a class, and perhaps `PEER_OWN_NODE`.
    pub fn set_peer(&mut self, address: IpAddr, bits: u32, value: u32) {
        match address {
            IpAddr::V4(address) => self.insert_prefix("POLICY_PEERS4", bits, Addr4::from(address).0, value),
            IpAddr::V6(address) => self.insert_prefix("POLICY_PEERS6", bits, Addr6::from(address).0, value),
        }
    }

    /// Allows a class to a profile: any protocol, any port of one, or one port.
    pub fn allow(&mut self, profile: u32, class: u32, protocol: Option<u8>, port: Option<u16>) {
        let bits = match (protocol, port) {
            (None, _) => RULE_ANY_PROTOCOL,
            (Some(_), None) => RULE_ANY_PORT,
            (Some(_), Some(_)) => RULE_EXACT,
        };
        let rule = rule(profile, class, protocol.unwrap_or(0), port.unwrap_or(0));
        self.insert_prefix("POLICY_RULES", bits, rule, 1);
    }

    /// Removes all rules.
    pub fn forget_rules(&mut self) {
        self.clear_prefixes::<PolicyRule>("POLICY_RULES");
    }

    /// Runs a program on a frame that passes the pod's device.
    ///
    /// # Panics
    /// If the frame was changed, or not counted once.
    #[track_caller]
    pub fn send(&mut self, direction: PolicyDirection, device: u32, frame: &Frame) -> Passage {
        self.send_bytes(direction, device, &frame.build())
    }

    /// Does the same with a frame that came in by another device, or was made on the node (0).
    ///
    /// # Panics
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn send_from(
        &mut self,
        from: u32,
        direction: PolicyDirection,
        device: u32,
        frame: &Frame,
    ) -> Passage {
        self.send_bytes_from(from, direction, device, &frame.build())
    }

    /// Does the same with bytes.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn send_bytes(&mut self, direction: PolicyDirection, device: u32, frame: &[u8]) -> Passage {
        let from = if direction == PolicyDirection::Ingress { ELSEWHERE } else { device };
        self.send_bytes_from(from, direction, device, frame)
    }

    #[track_caller]
    fn send_bytes_from(
        &mut self,
        from: u32,
        direction: PolicyDirection,
        device: u32,
        frame: &[u8],
    ) -> Passage {
        let before = self.counters();
        let (action, left) = self.run(from, direction, device, frame);
        show_if_verbose(&format!("{} returns {action}", program(direction)), frame);
        assert_eq!(left, frame, "the firewall changed a frame");
        let passage = self.passage(direction, &before);
        let expected = if matches!(passage, Passage::Dropped(_)) { TC_ACT_SHOT } else { TC_ACT_UNSPEC };
        assert_eq!(action, expected, "{passage:?}");
        passage
    }

    /// Runs a program on a frame, and returns its action and the frame behind.
    #[track_caller]
    fn run(&mut self, from: u32, direction: PolicyDirection, device: u32, frame: &[u8]) -> (i32, Vec<u8>) {
        let mut output = vec![0; frame.len() + 256];
        let mut context =
            TestContext::new(Hook::TcIngress, Ingress { device, ..Ingress::default() }, frame.len());
        context.came_in_by(from);
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut output),
            ctx_in: Some(context.bytes()),
            ..TestRunOptions::default()
        };
        let name = program(direction);
        let program = self.ebpf().program(name).expect(name);
        let program = <&SchedClassifier>::try_from(program).expect(name);
        let result = program.test_run(options).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        output.truncate(result.data_size_out as usize);
        (result.return_value.cast_signed(), output)
    }

    /// Sends a frame to a pod through a device of the thread's network namespace, with only so many linear bytes.
    ///
    /// A test run makes linear frames only. The kernel makes such a one of more than a page alone.
    ///
    /// # Panics
    /// If the program can't be attached, or the frame not sent.
    #[track_caller]
    pub fn send_paged(&mut self, device: &str, frame: &[u8], linear: usize) -> Passage {
        let direction = PolicyDirection::Ingress;
        let before = self.counters();
        let program = self.ebpf_mut().program_mut(program(direction)).expect("a program");
        let program = <&mut SchedClassifier>::try_from(program).expect("a classifier");
        let link = program.attach(device, TcAttachType::Egress).expect(device);
        let socket = paged_socket();
        // struct virtio_net_hdr: the third field is the length of the headers.
        let mut bytes = vec![0; VIRTIO_HEADER];
        let length = u16::try_from(linear).expect("a length").to_ne_bytes();
        bytes[2..4].copy_from_slice(&length);
        bytes.extend(frame);
        let index = nix::net::if_::if_nametoindex(device).expect(device);
        send_by(&socket, index, &bytes);
        program.detach(link).expect(device);
        self.passage(direction, &before)
    }

    /// Returns a program.
    ///
    /// # Panics
    /// If it is not loaded.
    #[must_use]
    pub fn program_fd(&self, direction: PolicyDirection) -> ProgramFd {
        let name = program(direction);
        let program = self.ebpf().program(name).expect(name);
        program.fd().and_then(|fd| Ok(fd.try_clone()?)).expect(name)
    }

    /// Returns the number of dropped packets.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let counters = self.counters();
        let drops = PolicyDirection::ALL.into_iter().flat_map(|direction| {
            PolicyDrop::ALL.into_iter().map(move |reason| reason.counter(direction) as usize)
        });
        drops.map(|index| counters[index].packets).sum()
    }

    /// Returns what became of a packet, by the counters before it.
    #[track_caller]
    fn passage(&self, direction: PolicyDirection, before: &[Counter]) -> Passage {
        let after = self.counters();
        let counted: Vec<u32> = (0..POLICY_COUNTERS_ENTRIES)
            .filter(|index| after[*index as usize] != before[*index as usize])
            .collect();
        match counted.as_slice() {
            [] => Passage::Passed,
            [index] if *index == allowed_counter(direction) => Passage::Allowed,
            [index] => {
                let reason = PolicyDrop::ALL.into_iter().find(|drop| drop.counter(direction) == *index);
                Passage::Dropped(reason.expect("a counter of a reason"))
            }
            _ => panic!("the counters {counted:?} changed"),
        }
    }

    /// Returns the entries of all connections.
    #[must_use]
    pub fn flows<A: FamilyMaps>(&self) -> Vec<(PolicyFlowKey<A>, PolicyFlow)> {
        let name = A::map("POLICY_FLOWS");
        let map: HashMap<&MapData, PolicyFlowKey<A>, PolicyFlow> =
            self.ebpf().map(&name).expect("flows").try_into().expect("flows");
        map.iter().collect::<Result<_, _>>().expect("flows")
    }

    /// Writes the entry of a connection.
    pub fn put_flow<A: FamilyMaps>(&mut self, key: PolicyFlowKey<A>, flow: PolicyFlow) {
        self.hash(&A::map("POLICY_FLOWS")).insert(key, flow, 0).expect("flows");
    }

    /// Makes everything that the programs remember older.
    pub fn age(&mut self, seconds: u32) {
        self.age_family::<Addr4>(seconds);
        self.age_family::<Addr6>(seconds);
    }

    fn age_family<A: FamilyMaps>(&mut self, seconds: u32) {
        for (key, flow) in self.flows::<A>() {
            self.put_flow(key, PolicyFlow { seen: flow.seen.wrapping_sub(seconds), ..flow });
        }
        let mut map = self.hash::<PolicyFragmentKey<A>, u32>(&A::map("POLICY_FRAGMENTS"));
        for (key, second) in map.iter().collect::<Result<Vec<_>, _>>().expect("fragments") {
            map.insert(key, second.wrapping_sub(seconds), 0).expect("fragments");
        }
    }

    /// Returns the recorded events of all CPUs, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<PolicyEvent> {
        let map: PerCpuArray<&MapData, PolicyEvent> =
            self.ebpf().map("POLICY_EVENTS").expect("events").try_into().expect("events");
        let mut events: Vec<PolicyEvent> = (0..POLICY_EVENTS_ENTRIES)
            .flat_map(|index| map.get(&index, 0).expect("events").to_vec())
            .filter(|event| event.sequence != 0)
            .collect();
        events.sort_by_key(|event| event.at);
        events
    }

    fn counters(&self) -> Vec<Counter> {
        let map: PerCpuArray<&MapData, Counter> =
            self.ebpf().map("POLICY_COUNTERS").expect("counters").try_into().expect("counters");
        (0..POLICY_COUNTERS_ENTRIES).map(|index| sum(map.get(&index, 0).expect("counters").iter())).collect()
    }

    fn configure(&mut self, word: u32, value: u32) {
        let map = self.ebpf_mut().map_mut("POLICY_CONFIG").expect("config");
        let mut map: Array<&mut MapData, u32> = map.try_into().expect("config");
        map.set(word, value, 0).expect("config");
    }

    fn insert_prefix<K: Pod>(&mut self, name: &str, bits: u32, key: K, value: u32) {
        let mut trie: LpmTrie<&mut MapData, K, u32> =
            self.ebpf_mut().map_mut(name).expect(name).try_into().expect(name);
        trie.insert(&Key::new(bits, key), value, 0).expect(name);
    }

    fn clear_prefixes<K: Pod>(&mut self, name: &str) {
        let mut trie: LpmTrie<&mut MapData, K, u32> =
            self.ebpf_mut().map_mut(name).expect(name).try_into().expect(name);
        for key in trie.keys().collect::<Result<Vec<Key<K>>, _>>().expect(name) {
            trie.remove(&key).expect(name);
        }
    }

    fn clear_hash<K: Pod, V: Pod>(&mut self, name: &str) {
        let mut map = self.hash::<K, V>(name);
        for key in map.keys().collect::<Result<Vec<K>, _>>().expect(name) {
            match map.remove(&key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => panic!("{name}: {error:?}"),
            }
        }
    }

    fn clear_family<A: FamilyMaps>(&mut self) {
        self.clear_hash::<PolicyFlowKey<A>, PolicyFlow>(&A::map("POLICY_FLOWS"));
        self.clear_hash::<PolicyFragmentKey<A>, u32>(&A::map("POLICY_FRAGMENTS"));
    }

    fn clear(&mut self) {
        (0..POLICY_CONFIG_WORDS).for_each(|word| self.configure(word, 0));
        self.clear_hash::<u32, PolicyPod>("POLICY_PODS");
        self.forget_rules();
        self.clear_prefixes::<[u32; 1]>("POLICY_PEERS4");
        self.clear_prefixes::<[u32; 4]>("POLICY_PEERS6");
        self.clear_family::<Addr4>();
        self.clear_family::<Addr6>();
        let cpus = aya::util::nr_cpus().expect("the number of CPUs");
        let map = self.ebpf_mut().map_mut("POLICY_EVENTS").expect("events");
        let mut map: PerCpuArray<&mut MapData, PolicyEvent> = map.try_into().expect("events");
        for index in 0..POLICY_EVENTS_ENTRIES {
            let none =
                PerCpuValues::try_from(vec![PolicyEvent::default(); cpus]).expect("a value for each CPU");
            map.set(index, none, 0).expect("events");
        }
    }

    fn hash<K: Pod, V: Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        self.ebpf_mut().map_mut(name).expect(name).try_into().expect(name)
    }

    fn ebpf(&self) -> &Ebpf {
        self.ebpf.as_ref().expect("a bed in use")
    }

    fn ebpf_mut(&mut self) -> &mut Ebpf {
        self.ebpf.as_mut().expect("a bed in use")
    }
}

impl Default for PolicyBed {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PolicyBed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.clear();
        pool().extend(self.ebpf.take());
    }
}

/// A device that is not the pod's.
const ELSEWHERE: u32 = 1 << 20;
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_SHOT: i32 = 2;
/// Size of the kernel's `struct virtio_net_hdr`.
const VIRTIO_HEADER: usize = 10;

/// Returns a packet socket that takes the length of the linear part in front of each frame.
fn paged_socket() -> OwnedFd {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None::<SockProtocol>)
        .expect("a packet socket");
    let (on, size) = (1_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the option lives until the call returns, and `size` is its size.
    let result = unsafe {
        let option = (&raw const on).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, option, size)
    };
    Errno::result(result).expect("PACKET_VNET_HDR");
    socket
}

/// Sends bytes by a device. The kernel may say that they were dropped.
fn send_by(socket: &OwnedFd, device: u32, bytes: &[u8]) {
    // SAFETY: an all-zero sockaddr_ll is valid: integers and an array only.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = u16::from_be_bytes([bytes[VIRTIO_HEADER + 12], bytes[VIRTIO_HEADER + 13]]).to_be();
    address.sll_ifindex = device.cast_signed();
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the bytes and the address live until the call returns, with these sizes.
    let result = unsafe {
        let to = (&raw const address).cast();
        libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, to, size)
    };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ENOBUFS) => {}
        Err(error) => panic!("{} bytes: {error}", bytes.len()),
    }
}

const fn program(direction: PolicyDirection) -> &'static str {
    match direction {
        PolicyDirection::Ingress => "policy_to_pod",
        PolicyDirection::Egress => "policy_from_pod",
    }
}

/// Returns the key of a rule.
const fn rule(profile: u32, class: u32, protocol: u8, port: u16) -> PolicyRule {
    PolicyRule { profile: profile.to_be(), class: class.to_be(), protocol, reserved: 0, port: port.to_be() }
}

/// Returns the path of the object: `MILLRACE_POLICY_BPF_OBJECT`, else the output of `cargo xtask build`.
fn policy_object_path() -> PathBuf {
    std::env::var_os("MILLRACE_POLICY_BPF_OBJECT").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bpf/millrace-policy-bpf")),
        PathBuf::from,
    )
}

fn pool() -> MutexGuard<'static, Vec<Ebpf>> {
    POOL.lock().expect("a pool that is only pushed to and popped from")
}

fn load() -> Ebpf {
    let path = policy_object_path();
    let object = std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask build` makes it", path.display()));
    let mut loader = EbpfLoader::new();
    for map in ["POLICY_FLOWS4", "POLICY_FLOWS6", "POLICY_FRAGMENTS4", "POLICY_FRAGMENTS6"] {
        loader.map_max_entries(map, FLOWS);
    }
    let mut ebpf = loader.load(&object).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()));
    for direction in PolicyDirection::ALL {
        let name = program(direction);
        let program = ebpf.program_mut(name).expect(name);
        let program = <&mut SchedClassifier>::try_from(program).expect(name);
        program.load().unwrap_or_else(|error| panic!("{name} does not load: {error:?}"));
    }
    ebpf
}

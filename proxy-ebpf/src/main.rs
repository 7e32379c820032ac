//! Entry points.
#![no_std]
#![no_main]
mod maps;
use aya_ebpf::bindings::{TC_ACT_OK, xdp_action};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use proxy_common::Addr4;
use proxy_common::Addr6;
use proxy_common::frontend::FrontendKey;

/// From an uplink, before the stack.
#[xdp(frags)]
pub fn xdp_ingress(ctx: XdpContext) -> u32 {
    let key = FrontendKey { address: Addr4([ctx.rx_queue_index()]), port: 80, protocol: 6, scope: 0 };
    let _ = unsafe {
        maps::FRONTENDS6.get(&FrontendKey {
            address: Addr6([ctx.rx_queue_index(); 4]),
            port: 80,
            protocol: 6,
            scope: 0,
        })
    }
    .is_some();
    let _ = maps::SERVICES.get(0).is_some()
        && maps::SELECTION.get(0).is_some()
        && maps::BACKENDS4.get(0).is_some()
        && maps::BACKENDS6.get(0).is_some();
    if unsafe { maps::FRONTENDS4.get(&key) }.is_some() { xdp_action::XDP_DROP } else { xdp_action::XDP_PASS }
}
/// From an uplink, where XDP can't or did not.
#[classifier]
pub fn tc_ingress(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}
/// Every packet that leaves the node.
#[classifier]
pub fn tc_egress(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
#[unsafe(no_mangle)]
static TIMEOUT_SYN: aya_ebpf::Global<u32> = aya_ebpf::Global::new(60);

//! The start of the data plane: what an earlier agent left is taken over.

use std::ops::RangeInclusive;

use proxy_common::config::AGENT_NAMESPACE;
use tracing::warn;

use super::attach::Attachments;
use super::bpffs;
use super::capability;
use super::collect::Collector;
use super::error::OpenError;
use super::fill::Fill;
use super::held_pins::HeldPins;
use super::layout::Layout;
use super::load::Programs;
use super::mapped::Access;
use super::maps::Maps;
use super::migrate::{self, Former};
use super::mount::Mounted;
use super::plan::Plan;
use super::reply_ports;
use super::resize::Resize;
use super::settings::{Settings, SocketLb};
use super::share::Share;
use super::snat_usage::PortUsage;
use super::sockets::SocketHooks;
use super::sys;
use super::terminate_sockets::SocketTerminator;
use super::{EbpfDataplane, READ_BACK_INTERVAL, mode_change, now};

impl EbpfDataplane {
    /// Loads the programs and maps, or takes over those of an earlier agent.
    ///
    /// Only one agent at a time may use a BPF file system directory.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        capability::check()?;
        let layout = Layout::new(&settings.bpffs_path);
        let mounted = Mounted::at(layout.bpffs())?;
        let lock = bpffs::prepare(&layout)?;
        let former = Former::adopt(&layout)?;
        let others = migrate::foreign(&layout)?;
        let unfinished = Resize::unfinished(&layout)?;
        let replies = reply_ports::of(&settings.snat_ports, &layout)?;
        let programs = Programs::open(&settings, &layout, &replies)?;
        let attachments = Attachments::open(&layout, &programs, &others)?;
        let sockets = SocketHooks::new(layout.links(), settings.sockets.clone());
        let mut served = Served { programs, attachments, sockets };
        served.attachments.need(&mut served.programs, &settings, &layout)?;
        let mut maps = Maps::open(&layout.maps(), Access::Write)?;
        maps.mark_found()?;
        // If the kernel can't tell, no socket counts as the node's own.
        let namespace = sys::network_namespace_cookie().unwrap_or(0);
        if !maps.agent.store(AGENT_NAMESPACE, namespace) {
            warn!("map AGENT has no room for AGENT_NAMESPACE; no socket counts as the node's own");
        }
        if let Some(former) = former {
            former.restore_agent(&maps.agent);
            served.renew()?;
            served.programs.remove_former()?;
            former.remove()?;
        }
        let setup = Setup { settings: &settings, layout: &layout, replies };
        let mut is_resized = false;
        if let Some(resize) = unfinished {
            served.resize(resize, &setup)?;
            is_resized = true;
        }
        // While two modes share the node, the maps of the other one stay as they are.
        if settings.share == Share::Alone
            && let Some(resize) = Resize::begin(&layout, &settings.sizes)?
        {
            served.resize(resize, &setup)?;
            is_resized = true;
        }
        if is_resized {
            maps = Maps::open(&layout.maps(), Access::Write)?;
        }
        reply_ports::record(&maps.agent, &settings.snat_ports);
        let has_socket_lb = settings.sockets.lb != SocketLb::Off;
        let socket_terminator = has_socket_lb.then(|| SocketTerminator::start(&layout)).transpose()?;
        let shared_since = (settings.share == Share::Alone).then(|| mode_change::record(&maps, Share::Alone));
        let plan = Plan::adopt(maps.capacities(), maps.found()?, now()).with_dispatch(settings.dsr.dispatch);
        let read_back_at = now() + READ_BACK_INTERVAL;
        let collector = Collector::new().within(settings.snat_ports.clone());
        mounted.keep();
        let Served { programs, attachments, sockets } = served;
        Ok(Self {
            settings,
            programs,
            attachments,
            sockets,
            socket_terminator,
            unattached: Vec::new(),
            others,
            topology: None,
            maps,
            plan,
            collector,
            expired_flows: 0,
            flows: Vec::new(),
            connections: None,
            shared_since,
            snat: PortUsage::default(),
            fill: Fill::default(),
            read_back_at,
            pins: HeldPins::default(),
            lock,
        })
    }
}

/// The programs and what runs them.
struct Served {
    programs: Programs,
    attachments: Attachments,
    sockets: SocketHooks,
}

impl Served {
    /// Gives the programs to all links.
    fn renew(&mut self) -> Result<(), OpenError> {
        self.attachments.renew(&self.programs)?;
        // The next sync repeats and reports failures.
        self.sockets.sync(&self.programs);
        Ok(())
    }

    /// Replaces maps, with the programs that use them.
    fn resize(&mut self, mut resize: Resize, setup: &Setup<'_>) -> Result<(), OpenError> {
        let Setup { settings, layout, replies } = setup;
        let is_first = !resize.is_continued();
        if is_first && resize.has_flows() {
            // A program of another build may not know that connections must stay out of FLOWS.
            self.attachments.renew(&self.programs)?;
        }
        self.programs = Programs::open(settings, layout, replies)?;
        self.attachments.need(&mut self.programs, settings, layout)?;
        resize.copy()?;
        self.renew()?;
        resize.finish(is_first)?;
        self.programs.remove_former()
    }
}

/// What programs are loaded with.
struct Setup<'a> {
    settings: &'a Settings,
    layout: &'a Layout,
    replies: RangeInclusive<u16>,
}

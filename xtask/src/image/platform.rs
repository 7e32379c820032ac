//! The architectures and the variants that images are built for.

/// An architecture of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// x86_64.
    Amd64,
    /// aarch64.
    Arm64,
}

impl Arch {
    /// All architectures.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// Returns the name that images and Debian have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the name that compilers have for it.
    pub fn cpu(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Returns the Rust target of the program in the image.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.cpu())
    }

    /// Returns Debian's folder for its shared libraries.
    pub fn library_folder(self) -> String {
        format!("{}-linux-gnu", self.cpu())
    }
}

/// What an image has beside the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing: the program is all that eBPF mode takes.
    Ebpf,
    /// The program nft, which IPVS mode runs.
    Ipvs,
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::Ebpf, Self::Ipvs];

    /// Returns the end of the image's tag.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Ebpf => "",
            Self::Ipvs => "-ipvs",
        }
    }
}

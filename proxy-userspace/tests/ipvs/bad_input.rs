//! What is missing is named in one line, and nothing is made.

use anyhow::Result;

use crate::fixture::{FLAGS, shared};

#[test]
fn a_second_agent_in_the_same_namespace_is_refused() -> Result<()> {
    let cluster = shared();
    let refused = cluster.proxy(1)?.refused_agent(&FLAGS)?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    let line =
        "millrace: --proxy-mode ipvs: another agent serves this network namespace by IPVS; one at a time can";
    assert_eq!(text.lines().last(), Some(line), "{text}");
    assert!(!refused.status.success());
    Ok(())
}

#[test]
fn without_the_program_nft_nothing_is_made() -> Result<()> {
    let cluster = shared();
    // Node 2 has no agent.
    let proxy = cluster.proxy(2)?;
    let bin = millrace_lab::agent::binary()?.display().to_string();
    let manifests = format!("directory:{}", cluster.manifests().path().display());
    let bpffs = proxy.bpffs().display().to_string();
    let output = proxy.namespace().run(async move || {
        let mut command = tokio::process::Command::new(&bin);
        command.args([
            "agent",
            "--proxy-mode",
            "ipvs",
            "--hostname-override",
            "node2",
            "--source",
            &manifests,
        ]);
        command.args(["--bpffs-path", &bpffs]);
        command.env("PATH", "/nowhere");
        Ok(command.output().await?)
    })?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = "millrace: --proxy-mode ipvs: the program nft is missing: install nftables";
    assert_eq!(text.lines().last(), Some(line), "{text}");
    let links = proxy.namespace().run(async || Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
    assert!(!links.contains("kube-ipvs0"), "{links}");
    let services =
        proxy.namespace().run(async || Ok(std::fs::read_to_string("/proc/thread-self/net/ip_vs")?))?;
    assert_eq!(services.lines().count(), 3, "{services}");
    Ok(())
}

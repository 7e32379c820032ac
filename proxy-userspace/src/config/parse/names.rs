//! Names of objects, devices and files.

use std::path::{Path, PathBuf};

use super::Refused;
use crate::config::Source;
use crate::node::DevicePattern;

/// Reads the source. The flag alone names no kubeconfig.
pub fn source(text: &str) -> Result<Source, Refused> {
    match text.split_once(':') {
        None if text == "kubernetes" => Ok(Source::Kubernetes { kubeconfig: None }),
        Some(("directory", path)) if !path.is_empty() => Ok(Source::Directory(PathBuf::from(path))),
        _ => Err(Refused::new(text, "kubernetes or directory:PATH")),
    }
}

/// Returns the name in the form of kube-proxy and the kubelet, which trim it and write it in lower case.
pub fn node_name(text: &str) -> Result<String, Refused> {
    let name = text.trim().to_lowercase();
    if name.is_empty() || name.contains(|c: char| c == '/' || c.is_whitespace()) {
        return Err(Refused::new(&name, "the name of this node's Node object"));
    }
    Ok(name)
}

pub fn service_proxy_name(text: &str) -> Result<String, Refused> {
    let is_usable = (1..=63).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if is_usable {
        Ok(text.to_owned())
    } else {
        Err(Refused::new(text, "a label value of 1 to 63 characters"))
    }
}

/// Reads a load balancer's class, which has the form of a label's name.
pub fn class(text: &str) -> Result<String, Refused> {
    let is_part =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if text.split('/').count() <= 2 && text.split('/').all(is_part) {
        Ok(text.to_owned())
    } else {
        Err(Refused::new(text, "a class such as millrace.dev/node-ip"))
    }
}

pub fn namespace(text: &str) -> Result<String, Refused> {
    let is_usable = (1..=63).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if is_usable { Ok(text.to_owned()) } else { Err(Refused::new(text, "the name of a namespace")) }
}

pub fn device(text: &str) -> Result<String, Refused> {
    let is_usable =
        (1..=15).contains(&text.len()) && !text.contains(|c: char| c == '/' || c == '*' || c.is_whitespace());
    if is_usable {
        Ok(text.to_owned())
    } else {
        Err(Refused::new(text, "names of devices, separated by commas"))
    }
}

pub fn device_pattern(text: &str) -> Result<DevicePattern, Refused> {
    let takes = "names of devices, separated by commas, in which * stands for any text";
    DevicePattern::new(text).ok_or_else(|| Refused::new(text, takes))
}

pub fn absolute_path(text: &str) -> Result<PathBuf, Refused> {
    let path = Path::new(text);
    if path.is_absolute() { Ok(path.to_owned()) } else { Err(Refused::new(text, "an absolute path")) }
}

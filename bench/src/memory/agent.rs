//! The agent: memory that grows with Services, and with their endpoints.

use anyhow::Result;

use crate::control::memory::in_child;
use crate::control::objects::Scale;
use crate::report::{Figure, Group, MILLRACE, Unit};

/// Runs the agent at three sizes: few Services, many Services, many Services of many endpoints.
pub fn measure(services: [u32; 2], endpoints: [u32; 2], runs: usize) -> Result<Group> {
    let [mut bases, mut of_service, mut of_endpoint, mut wholes] = [const { Vec::new() }; 4];
    for run in 1..=runs {
        eprintln!("agent, run {run} of {runs} ...");
        let small = held(services[0], endpoints[0])?;
        let many = held(services[1], endpoints[0])?;
        let large = held(services[1], endpoints[1])?;
        let added = f64::from(services[1]) * f64::from(endpoints[1] - endpoints[0]);
        let endpoint = (large - many) / added;
        let service = (many - small) / f64::from(services[1] - services[0]);
        bases.push(service.mul_add(-f64::from(services[0]), small));
        of_endpoint.push(endpoint);
        of_service.push(endpoint.mul_add(-f64::from(endpoints[0]), service));
        wholes.push(large);
    }
    let mut group = Group::new("the agent", Unit::Bytes);
    let whole = format!("{} Services of {} endpoints", services[1], endpoints[1]);
    for (name, samples) in [
        ("base", bases),
        ("each Service", of_service),
        ("each endpoint", of_endpoint),
        (whole.as_str(), wholes),
    ] {
        group.add(Figure::new(name, MILLRACE, &samples)?);
    }
    Ok(group)
}

#[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
fn held(services: u32, endpoints: u32) -> Result<f64> {
    Ok(in_child(Scale { services, endpoints, dual_stack: false })?.held() as f64)
}

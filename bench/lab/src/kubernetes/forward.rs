//! A way from this machine's loopback address to the API server in its namespace.
//!
//! The listening socket was made in the machine's own network, and is handed on as standard input.
//! Connections to the API server are made in the namespace. No device leads into it.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use anyhow::{Context, Result};

use super::plan::API_PORT;

/// The usual port on this machine.
const PORT: u16 = 16443;

/// Listens at the usual port of the loopback address, or at a free one.
pub(super) fn listen() -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
        .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .context("can't listen at 127.0.0.1")
}

/// Forwards connections that come in at standard input, on threads.
pub(super) fn start() -> Result<()> {
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    thread::Builder::new().name("forward".to_owned()).spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = serve(client);
            });
        }
    })?;
    Ok(())
}

fn serve(client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, API_PORT))?;
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    let upward = thread::spawn(move || copy(from, to));
    copy(server, client);
    let _ = upward.join();
    Ok(())
}

/// Copies until the end, and hands the end on.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

"""Asks `address:port` over TCP and UDP, as any client would; prints both backends and the datagram's peer."""

import json
import socket
import sys
import urllib.request

target = sys.argv[1]
host, port = target.rsplit(":", 1)
with urllib.request.urlopen(f"http://{target}/", timeout=20) as page:
    by_stream = json.load(page)["backend"]

kind, address = next(
    (family, address)
    for family, _, _, _, address in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
)
with socket.socket(kind, socket.SOCK_DGRAM) as datagrams:
    datagrams.settimeout(20)
    datagrams.connect(address)
    datagrams.send(b"who is there?")
    line, _, echo = datagrams.recv(65536).partition(b"\n")
    assert echo == b"who is there?", echo
    peer, peer_port = datagrams.getpeername()[:2]
by_datagram = json.loads(line)["backend"]
peer = f"[{peer}]" if ":" in peer else peer
print(by_stream, by_datagram, f"{peer}:{peer_port}")

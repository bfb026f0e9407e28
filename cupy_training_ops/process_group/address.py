# SPDX-License-Identifier: MIT
"""The address that ranks meet at, and who may meet there without a secret."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from ..errors import ArgumentError, GroupError, shown


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def to_address(value: object) -> Address:
    """Of "host:port", or of a pair."""
    if isinstance(value, tuple) and len(value) == 2:
        host, port = value
    elif isinstance(value, str):
        host, _, text = value.rpartition(":")
        port = int(text) if text.isdecimal() else 0
    else:
        host, port = "", 0
    if not (isinstance(host, str) and host and isinstance(port, int) and 0 < port < 2**16):
        raise ArgumentError(
            f"ProcessGroup: address: expected 'host:port' with a port from 1 to 65535, "
            f"got {shown(value)}"
        )
    return Address(host.removeprefix("[").removesuffix("]"), port)


def check_secret(address: Address, secret: bytes) -> None:
    """Without a secret ranks meet on this machine alone."""
    if not secret and not is_loopback(address):
        raise GroupError(
            f"ProcessGroup: address: {address.host} is no loopback address: set CTO_SECRET to "
            f"the same text for every rank, so that nobody else can join"
        )


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach it."""
    return all(ipaddress.ip_address(found[4][0]).is_loopback for found in resolved(address))


def resolved(address: Address) -> list[tuple]:  # type: ignore[type-arg]
    """What the name stands for."""
    try:
        return socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        raise GroupError(f"ProcessGroup: address: cannot find {address.host}: {error}") from None


def listener(address: Address) -> socket.socket:
    """A socket that listens there and nowhere else."""
    family, _, _, _, name = resolved(address)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(name)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise GroupError(
            f"ProcessGroup: address: rank 0 cannot listen on {address}: {error.strerror}"
        ) from None
    return sock

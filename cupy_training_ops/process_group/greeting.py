# SPDX-License-Identifier: MIT
"""How two ends of a connection meet: version numbers, a challenge each way, a verdict.

    rank 0   ->  magic, version, nonce
    other    ->  magic, version, rank, size, nonce, proof
    rank 0   ->  verdict, proof

A proof is the HMAC-SHA-256, under the job's secret, of who speaks and all that was said, so that a
stranger can neither join nor pass for rank 0, and nothing said before can be said again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
from typing import NamedTuple

from .wire import MAGIC, VERSION, WireError, read_exactly

NONCE = 32
MAX_VERDICT = 1000  # bytes

_OPENING = struct.Struct(f"<{len(MAGIC)}sH")
_IDENTITY = struct.Struct("<II")
_VERDICT = struct.Struct("<H")


class RefusedError(Exception):
    """Rank 0 does not take this rank; to try again would not help."""


class Joining(NamedTuple):
    """Who proved to know the secret."""

    rank: int
    size: int
    proof: bytes  # that rank 0 knows it too


def opened(sock: socket.socket, secret: bytes, deadline: float) -> Joining:
    """Rank 0's part up to the verdict: who is there. WireError for a stranger."""
    mine = secrets.token_bytes(NONCE)
    sock.sendall(_OPENING.pack(MAGIC, VERSION) + mine)
    _check_opening(read_exactly(sock, _OPENING.size, deadline))
    identity = bytes(read_exactly(sock, _IDENTITY.size, deadline))
    theirs = bytes(read_exactly(sock, NONCE, deadline))
    proof = bytes(read_exactly(sock, hashlib.sha256().digest_size, deadline))
    if not hmac.compare_digest(proof, _proof(secret, b"rank", mine, theirs, identity)):
        close_with(sock, "the secrets (CTO_SECRET) differ")
        raise WireError("its secret (CTO_SECRET) differs")
    rank, size = _IDENTITY.unpack(identity)
    return Joining(rank, size, _proof(secret, b"root", mine, theirs, identity))


def accept(sock: socket.socket, joining: Joining) -> None:
    """The verdict for who may join."""
    sock.sendall(_VERDICT.pack(0) + joining.proof)


def close_with(sock: socket.socket, words: str) -> None:
    """The verdict for who may not."""
    text = words.encode()[:MAX_VERDICT]
    sock.sendall(_VERDICT.pack(len(text)) + text)


def join(sock: socket.socket, rank: int, size: int, secret: bytes, deadline: float) -> None:
    """The other rank's part: WireError where there is no rank 0, RefusedError where it says no."""
    _check_opening(read_exactly(sock, _OPENING.size, deadline))
    theirs = bytes(read_exactly(sock, NONCE, deadline))
    mine, identity = secrets.token_bytes(NONCE), _IDENTITY.pack(rank, size)
    proof = _proof(secret, b"rank", theirs, mine, identity)
    sock.sendall(_OPENING.pack(MAGIC, VERSION) + identity + mine + proof)
    (length,) = _VERDICT.unpack(read_exactly(sock, _VERDICT.size, deadline))
    if length > MAX_VERDICT:
        raise WireError("it sent no verdict")
    if length:
        raise RefusedError(str(read_exactly(sock, length, deadline), "utf-8", "replace"))
    answer = bytes(read_exactly(sock, hashlib.sha256().digest_size, deadline))
    if not hmac.compare_digest(answer, _proof(secret, b"root", theirs, mine, identity)):
        raise RefusedError("it does not know the secret (CTO_SECRET)")


def _check_opening(found: memoryview) -> None:
    magic, version = _OPENING.unpack(found)
    if magic != MAGIC:
        raise WireError("it sent no greeting of a process group")
    if version != VERSION:
        raise WireError(f"it speaks version {version}, not {VERSION}")


def _proof(secret: bytes, role: bytes, root: bytes, rank: bytes, identity: bytes) -> bytes:
    said = b"".join((role, MAGIC, VERSION.to_bytes(2, "little"), root, rank, identity))
    return hmac.digest(secret, said, "sha256")

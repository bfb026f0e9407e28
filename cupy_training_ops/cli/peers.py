# SPDX-License-Identifier: MIT
"""Other libraries' compression beside codecs: `roundtrip --against zstd,blosc2,zfp`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import click
import numpy as np

from ..codecs.fidelity import Measurement
from ..dtypes import FLOAT32, FLOAT64, HostArray, dtype_name
from .errors import Failure
from .trial import Refusal, Subject, Trial

Packs = Callable[[ModuleType, HostArray], bytes]  # (library, array)
Unpacks = Callable[[ModuleType, bytes, HostArray], HostArray]  # the last: has shape and dtype


@dataclass(frozen=True)
class Peer:
    """Another library's compression, on the CPU, in one thread."""

    name: str  # in the option and the report
    module: str  # to import
    package: str  # to install
    packs: Packs
    unpacks: Unpacks
    lossless: bool
    dtypes: tuple[np.dtype[Any], ...] | None = None  # of arrays that it takes; None for any
    bits: float = 0.0  # per value of an empty array

    def library(self) -> ModuleType:
        """Import the library; raise Failure if it is not installed."""
        try:
            return importlib.import_module(self.module)
        except ImportError:
            how = f"install it with: pip install {self.package}"
            raise Failure(f"--against {self.name}: {self.module} is not here; {how}") from None

    def run(self, subject: Subject) -> Trial | Refusal:
        """Compress the subject's array and decompress it, each timed once, and compare."""
        array: HostArray = np.ascontiguousarray(subject.array)
        if self.dtypes is not None and array.dtype not in self.dtypes:
            takes = ", ".join(map(dtype_name, self.dtypes))
            return Refusal(self, f"takes {takes}, not {dtype_name(array.dtype)}")
        if not array.size:
            return Refusal(self, "takes no empty arrays")
        library = self.library()
        start = time.perf_counter()
        packed = self.packs(library, array)
        between = time.perf_counter()
        back = self.unpacks(library, packed, array)
        end = time.perf_counter()
        measurement = Measurement("sparse")  # every bit is kept
        measurement.add(array, back)
        fidelity = measurement.fidelity()
        note = "values that came back are others" if self.lossless and fidelity.violations else None
        if not self.lossless:
            fidelity = replace(fidelity, violations=0, first_violation=None)
        ratio = array.nbytes / len(packed)
        return Trial(self, len(packed), ratio, between - start, end - between, fidelity, note)


def _bytes_of(array: HostArray) -> HostArray:
    """Return a flat uint8 view."""
    return array.reshape(-1).view(np.uint8)


def _zstd(library: ModuleType, array: HostArray) -> bytes:
    packed: bytes = library.ZstdCompressor(level=3).compress(_bytes_of(array))
    return packed


def _from_zstd(library: ModuleType, packed: bytes, like: HostArray) -> HostArray:
    content = library.ZstdDecompressor().decompress(packed)
    return np.frombuffer(content, np.uint8).view(like.dtype).reshape(like.shape)


def _blosc2(library: ModuleType, array: HostArray) -> bytes:
    codec = library.Codec.ZSTD
    packed: bytes = library.compress2(
        _bytes_of(array), typesize=array.itemsize, codec=codec, nthreads=1
    )
    return packed


def _from_blosc2(library: ModuleType, packed: bytes, like: HostArray) -> HostArray:
    back = np.empty(like.nbytes, np.uint8)
    library.decompress2(packed, dst=back, nthreads=1)
    return back.view(like.dtype).reshape(like.shape)


def _zfp(library: ModuleType, array: HostArray) -> bytes:
    """Compress to 8 bits a value; zfp takes 1 to 4 dimensions, so further ones are joined."""
    in_four = array.reshape(-1, *array.shape[-3:]) if array.ndim > 4 else np.atleast_1d(array)
    packed: bytes = library.compress_numpy(in_four, rate=8)
    return packed


def _from_zfp(library: ModuleType, packed: bytes, like: HostArray) -> HostArray:
    return np.asarray(library.decompress_numpy(packed)).reshape(like.shape)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("zstd", "zstandard", "zstandard", _zstd, _from_zstd, lossless=True),
        Peer("blosc2", "blosc2", "blosc2", _blosc2, _from_blosc2, lossless=True),
        Peer("zfp", "zfpy", "zfpy", _zfp, _from_zfp, lossless=False, dtypes=(FLOAT32, FLOAT64)),
    )
}


def _chosen(_: click.Context, __: click.Parameter, text: str | None) -> tuple[Peer, ...]:
    """Convert the option "zstd,zfp" to peers; refuse unknown names and missing libraries."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise click.BadParameter(f"expected names among {', '.join(PEERS)}, got {name!r}")
        PEERS[name].library()
    return tuple(PEERS[name] for name in dict.fromkeys(names))


against_option = click.option(
    "--against",
    metavar="NAMES",
    callback=_chosen,
    help="Other libraries beside them, as zstd,blosc2,zfp: zstd at level 3, blosc2 by zstd, zfp "
    "with 8 bits a value; on one core, never recommended.",
)

# SPDX-License-Identifier: MIT
"""How data movement divides its arrays: words, chunks and tiles of algorithm/copy_runs.cuh."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..declare.schema import Spec
from ..facts import COPY_CHUNKS as CHUNKS
from ..facts import COPY_THREADS as THREADS
from ..plan import VEC_NBYTES, Config, ceil_div

LONG_RUN_NBYTES = 64  # from here on chunks of 16 bytes are written; shorter runs go word by word
SHIFTED_CHUNKS = 4  # that a thread writes where each is put together from two loads
WORD_TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "uint4"}


@dataclass(frozen=True)
class Words:
    """How a launch divides its arrays: words of `nbytes`, `chunk` of them for each store."""

    nbytes: int
    chunk: int

    @property
    def slots(self) -> dict[str, str]:
        """The kernel's slots."""
        chunks = CHUNKS if self.chunk == 1 else SHIFTED_CHUNKS
        words = {"T": WORD_TYPES[self.nbytes], "WORDS": str(self.chunk)}
        return words | {"CHUNKS": str(chunks)}

    def count(self, nbytes: int) -> int:
        """Words in `nbytes` bytes."""
        return nbytes // self.nbytes

    def tiles(self, nbytes: int) -> int:
        """Blocks that write `nbytes` bytes, wherever in a chunk they start."""
        per_block = int(self.slots["CHUNKS"]) * THREADS * self.chunk
        return ceil_div(self.count(nbytes) + self.chunk - 1, per_block)

    def rows(self, n: int, width: int) -> tuple[Config, int]:
        """Grid and block for n rows of whole chunks, and how many blocks share a row.

        A thread writes the same chunk of several rows.
        """
        chunks = width // self.chunk
        lanes = min(THREADS, 1 << (chunks - 1).bit_length())
        rows_at_a_time, column_blocks = THREADS // lanes, ceil_div(chunks, lanes)
        groups = ceil_div(n, int(self.slots["CHUNKS"]) * rows_at_a_time)
        return Config((groups * column_blocks,), (lanes, rows_at_a_time)), column_blocks


def words_of(specs: Iterable[Spec], lengths: Iterable[int], run_nbytes: int) -> Words:
    """The widest words that divide all addresses and lengths (in elements) of a launch."""
    present = [spec for spec in specs if spec.size]
    itemsize = present[0].dtype.itemsize
    aligned = all(spec.aligned for spec in present)
    nbytes = math.gcd(VEC_NBYTES, *(n * itemsize for n in lengths)) if aligned else itemsize
    return Words(nbytes, VEC_NBYTES // nbytes if run_nbytes >= LONG_RUN_NBYTES else 1)

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
SHIFTED_CHUNKS = 4  # chunks a thread writes, if each is composed of two loads
WORD_TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "uint4"}  # C type by bytes


@dataclass(frozen=True)
class Words:
    """How a launch divides its arrays: words of `nbytes` bytes, a chunk of them for each store."""

    nbytes: int  # of a word
    chunk: int  # words of a chunk: 16 bytes, or one word for short runs

    @property
    def slots(self) -> dict[str, str]:
        """The kernel's macros: T, a word's type; WORDS of a chunk; CHUNKS that a thread writes."""
        chunks = CHUNKS if self.chunk == 1 else SHIFTED_CHUNKS
        words = {"T": WORD_TYPES[self.nbytes], "WORDS": str(self.chunk)}
        return words | {"CHUNKS": str(chunks)}

    def count(self, nbytes: int) -> int:
        """Return the words in `nbytes` bytes."""
        return nbytes // self.nbytes

    def tiles(self, nbytes: int) -> int:
        """Return how many blocks write `nbytes` bytes, wherever in a chunk they start."""
        per_block = int(self.slots["CHUNKS"]) * THREADS * self.chunk
        return ceil_div(self.count(nbytes) + self.chunk - 1, per_block)

    def rows(self, n: int, width: int) -> tuple[Config, int]:
        """Return (grid and block for n rows of `width` words, how many blocks share a row).

        A row is whole chunks. A thread writes the same chunk of CHUNKS rows; threads along x have
        the chunks of a row, those along y other rows.
        """
        chunks = width // self.chunk
        lanes = min(THREADS, 1 << (chunks - 1).bit_length())  # a power of two, at least `chunks`
        rows_at_a_time, column_blocks = THREADS // lanes, ceil_div(chunks, lanes)
        groups = ceil_div(n, int(self.slots["CHUNKS"]) * rows_at_a_time)
        return Config((groups * column_blocks,), (lanes, rows_at_a_time)), column_blocks


def words_of(specs: Iterable[Spec], lengths: Iterable[int], run_nbytes: int) -> Words:
    """Return the widest words that divide all addresses and lengths of a launch.

    specs: its arrays, of one dtype. lengths: in elements, of runs. run_nbytes: of a typical run,
    by which chunks are 16 bytes or one word.
    """
    present = [spec for spec in specs if spec.size]
    itemsize = present[0].dtype.itemsize
    aligned = all(spec.aligned for spec in present)
    nbytes = math.gcd(VEC_NBYTES, *(n * itemsize for n in lengths)) if aligned else itemsize
    return Words(nbytes, VEC_NBYTES // nbytes if run_nbytes >= LONG_RUN_NBYTES else 1)

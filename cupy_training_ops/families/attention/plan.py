# SPDX-License-Identifier: MIT
"""Plans of attention: tiles that fit into shared memory, and the launches over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...declare.schema import Spec
from ...facts import WARP
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    Plan,
    ScratchMemory,
    align_up,
    by_value,
    ceil_div,
    slots,
)
from ...rules.widening import computed_in
from .facts import BAND, NO_MASK, Problem

FEWER_REGISTERS = (12, 0)  # where the compiler spills with two bands of wide heads
TENSOR_CORES = (8, 0)  # the first GPUs whose instructions multiply such fragments
WIDTHS = 32  # heads have a multiple of these in shared memory


@dataclass(frozen=True)
class Tiles:
    """A block: it has rows of its own (queries, or keys of a gradient), and goes over the others.

    A warp has `bands` bands of BAND own rows; a tile has `length` of the others.
    """

    warps: int  # of a block
    stages: int  # pairs of tiles (K and V, or Q and dY) in shared memory
    forward: tuple[int, int]  # bands, length
    gradient: tuple[int, int]

    def nbytes(self, row_nbytes: int, is_gradient: bool) -> int:
        """Return a block's shared memory in bytes: its own rows, and tiles that it goes over.

        row_nbytes: of a row of one array. is_gradient: of keys' and queries' gradients.
        """
        bands, length = self.gradient if is_gradient else self.forward
        own = (2 if is_gradient else 1) * self.warps * bands * BAND  # of two arrays, or of Q
        numbers = 2 * self.stages * length * 8 if is_gradient else 0  # LSE and slopes of rows
        return (own + 2 * self.stages * length) * row_nbytes + numbers


# The first that fits is used: where tensor cores multiply, by the widest head; and else.
BY_FRAGMENTS = {
    64: (Tiles(4, 2, (2, 64), (1, 32)), Tiles(2, 1, (1, 64), (1, 32))),
    128: (
        Tiles(4, 2, (2, 32), (1, 32)),
        Tiles(4, 2, (1, 64), (1, 32)),
        Tiles(2, 1, (1, 32), (1, 32)),
    ),
}
BY_ELEMENTS = (Tiles(4, 1, (1, 32), (1, 16)), Tiles(2, 1, (1, 16), (1, 8)))


class Kernels:
    """The kernels for one problem on one device."""

    def __init__(
        self,
        device: Device,
        fields: Mapping[str, Any],
        batch: int,
        rows: Iterable[Spec | None],
        with_scores: bool = False,
    ) -> None:
        """Choose tiles, and the macros (slots) that kernels are compiled with.

        fields: of the struct Problem. batch: its extent. rows: the arrays with a row for each query
        or key, which are copied by vectors if they are aligned. with_scores: the scores' gradient
        is written too.
        """
        arrays = [spec for spec in rows if spec is not None]
        dtype = arrays[0].dtype
        self._fields, self._batch = fields, batch
        self._problem = by_value(Problem, **fields)
        widths = (fields["width"], fields["v_width"])
        head = align_up(max(widths), WIDTHS)
        is_aligned = all(n * dtype.itemsize % VEC_NBYTES == 0 for n in widths)
        self._row_nbytes = head * dtype.itemsize + VEC_NBYTES
        by_fragments = dtype.itemsize == 2 and device.capability >= TENSOR_CORES
        self._tiles = _fitting(device, head, self._row_nbytes, by_fragments)
        self.computed_in = computed_in(dtype)
        is_bent = fields["softcap"] or fields["scale"] <= 0
        is_plain = fields["mask"] == NO_MASK and not (is_bent or with_scores)
        self._slots = slots(
            T=dtype,
            ACC=self.computed_in,
            HEAD=head,
            ALIGNED=is_aligned and all(spec.aligned for spec in arrays),
            FRAGMENTS=by_fragments,
            PLAIN=is_plain,
            WARPS=self._tiles.warps,
            STAGES=self._tiles.stages,
            FORWARD_BANDS=self._tiles.forward[0],
            FORWARD_LENGTH=self._tiles.forward[1],
            GRADIENT_BANDS=self._tiles.gradient[0],
            GRADIENT_LENGTH=self._tiles.gradient[1],
        )

    def _launch(self, symbol: str, n_rows: int, heads: int, *args: object) -> Launch:
        """Return a launch of `symbol` whose blocks have all n_rows rows of each of `heads` heads.

        Rows are queries or keys. args: the kernel's arguments before the struct Problem.
        """
        is_gradient = symbol != "attention__forward"
        bands = (self._tiles.gradient if is_gradient else self._tiles.forward)[0]
        n_blocks = ceil_div(n_rows, self._tiles.warps * bands * BAND) * heads * self._batch
        nbytes = self._tiles.nbytes(self._row_nbytes, is_gradient)
        config = Config((n_blocks,), (self._tiles.warps * WARP,), nbytes)
        return Launch(symbol, config, (*args, self._problem), self._slots)

    def forward(self, q: Spec, k: Spec, v: Spec, *others: Spec | None) -> Plan:
        """Plan Y and LSE; others: mask, lengths, Y, LSE, each None if there is none."""
        rows = self._fields["queries"], self._fields["heads"]
        return Plan((self._launch("attention__forward", *rows, q, k, v, *others),))

    def gradient(
        self,
        arrays: tuple[Spec, ...],
        results: tuple[Spec, Spec],
        masks: tuple[Spec | None, ...],
        gradients: Sequence[Spec | None],
    ) -> Plan:
        """Plan the gradients (dQ, dK, dV, dS), of which None is not computed.

        arrays: dY, Q, K, V. results: Y and LSE. masks: mask and lengths. First the queries' launch,
        which also writes slopes, sum of dY Y for each query, for the keys' launch.
        """
        dq, dk, dv, ds = gradients
        y, lse = results
        queries, heads = self._fields["queries"], self._fields["heads"]
        keys, kv_heads = self._fields["keys"], self._fields["kv_heads"]
        memory = ScratchMemory()
        slopes = memory.take(max(1, self._batch * heads * queries), self.computed_in)
        launches = []
        if self._batch * heads * queries:
            args = (*arrays, y, lse, *masks, dq, ds, slopes)
            launches += [self._launch("attention__gradient_of_queries", queries, heads, *args)]
        if self._batch * keys and (dk is not None or dv is not None):
            args = (*arrays, lse, slopes, *masks, dk, dv)
            launches += [self._launch("attention__gradient_of_keys", keys, kv_heads, *args)]
        return memory.plan(*launches)


def _fitting(device: Device, head: int, row_nbytes: int, by_fragments: bool) -> Tiles:
    """Return the first tiles that fit into shared memory, else the last, which fit everywhere.

    head: elements of a head, padded. row_nbytes: of a row of it in shared memory. by_fragments:
    tensor cores multiply, which have tiles of their own.
    """
    choices: Sequence[Tiles] = BY_ELEMENTS
    if by_fragments:
        choices = BY_FRAGMENTS[64 if head <= 64 else 128]
        if head > 64 and device.capability >= FEWER_REGISTERS:
            choices = choices[1:]
    for tiles in choices[:-1]:
        if max(tiles.nbytes(row_nbytes, of) for of in (False, True)) <= device.max_shared_nbytes:
            return tiles
    return choices[-1]

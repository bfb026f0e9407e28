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
    """Warps of a block, bands of a warp, rows of a tile that a block goes over, and its stages."""

    warps: int
    stages: int
    forward: tuple[int, int]  # bands, length
    gradient: tuple[int, int]

    def nbytes(self, row_nbytes: int, is_gradient: bool) -> int:
        """The shared memory of a block: its own rows, and the tiles that it goes over."""
        bands, length = self.gradient if is_gradient else self.forward
        own = (2 if is_gradient else 1) * self.warps * bands * BAND
        numbers = 2 * self.stages * length * 8 if is_gradient else 0
        return (own + 2 * self.stages * length) * row_nbytes + numbers


# By whether tensor cores multiply, the first that fits.
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
        """Choose tiles and slots.

        fields: of the struct Problem. rows: all arrays, which have to be aligned for copies of
        vectors. with_scores: the scores, or their gradient, are written too.
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
        """A launch with a block for each part of n_rows rows of each head."""
        is_gradient = symbol != "attention__forward"
        bands = (self._tiles.gradient if is_gradient else self._tiles.forward)[0]
        n_blocks = ceil_div(n_rows, self._tiles.warps * bands * BAND) * heads * self._batch
        nbytes = self._tiles.nbytes(self._row_nbytes, is_gradient)
        config = Config((n_blocks,), (self._tiles.warps * WARP,), nbytes)
        return Launch(symbol, config, (*args, self._problem), self._slots)

    def forward(self, q: Spec, k: Spec, v: Spec, *others: Spec | None) -> Plan:
        """Y and LSE."""
        rows = self._fields["queries"], self._fields["heads"]
        return Plan((self._launch("attention__forward", *rows, q, k, v, *others),))

    def gradient(
        self,
        arrays: tuple[Spec, ...],
        results: tuple[Spec, Spec],
        masks: tuple[Spec | None, ...],
        gradients: Sequence[Spec | None],
    ) -> Plan:
        """Gradients of Q, of K and V, and of scores; None is not computed."""
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
    """The first tiles that fit into shared memory, else the last ones, which fit everywhere."""
    choices: Sequence[Tiles] = BY_ELEMENTS
    if by_fragments:
        choices = BY_FRAGMENTS[64 if head <= 64 else 128]
        if head > 64 and device.capability >= FEWER_REGISTERS:
            choices = choices[1:]
    for tiles in choices[:-1]:
        if max(tiles.nbytes(row_nbytes, of) for of in (False, True)) <= device.max_shared_nbytes:
            return tiles
    return choices[-1]

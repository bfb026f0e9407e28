# SPDX-License-Identifier: MIT
"""The launch that puts channels side by side where they are not; see cuda_src/conv/staging.cuh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...declare.schema import Spec
from ...plan import VEC_NBYTES, Config, Launch, Scratch, ScratchMemory, align_up, by_value, ceil_div
from .extents import Convolution
from .facts import PANEL, THREADS, JoinedGroups, StagedArray, StagedRow, StagingLayout
from .plan_launches import launch, taps
from .plan_variants import Variant, is_single


@dataclass(frozen=True)
class Wanted:
    """What is computed of X, Y and W, all of them of one type: an image, from Y or X, and the
    gradients of W and of a bias."""

    x: Spec | None
    y: Spec | None
    w: Spec | None = None
    image: Spec | None = None
    bias: Spec | None = None  # that is added to the image
    is_gradient: bool = False
    dw: Spec | None = None
    db: Spec | None = None

    @property
    def sums(self) -> bool:
        """Whether there is a sum over positions."""
        return self.dw is not None or self.db is not None


class Staging:
    """What is staged, and where."""

    def __init__(
        self,
        conv: Convolution,
        variant: Variant,
        scratch: ScratchMemory,
        wanted: Wanted,
        of: Convolution,
    ) -> None:
        self.of, self.n_joined = of, of.group // conv.group
        self.conv, self.dtype, self.is_gradient = conv, variant.dtype, wanted.is_gradient
        self.by_warpgroups = variant.warpgroups
        self.width = VEC_NBYTES // self.dtype.itemsize
        reads_x = wanted.dw is not None or (wanted.image is not None and not wanted.is_gradient)
        reads_y = wanted.sums or (wanted.image is not None and wanted.is_gradient)
        self.given = {
            "x": wanted.x if reads_x else None,
            "y": wanted.y if reads_y else None,
            "w": wanted.w if wanted.image is not None else None,
        }
        self.lines = {
            "x": (conv.batch, conv.channels, math.prod(conv.image)),
            "y": (conv.batch, conv.filters, math.prod(conv.output)),
            "w": self._lines_of_w(),
        }
        self.at = {name: self._place(scratch, name) for name in self.given}
        self.positions = conv.batch * math.prod(conv.output)
        has_rows = wanted.sums and not is_single(conv)  # whose positions read what they are
        self.n_rows = align_up(self.positions, PANEL) if has_rows else 0
        self.rows = scratch.take(self.n_rows, StagedRow.of().dtype) if has_rows else None

    def _lines_of_w(self) -> tuple[int, int, int]:
        """W as (channel, taps, filter) or (filter, taps, channel), each of a group; where W has its
        channels last, the former is (taps, channel, filter)."""
        conv, of_kernel = self.conv, math.prod(self.conv.kernel)
        if self.n_joined > 1:
            rows, depth = conv.filters, conv.group_channels
            if self.is_gradient:
                rows, depth = conv.channels, conv.group_filters
            return of_kernel, rows, depth
        if self.is_gradient:
            return conv.group, conv.group_filters, conv.group_channels * of_kernel
        return conv.filters, conv.group_channels, of_kernel

    def _place(self, scratch: ScratchMemory, name: str) -> Scratch | Spec | None:
        """Where tiles read it: the array itself where it lies as they do."""
        spec, (n, channels, plane) = self.given[name], self.lines[name]
        if spec is None or (self._is_last(name) and spec.aligned and channels % self.width == 0):
            return spec
        if name == "w" and self.w_as_it_lies:
            return spec
        return scratch.take(n * align_up(channels, self.width) * plane, self.dtype)

    @property
    def w_as_it_lies(self) -> bool:
        """Whether X's gradient reads W, whose channels lie side by side and whose filters are
        summed, without its being staged."""
        w, conv = self.given["w"], self.conv
        lies = w is not None and w.aligned and is_single(conv)
        fits = conv.group_channels % self.width == 0 and conv.group_filters % PANEL == 0
        can = self.by_warpgroups and self.is_gradient and self.n_joined == 1
        return can and lies and fits

    def _is_last(self, name: str) -> bool:
        """Whether channels lie side by side; those of W that are summed."""
        spec, (_, _, plane) = self.given[name], self.lines[name]
        if spec is None or (name == "w" and (self.is_gradient or self.n_joined > 1)):
            return False
        return spec.channels_last or plane == 1

    def launches(self, slots: Mapping[str, str]) -> list[Launch]:
        """Of all that is staged, if there is something."""
        fields = {name: self._array(name) for name in self.given}
        blocks = sum(int(field["blocks"]) for field in fields.values())
        if not blocks and not self.n_rows:
            return []
        layout = by_value(
            StagingLayout,
            **fields,
            groups=self._groups(),
            image=self.conv.image,
            output=self.conv.output,
            **taps(self.conv),
            n_rows=self.n_rows,
            positions=self.positions,
            vectors=align_up(self.conv.channels, self.width) // self.width,
        )
        args = [
            a
            for name, field in fields.items()
            for a in ((self.given[name], self.at[name]) if field["blocks"] else (None, None))
        ]
        config = Config((blocks + ceil_div(self.n_rows, THREADS),), (THREADS,))
        return [launch("stage", config, (*args, self.rows, layout), dict(slots))]

    def _groups(self) -> np.void:
        of, w = self.of, self.given["w"]
        return by_value(
            JoinedGroups,
            joined=self.n_joined if self.n_joined > 1 else 0,
            filters=of.group_filters,
            channels=of.group_channels,
            taps=math.prod(of.kernel),
            is_gradient=self.is_gradient,
            channels_last=w is not None and w.channels_last,
        )

    def _array(self, name: str) -> np.void:
        n, channels, plane = self.lines[name]
        spec, padded = self.given[name], align_up(channels, self.width)
        plane_tiles = ceil_div(plane, PANEL)
        blocks = n * plane_tiles * ceil_div(padded, PANEL)
        if name == "w" and self.n_joined > 1:
            blocks = ceil_div(n * channels * plane // self.width, THREADS)
        is_staged = isinstance(self.at[name], Scratch)
        return by_value(
            StagedArray,
            channels=channels,
            padded=padded,
            plane=plane,
            width=-1
            if self._is_last(name)
            else _loaded_together(channels, plane, self.width, spec),
            plane_tiles=plane_tiles,
            blocks=blocks if is_staged else 0,
        )


def _loaded_together(channels: int, plane: int, width: int, spec: Spec | None) -> int:
    """Neighbours that are loaded together; 0 of whole planes, of which a tile has several."""
    found = neighbours(plane, width, spec)
    are_as_one = found == 1 and plane <= PANEL and channels % width == 0
    return 0 if are_as_one and spec is not None and spec.aligned else found


def neighbours(plane: int, width: int, spec: Spec | None) -> int:
    """Positions that are loaded or stored together."""
    if spec is None or not spec.aligned:
        return 1
    return next((n for n in (width, width // 2) if plane % n == 0), 1)

# SPDX-License-Identifier: MIT
"""Plans for kernels that are compiled for their windows, of which a thread makes a tile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...declare.schema import Spec
from ...plan import VEC_NBYTES, Config, Launch, Plan, by_value, ceil_div, slots
from ...planning.fast_division import divisor
from .facts import SMALL, THREADS, Planes
from .windows import WindowAxis, Windows

MAX_TAPS = 32  # elements of a window, or between two, each of which is code
TILE_ROWS = 4  # at most
LONG_TILE_ROWS = 8  # of one column, where windows are small
MAX_OFFSET = 2**31 - 1  # of bytes of a plane, and of threads, which kernels count in 32 bits


@dataclass(frozen=True)
class Axis(WindowAxis):
    """Rows or columns of planes, of which a thread has `tile` windows.

    In a gradient it makes the tile * stride elements of dX from where these windows begin.
    """

    is_gradient: bool
    tile: int = 1

    @property
    def footprint(self) -> int:
        """Return the elements of X from one tile to the next."""
        return self.tile * self.stride

    @property
    def windows(self) -> int:
        """Return the number of windows to divide; for a gradient steps of `stride` over dX."""
        return ceil_div(self.image, self.stride) if self.is_gradient else self.output

    @property
    def tiles(self) -> int:
        """Return the number of tiles."""
        return ceil_div(self.windows, self.tile)

    @property
    def span(self) -> int:
        """Return the larger of a window's elements and the step to the next window."""
        return max(self.kernel, self.stride)

    @property
    def reach(self) -> int:
        """Return where the last window ends, counted from the first element of X."""
        return (self.output - 1) * self.stride - self.pad + self.kernel

    @property
    def touches(self) -> bool:
        """Return True if each window has an element of X."""
        return self.pad < self.kernel and self.reach - self.kernel < self.image > 0

    @property
    def is_plain(self) -> bool:
        """Return True if each element is a window."""
        return self.kernel == self.stride == 1 and self.pad == 0 and self.output == self.image

    def is_full(self, include_pad: bool) -> bool:
        """Return True if all elements of each window count."""
        if include_pad:
            return self.reach <= self.pads_end
        return self.pad == 0 and self.reach <= self.image

    @property
    def is_inside(self) -> bool:
        """Return True if tiles read and write nothing outside of arrays, so need no checks."""
        if self.is_gradient:
            is_apart = self.pad == 0 and self.kernel <= self.stride
            is_whole = self.tiles * self.tile <= self.output and self.image % self.footprint == 0
            return is_apart and is_whole
        reached = (self.tiles * self.tile - 1) * self.stride + self.kernel
        return self.pad == 0 and reached <= self.image

    def has_x_vectors(self, x: Spec) -> bool:
        """Return True if a tile's part of each row of X or dX is whole vectors."""
        # Elements of a vector: the largest power of 2 that divides the footprint, 16 bytes at most.
        piece = min(self.footprint & -self.footprint, VEC_NBYTES // x.dtype.itemsize)
        end = self.tiles * self.footprint
        is_there = end == self.image if self.is_gradient else end <= self.image
        return x.aligned and piece > 1 and is_there and self.image % piece == 0

    def has_y_vectors(self, ys: tuple[Spec, ...]) -> bool:
        """Return True if a tile's part of each row of arrays of Y's shape is whole vectors."""
        is_there = self.tiles * self.tile <= self.output and self.output % self.tile == 0
        return is_there and all(y.aligned for y in ys)


_POINT = WindowAxis(image=1, output=1, kernel=1, stride=1, dilation=1, pad=0, end=0)


@dataclass(frozen=True)
class Tiling:
    """How rows and columns of planes are divided into tiles.

    x: X or dX. ys: arrays of the shape of Y.
    """

    rows: Axis
    columns: Axis
    x: Spec
    ys: tuple[Spec, ...]

    @classmethod
    def of(
        cls, windows: Windows, x: Spec, ys: tuple[Spec, ...], *, widest: int, is_gradient: bool
    ) -> Tiling | None:
        """Return tiles of `widest` columns at most; None for windows that get no own kernel.

        x: X or dX. ys: arrays of Y's shape. is_gradient: x is written, else read.
        """
        axes = _axes(windows, is_gradient)
        if axes is None:
            return None
        columns = _wide(axes[1], x, widest)
        is_long = columns.tile == 1 and axes[0].span * columns.span <= SMALL
        rows = _tall(axes[0], LONG_TILE_ROWS if is_long else TILE_ROWS)
        tiling = cls(rows, columns, x, ys)
        return tiling if tiling.is_small else None

    @property
    def n(self) -> int:
        """Return the number of tiles of all planes."""
        planes = self.x.size // (self.rows.image * self.columns.image)
        return planes * self.rows.tiles * self.columns.tiles

    @property
    def is_small(self) -> bool:
        """Return True if kernels can count tiles, and bytes of a plane, in 32 bits."""
        planes = self.x.size // (self.rows.image * self.columns.image)
        most = max(spec.nbytes for spec in (self.x, *self.ys))
        return self.n <= MAX_OFFSET and most <= planes * MAX_OFFSET

    def constants(self, include_pad: bool | None) -> dict[str, str]:
        """Return the kernel's macros; include_pad: None for operators that count no elements."""
        axes = {"ROWS": self.rows, "COLUMNS": self.columns}
        return slots(
            T=self.x.dtype,
            TILED=True,
            **{f"KERNEL_{name}": axis.kernel for name, axis in axes.items()},
            **{f"STRIDE_{name}": axis.stride for name, axis in axes.items()},
            **{f"PAD_{name}": axis.pad for name, axis in axes.items()},
            **{f"TILE_{name}": axis.tile for name, axis in axes.items()},
            **{f"INSIDE_{name}": axis.is_inside for name, axis in axes.items()},
            X_VECTORS=self.columns.has_x_vectors(self.x),
            Y_VECTORS=self.columns.has_y_vectors(self.ys),
            FULL=include_pad is not None and all(a.is_full(include_pad) for a in axes.values()),
        )

    def plan(
        self, symbol: str, arguments: tuple[object, ...], include_pad: bool | None = None
    ) -> Plan:
        """Plan a launch of `symbol`, whose parameters are `arguments`, tiles and Planes.

        include_pad: of an average, pads count as elements; None: the operator counts none.
        """
        axes = (self.rows, self.columns)
        planes = by_value(
            Planes,
            image=[axis.image for axis in axes],
            output=[axis.output for axis in axes],
            padded=[axis.pads_end for axis in axes],
            tiles=np.array([divisor(axis.tiles) for axis in axes]),
        )
        config = Config((ceil_div(self.n, THREADS),), (THREADS,))
        arguments = (*arguments, self.n, planes)
        return Plan((Launch(symbol, config, arguments, self.constants(include_pad)),))


def _axes(windows: Windows, is_gradient: bool) -> tuple[Axis, Axis] | None:
    """Return the last two axes as rows and columns, of kernels that can be compiled for them.

    is_gradient: tiles are of dX. Else None: with dilations, windows of too many elements, or
    windows along a third axis.
    """
    if any(axis.dilation > 1 < axis.kernel for axis in windows.axes):
        return None
    axes = [Axis(**vars(axis), is_gradient=is_gradient) for axis in (_POINT, *windows.axes)]
    *others, rows, columns = axes
    is_known = rows.span * columns.span <= MAX_TAPS and rows.touches and columns.touches
    return (rows, columns) if is_known and all(axis.is_plain for axis in others) else None


def _wide(columns: Axis, x: Spec, widest: int) -> Axis:
    """Return columns with the widest tile whose rows of X are whole vectors, `widest` at most.

    If there is none: a tile of 2 where neighbouring windows overlap at stride 1, else of 1.
    """
    tile = min(widest, VEC_NBYTES // x.dtype.itemsize // columns.stride)
    tile = 1 << max(tile, 1).bit_length() - 1
    while tile:
        wide = replace(columns, tile=tile)
        if wide.has_x_vectors(x):
            return wide
        tile //= 2
    return replace(
        columns, tile=2 if columns.stride < columns.kernel and columns.stride == 1 else 1
    )


def _tall(rows: Axis, most: int) -> Axis:
    """Return rows with even tiles, as few of them as `most` windows a tile allow."""
    return replace(rows, tile=ceil_div(rows.windows, ceil_div(rows.windows, most)))

# SPDX-License-Identifier: MIT
"""The gradient of bilinear resizing.

Each element of dX is one sum over what touched it, accumulated in float32 (float64 for float64) and
rounded once.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import Input, Output, Spec, attribute, boolean, integers, one_of, real, reals
from ...declare.type_rows import Types
from ...dtypes import FLOAT32, FLOAT64, FLOATS, Dtype, element_type
from ...errors import ArgumentError, refuse, shown
from ...facts import WARP
from ...plan import VEC_NBYTES, Config, Device, Launch, Plan, by_value, ceil_div
from ...planning.fast_division import divisor
from .facts import COLUMNS, EACH, MINE, THREADS, WARPS, Axis

BAND_ROWS = {2: 32, 4: 64, 8: 64}  # of a tile at most, by the size of an element
FEWEST_ROWS = 4  # of a tile, or of a thread where X was doubled
TILES = 16  # for each multiprocessor, before tiles have as many rows as they may
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
NO_MEANING = "without meaning for this mode"
MAX_ROWS = 64  # of dX that a thread makes where X was doubled
LANES = 2048  # of these threads for each multiprocessor, before they have more than FEWEST_ROWS
MAX_DOUBLED = 2**23  # outputs along an axis whose positions float32 holds
MAX_PIXELS = 2**30  # along an axis, so that row numbers stay within 32 bits

Scales = tuple[float, ...] | None


def no_axes(value: object) -> tuple[int, ...]:
    """Nothing: both spatial axes, which is what its absence says."""
    # The docstring is what the documents say of the attribute.
    if value is not None and integers(value):
        raise ArgumentError(f"expected no axes, got {shown(value)}")
    return ()


class ResizeGrad(Op):
    """Gradient of a linear Resize: dX[.., i, j] = sum over o, p of h(o, i) w(p, j) dY[.., o, p].

    h and w are the weights of the two spatial axes. Along an axis of n pixels of X and m of dY,
    output o lies at

        s = max(0, r (o + 1/2) - 1/2)   r = 1 / scale, or n / m without `scales`       half_pixel
        s = r o                         r = (n - 1) / (m - 1), or 0 where m is 1       align_corners

    and takes 1 - f of pixel floor(s) and f of the next one, f = s - floor(s); beyond the last pixel
    it takes all of the last. Positions are rounded to float32, for float64 to float64. sum(dX) is
    sum(dY) but for rounding.

    A row of dX adds its outputs one by one: in float32 a sum of thousands loses digits (6e-5 of the
    sum at 8,192). An infinity reaches the pixels that its output touches, no others.

    Source: ONNX Resize-18 with mode="linear", gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/resize_grad.cc.
    """

    inputs = (
        Input("dY", "T", shape="shape (N, C, Ho, Wo)"),
        Input("X", "T", shape="shape (N, C, Hi, Wi)", doc="only its shape counts"),
        Input("roi", "T", memory="host", optional=True, convert=reals, doc="not used"),
        Input(
            "scales",
            "float32",
            memory="host",
            optional=True,
            convert=reals,
            doc="four, of which the last two count; they have to fit the sizes",
        ),
    )
    outputs = (Output("dX", "T", shape="shape of X"),)
    mode = attribute(one_of("linear"), "linear")
    coordinate_transformation_mode = attribute(one_of("half_pixel", "align_corners"), "half_pixel")
    antialias = attribute(one_of(0), 0)
    axes = attribute(no_axes, ())
    keep_aspect_ratio_policy = attribute(one_of("stretch"), "stretch")
    cubic_coeff_a = attribute(real, -0.75, doc=NO_MEANING)
    exclude_outside = attribute(boolean, False, doc=NO_MEANING)
    extrapolation_value = attribute(real, 0.0, doc=NO_MEANING)
    nearest_mode = attribute(one_of(*NEAREST_MODES), NEAREST_MODES[0], doc=NO_MEANING)
    types: ClassVar[Types] = {"T": FLOATS}

    def infer(self, dy: Spec, x: Spec, roi: object, scales: Scales) -> tuple[Spec]:
        """Check shapes and scales; return the spec of dX, that of X; roi is not used."""
        for name, spec in (("dY", dy), ("X", x)):
            if len(spec.shape) != 4 or max(spec.shape[2:]) > MAX_PIXELS:
                expected = f"rank 4 and at most {MAX_PIXELS} pixels along an axis"
                refuse(self.name, name, expected, f"shape {spec.shape}")
        if dy.shape[:2] != x.shape[:2]:
            expected = f"shape ({x.shape[0]}, {x.shape[1]}, ..), like X"
            refuse(self.name, "dY", expected, f"shape {dy.shape}")
        self._check_scales(dy.shape, x.shape, scales)
        return (Spec(x.shape, x.dtype),)

    def _check_scales(
        self, outputs: tuple[int, ...], pixels: tuple[int, ...], scales: Scales
    ) -> None:
        """Refuse scales that do not take `pixels` (shape of X) to `outputs` (shape of dY)."""
        if scales is None:
            return
        if len(scales) != 4 or not all(scale > 0 for scale in scales):
            refuse(self.name, "scales", "four numbers above 0", f"{scales}")
        for axis in (2, 3):
            if not abs(pixels[axis] * scales[axis] - outputs[axis]) < 1:
                expected = f"scales that take {pixels[axis]} pixels to {outputs[axis]}"
                refuse(self.name, "scales", f"{expected} (axis {axis})", f"{scales[axis]}")

    def plan(
        self, device: Device, dy: Spec, x: Spec, roi: object, scales: Scales, dx: Spec
    ) -> Plan:
        """Plan one launch: of the kernel for X that was doubled, or of the general one by tiles.

        scales: of the four axes, or None. roi is not used.
        """
        compute = FLOAT64 if dx.dtype == FLOAT64 else FLOAT32
        axes = [
            self._axis(dx.shape[i], dy.shape[i], scales[i] if scales else None, compute.type)
            for i in (2, 3)
        ]
        if self._is_upsample2x(dy, dx, axes):
            return Plan((self._upsample2x_launch(device, dy, dx),))
        return Plan((self._tile_launch(device, dy, dx, *axes),))

    def _is_upsample2x(self, dy: Spec, dx: Spec, axes: list[np.void]) -> bool:
        """Return True if every pixel became two by two, in rows of whole 16-byte pieces."""
        return (
            self.coordinate_transformation_mode == "half_pixel"
            and all(axis["n_out"] == 2 * int(axis["n_in"]) for axis in axes)
            and all(float(axis["ratio"]) == 0.5 for axis in axes)
            and max(dy.shape[2:]) <= MAX_DOUBLED
            and dy.aligned
            and dx.aligned
            and dy.shape[3] * dy.dtype.itemsize % VEC_NBYTES == 0
        )

    def _upsample2x_launch(self, device: Device, dy: Spec, dx: Spec) -> Launch:
        """Plan a launch in which a thread (lane) makes `band` rows of dX.

        Their columns are those below a piece, 16 bytes of a row of dY. Threads have more rows once
        there are LANES of them for each multiprocessor.
        """
        n_planes, n_rows = math.prod(dx.shape[:2]), dx.shape[2]
        n_pieces = 2 * dx.shape[3] * dx.dtype.itemsize // VEC_NBYTES
        room = n_planes * n_pieces * n_rows // (LANES * device.multiprocessors)
        band = _even(n_rows, max(FEWEST_ROWS, min(room, MAX_ROWS)))
        n_bands = ceil_div(n_rows, band)
        n_lanes = n_planes * n_bands * n_pieces
        config = Config((ceil_div(n_lanes, THREADS),), (THREADS,))
        arguments = (dy, dx, n_lanes, n_rows, divisor(n_bands), band, divisor(n_pieces))
        return Launch("resize_grad__upsample2x", config, arguments, _slots(dx.dtype))

    def _tile_launch(
        self, device: Device, dy: Spec, dx: Spec, rows: np.void, columns: np.void
    ) -> Launch:
        """Plan a launch in which a warp makes a tile of dX: `band` rows of `strip` columns.

        rows, columns: the two axes, as structs Axis.
        """
        n_planes, (n_rows, n_columns) = math.prod(dx.shape[:2]), dx.shape[2:]
        strip = _even(n_columns, self._widest(dy.shape[3], float(columns["ratio"])))
        n_strips = ceil_div(n_columns, strip)
        room = n_planes * n_strips * n_rows // (TILES * device.multiprocessors)
        band = _even(n_rows, max(FEWEST_ROWS, min(room, BAND_ROWS[dx.dtype.itemsize])))
        n_bands = ceil_div(n_rows, band)
        config = Config((ceil_div(n_planes * n_bands * n_strips, WARPS),), (THREADS,))
        aligned = dy.aligned and dy.shape[3] % EACH == 0
        binding = _slots(dx.dtype) | {"ALIGNED": str(int(aligned))}
        parts = (divisor(n_bands), band, divisor(n_strips), strip)
        arguments = (dy, dx, n_planes, rows, columns, *parts)
        return Launch("resize_grad", config, arguments, binding)

    def _widest(self, n_outputs: int, ratio: float) -> int:
        """Return the most columns of a tile of dX: a warp has room for COLUMNS of dY that touch it.

        n_outputs: columns of dY. ratio: columns of dX for one of dY.
        """
        most = MINE * WARP
        if n_outputs <= COLUMNS:
            return most
        return max(1, min(most, int((COLUMNS - EACH) * ratio) - 1))

    def _axis(
        self, pixels: int, outputs: int, scale: float | None, kind: type[np.floating]
    ) -> np.void:
        """Return the kernel's Axis.

        pixels, outputs: extents of dX and dY. scale: outputs for a pixel, None: from the extents.
        kind: the type that positions are computed in.
        """
        align_corners = self.coordinate_transformation_mode == "align_corners"
        if align_corners:
            ratio = kind(pixels - 1) / kind(outputs - 1) if outputs > 1 else kind(0)
        elif scale is not None:
            ratio = kind(1) / kind(scale)
        else:
            ratio = kind(pixels) / kind(outputs) if outputs else kind(0)
        counts = {"n_in": pixels, "n_out": outputs, "align_corners": align_corners}
        with np.errstate(divide="ignore"):
            ratios = {"ratio": ratio, "inverse": kind(1) / ratio}
        return by_value(Axis.of(np.dtype(kind)), **counts, **ratios)


def _slots(dtype: Dtype) -> dict[str, str]:
    """Return the macros of kernels: element type and type of sums."""
    row = element_type(dtype)
    return {"T": row.c_type, "ACC": row.accumulator}


def _even(n: int, most: int) -> int:
    """Return the length of even parts of n, as few of them as `most` a part allows."""
    return ceil_div(n, ceil_div(n, most))


OPS = {"ResizeGrad": ResizeGrad}

# SPDX-License-Identifier: MIT
"""Kernels over staged arrays beside JAX."""

from __future__ import annotations

import itertools
import math
import os
import random
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from runs import Run

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.families.conv import plan, plan_model, plan_staged, plan_variants
from cupy_training_ops.families.conv.extents import Attributes, Convolution
from cupy_training_ops.families.conv.facts import PANEL, STAGED_TAPS
from cupy_training_ops.families.conv.plan_variants import residues
from cupy_training_ops.plan import align_up, ceil_div
from cupy_training_ops.testing.compare import assert_matches, poison, tolerance_of
from cupy_training_ops.testing.samples import as_tuple

jax.config.update("jax_enable_x64", True)

ROWS = plan_model.OF_WARPS
TYPES = {
    "float16": (FLOAT16, 0),
    "bfloat16": (BFLOAT16, 0),
    "float32": (FLOAT32, 0),
    "tf32": (FLOAT32, 1),
    "tf32x3": (FLOAT32, 3),
}
MULTIPLIERS = {False: "warps", True: "warpgroups"}  # the latter of halves, and in TF32

MOST_PRODUCTS = 15_000_000  # which emulated kernels multiply in seconds
MOST_ON_GPU = 500_000_000


class Case(NamedTuple):
    """A convolution, the attributes of Conv, and what a transposed one needs beside them."""

    convolution: Convolution
    attributes: dict[str, Any]
    ends: tuple[int, ...]  # pads behind the image
    left: tuple[int, ...]  # elements at the end that no kernel reaches


def several(rng: np.random.Generator, low: int, high: int, n: int) -> tuple[int, ...]:
    return tuple(map(int, rng.integers(low, high, n)))


def drawn(rng: np.random.Generator, most: int = MOST_PRODUCTS) -> Case:
    """Channels end inside vectors, lines and tiles; some positions read only pads."""
    rank = int(rng.integers(1, 4))
    kernel = several(rng, 1, (9, 6, 4)[rank - 1], rank)
    assert math.prod(kernel) <= STAGED_TAPS
    strides, dilations = several(rng, 1, 4, rank), several(rng, 1, 3, rank)
    pads, group = several(rng, 0, 4, 2 * rank), int(rng.choice([1, 1, 2, 8]))
    sizes = [16, 24, 64, 72, 136] if group > 1 else [16, 17, 40, 64, 66, 128, 130, 200]
    if group > 2:  # groups that are joined
        sizes = [4, 8, 12]
    channels, filters = (group * int(n) for n in rng.choice(sizes, 2))
    ends = pads[rank:]
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    rooms = [r - b - e for r, b, e in zip(reaches, pads, ends, strict=False)]
    image = [max(1, room) + int(rng.integers((40, 6, 3)[rank - 1])) for room in rooms]
    left = tuple((n - room) % s for n, room, s in zip(image, rooms, strides, strict=True))
    given = {"group": group, "strides": strides, "dilations": dilations, "pads": pads}
    shapes = (int(rng.integers(1, 4)), channels, *image), (filters, channels // group, *kernel)
    actual = Attributes("drawn", **given).convolution(*shapes)
    if products(actual) > most:
        return drawn(rng, most)
    return Case(actual, given, ends, left)


def products(c: Convolution) -> int:
    """That tiles of Y, dX and dW take, those with zeros too."""
    c = plan_model.join_groups(c, FLOAT16)
    taps, channels, filters = math.prod(c.kernel), c.group_channels, c.group_filters
    of_y, of_x = (c.batch * math.prod(extents) for extents in (c.output, c.image))
    n_residues = math.prod(residues(c))
    y = align_up(filters, 128) * align_up(of_y, 192) * align_up(taps * channels, 64)
    x = align_up(channels, 128) * align_up(ceil_div(of_x, n_residues), 192)
    x *= n_residues * align_up(ceil_div(taps, n_residues) * filters, 64)
    w = align_up(filters, 128) * align_up(taps * channels, 192) * align_up(of_y, 64)
    return c.group * (x + y + w)


def of_jax(case: Case, x: Any, w: Any, dy: Any) -> list[np.ndarray]:
    """Y, dX, dW and dB in float64."""
    c = case.convolution

    def forward(x, w):
        pads = list(zip(c.pads, case.ends, strict=True))
        groups = {"rhs_dilation": c.dilations, "feature_group_count": c.group}
        return jax.lax.conv_general_dilated(x, w, c.strides, pads, **groups)

    y, backward = jax.vjp(forward, x, w)
    return [np.asarray(a) for a in (y, *backward(dy), dy.sum((0, *range(2, dy.ndim))))]


@pytest.fixture
def staged(monkeypatch):
    """Stages whatever can be, in tiles of so many rows, that warps or warpgroups multiply."""

    def force(rows: int, by_warpgroups: bool) -> None:
        def can(device, conv, wanted, tf32):
            return plan_model.can_stage(device, conv, wanted.dtype, tf32)

        monkeypatch.setattr(plan, "staged_image", can)
        monkeypatch.setattr(plan, "staged_weight", can)

        def by_groups(_, dtype, tf32):
            return by_warpgroups and (dtype.itemsize == 2 or (dtype == FLOAT32 and tf32 == 1))

        monkeypatch.setattr(plan_model, "tile_choices", lambda *_: [rows])
        for module in (plan_model, plan_variants):
            monkeypatch.setattr(module, "multiply_by_warpgroups", by_groups)
        plan_model.weight_tiles.cache_clear()

    yield force
    plan_model.weight_tiles.cache_clear()


def lying(run: Any, array: Any, is_last: bool, write: Any = lambda a: a) -> Any:
    """The same in the run's memory, with its channels last or not; `write` has it as it lies."""
    order = (0, *range(2, array.ndim), 1) if is_last else tuple(range(array.ndim))
    placed = write(run.place(np.ascontiguousarray(array.transpose(order))))
    return placed.transpose(np.argsort(order))


LAYOUTS = {"first": 0.0, "last": 1.0, "mixed": 0.5}  # shares of arrays with their channels last
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def check(
    run: Any, rng: np.random.Generator, case: Case, dtype: Any, tf32: int, layout: str = "first"
) -> None:
    """The four operators beside JAX, outputs poisoned, called twice with equal bits, also for one
    gradient alone; of mixed layouts each array draws whether its channels are last."""
    share = LAYOUTS[layout]
    c = case.convolution
    x, w, dy = (
        rng.standard_normal(shape).astype(dtype) for shape in (c.x_shape, c.w_shape, c.y_shape)
    )
    y, dx, dw, db = of_jax(case, *(a.astype(FLOAT64) for a in (x, w, dy)))
    back = case.attributes | {"output_padding": case.left}
    calls = {
        "Conv": ((x, w), (y,), case.attributes),
        "ConvGrad": ((dy, x, w), (dx, dw, db), case.attributes),
        "ConvTranspose": ((dy, w), (dx,), back),
        "ConvTransposeGrad": (
            (x, dy, w),
            (y, dw, x.astype(FLOAT64).sum((0, *range(2, x.ndim)))),
            back,
        ),
    }
    pairs = {}
    for name, (given, expected, attributes) in calls.items():
        op = get_op(name)(**attributes, allow_tf32=tf32 == 1, tf32x3=tf32 == 3)
        placed = [lying(run, a, rng.random() < share) for a in given]
        out = tuple(
            lying(run, np.empty(e.shape, dtype), e.ndim > 2 and rng.random() < share, poison)
            for e in expected
        )
        actual = as_tuple(op(*placed, out=out if len(out) > 1 else out[0]))
        again = as_tuple(op(*placed))
        for ours, other, wanted in zip(actual, again, expected, strict=True):
            assert run.host(ours).tobytes() == run.host(other).tobytes()
            terms = dy.size // c.filters + math.prod(c.kernel) * (
                c.group_channels + c.group_filters
            )
            bound = tolerance_of(dtype, terms, tf32 == 1)
            assert_matches(run.host(ours).astype(FLOAT64), wanted, bound)
        if len(out) > 1:
            one = int(rng.integers(len(out)))
            (alone,) = (a for a in op(*placed, outputs=(op.outputs[one].name,)) if a is not None)
            assert run.host(alone).tobytes() == run.host(again[one]).tobytes()
        pairs[name] = [run.host(a).astype(FLOAT64) for a in actual]
    are_adjoint(x, w, dy, pairs["Conv"][0], *pairs["ConvGrad"][:2])
    are_adjoint(dy, w, x, pairs["ConvTranspose"][0], *pairs["ConvTransposeGrad"][:2])


def are_adjoint(x: Any, w: Any, dy: Any, y: Any, dx: Any, dw: Any) -> None:
    """The change of Y along dY is that of X along dX, and of W along dW."""
    x, w, dy = (a.astype(FLOAT64) for a in (x, w, dy))
    for one, other in ((x, dx), (w, dw)):
        size = max(np.linalg.norm(a) * np.linalg.norm(b) for a, b in ((y, dy), (one, other)))
        assert abs((y * dy).sum() - (one * other).sum()) <= 2e-2 * size


def tiles() -> list[tuple[str, int, bool]]:
    """Types, rows of a tile, and whether warpgroups multiply it."""
    actual = itertools.product(TYPES, ROWS, MULTIPLIERS)
    actual = (tile for tile in actual if tile[0] in ("float16", "bfloat16", "tf32") or not tile[2])
    return [tile for tile in actual if tile[0] != "tf32x3" or tile[1] in plan_model.OF_PARTS]


def name_of(tile: tuple[str, int, bool]) -> str:
    return f"{tile[0]}-{tile[1]}-{MULTIPLIERS[tile[2]]}"


def tiles_by_layout() -> list[Any]:
    """For each layout and type the session draws tiles; the others are thorough."""
    draw = random.Random(f"{os.environ['CTO_SEED']} staged")
    drawn = {
        draw_from: draw.choice([t for t in tiles() if t[0] == draw_from[1]])
        for draw_from in itertools.product(LAYOUTS, TYPES)
    }
    return [
        pytest.param(
            tile,
            layout,
            id=f"{name_of(tile)}-{layout}",
            marks=() if tile == drawn[layout, tile[0]] else pytest.mark.thorough,
        )
        for layout in LAYOUTS
        for tile in tiles()
    ]


@pytest.mark.parametrize(("tile", "layout"), tiles_by_layout())
def test_four_operators_are_jax(run, seed, staged, tile, layout) -> None:
    types, rows, _ = tile
    staged(*tile[1:])
    rng = np.random.default_rng((seed, rows, len(layout)))
    check(run, rng, drawn(rng), *TYPES[types], layout)


@pytest.mark.parametrize("by_warpgroups", MULTIPLIERS)
def test_many_stages_of_a_single_tap(run, rng, staged, by_warpgroups) -> None:
    """So many of dX that each place of them is written and read again; of dW, each position reads
    the one that it is."""
    staged(2 * PANEL, by_warpgroups)
    x = rng.standard_normal((1, 16, 72)).astype(FLOAT16)
    dy = rng.standard_normal((1, 320, 72)).astype(FLOAT16)
    w = rng.standard_normal((320, 16, 1)).astype(FLOAT16)
    dx, dw, _ = get_op("ConvGrad")()(*map(run.place, (dy, x, w)), outputs=("dX", "dW"))
    x, dy, w = (a.astype(FLOAT64) for a in (x, dy, w))
    for actual, expected in (
        (dx, np.einsum("nmi,mco->nci", dy, w)),
        (dw, np.einsum("nmi,nci->mc", dy, x)[..., None]),
    ):
        assert_matches(
            run.host(actual).astype(FLOAT64), expected, tolerance_of(FLOAT16, 320, False)
        )


@pytest.mark.parametrize("by_warpgroups", MULTIPLIERS)
def test_sums_of_weights_in_parts(run, rng, staged, monkeypatch, by_warpgroups) -> None:
    """Each position is in one part, of which the last has fewer."""
    staged(PANEL, by_warpgroups)
    of_model = plan_model.weight_tiles

    def in_three(*given: Any) -> Any:
        return replace(of_model(*given), parts=3)

    in_three.cache_clear = of_model.cache_clear
    for module in (plan_model, plan_staged):
        monkeypatch.setattr(module, "weight_tiles", in_three)
    x, dy = (rng.standard_normal((2, 16, 81)).astype(FLOAT16) for _ in range(2))
    w = np.zeros((16, 16, 1), FLOAT16)
    op = get_op("ConvGrad")()
    _, dw, db = op(*map(run.place, (dy, x, w)), outputs=("dW", "dB"))
    x, dy = (a.astype(FLOAT64) for a in (x, dy))
    bound = tolerance_of(FLOAT16, 162, False)
    actual = (run.host(a).astype(FLOAT64) for a in (dw, db))
    expected = (np.einsum("nmi,nci->mc", dy, x)[..., None], dy.sum((0, 2)))
    for one, other in zip(actual, expected, strict=True):
        assert_matches(one, other, bound)


@pytest.mark.parametrize("by_warpgroups", MULTIPLIERS)
@pytest.mark.parametrize("rows", ROWS)
def test_weights_of_several_panels(run, rng, staged, rows, by_warpgroups) -> None:
    """Panels of rows, and of columns, lie apart in shared memory."""
    staged(rows, by_warpgroups)
    x, dy = (rng.standard_normal((1, n, 9)).astype(FLOAT16) for n in (136, 72))
    w = np.zeros((72, 136, 1), FLOAT16)
    _, dw, _ = get_op("ConvGrad")()(*map(run.place, (dy, x, w)), outputs=("dW",))
    expected = np.einsum("nmi,nci->mc", dy.astype(FLOAT64), x.astype(FLOAT64))[..., None]
    assert_matches(run.host(dw).astype(FLOAT64), expected, tolerance_of(FLOAT16, 9, False))


def test_weights_are_written_where_no_vector_begins(run, rng, staged) -> None:
    """Channels are whole vectors."""
    staged(PANEL, False)
    dy, x, w = (
        rng.standard_normal(s).astype(FLOAT16) for s in ((1, 16, 9), (1, 16, 9), (16, 16, 1))
    )
    dw = run.place(np.zeros_like(w), offset=1)
    get_op("ConvGrad")()(*map(run.place, (dy, x, w)), outputs=("dW",), out=(None, dw, None))
    expected = np.einsum("nmi,nci->mc", dy.astype(FLOAT64), x.astype(FLOAT64))[..., None]
    assert_matches(run.host(dw).astype(FLOAT64), expected, tolerance_of(FLOAT16, 9, False))


@pytest.mark.parametrize("by_warpgroups", MULTIPLIERS)
@pytest.mark.parametrize("rows", ROWS)
def test_the_gradient_of_a_bias_alone(run, rng, staged, rows, by_warpgroups) -> None:
    """X is not staged, and its addresses are computed all the same."""
    staged(rows, by_warpgroups)
    op = get_op("ConvGrad")(strides=(1, 2))
    dy, x, w = (
        rng.standard_normal(shape).astype(FLOAT16)
        for shape in ((2, 17, 3, 2), (2, 16, 3, 3), (17, 16, 1, 1))
    )
    actual = op(*map(run.place, (dy, x, w)), outputs=("dB",))
    expected = dy.astype(FLOAT64).sum((0, 2, 3))
    (db,) = (a for a in actual if a is not None)
    assert_matches(run.host(db).astype(FLOAT64), expected, tolerance_of(FLOAT16, 12, False))


@pytest.mark.gpu
@pytest.mark.parametrize("tile", tiles(), ids=name_of)
@layouts
def test_many_cases_on_a_gpu_are_jax(seed, staged, tile, layout) -> None:
    """One of 39 kinds, 1014 in all; an emulated one takes seconds."""
    types, rows, by_warpgroups = tile
    with Run("cuda", seed) as run:
        if by_warpgroups and not has_warpgroups_here():
            pytest.skip("this GPU, or its NVRTC, has no instructions of warpgroups")
        staged(rows, by_warpgroups)
        rng = np.random.default_rng((seed, rows, 1000 + len(layout)))
        for _ in range(26):
            check(run, rng, drawn(rng, MOST_ON_GPU), *TYPES[types], layout)


def has_warpgroups_here() -> bool:
    """Return True if kernels of warpgroups run on the first GPU."""
    from cupy_training_ops.device.cuda import BACKEND

    return BACKEND.device(0).has_warpgroups

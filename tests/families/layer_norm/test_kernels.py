# SPDX-License-Identifier: MIT
"""Layer-norm kernels: every division of rows among threads, outputs alone, in place, accurate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.facts import WARP
from cupy_training_ops.families.layer_norm.facts import STAGED_THREADS
from cupy_training_ops.families.layer_norm.operators import OPS
from cupy_training_ops.families.layer_norm.plan_staged_rows import rows_on_chip
from cupy_training_ops.families.layer_norm.samples import TYPES, inputs
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches, assert_sums_match

H200 = Device(132, (9, 0), 227 * 1024)
SMALL = Device(40, (7, 5), 64 * 1024)
GRADIENTS = tuple(name for name in OPS if name.endswith("Grad"))
FLOATS = (FLOAT32, FLOAT32)
HALVES = (FLOAT16, FLOAT16)

gradients = pytest.mark.parametrize("name", GRADIENTS)


def planned(name: str, shape, types=FLOATS, device=H200, wanted=(), aligned=True):
    """The steps for these outputs, by default for all."""
    op = get_op(name)()
    count, length = math.prod(shape[:-1]), shape[-1]
    t, v = types
    u = FLOAT64 if t == FLOAT64 else FLOAT32
    of = {"T": Spec(shape, t, aligned), "V": Spec((length,), v, aligned), "U": Spec((count,), u)}
    of_y = Spec(shape, v, aligned)
    arguments = [of_y if i.name in ("Y_grad", "Y") else of[i.type] for i in op.inputs]
    results = [
        spec if not wanted or output.name in wanted else None
        for output, spec in zip(op.outputs, op.infer(*arguments), strict=True)
    ]
    return op.plan(device, *arguments, *results)


def steps(*args, **keywords):
    """Kernels, grids and blocks."""
    plan = planned(*args, **keywords)
    return [
        (s.symbol.removeprefix("layer_norm__"), s.config.grid, s.config.block) for s in plan.steps
    ]


@pytest.mark.parametrize(
    ("shape", "types", "first", "shared"),
    [
        ((262_144, 256), FLOATS, ("gradient_rows", (132,), (512,)), 128),
        ((65_536, 1024), FLOATS, ("gradient_rows", (132,), (512,)), 128),
        ((65_536, 1024), HALVES, ("gradient_rows_by_warps", (132,), (512,)), 68),
        ((16_384, 4096), FLOATS, ("gradient_rows", (132,), (512,)), 128),
        ((4096, 16_384), FLOATS, ("gradient_rows", (132,), (512,)), 128),
        ((4096, 16_384), HALVES, ("gradient_rows_by_warps", (132,), (512,)), 192),
        ((65_536, 1023), FLOATS, ("gradient_shifted_rows", (132,), (512,)), 68),
        ((65_536, 1023), HALVES, ("gradient_shifted_rows_by_warps", (128,), (512,)), 68),
        ((1000, 1024), FLOATS, ("gradient_rows", (125,), (256,)), 64),
        ((5, 1024), FLOATS, ("gradient_rows", (5,), (32,)), 8),
    ],
)
def test_rows_on_chip_are_read_once(shape, types, first, shared) -> None:
    for name in ("LayerNormalizationGrad", "SimplifiedLayerNormalizationGrad"):
        kernel, total = steps(name, shape, types)
        assert kernel == first
        assert total[0] == "total"
        assert planned(name, shape, types).steps[0].config.shared_nbytes == shared * 1024


def test_longer_rows_are_read_twice() -> None:
    name = "LayerNormalizationGrad"
    assert [s[0] for s in steps(name, (9, 16_388))] == [
        "gradient_row_sums", "gradient_columns", "total"
    ]  # fmt: skip
    assert steps(name, (9, 16_384), device=SMALL)[0][0] == "gradient_row_sums"
    assert steps(name, (9, 8192), aligned=False)[0][0] == "gradient_elements"
    assert steps(name, (9, 8193), aligned=False)[0][0] == "gradient_row_sums"
    doubles = (FLOAT64, FLOAT64)
    assert steps(name, (9, 4096), doubles)[0][0] == "gradient_rows"
    assert steps(name, (9, 4098), doubles)[0][0] == "gradient_row_sums"
    assert steps("LayerNormalization", (9, 4092))[0][0] == "rows"
    assert steps("LayerNormalization", (9, 8188))[0] == ("deep_rows", (9,), (256,))
    assert steps("LayerNormalization", (9, 16_384))[0] == ("deep_rows", (9,), (512,))
    assert steps("LayerNormalization", (9, 16_384), HALVES)[0][0] == "rows"
    assert steps("LayerNormalization", (9, 16_388))[0][0] == "wide_rows"
    assert steps("LayerNormalization", (9, 24_576))[0][0] == "wide_rows"
    assert steps("LayerNormalization", (9, 24_580))[0][0] == "long_rows"


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("SimplifiedLayerNormalization", "full_rows"), ("LayerNormalization", "centred_full_rows")],
)
def test_rows_that_fill_their_threads_have_kernels_of_their_own(name, kernel) -> None:
    statistics = tuple(output.name for output in get_op(name).outputs[1:])
    for length, types in ((512, FLOATS), (4096, FLOATS), (1024, HALVES), (8192, HALVES)):
        assert steps(name, (9, length), types)[0][0] in (kernel, "deep_" + kernel)
        assert steps(name, (9, length - 8), types)[0][0] == "rows"
        assert steps(name, (9, length), types, wanted=statistics)[0][0] == "rows"
    assert steps(name, (9, 4096), aligned=False)[0][0] == "elements"
    assert steps(name, (0, 4096))[0][0] == "rows"


def test_outputs_alone_cost_what_they_need() -> None:
    name, shape = "LayerNormalizationGrad", (4096, 1024)
    alone = planned(name, shape, wanted=("X_grad",))
    assert [step.symbol for step in alone.steps] == ["layer_norm__gradient_rows"]
    assert alone.workspace_nbytes == 0
    columns, total = planned(name, shape, wanted=("bias_grad",)).steps
    assert columns.symbol == "layer_norm__gradient_columns"
    assert columns.args[1] is None  # X is not read
    assert total.symbol == "layer_norm__total"
    columns, _ = planned(name, shape, wanted=("scale_grad",)).steps
    assert columns.args[1].shape == shape
    assert planned(name, (4096, 20_000), wanted=("X_grad",)).steps[-1].symbol.endswith("columns")


@given(
    st.integers(0, 10**7),
    st.integers(0, 20_000),
    st.sampled_from([(2, 2), (4, 4), (2, 4), (4,), (8, 8)]),
    st.booleans(),
    st.sampled_from([H200, SMALL, Device(80, (7, 0), 96 * 1024)]),
)
def test_every_row_has_its_threads(count, length, sizes, aligned, device) -> None:
    dtypes = [{2: FLOAT16, 4: FLOAT32, 8: FLOAT64}[n] for n in sizes]
    rows = rows_on_chip(device, (count, length), dtypes, 16 // max(sizes), aligned, 1)
    if rows is None:
        return
    most = 8 if max(sizes) == 8 else 32 if rows.width > 1 else 16
    halved = rows.is_shifted and not rows.by_warps
    assert rows.depth * rows.width <= (most // 2 if halved else most)
    assert not rows.by_warps or (rows.width == 8 and rows.threads % WARP == 0)
    assert rows.threads * rows.depth >= length // rows.width
    assert rows.block == rows.threads * rows.groups <= STAGED_THREADS
    assert rows.threads % WARP == 0 or WARP % rows.threads == 0
    assert rows.shared_nbytes <= device.max_shared_nbytes
    assert rows.block % WARP == 0
    n_edges = rows.width - 1 + length % rows.width if rows.is_shifted else 0
    assert n_edges <= rows.threads
    assert rows.blocks(device) % rows.period == 0
    assert rows.period * length % rows.width == 0
    sums = 8 if max(sizes) == 8 else 4
    sharers = rows.block // max(rows.threads, WARP)
    if sharers > 1:  # what they have summed takes the place of rows
        assert rows.shared_nbytes >= sharers * length * sums


# ---- on kernels ----------------------------------------------------------------------------------

LENGTHS = (1, 2, 31, 32, 33, 63, 64, 127, 129, 1000, 1023, 1024, 1028, 1056)


def check(run, name: str, arguments, **attributes) -> None:
    """Kernels equal the CPU provider."""
    op = get_op(name)(**attributes)
    expected = computed(op, *arguments)
    for actual, wanted in zip(op(*map(run.place, arguments)), expected, strict=True):
        assert_matches(run.host(actual), wanted)


@pytest.mark.parametrize("types", [TYPES[0], TYPES[2]])
@pytest.mark.parametrize("name", OPS)
def test_lengths_beside_vectors_and_warps(run, rng, name, types) -> None:
    for length in LENGTHS:
        check(run, name, inputs(rng, name, (5, length), types))


@pytest.mark.parametrize("length", [33, 1000, 17_001])
def test_small_scales_are_divided_by_last(run, rng, length) -> None:
    """x^ = (Y - bias) / scale is exactly 0 where Y is the bias, whatever bias / scale rounds to."""
    dy, y, scale, bias, inv_std = inputs(
        rng, "InvertibleLayerNormalizationGrad", (5, length), TYPES[2]
    )
    scale[::7] = 7e-6
    y[:, ::7] = bias[::7]
    _, of_scale, _ = get_op("InvertibleLayerNormalizationGrad")()(
        *map(run.place, (dy, y, scale, bias, inv_std))
    )
    assert not run.host(of_scale)[::7].any()


@pytest.mark.parametrize("types", TYPES[:3])
@pytest.mark.parametrize("name", ["SimplifiedLayerNormalization", "LayerNormalization"])
def test_full_rows_have_the_statistics_of_any(run, rng, name, types) -> None:
    op = get_op(name)()
    for length in (32, 512, 1024, 3072):
        arguments = inputs(rng, op.name, (5, length), types)
        arrays = [run.place(array) for array in arguments]
        y, *statistics = op(*arrays)
        of_any = op(*arrays, outputs=tuple(output.name for output in op.outputs[1:]))[1:]
        assert_matches(run.host(y), computed(op, *arguments)[0])
        for result, wanted in zip(statistics, of_any, strict=True):
            assert_matches(run.host(result), run.host(wanted))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shape", [(3, 16_384), (2, 8191), (2, 20_000), (3, 65_536), (2100, 1024), (2000, 33)]
)
@pytest.mark.parametrize("name", OPS)
def test_many_rows_and_long_ones(run, rng, name, shape) -> None:
    check(run, name, inputs(rng, name, shape, FLOATS))


@pytest.mark.thorough
@gradients
def test_sums_over_shifted_rows_keep_their_digits(run, rng, name) -> None:
    arguments = inputs(rng, name, (20_000, 33), FLOATS)
    dy, second, scale, *others = (array.astype(FLOAT64) for array in arguments)
    if name.startswith("Invertible"):
        x_hat = (second - others[0]) / scale
    else:
        x_hat = (second - sum(others[:-1])) * others[-1]  # without a mean they are not centred
    dx, *sums = get_op(name)()(*map(run.place, arguments))
    assert_matches(run.host(dx), computed(get_op(name)(), *arguments)[0])
    for result, terms in zip(sums, (dy * x_hat, dy), strict=False):
        assert_sums_match(run.host(result), terms.sum(0), np.abs(terms).sum(0))


@gradients
@pytest.mark.parametrize("shape", [(70, 64), (40, 35), (2, 17_001)])
def test_an_output_alone_is_the_same(run, rng, name, shape) -> None:
    op, arguments = get_op(name)(), inputs(rng, name, shape, FLOATS)
    expected = computed(op, *arguments)
    arrays = [run.place(array) for array in arguments]
    for place, output in enumerate(op.outputs):
        actual = op(*arrays, outputs=(output.name,))
        assert [array is None for array in actual].count(False) == 1
        assert_matches(run.host(actual[place]), expected[place])


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", [(70, 64), (40, 35), (2, 17_001)])
def test_an_input_may_be_the_output(anywhere, rng, name, shape) -> None:
    op, arguments = get_op(name)(), inputs(rng, name, shape, FLOATS)
    expected = computed(op, *arguments)
    for place in range(2 if name.endswith("Grad") else 1):
        arrays = [anywhere.place(array) for array in arguments]
        out = (arrays[place], *[None] * (len(op.outputs) - 1))
        result = op(*arrays, out=out)
        assert result[0] is arrays[place]
        for actual, wanted in zip(result, expected, strict=True):
            assert_matches(anywhere.host(actual), wanted)


@pytest.mark.thorough
def test_sums_of_ones_are_exact(run) -> None:
    """Of as many rows as a chain of float32 could still count, and float16 hold."""
    for count, v in ((262_144, FLOAT32), (32_768, FLOAT16)):
        ones, statistic = np.ones((count, 4), v), np.ones(count, FLOAT32)
        scale = run.place(np.ones(4, v))
        op = get_op("LayerNormalizationGrad")()
        arguments = (run.place(ones), run.place(ones), scale, run.place(0 * statistic))
        _, scale_grad, bias_grad = op(*arguments, run.place(statistic))
        assert run.host(bias_grad).tolist() == [count] * 4
        assert run.host(scale_grad).tolist() == [count] * 4
        alone = op(*arguments, run.place(statistic), outputs=("bias_grad",))[2]
        assert run.host(alone).tolist() == [count] * 4


@pytest.mark.parametrize("count", [7000, pytest.param(70_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("length", [8, 5])
def test_sums_over_many_rows_keep_their_digits(run, rng, count, length) -> None:
    dy, x, scale, mean, inv_std = inputs(rng, "LayerNormalizationGrad", (count, length), FLOATS)
    op = get_op("LayerNormalizationGrad")()
    arrays = [run.place(array) for array in (dy, x, scale, mean, inv_std)]
    terms = dy.astype(FLOAT64) * ((x.astype(FLOAT64) - mean) * inv_std)
    for wanted in (None, ("scale_grad", "bias_grad")):
        _, scale_grad, bias_grad = op(*arrays, outputs=wanted)
        assert_sums_match(run.host(scale_grad), terms.sum(0), np.abs(terms).sum(0))
        dys = dy.astype(FLOAT64)
        assert_sums_match(run.host(bias_grad), dys.sum(0), np.abs(dys).sum(0))


@pytest.mark.parametrize("shape", [(40, 1024), (20, 1023), (5, 64), (2, 17_001)])
def test_rows_far_from_zero_keep_their_digits(run, rng, shape) -> None:
    x = (1e4 + 1e-2 * rng.standard_normal(shape)).astype(FLOAT32)
    scale, wide = np.ones(shape[1], FLOAT32), x.astype(FLOAT64)
    result = get_op("LayerNormalization")(epsilon=0.0)(run.place(x), run.place(scale))
    y, mean, inv_std = map(run.host, result)
    assert np.abs(mean - wide.mean(1, keepdims=True)).max() < 1e-3
    assert np.abs(inv_std * wide.std(1, keepdims=True) - 1).max() < 1e-3
    assert np.isfinite(y).all()
    assert abs(y.std() - 1) < 1e-3
    dy = rng.standard_normal(shape).astype(FLOAT32)
    arrays = [run.place(array) for array in (dy, x, scale, mean, inv_std)]
    for gradient in get_op("LayerNormalizationGrad")()(*arrays):
        assert np.isfinite(run.host(gradient)).all()


def fixed(run) -> list[bytes]:
    rng, results = np.random.default_rng(3), []
    for shape in ((300, 64), (70, 35), (1, 17_001)):
        for name in ("LayerNormalization", "LayerNormalizationGrad"):
            arrays = map(run.place, inputs(rng, name, shape, FLOATS))
            results += [run.host(array).tobytes() for array in get_op(name)()(*arrays)]
    return results


def test_the_order_of_threads_changes_no_bit(in_every_order) -> None:
    first, *others = in_every_order(fixed)
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", OPS)
def test_nothing_is_launched_for_nothing(run, rng, name) -> None:
    op = get_op(name)()
    wanted = (op.outputs[0].name,)
    for shape in ((0, 5), (5, 0), (0,)):
        arrays = list(map(run.place, inputs(rng, name, shape, FLOATS)))
        with launch_log() as log:
            assert op(*arrays, outputs=wanted)[0].shape == shape
        assert not log


def test_eight_compilations_in_all() -> None:
    """One for each row of types, whatever the operator and the length."""
    results = {
        tuple(step.slots.items())
        for name in OPS
        for types in TYPES
        for length in (3, 64, 1024, 20_000)
        for step in planned(name, (9, length), types).steps
    }
    assert len(results) == len(TYPES) == 8


def test_bad_input_writes_nothing(anywhere) -> None:
    x, row = np.ones((4, 6), FLOAT32), np.ones(6, FLOAT32)
    out = anywhere.place(np.full((4, 6), 7, FLOAT32))
    arrays = [anywhere.place(a) for a in (x, x, row, np.ones(5, FLOAT32), np.ones(4, FLOAT32))]
    with pytest.raises(ValueError, match="mean: expected shape"):
        get_op("LayerNormalizationGrad")()(*arrays, out=(out, None, None))
    assert (anywhere.host(out) == 7).all()

# SPDX-License-Identifier: MIT
"""Kernels of scaling, division, quantisation and finiteness: which run, upstream's answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from halves import assert_rounded_once
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.call import backends
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.errors import ArgumentError
from cupy_training_ops.families.elementwise import operators
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches, poison

ANSWERS = Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz"
SCALES = {"scale_0": 0.5, "scale_1": 2.0}  # of the recorded answers

# Operator, attributes and, in float32 and float16, how far upstream's outputs may be off,
# times 1 + |upstream|.
UPSTREAM = {
    "Scale": ({}, (1e-6, 2e-3)),
    "BatchScale": (SCALES, (1e-6, 2e-3)),
    "ScaledSum": (SCALES, (1e-6, 2e-3)),
    "DivGrad": ({}, (1e-6, 5e-3)),
    "FakeQuant": ({}, (1e-6,)),
    "FakeQuantGrad": ({}, (0,)),
    "IsFinite": ({}, (0, 0)),
}
RECORDED = [(name, i) for name, (_, allowed) in UPSTREAM.items() for i in range(len(allowed))]


@pytest.mark.parametrize(("name", "number"), RECORDED)
def test_upstream_recorded_answers(run, name, number) -> None:
    attributes, allowed = UPSTREAM[name]
    case = f"{name}[{('f4', 'f2')[number]}]"
    op = get_op(name)(**attributes)
    with np.load(ANSWERS) as answers:
        arrays = [answers[key] for key in answers if key.startswith(f"{case}|in|")]
        expected = [answers[key] for key in answers if key.startswith(f"{case}|out")]
    placed = [
        run.place(array) if declared.memory == "device" else array
        for declared, array in zip(op.inputs, arrays, strict=False)
    ]
    results = op(*placed)
    results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
    for result, wanted in zip(results, expected, strict=True):
        assert_upstream(run.host(result), wanted, allowed[number])


def assert_upstream(actual, wanted, allowed) -> None:
    """Within the tolerance; where upstream's half steps made an infinity there is no answer."""
    finite = np.isfinite(wanted)
    assert finite.mean() > 0.99
    assert_matches(actual[finite], wanted[finite], allowed if wanted.dtype != np.bool_ else 0)


# ---- DivGrad -------------------------------------------------------------------------------------

SYMBOLS = [
    ((64, 48), (64, 48), ["div_grad"]),
    ((64, 48), (1, 64, 48), ["div_grad"]),
    ((64, 48), (48,), ["div_grad__columns", "div_grad__finish"]),
    ((48,), (64, 48), ["div_grad__columns", "div_grad__finish"]),
    ((64, 48), (64, 1), ["div_grad__runs"]),
    ((64, 9000), (64, 1), ["div_grad__runs", "div_grad__finish"]),
    ((20, 48), (), ["div_grad__runs"]),
    ((64, 9000), (), ["div_grad__runs", "div_grad__finish"]),
    ((200, 3, 7, 7), (3, 1, 1), ["div_grad__runs", "div_grad__finish"]),
    ((64, 1), (1, 48), ["div_grad__general", "div_grad__general", "div_grad__finish"]),
    ((2, 3, 4), (2, 1, 4), ["div_grad__general", "div_grad__general"]),
]  # fmt: skip


def specs(a, b, dtype=FLOAT32, aligned=True):
    shapes = (np.broadcast_shapes(a, b), a, b, a, b)
    return [Spec(shape, dtype, aligned) for shape in shapes]


@pytest.mark.parametrize(("a", "b", "symbols"), SYMBOLS, ids=str)
def test_which_kernels_run(a, b, symbols) -> None:
    plan = get_op("DivGrad")().plan(Device(132, (9, 0)), *specs(a, b))
    assert [launch.symbol for launch in plan.steps] == symbols


def test_packets_need_alignment_and_whole_rows() -> None:
    def packets(a, b, **how):
        plan = get_op("DivGrad")().plan(Device(132, (9, 0)), *specs(a, b, **how))
        return plan.steps[0].args[-1]

    assert packets((64, 48), (48,), dtype=FLOAT16) is True
    assert packets((64, 44), (44,), dtype=FLOAT16) is False
    assert packets((64, 44), (44,), dtype=FLOAT32) is True
    assert packets((64, 48), (48,), aligned=False) is False
    assert packets((64, 48), (64, 1), dtype=FLOAT16) is True
    assert packets((64, 49), (64, 1)) is False


LARGE = (65_536, 1024)


@pytest.mark.parametrize(
    ("a", "b"),
    [(LARGE, (1024,)), (LARGE, (65_536, 1)), (LARGE, ()), ((256, 64, 56, 56), (64, 1, 1))],
)
def test_scratch_is_a_small_share_of_what_is_read(a, b) -> None:
    dy, *others = specs(a, b)
    plan = get_op("DivGrad")().plan(Device(132, (9, 0)), dy, *others)
    assert plan.workspace_nbytes <= dy.nbytes / 50


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=9, min_side=0).map(
        lambda shapes: shapes.input_shapes
    )
    | st.tuples(st.integers(1, 600), st.integers(1, 20)).flatmap(
        lambda matrix: st.sampled_from([(matrix, matrix[1:]), (matrix, (matrix[0], 1))])
    ),
    st.sampled_from([FLOAT32, FLOAT16, FLOAT64, BFLOAT16]),
    st.sampled_from([None, ("dA",), ("dB",)]),
    st.integers(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_any_broadcast_shapes(run, shapes, dtype, outputs, offset, seed) -> None:
    rng = np.random.default_rng(seed)
    every = (np.broadcast_shapes(*shapes), *shapes)
    dy, a, b = (np.asarray(rng.uniform(0.5, 2, shape)).astype(dtype) for shape in every)
    op = get_op("DivGrad")()
    expected = computed(op, dy, a, b)
    names = outputs or ("dA", "dB")
    out = tuple(
        poison(run.blank(Spec(e.shape, e.dtype), offset)) if name in names else None
        for name, e in zip(("dA", "dB"), expected, strict=True)
    )
    op(*(run.place(array, offset) for array in (dy, a, b)), out=out, outputs=outputs)
    for name, actual, wanted in zip(("dA", "dB"), out, expected, strict=True):
        if name in names:
            assert_matches(run.host(actual), wanted)


@pytest.mark.parametrize("shape", [(24,), (300, 1), (), (1, 24)], ids=str)
def test_sums_are_the_same_bits_every_time(run, rng, shape) -> None:
    dy, a = (rng.standard_normal((300, 24)).astype(FLOAT32) for _ in range(2))
    b = rng.uniform(0.5, 2, shape).astype(FLOAT32)
    op = get_op("DivGrad")()
    first, second = (run.host(op(*map(run.place, (dy, a, b)))[1]).copy() for _ in range(2))
    assert (first.view(np.uint32) == second.view(np.uint32)).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4000), (4000,)),
        ((4000,), (3, 4000)),
        ((4000, 3), (4000, 1)),
        ((4, 1, 500), (1, 3, 500)),
    ],
)
def test_half_quotients_are_rounded_once(anywhere, rng, a, b) -> None:
    shapes = (np.broadcast_shapes(a, b), a, b)
    arrays = [rng.uniform(0.5, 2, shape).astype(FLOAT16) for shape in shapes]
    exact = get_op("DivGrad").cpu_function()(*(x.astype(FLOAT64) for x in arrays))
    results = get_op("DivGrad")()(*map(anywhere.place, arrays))
    for actual, wanted in zip(results, exact, strict=True):
        assert_rounded_once(anywhere.host(actual), wanted)


@pytest.mark.parametrize("along", [(8, 1), (8,)], ids=str)
def test_repeated_divisors_at_the_ends_of_the_range(run, rng, along) -> None:
    """Of numbers of bfloat16 whose reciprocals float32 cannot hold, or only as subnormal ones."""
    b = np.array([2.0**-133, -(2.0**-128), 2.0**-126, 1.5, -(2.0**126), 2.0**127, 3e38, -7])
    b = b.reshape(along)
    dy, a = ((b * rng.uniform(0.5, 1, (8, 8))).astype(BFLOAT16) for _ in range(2))
    arrays = dy, a, b.astype(BFLOAT16)
    expected = computed(get_op("DivGrad")(), *arrays)
    for actual, wanted in zip(get_op("DivGrad")()(*map(run.place, arrays)), expected, strict=True):
        assert_matches(run.host(actual), wanted)


def test_an_unwanted_sum_takes_no_second_launch(run, rng) -> None:
    dy, a = (rng.standard_normal((300, 24)).astype(FLOAT32) for _ in range(2))
    b = rng.uniform(0.5, 2, 24).astype(FLOAT32)
    op = get_op("DivGrad")()
    placed = [run.place(array) for array in (dy, a, b)]
    with launch_log() as log:
        op(*placed, outputs=("dA",))
    assert [launch.symbol for launch in log] == ["div_grad__columns"]
    assert op.workspace_nbytes(*placed, outputs=("dA",)) == 0
    assert op.workspace_nbytes(*placed) > 0


# ---- the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_is_finite_of_every_half(run, dtype) -> None:
    x = np.arange(65_536, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        expected = np.isfinite(x.astype(FLOAT64))
    assert_matches(run.host(get_op("IsFinite")()(run.place(x))), expected)


def test_outputs_that_are_not_wanted_are_not_written(run, rng) -> None:
    x = run.place(rng.standard_normal(3000).astype(FLOAT32))
    y, mask = get_op("FakeQuant")()(x, 0.1, 3, outputs=("mask",))
    assert y is None
    assert run.host(mask).dtype == np.bool_
    scales = {f"scale_{i}": i + 1.0 for i in range(3)}
    results = get_op("BatchScale")(**scales)(x, outputs=("output_1",))
    assert results[0] is results[2] is None
    assert_matches(run.host(results[1]), 2 * run.host(x))


@pytest.mark.parametrize("number", range(3))
def test_a_sum_may_be_written_into_any_of_its_inputs(run, rng, number) -> None:
    arrays = [rng.standard_normal(3000).astype(FLOAT32) for _ in range(3)]
    op = get_op("ScaledSum")(scale_0=0.3, scale_1=-2, scale_2=1.1)
    expected = op.cpu_function()(*arrays, **op.attribute_values)
    placed = [run.place(array) for array in arrays]
    assert op(*placed, out=placed[number]) is placed[number]
    assert_matches(run.host(placed[number]), expected)


@pytest.mark.parametrize("scale_2", [None, 0.5, np.inf])
def test_an_absent_third_input_adds_nothing(anywhere, scale_2) -> None:
    x = np.array([-0.0, 0.0, 1.5, -np.inf], FLOAT32)
    op = get_op("ScaledSum")(scale_0=1, scale_1=1, scale_2=scale_2)
    result = op(anywhere.place(x), anywhere.place(x))
    assert anywhere.host(result).tobytes() == (x + x).tobytes()


BEYOND_FLOAT32 = {
    "Scale": lambda x, number: (get_op("Scale")()(x, number),),
    "Scale-down": lambda x, number: (get_op("Scale")(scale_down=True)(x, number),),
    "BatchScale": lambda x, number: get_op("BatchScale")(scale_0=number, scale_1=2)(x)[:2],
    "ScaledSum": lambda x, number: (get_op("ScaledSum")(scale_0=number, scale_1=2)(x, x),),
    "FakeQuant": lambda x, number: get_op("FakeQuant")()(x, 0.5, number),
    "LeakyReluGrad": lambda x, number: (get_op("LeakyReluGrad")(alpha=number)(x, x),),
    "QuickGelu": lambda x, number: (get_op("QuickGelu")(alpha=number)(x),),
    "QuickGeluGrad": lambda x, number: (get_op("QuickGeluGrad")(alpha=number)(x, x),),
}


@pytest.mark.parametrize("call", BEYOND_FLOAT32.values(), ids=BEYOND_FLOAT32)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=dtype_name)
@pytest.mark.parametrize("number", [1e39, -1e39])
def test_numbers_beyond_float32_are_infinite(anywhere, number, dtype, call) -> None:
    x = anywhere.place(np.array([-2, 0, 3, np.nan], dtype))
    pairs = zip(call(x, number), call(x, np.copysign(np.inf, number)), strict=True)
    for actual, expected in pairs:
        assert_matches(anywhere.host(actual), anywhere.host(expected), 0)


# None is near a half.
UNEVEN = {"scale_0": 0.31415927, "scale_1": 0.57721566, "scale_2": 0.6931472}
SCALED = {
    "Scale": lambda x: (get_op("Scale")()(x[0], UNEVEN["scale_0"]),),
    "Scale-down": lambda x: (get_op("Scale")(scale_down=True)(x[0], UNEVEN["scale_0"]),),
    "BatchScale": lambda x: get_op("BatchScale")(**UNEVEN)(x[0]),
    "ScaledSum": lambda x: (get_op("ScaledSum")(**UNEVEN)(*x),),
}


@pytest.mark.parametrize("call", SCALED.values(), ids=SCALED)
def test_half_products_are_rounded_once(run, rng, call) -> None:
    x = [rng.uniform(0.5, 2, 6000).astype(FLOAT16) for _ in range(3)]
    with backends.numpy_runs_on(backends.CPU):
        exact = call([a.astype(FLOAT64) for a in x])
    for actual, wanted in zip(call([run.place(a) for a in x]), exact, strict=True):
        assert_rounded_once(run.host(actual), wanted)


def test_scaling_down_is_a_division(anywhere, rng) -> None:
    """The product with 1 / 49 has another last bit in one of three cases."""
    x = rng.uniform(1, 2, 3000).astype(FLOAT32)
    result = get_op("Scale")(scale_down=True)(anywhere.place(x), 49)
    assert_matches(anywhere.host(result), x / FLOAT32.type(49), 0)


def test_quantisation_bounds_beyond_float32_bound_nothing(anywhere) -> None:
    x = np.array([-3e38, -1, 7, 3e38], FLOAT32)
    y, mask = get_op("FakeQuant")(quant_min=-(2**200), quant_max=2**200)(anywhere.place(x), 1, 0)
    assert_matches(anywhere.host(y), x, 0)
    assert anywhere.host(mask).all()


SCALES_THAT_VANISH = [(0, FLOAT64), (1e-50, FLOAT32), (1e-40, FLOAT16), (1e39, BFLOAT16),
                      (np.inf, FLOAT64), (np.nan, FLOAT32)]  # fmt: skip


@pytest.mark.parametrize(("scale", "dtype"), SCALES_THAT_VANISH)
def test_a_quantisation_step_is_a_normal_number(anywhere, scale, dtype) -> None:
    x = anywhere.place(np.ones(3, dtype))
    with pytest.raises(ArgumentError, match="FakeQuant: scale: expected a number other than 0"):
        get_op("FakeQuant")()(x, scale, 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_selected_zeros_keep_their_sign(anywhere, dtype) -> None:
    dy = np.array([0.0, -0.0] * 700, dtype)
    dx = get_op("FakeQuantGrad")()(anywhere.place(dy), anywhere.place(np.ones(1400, np.bool_)))
    assert anywhere.host(dx).tobytes() == dy.tobytes()


@pytest.mark.parametrize("shape", [(900,), (1, 900)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_quotients_that_are_not_summed_keep_their_sign(anywhere, dtype, shape) -> None:
    """0 / -1 is -0.0; dB is -(-0.0) (1 / -1), -0.0 too."""
    dy, a, b = np.zeros(shape, dtype), np.ones(900, dtype), -np.ones(shape, dtype)
    for quotient in get_op("DivGrad")()(*map(anywhere.place, (dy, a, b))):
        assert np.signbit(anywhere.host(quotient).astype(FLOAT64)).all()


def test_select_keeps_subnormals(run) -> None:
    dy = np.full(3000, np.finfo(FLOAT32).smallest_subnormal, FLOAT32)
    mask = np.ones(3000, np.bool_)
    assert_matches(run.host(get_op("FakeQuantGrad")()(run.place(dy), run.place(mask))), dy, 0)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=dtype_name)
def test_scale_in_place_by_several_tiles_of_a_block(run, rng, monkeypatch, dtype, start) -> None:
    """As of arrays so large that each multiprocessor has many blocks; the last tile is a part."""
    monkeypatch.setattr(operators, "TILED_BLOCKS", 1)
    n = 20 * 32 * 256 // dtype.itemsize + 1237
    x = rng.standard_normal(n).astype(dtype)
    placed = run.place(x, start)
    with launch_log() as log:
        get_op("ScaleInPlace")()(placed, run.place(np.array([-0.75], FLOAT32)))
    assert_matches(run.host(placed), (x.astype(FLOAT64) * -0.75).astype(dtype))
    if not run.on_gpu:  # it has more multiprocessors, and blocks of one tile
        assert [launch.config.grid for launch in log] == [(5,)]

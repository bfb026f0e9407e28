# SPDX-License-Identifier: MIT
"""Activation kernels: every float16, in place, upstream's recorded answers, rows of any length."""

from __future__ import annotations

from pathlib import Path

import mpmath
import numpy as np
import pytest
from halves import assert_rounded_once, ulps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probe.probe import ProbeColumn
from references import computed

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.activation.operators import OPS
from cupy_training_ops.families.activation.samples import HALVES
from cupy_training_ops.testing.compare import assert_matches, poison

ANSWERS = Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz"
UNARY = ("GeluGrad", "FastGeluGrad", "QuickGeluGrad")
FORWARD = ("Gelu", "FastGelu", "QuickGelu")
GRADIENTS = [
    name
    for name, op in OPS.items()
    if "Grad" in name and len(op.outputs) == 1 and name not in HALVES
]
GATED = ["SwiGlu", "FastGeGlu"]

# How far upstream's answers may be off, times 1 + |upstream|: float32 and float16.
UPSTREAM = {
    "ReluGrad": (0, 0),
    "SigmoidGrad": (1e-6, 2e-3),
    "TanhGrad": (1e-6, 2e-3),
    "LeakyReluGrad": (1e-6, 2e-3),
    "GeluGrad": (2e-6, 1e-3),
    "FastGeluGrad": (2e-6, 2e-3),
    "QuickGeluGrad": (2e-6, 8e-3),
    "BiasGeluGrad_dX": (2e-6, 2e-3),
    "BiasFastGeluGrad_dX": (2e-6, 2e-3),
}


def finite_halves() -> np.ndarray:
    x = np.arange(65_536, dtype=np.uint16).view(FLOAT16)
    return x[np.isfinite(x)]


def check(run, name: str, *inputs, offset: int = 0, tolerance=None, **attributes):
    """Run the kernel on poisoned output; equal to the CPU provider in dtype, shape and values."""
    op = get_op(name)(**attributes)
    expected = op.cpu_function()(*inputs, **op.attribute_values)
    out = poison(run.blank(Spec(expected.shape, expected.dtype), offset))
    op(*(run.place(value, offset) for value in inputs), out=out)
    assert_matches(run.host(out), expected, tolerance)


@pytest.mark.parametrize(
    ("name", "alpha"), [*((name, None) for name in UNARY), ("QuickGeluGrad", -1.702)]
)
def test_slope_is_within_one_step_of_float64_at_every_half(run, name, alpha) -> None:
    x = finite_halves()
    op = get_op(name)(**({} if alpha is None else {"alpha": alpha}))
    exact = op.cpu_function()(np.ones(x.size), x.astype(FLOAT64), **op.attribute_values)
    actual = run.host(op(run.place(np.ones_like(x)), run.place(x)))
    assert ulps(actual, exact.astype(FLOAT16)).max() <= 1


@pytest.mark.parametrize("name", FORWARD)
def test_value_is_within_one_step_of_float64_at_every_half(run, name) -> None:
    x = finite_halves()
    op, bias = get_op(name)(), (None,) if name == "FastGelu" else ()
    exact = op.cpu_function()(x.astype(FLOAT64), *bias, **op.attribute_values)
    assert ulps(run.host(op(run.place(x))), exact.astype(FLOAT16)).max() <= 1


@pytest.mark.parametrize("name", GRADIENTS)
def test_half_gradients_are_rounded_once(anywhere, rng, name) -> None:
    """Where slopes are far from 0, and steep: an operand of few digits shows."""
    op, n = get_op(name)(), 6000
    x = rng.uniform(0.1, 0.9, n) if name in ("SigmoidGrad", "TanhGrad") else rng.uniform(-4, -2, n)
    arrays = [a.astype(FLOAT16) for a in (rng.standard_normal(n), x, rng.uniform(-0.5, 0.5, n))]
    arrays = arrays[: len(op.inputs)]
    exact = op.cpu_function()(*(a.astype(FLOAT64) for a in arrays), **op.attribute_values)
    actual = op(*map(anywhere.place, arrays))
    assert_rounded_once(anywhere.host(actual), exact)


@pytest.mark.parametrize("name", UNARY)
def test_float32_slope_is_accurate_to_its_last_digits(run, rng, name) -> None:
    x = rng.uniform(-12, 12, 20_000).astype(FLOAT32)
    op = get_op(name)()
    exact = op.cpu_function()(np.ones(x.size), x.astype(FLOAT64), **op.attribute_values)
    actual = run.host(op(run.place(np.ones_like(x)), run.place(x)))
    assert np.abs(actual - exact).max() < 1e-6


def middle_and_tails(rng, most: float) -> np.ndarray:
    return np.concatenate([rng.uniform(-most, most, 200), rng.standard_normal(200)])


def value_or_slope(run, name: str, x) -> np.ndarray:
    """What a forward operator gives at x, or its gradient where dY is 1."""
    dy = [run.place(np.ones_like(x))] if "Grad" in name else []
    return run.host(get_op(name)()(*dy, run.place(x)))


def test_float64_gelu_is_accurate_to_its_last_digits(run, rng) -> None:
    """Relative, far into the tails, where the value falls below 1e-300."""
    x = middle_and_tails(rng, 37.5)
    actual = value_or_slope(run, "Gelu", x)
    with mpmath.workdps(40):
        exact = [mpmath.mpf(v) * mpmath.ncdf(v) for v in x.tolist()]
        errors = [abs(a / e - 1) for a, e in zip(actual.tolist(), exact, strict=True)]
    assert max(errors) < 4e-15


def test_float64_gelu_slope_is_accurate_to_its_last_digits(run, rng) -> None:
    """Relative to the two terms, of which one takes the other away at -0.75."""
    x = middle_and_tails(rng, 37.5)
    actual = value_or_slope(run, "GeluGrad", x)
    with mpmath.workdps(40):
        terms = [(mpmath.ncdf(v), v * mpmath.npdf(v)) for v in x.tolist()]
        errors = [
            abs(a - cdf - term) / (cdf + abs(term))
            for a, (cdf, term) in zip(actual.tolist(), terms, strict=True)
        ]
    assert max(errors) < 4e-15


def gate(name: str, x) -> tuple:
    """v and X v' of QuickGelu and FastGelu, in mpmath's numbers."""
    if "Quick" in name:
        return mpmath.mpf(1.702) * x, mpmath.mpf(1.702) * x
    first = 2 * mpmath.sqrt(2 / mpmath.pi)
    third = first * mpmath.mpf(44_715) / 10**6 * x**3
    return first * x + third, first * x + 3 * third


@pytest.mark.parametrize("name", ["FastGelu", "QuickGelu", "FastGeluGrad", "QuickGeluGrad"])
def test_float64_gates_are_accurate_far_into_their_tails(run, rng, name) -> None:
    """To the digits of v, relative to the terms; values fall to 1e-290."""
    x = middle_and_tails(rng, 20 if "Fast" in name else 390)
    actual = value_or_slope(run, name, x)
    with mpmath.workdps(40):
        for number, result in zip(map(mpmath.mpf, x.tolist()), actual.tolist(), strict=True):
            v, slope = gate(name, number)
            s = 1 / (1 + mpmath.exp(-v))
            terms = (s, slope * s * (1 - s)) if "Grad" in name else (number * s,)
            error = abs(result - sum(terms)) / sum(map(abs, terms))
            assert error < 1e-15 + 5e-16 * abs(v), (float(number), result)


@pytest.mark.parametrize("name", [*FORWARD, *UNARY])
def test_float64_limits(run, name) -> None:
    """On both sides of where exponentials are cut off; NaN of any bits."""
    ends = [21.4, 21.99, 22, 22.01, 26, 39.99, 40, 40.01, 46.3, 588, 745, 999, 1001, 1e154, np.inf]
    x = np.array([sign * end for end in ends for sign in (1, -1)])
    nan = np.array([0x7FF800007FFFFFFF, 0xFFF800007FFFFFFF, 0x7FF8000000000000], np.uint64)
    inputs = np.concatenate([x, nan.view(FLOAT64)])
    actual = value_or_slope(run, name, inputs)
    limit = np.where(x > 0, 1.0 if "Grad" in name else x, 0.0)
    assert np.isnan(actual[x.size :]).all()
    tolerance = 1e-12 if "Quick" in name else 1e-90
    np.testing.assert_allclose(actual[: x.size], limit, rtol=1e-12, atol=tolerance)
    assert not actual[: x.size][x <= -745].any()


@pytest.mark.parametrize("columns", [1, 7, 1024, 2**31 - 1, 2**31, 2**31 + 1, 2**40])
def test_positions_in_a_repeated_row(run, rng, columns) -> None:
    """Up to and beyond those that 32-bit divisions find."""
    beside = 2**31 + rng.integers(-3000, 3000, 2000)
    positions = np.concatenate([beside, rng.integers(0, 2**32, 1000), rng.integers(0, 2**60, 1000)])
    actual = run.host(ProbeColumn(columns=columns)(run.place(positions)))
    np.testing.assert_array_equal(actual, positions % columns)


@pytest.mark.parametrize("name", GRADIENTS)
def test_in_place_on_dy(run, rng, name) -> None:
    op = get_op(name)()
    shape = (3, 1500)
    arrays = [rng.standard_normal(shape).astype(FLOAT32) for _ in op.inputs]
    if op.row:
        arrays[-1] = arrays[-1][0].copy()
    expected = op.cpu_function()(*arrays, **op.attribute_values)
    placed = [run.place(array) for array in arrays]
    assert op(*placed, out=placed[0]) is placed[0]
    assert_matches(run.host(placed[0]), expected)


@pytest.mark.parametrize("name", GATED)
def test_gated_gradients_in_place(run, rng, name) -> None:
    """Over their inputs, in each order; float16 is rounded once."""
    op = get_op(f"{name}Grad")()
    arrays = [rng.uniform(-4, 4, 1500).astype(FLOAT16) for _ in range(3)]
    exact = op.cpu_function()(*(a.astype(FLOAT64) for a in arrays))
    for first, second in ((0, 1), (1, 2), (2, 0)):
        placed = [run.place(array) for array in arrays]
        results = op(*placed, out=(placed[first], placed[second]))
        assert results[0] is placed[first]
        for found, expected in zip(results, exact, strict=True):
            assert_rounded_once(run.host(found), expected)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("columns", [1, 7, 8, 24, 1500])
def test_halves_of_rows_are_as_two_arrays(run, rng, columns, offset) -> None:
    """Rows of whole vectors and others; each result is rounded once, the gradient also in place."""
    n_rows = 3000 // columns + 1
    dy, a, b = rng.uniform(-4, 4, (3, n_rows, columns)).astype(FLOAT16)
    x = np.concatenate((a, b), -1)
    wide = [each.astype(FLOAT64) for each in (dy, a, b)]
    forward, gradient = (get_op(name)() for name in HALVES)
    placed = run.place(x, offset)
    out = poison(run.blank(Spec(a.shape, a.dtype), offset))
    with launch_log() as log:
        forward(placed, out=out)
    assert log[0].args[3] == (offset == 0 and columns % 8 == 0)
    assert_rounded_once(run.host(out), get_op("SwiGlu").cpu_function()(*wide[1:]))
    exact = np.concatenate(get_op("SwiGluGrad").cpu_function()(*wide), -1)
    for given_out in (poison(run.blank(Spec(x.shape, x.dtype), offset)), placed):
        result = gradient(run.place(dy, offset), placed, out=given_out)
        assert_rounded_once(run.host(result), exact)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_rows_without_halves_are_refused(anywhere, shape) -> None:
    x = anywhere.place(np.ones(shape, FLOAT32))
    with pytest.raises(
        ArgumentError, match=r"^SwiGluHalves: X: expected rank 1 or more and an even"
    ):
        get_op("SwiGluHalves")()(x)
    first = "X: expected shape .*as dY is" if shape else "dY: expected rank 1 or more"
    with pytest.raises(ArgumentError, match=f"^SwiGluHalvesGrad: {first}"):
        get_op("SwiGluHalvesGrad")()(x, x)


@pytest.mark.parametrize("name", UPSTREAM)
@pytest.mark.parametrize("number", [0, 1], ids=["f4", "f2"])
def test_upstream_recorded_answers(run, name, number) -> None:
    case = f"{name}[{('f4', 'f2')[number]}]"
    with np.load(ANSWERS) as answers:
        inputs = [answers[key] for key in answers if key.startswith(f"{case}|in|")]
        expected = answers[f"{case}|out0"]
    result = run.host(get_op(name)()(*(run.place(array) for array in inputs)))
    assert_matches(result, expected, UPSTREAM[name][number])


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 40), st.integers(0, 1), st.integers(0, 2**32 - 1))
def test_rows_of_any_length(run, columns, offset, seed) -> None:
    rng = np.random.default_rng(seed)
    dy, x = (rng.standard_normal((2600 // columns, columns)).astype(FLOAT32) for _ in range(2))
    b = rng.standard_normal(columns).astype(FLOAT32)
    check(run, "BiasGeluGrad_dX", dy, x, b, offset=offset)


@pytest.mark.parametrize("misaligned", ["dY", "X", "B", "out"])
def test_one_misaligned_array_is_enough_for_the_slow_path(run, rng, misaligned) -> None:
    dy, x = (rng.standard_normal((70, 64)).astype(FLOAT16) for _ in range(2))
    b = rng.standard_normal(64).astype(FLOAT16)
    op = get_op("BiasGeluGrad_dX")()
    offset = {misaligned: 3}.get
    out = poison(run.blank(Spec(x.shape, x.dtype), offset("out", 0)))
    placed = (run.place(a, offset(n, 0)) for n, a in (("dY", dy), ("X", x), ("B", b)))
    with launch_log() as log:
        op(*placed, out=out)
    n, aligned, columns = log[0].args[-3:]
    assert (n, aligned, columns["value"]) == (70 * 64, False, 64)
    assert_matches(run.host(out), computed(op, dy, x, b))


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, FLOAT64], ids=str)
def test_relu_grad_keeps_subnormals_of_both_inputs(run, dtype) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    dy = np.array([tiny, -tiny, 1, 1, tiny] * 600, dtype)
    x = np.array([1, tiny, tiny, -tiny, 0.0] * 600, dtype)
    check(run, "ReluGrad", dy, x, tolerance=0)


@pytest.mark.parametrize("name", ["FastGelu", "QuickGelu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_zeros_keep_their_sign(anywhere, name, dtype) -> None:
    x = np.array([0.0, -0.0] * 700, dtype)
    assert anywhere.host(get_op(name)()(anywhere.place(x))).tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_selected_zeros_keep_their_sign(anywhere, dtype) -> None:
    dy, x = np.array([0.0, -0.0] * 700, dtype), np.ones(1400, dtype)
    dx = get_op("ReluGrad")()(anywhere.place(dy), anywhere.place(x))
    assert anywhere.host(dx).tobytes() == dy.tobytes()

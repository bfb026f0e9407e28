# SPDX-License-Identifier: MIT
"""Standard operators where plain NumPy would give other values, shapes or types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import cupy_training_ops as cto
from cupy_training_ops.onnx.standard import elementwise, reductions

HALVES = (np.dtype(np.float16), cto.dtypes.BFLOAT16)


def result(op: str, *inputs: np.ndarray, version: int = 18, **attributes: object) -> np.ndarray:
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attributes)
    return cto.onnx.call(node, inputs, version=version)[0]


def test_a_slope_larger_than_x_is_refused(rng) -> None:
    x, slope = rng.standard_normal((2, 1)), rng.standard_normal((2, 3))
    for wrong in (slope, slope[None]):
        with pytest.raises(cto.ArgumentError, match=r"slope: expected a shape that is repeated"):
            result("PRelu", x, wrong)


def test_old_log_softmax_is_finite_far_below_the_top(rng) -> None:
    x = (300 * rng.standard_normal((5, 7))).astype(np.float32)
    wide = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    expected = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    actual = result("LogSoftmax", x, version=11)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceL1", "ReduceMean", "ReduceSumSquare"])
def test_half_types_are_summed_in_float32(op: str, dtype: np.dtype) -> None:
    x = np.ones((5000, 2), dtype)
    actual = result(op, x, np.array([0]))
    assert actual.dtype == dtype
    expected = 1 if op == "ReduceMean" else 5000
    np.testing.assert_allclose(actual.astype(np.float64), [[expected] * 2], rtol=5e-3)


def test_a_norm_of_half_types_does_not_overflow() -> None:
    x = np.array([300, 400], np.float16)
    np.testing.assert_array_equal(result("ReduceL2", x, keepdims=0), np.float16(500))


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_reduction_of_integers_is_of_their_type(op: str, dtype: type) -> None:
    x = np.array([[1, 2, 4], [3, 5, 5]], dtype)
    actual = result(op, x, np.array([1]), keepdims=0)
    wide = {
        "ReduceMean": x.mean(1),
        "ReduceL2": np.sqrt((x * x).sum(1)),
        "ReduceLogSum": np.log(x.sum(1)),
        "ReduceLogSumExp": np.log(np.exp(x.astype(float)).sum(1)),
    }
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, wide[op].astype(dtype))


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(-10, -20, [0]), (-3, -9, [0]), (9, -9, [2, 1, 0]), (0, 0, [])]
)
def test_a_slice_backwards_begins_within(start: int, end: int, expected: list[int]) -> None:
    places = (np.array([n]) for n in (start, end, 0, -1))
    np.testing.assert_array_equal(result("Slice", np.arange(3), *places), expected)


@pytest.mark.parametrize("k", [-1, 4])
def test_more_than_there_are_is_refused(k: int) -> None:
    with pytest.raises(cto.ArgumentError, match=f"expected 0 to 3, got {k}"):
        result("TopK", np.arange(3.0), np.array([k]))


@pytest.mark.parametrize(
    ("n", "pads", "expected"),
    [
        (3, (2, -4), [7]),
        (3, (-4, 2), [7]),
        (3, (4, -5), [7, 7]),
        (1, (-2, 3), [7, 7]),
        (3, (2, -3), [7, 7]),
        (0, (-1, 2), [7]),
        (3, (-2, 1), [2, 7]),
    ],
)
def test_pads_are_cut_where_more_is_cut_than_there_is(n, pads, expected) -> None:
    actual = result("Pad", np.arange(n), np.array(pads), np.array(7))
    np.testing.assert_array_equal(actual, expected)
    if len(expected) == sum(m == 7 for m in expected):  # nothing is left of x to go on with
        with pytest.raises(cto.ArgumentError, match="empty axis"):
            result("Pad", np.arange(n), np.array(pads), mode="edge")


@pytest.mark.parametrize("shape", [[-2], [-1, -3], [2, -2]])
def test_extents_below_minus_one_are_refused(shape: list[int]) -> None:
    with pytest.raises(cto.ArgumentError, match=r"\(Reshape\): shape: expected extents of at"):
        result("Reshape", np.arange(6), np.array(shape))


def test_a_depth_below_zero_is_refused() -> None:
    with pytest.raises(cto.ArgumentError, match=r"\(OneHot\): depth: expected at least 0, got -1"):
        result("OneHot", np.arange(2), np.array(-1), np.arange(2.0))


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
def test_blocks_of_one_are_not_written_over(op: str, rng) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) {{
        a = {op} <blocksize = 1> (x) b = Exp(a) c = {op} <blocksize = 1> (b) d = Neg(c)
        y = Sub(d, b) }}"""
    x = rng.standard_normal((1, 2, 3, 4)).astype(np.float32)
    before = x.copy()
    actual = cto.onnx.Session(onnx.parser.parse_model(text)).run({"x": x})["y"]
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(actual, -2 * np.exp(x), rtol=1e-6)


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_indices_without_axes_take_the_whole(batch_dims: int, rng) -> None:
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    indices = np.zeros((2, 5, 0), np.int64)
    whole = np.broadcast_to(x[:, None] if batch_dims else x, (2, 5, *x.shape[batch_dims:]))
    np.testing.assert_array_equal(result("GatherND", x, indices, batch_dims=batch_dims), whole)


def test_roots_are_those_of_powers() -> None:
    """As onnxruntime 1.19.2 has them: a square root would be NaN and -0."""
    x = np.array([-np.inf, -0.0, -1, 4, np.inf], np.float32)
    actual = result("Pow", x, np.array(0.5, np.float32))
    np.testing.assert_array_equal(actual, np.float32([np.inf, 0, np.nan, 2, np.inf]))
    assert not np.signbit(actual[1])


def test_a_factor_of_integers_may_be_a_fraction() -> None:
    x = np.array([[1, 2], [3, -4]], np.int32)
    expected = np.trunc(1.5 * (x @ x) + np.trunc(0.5 * x))
    actual = result("Gemm", x, x, x, alpha=1.5, beta=0.5)
    assert actual.dtype == np.int32
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("op", ["Erf", "Gelu", "BiasGelu"])
def test_a_scalar_stays_one(op: str) -> None:
    x = np.array(0.5, np.float32)
    version = 20 if op == "Gelu" else 18
    actual = result(op, *[x] * (1 + (op == "BiasGelu")), version=version)
    assert actual.shape == ()


def test_a_devices_erf_is_of_its_inputs_type(monkeypatch) -> None:
    """CuPy's makes float64 of float16."""
    special = pytest.importorskip("cupyx.scipy.special")
    monkeypatch.setattr(special, "erf", lambda x: np.tanh(x.astype(np.float64)))
    assert elementwise.erf(None, np.ones(3, np.float16)).dtype == np.float16


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64, np.uint8, np.bool_])
def test_extremes_of_nothing_are_the_types_ends(op: str, dtype: type) -> None:
    sign = -1 if op == "ReduceMax" else 1
    kind = np.dtype(dtype).kind
    ends = np.iinfo(dtype) if kind in "iu" else None
    end = ends and (ends.max if sign > 0 else ends.min)
    expected = {"f": sign * np.inf, "b": sign > 0}.get(kind, end)
    actual = result(op, np.zeros((2, 0, 3), dtype), np.array([1]), version=20)
    np.testing.assert_array_equal(actual, np.full((2, 1, 3), expected, dtype))
    assert result(op, np.zeros((2, 0), dtype), np.array([0]), version=20).shape == (1, 0)


@pytest.mark.parametrize("reverse", [0, 1])
def test_an_exclusive_sum_has_what_is_before_and_nothing_else(reverse: int) -> None:
    x = np.array([1, 1e8, np.inf, 2, np.nan], np.float32)[:: 1 - 2 * reverse]
    expected = np.float32([0, 1, 1e8, np.inf, np.inf])[:: 1 - 2 * reverse]
    actual = result("CumSum", x, np.array(-1), exclusive=1, reverse=reverse)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 0, 4)])
def test_rows_of_nothing_are_nothing(op: str, shape: tuple[int, ...]) -> None:
    version = 13 if op == "Hardmax" else 11
    actual = result(op, np.zeros(shape, np.float32), axis=-1, version=version)
    assert actual.shape == shape


LONG = 9000
IN_FLOAT32 = {  # an operator, its inputs' shapes, and its attributes
    "Softmax": ([(2, LONG)], {}),
    "LogSoftmax": ([(2, LONG)], {}),
    "LpNormalization": ([(2, LONG)], {}),
    "InstanceNormalization": ([(2, 3, LONG), (3,), (3,)], {}),
    "Mean": ([(4,)] * 12, {}),
    "Einsum": ([(3, LONG), (LONG, 2)], {"equation": "ij,jk->ik"}),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op", IN_FLOAT32)
def test_what_sums_half_types_sums_them_in_float32(op: str, dtype: np.dtype, rng) -> None:
    shapes, attributes = IN_FLOAT32[op]
    inputs = [(9000 * rng.uniform(0.5, 1, shape)).astype(dtype) for shape in shapes]
    if op == "Einsum" or "Softmax" in op:
        inputs = [(x * dtype.type(1e-4)).astype(dtype) for x in inputs]
    actual = result(op, *inputs, version=11 if "Softmax" in op else 18, **attributes)
    wide = [x.astype(np.float64) for x in inputs]
    expected = result(op, *wide, version=11 if "Softmax" in op else 18, **attributes)
    assert actual.dtype == dtype
    most = 1e-2 * float(np.abs(expected).max())
    np.testing.assert_allclose(actual.astype(np.float64), expected, 1e-2, most)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_running_sum_of_half_types_is_rounded_once(dtype: np.dtype) -> None:
    ones = np.ones(5000, dtype)
    assert result("CumSum", ones, np.array(0))[-1] == dtype.type(5000)
    added = result("ScatterElements", ones[:1], np.zeros(5000, int), ones, reduction="add")
    assert added == dtype.type(5001)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_statistics_of_half_types_are_of_float32(dtype: np.dtype, rng) -> None:
    x = (300 * rng.standard_normal((4, 2, 999))).astype(dtype)
    each = np.ones(2, np.float32)
    names = [f"x{i}" for i in range(5)]
    node = helper.make_node("BatchNormalization", names, ["y", "m", "v"], training_mode=1)
    inputs = [x, *[each.astype(dtype)] * 2, each, each]
    actual = cto.onnx.call(node, inputs, version=15)
    wide = [array.astype(np.float64) for array in inputs]
    for a, b in zip(actual, cto.onnx.call(node, wide, version=15), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b, 1e-2, 1e-2)
    assert [a.dtype for a in actual] == [dtype, np.float32, np.float32]


WRONG_AXES = [  # of inputs of two dimensions
    ("Softmax", {"axis": 2}, 11),
    ("LogSoftmax", {"axis": -3}, 11),
    ("Flatten", {"axis": 3}, 18),
    ("Flatten", {"axis": -3}, 18),
    ("OneHot", {"axis": 3}, 18),
    ("GatherElements", {"axis": 2}, 18),
    ("ScatterElements", {"axis": -3}, 18),
    ("Trilu", {}, 18),
    ("EyeLike", {}, 18),
]


@pytest.mark.parametrize(("op", "attributes", "version"), WRONG_AXES)
def test_an_axis_that_is_not_there_is_refused(op: str, attributes: dict, version: int) -> None:
    x, places = np.ones((2, 2), np.float32), np.zeros((2, 2), np.int64)
    inputs = {
        "OneHot": (places, np.array(2), np.ones(2)),
        "GatherElements": (x, places),
        "ScatterElements": (x, places, x),
        "Trilu": (x[0],),
        "EyeLike": (x[0],),
    }
    with pytest.raises(cto.ArgumentError, match=r"expected (from|at least 2|2 dim)"):
        result(op, *inputs.get(op, (x,)), version=version, **attributes)


@pytest.mark.parametrize(
    ("op", "attributes", "version"),
    [
        ("DepthToSpace", {"blocksize": 1, "mode": "RCD"}, 18),
        ("Gelu", {"approximate": "erf"}, 20),
        ("LpNormalization", {"p": 3}, 18),
        ("Pad", {"mode": "symmetric"}, 18),
        ("BatchNormalization", {"spatial": 0}, 7),
    ],
)
def test_a_way_that_there_is_not_is_refused(op: str, attributes: dict, version: int) -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    inputs = [
        x,
        *{"Pad": [np.ones(8, int)], "BatchNormalization": [x[0, 0, 0, :1]] * 4}.get(op, ()),
    ]
    with pytest.raises(cto.ArgumentError, match="is not computed here"):
        result(op, *inputs, version=version, **attributes)


@pytest.mark.parametrize("version", [9, 14])
def test_an_output_that_is_not_made_is_no_none(version: int) -> None:
    """Statistics of a normalisation that are its inputs."""
    x, each = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    feeds = {"x": x, **dict.fromkeys("abcd", each)}
    text = f"""<ir_version: 8, opset_import: ["" : {version}]>
    g (float[2, 3] x, float[3] a, float[3] b, float[3] c, float[3] d) => (float y{{}}) {{{{
        y, m, v = BatchNormalization(x, a, b, c, d) }}}}"""
    model = onnx.parser.parse_model(text.format(""))
    np.testing.assert_allclose(cto.onnx.Session(model).run(feeds)["y"], 1, 1e-4)
    session = cto.onnx.Session(onnx.parser.parse_model(text.format(", float m")))
    with pytest.raises(cto.ArgumentError, match="its output 1 is not computed here"):
        session.run(feeds)


def test_lists_of_several_lengths_are_no_array() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float y) { y = Neg(x) }'
    with pytest.raises(cto.ArgumentError, match=r"Session: x: .*inhomogeneous"):
        cto.onnx.Session(onnx.parser.parse_model(text)).run({"x": [[1.0], [2.0, 3.0]]})


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2, 3), (2, 3), ([], [])),
        ((2, 1), (2, 3), ([1], [])),
        ((3,), (2, 3), ([0], [])),
        ((4, 1, 3), (5, 1), ([1], [2, 0])),
        ((), (2, 1), ([1, 0], [])),
        ((1, 1), (), ([], [1, 0])),
        ((1, 0), (2, 1), ([0], [1])),
    ],
)
def test_what_a_gradient_is_summed_over(a: tuple, b: tuple, expected: tuple) -> None:
    """As onnxruntime 1.19.2's BroadcastGradientArgs."""
    node = helper.make_node("BroadcastGradientArgs", ["a", "b"], ["x", "y"], domain="com.microsoft")
    actual = cto.onnx.call(node, [np.array(shape, np.int64) for shape in (a, b)])
    assert tuple(axes.tolist() for axes in actual) == expected


def test_a_gradient_of_shapes_that_are_known_as_it_runs() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[N, M] x, float[K] w, float[A, B] dy) => (float dx, float dw) {
        sx = Shape(x) sw = Shape(w) ax, aw = com.microsoft.BroadcastGradientArgs(sx, sw)
        rx = ReduceSum <noop_with_empty_axes = 1> (dy, ax) dx = Reshape(rx, sx)
        rw = ReduceSum <noop_with_empty_axes = 1> (dy, aw) dw = Reshape(rw, sw)
    }"""
    x, w, dy = (np.ones(shape, np.float32) for shape in ((2, 1), (3,), (2, 3)))
    actual = cto.onnx.Session(onnx.parser.parse_model(text)).run({"x": x, "w": w, "dy": dy})
    np.testing.assert_array_equal(actual["dx"], [[3], [3]])
    np.testing.assert_array_equal(actual["dw"], [2, 2, 2])
    with pytest.raises(cto.ArgumentError, match="cannot be broadcast"):
        result("BroadcastGradientArgs", np.array([2]), np.array([3]))


OF_HALVES = {
    "MatMul": [(3, 4), (4, 2)],
    "Gemm": [(3, 4), (4, 2), (2,)],
    "HardSigmoid": [(3, 4)],
    "HardSwish": [(3, 4)],
    "Clip": [(3, 4)],
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op", OF_HALVES)
def test_results_of_half_types_are_of_their_type(op: str, dtype: np.dtype, rng) -> None:
    """NumPy makes float32 of bfloat16 in places."""
    inputs = [rng.standard_normal(shape).astype(dtype) for shape in OF_HALVES[op]]
    known = {"version": 9, "min": -0.5, "max": 0.5} if op == "Clip" else {"version": 14}
    actual = result(op, *inputs, **known)
    wide = result(op, *[x.astype(np.float64) for x in inputs], **known)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual.astype(np.float64), wide, 2e-2, 2e-2)


def test_a_product_of_half_types_is_written_where_out_says(rng) -> None:
    a, b = (rng.standard_normal((3, 3)).astype(HALVES[1]) for _ in range(2))
    out = np.full((3, 3), np.nan, HALVES[1])
    assert reductions.product(np, a, b, 0.5, out=out) is out
    np.testing.assert_array_equal(out, reductions.product(np, a, b, 0.5))


def test_a_normalisation_of_half_types_does_not_overflow_on_its_way() -> None:
    x, each = np.full((1, 1), 300, np.float16), np.ones(1, np.float16)
    inputs = [x, 300 * each, 0 * each, 200 * each, 0.25 * each]
    actual = result("BatchNormalization", *inputs, version=14, epsilon=0.0)
    np.testing.assert_array_equal(actual, np.float16(60000))

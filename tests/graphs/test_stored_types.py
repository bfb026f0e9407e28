# SPDX-License-Identifier: MIT
"""Types that graphs store numbers in, conversions to and from them, and quantized numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import cupy_training_ops as cto
from cupy_training_ops.onnx import stored

from .boxes import Device
from .nodes import expected, result, results

F, BF = np.float32, cto.dtypes.BFLOAT16
ROWS = {row.name: row for row in stored.STORED_TYPES}
FLOATS_8 = ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"]
TORCH = {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}


def all_of(name: str) -> np.ndarray:
    """Every number of a type."""
    return stored.of_codes(np.arange(2 ** ROWS[name].n_bits, dtype=np.uint8), ROWS[name].dtype)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_constants_are_read_whatever_shares_a_byte(name: str, raw: bool, n: int, rng) -> None:
    """As onnx.numpy_helper writes and reads them, by bytes or by numbers of int32_data."""
    values = rng.choice(all_of(name), n)
    tensor = numpy_helper.from_array(values, "w")
    if not raw:
        tensor = onnx.TensorProto(
            name="w", data_type=ROWS[name].onnx, dims=[n], int32_data=list(tensor.raw_data)
        )
    np.testing.assert_array_equal(
        numpy_helper.to_array(tensor).view(np.uint8), values.view(np.uint8)
    )
    node = helper.make_node("Cast", ["w"], ["y"], to=1)
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")], [tensor])
    imports = [helper.make_opsetid("", 25)]
    actual = cto.onnx.Session(helper.make_model(graph, opset_imports=imports)).run({})["y"]
    np.testing.assert_array_equal(actual, values.astype(F))
    for damaged in (tensor.raw_data[:-1], tensor.raw_data + b"0") if raw else ():
        tensor.raw_data = damaged
        with pytest.raises(cto.ArgumentError, match=r"expected \d bytes for shape"):
            cto.onnx.models.array_of(tensor, None)


@pytest.mark.parametrize("name", ["int4", "uint2", "float8e5m2"])
def test_constants_beside_a_model_are_read(name: str, rng, tmp_path) -> None:
    values = rng.choice(all_of(name), 9)
    tensor = numpy_helper.from_array(values, "w")
    (tmp_path / "data").write_bytes(b"before" + tensor.raw_data)
    outside = onnx.TensorProto(data_type=tensor.data_type, dims=[9], data_location=1)
    for key, value in (
        ("location", "data"),
        ("offset", "6"),
        ("length", str(len(tensor.raw_data))),
    ):
        outside.external_data.add(key=key, value=value)
    actual = cto.onnx.models.array_of(outside, tmp_path)
    np.testing.assert_array_equal(actual.astype(F), values.astype(F))


@pytest.mark.parametrize("name", FLOATS_8)
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", [F, np.float16, np.float64, BF], ids=str)
def test_a_number_becomes_the_nearest_float_of_8_bits(name, saturate, dtype, rng) -> None:
    """The nearest by its distance to all numbers of the type; of two the one with an even code."""
    numbers = all_of(name).astype(np.float64)
    most = np.nanmax(numbers[np.isfinite(numbers)])
    x = np.concatenate([rng.uniform(-1, 1, 200) * most, rng.standard_normal(200) / 50])
    ends = [0, most, -most, 1.01 * most, most / 3, 1e-9]
    x = np.concatenate([x, ends]).astype(dtype)
    actual = result("Cast", x, to=ROWS[name].onnx, saturate=saturate).astype(np.float64)
    finite = np.unique(numbers[np.isfinite(numbers)])
    for a, b in zip(x.astype(np.float64), actual, strict=True):
        distance = np.abs(finite - a)
        assert np.abs(b - a) == distance.min(), (a, b)
    with np.errstate(over="ignore"):  # in float16
        beyond = np.array([4 * most, -4 * most, np.inf, -np.inf, np.nan]).astype(dtype)
    actual = result("Cast", beyond, to=ROWS[name].onnx, saturate=saturate).astype(np.float64)
    assert np.isnan(actual[4])
    if saturate:
        np.testing.assert_array_equal(actual[:4], [most, -most] * 2)
    elif name == "float8e5m2":
        np.testing.assert_array_equal(actual[:4], [np.inf, -np.inf] * 2)
    else:
        assert np.isnan(actual).all()


@pytest.mark.parametrize("name", TORCH)
def test_floats_of_8_bits_are_those_of_torch(name: str, rng) -> None:
    torch = pytest.importorskip("torch")
    x = (rng.standard_normal(500) * 10.0 ** rng.integers(-6, 5, 500)).astype(F)
    x = np.clip(x, -448, 448)  # for what is beyond, PyTorch's versions differ
    exact = torch.tensor(x).to(getattr(torch, TORCH[name])).to(torch.float32)
    actual = result("Cast", x, to=ROWS[name].onnx, saturate=0)
    np.testing.assert_array_equal(actual.astype(F), exact)


@pytest.mark.parametrize("name", [*FLOATS_8, "float4e2m1"])
def test_a_number_of_float64_is_rounded_once(name: str) -> None:
    """A little more than the middle of two numbers is the higher one, though float32 has it not."""
    numbers = np.unique(all_of(name).astype(np.float64))
    numbers = numbers[np.isfinite(numbers)]
    middle = (numbers[1:] + numbers[:-1]) / 2
    near = np.abs(middle) * 2.0**-40
    for x, exact in ((middle + near, numbers[1:]), (middle - near, numbers[:-1])):
        actual = result("Cast", x[near > 0], to=ROWS[name].onnx)
        np.testing.assert_array_equal(actual.astype(np.float64), exact[near > 0])


@pytest.mark.parametrize(
    ("mode", "exact"), [("up", [4, 8, 8, 8]), ("down", [4, 4, 4, 4]), ("nearest", [4, 4, 8, 8])]
)
def test_powers_of_two(mode: str, exact: list[int]) -> None:
    x = np.array([4, 5.9, 6, 7], F)
    actual = result("Cast", x, to=24, round_mode=mode)
    np.testing.assert_array_equal(actual.astype(F), exact)
    ends = np.array([np.inf, 1e300, 2.0**-140, 0, np.nan, -1])
    actual = result("Cast", ends, to=24, round_mode=mode).astype(np.float64)
    np.testing.assert_array_equal(actual[:4], [2.0**127] * 2 + [2.0**-127] * 2)
    assert np.isnan(actual[4:]).all()
    assert np.isnan(result("Cast", ends, to=24, saturate=0, round_mode=mode).astype(F)).all()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("other", ["float16", "float32", "int32", "bool"])
def test_numbers_come_back_as_they_are(name: str, other: str) -> None:
    numbers = all_of(name)
    wide = numbers.astype(np.float64)
    numbers = numbers[np.isfinite(wide) & (np.abs(wide) < 6e4)]
    actual = result("CastLike", numbers, np.zeros(1, other))
    np.testing.assert_array_equal(actual, numbers.astype(np.float64).astype(other))
    again = result("CastLike", actual, numbers[:1])
    if other.startswith("float") and name != "float8e8m0":
        np.testing.assert_array_equal(again.view(np.uint8), numbers.view(np.uint8))


def test_bits_are_those_of_integers_of_4_bits() -> None:
    numbers = all_of("uint4")
    actual = result("BitCast", numbers, version=26, to=22)
    np.testing.assert_array_equal(actual.astype(int), [*range(8), *range(-8, 0)])
    back = result("BitCast", actual, version=26, to=21)
    np.testing.assert_array_equal(back.astype(int), range(16))


@pytest.mark.parametrize(
    "text",
    [
        "float8e4m3fn[2] x) => (float[2] y) { y = Cast <to=1> (x) }",
        "float[2] x) => (int4[2] y) { y = Cast <to=22> (x) }",
    ],
)
def test_a_device_refuses_what_numpy_alone_has(text: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g ({text}')
    cto.onnx.Session(model)
    with pytest.raises(cto.ArgumentError, match="need NumPy"):
        cto.onnx.Session(model, Device())


# ---- quantized numbers ---------------------------------------------------------------------------

WHOLE = ["uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2"]


def dtype_of(name: str) -> np.dtype:
    return ROWS[name].dtype if name in ROWS else np.dtype(name)


def range_of(name: str) -> tuple[int, int]:
    bits = int(name.rpartition("int")[2])
    return (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("form", ["one", "axis", "blocks"])
def test_quantized_numbers_by_whole_numbers(name: str, form: str, rng) -> None:
    """Scales are powers of two, so that float64 says what is exact."""
    least, most = range_of(name)
    shape = {"one": (), "axis": (4,), "blocks": (3, 2, 5)}[form]
    attributes = {"one": {}, "axis": {"axis": -2}, "blocks": {"axis": 1, "block_size": 3}}[form]
    x = (rng.integers(-9, 9, (3, 4, 5)) / 2 * rng.choice([1, most], (3, 4, 5))).astype(F)
    scale = (2.0 ** rng.integers(-1, 2, shape)).astype(F)
    zero = rng.integers(least, most, shape, endpoint=True)
    actual = result("QuantizeLinear", x, scale, zero.astype(dtype_of(name)), **attributes)
    scales, zeros = scale, zero
    if form == "axis":
        scales, zeros = scale[:, None], zero[:, None]
    if form == "blocks":
        scales, zeros = (np.repeat(a, 3, 1)[:, :4] for a in (scale, zero))
    exact = np.clip(np.round(x.astype(np.float64) / scales) + zeros, least, most)
    assert actual.dtype == dtype_of(name)
    np.testing.assert_array_equal(actual.astype(np.int64), exact)
    back = result("DequantizeLinear", actual, scale, zero.astype(dtype_of(name)), **attributes)
    assert back.dtype == F
    np.testing.assert_array_equal(back, (exact - zeros) * scales)


def test_the_scale_says_how_exact_a_quotient_is() -> None:
    """Beyond 2048 float16 has the even numbers alone, and of two takes that with an even half."""
    x, zero = np.array([2049.0, 2051.0], F), np.uint16(0)
    rough, exact = [2048, 2052], [2049, 2051]
    np.testing.assert_array_equal(result("QuantizeLinear", x, np.float16(1), zero), rough)
    np.testing.assert_array_equal(result("QuantizeLinear", x, F(1), zero), exact)
    actual = result("QuantizeLinear", x, F(1), zero, precision=10)
    np.testing.assert_array_equal(actual, rough)
    actual = result("QuantizeLinear", x, np.float16(1), zero, precision=1)
    np.testing.assert_array_equal(actual, exact)
    actual = result("QuantizeLinear", np.array([6152], F), np.float16(3), zero)
    np.testing.assert_array_equal(actual, [2050])  # 2050.67 of float16


@pytest.mark.parametrize("name", [*FLOATS_8, "float4e2m1"])
def test_quantized_floats(name: str, rng) -> None:
    x = rng.uniform(-3, 3, (2, 3)).astype(F)
    actual = result("QuantizeLinear", x, F(0.5), output_dtype=ROWS[name].onnx)
    np.testing.assert_array_equal(
        actual.view(np.uint8), (2 * x).astype(actual.dtype).view(np.uint8)
    )
    back = result("DequantizeLinear", actual, F(0.5), output_dtype=10)
    assert back.dtype == np.float16
    np.testing.assert_array_equal(back, actual.astype(F) / 2)


@pytest.mark.parametrize(
    ("scale", "zero", "attributes", "words"),
    [
        (np.ones(3, F), None, {}, "y_scale: expected 4 elements, got 3"),
        (np.ones((2, 2), F), None, {}, r"y_scale: expected shape \(2, 4\) for a block_size of 0"),
        (np.ones((2, 3), F), None, {"block_size": 2}, r"expected shape \(2, 2\)"),
        (F(1), np.int8(0), {"output_dtype": 2}, "expected uint8 as output_dtype, got int8"),
        (np.ones(4, F), np.zeros(2, np.int8), {}, "y_zero_point: expected 4 elements, got 2"),
    ],
)
def test_scales_that_do_not_fit_are_refused(scale, zero, attributes, words) -> None:
    with pytest.raises(cto.OpError, match=words):
        result("QuantizeLinear", np.ones((2, 4), F), scale, zero, **attributes)


@pytest.mark.parametrize("low", [-3.0, 1.0, 0.0])
def test_a_range_becomes_all_codes(low: float, rng) -> None:
    x = rng.uniform(low, low + 5, (3, 4)).astype(F)
    y, scale, zero = results("DynamicQuantizeLinear", x, n=3, version=11)
    exact = expected("DynamicQuantizeLinear", x, n=3, version=11)
    for a, b in zip((y, scale, zero), exact, strict=True):
        assert a.dtype == np.asarray(b).dtype
        assert a.shape == np.shape(b)
        np.testing.assert_array_equal(a, b)
    y, scale, zero = results("DynamicQuantizeLinear", np.zeros(3, F), n=3, version=11)
    assert (list(y), float(scale), int(zero)) == ([0, 0, 0], 0, 0)


@pytest.mark.parametrize("kinds", [("u1", "u1"), ("u1", "i1"), ("i1", "u1"), ("i1", "i1")])
def test_products_of_codes_are_whole(kinds: tuple[str, str], rng) -> None:
    a, b = (drawn(rng, s, k) for s, k in zip(((2, 3, 70), (2, 70, 5)), kinds, strict=True))
    a_zero, b_zero = drawn(rng, (2, 3, 1), kinds[0]), drawn(rng, 5, kinds[1])
    exact = (a.astype(int) - a_zero) @ (b.astype(int) - b_zero)
    actual = result("MatMulInteger", a, b, a_zero, b_zero)
    assert actual.dtype == np.int32
    np.testing.assert_array_equal(actual, exact)
    np.testing.assert_array_equal(result("MatMulInteger", a, b), a.astype(int) @ b.astype(int))
    by_row = drawn(rng, 3, kinds[0])
    exact = (a[0].astype(int) - by_row[:, None]) @ b[0].astype(int)
    np.testing.assert_array_equal(result("MatMulInteger", a[0], b[0], by_row), exact)
    for right, zero in ((b, b_zero[:4]), (b[0, :, 0], b[0, :, 0])):  # a vector has one column
        with pytest.raises(cto.ArgumentError, match="b_zero_point: expected shape"):
            result("MatMulInteger", a, right, a_zero, zero)


def drawn(rng: np.random.Generator, shape: object, kind: str) -> np.ndarray:
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, shape, kind, endpoint=True)


def test_a_sum_beyond_32_bits_loses_its_high_bits() -> None:
    a, b = np.full((1, 140_000), 255, np.uint8), np.full((140_000, 1), 255, np.uint8)
    exact = 140_000 * 255 * 255
    assert int(result("MatMulInteger", a, b)[0, 0]) == exact - 2**33


@pytest.mark.parametrize("kind", ["u1", "i1"])
@pytest.mark.parametrize("has_many", [False, True])
def test_quantized_products_and_convolutions(kind: str, has_many: bool, rng) -> None:
    """Scales are powers of two: quotients are exact, and halves are rounded to even numbers."""
    info = np.iinfo(kind)
    a, b = drawn(rng, (4, 6), kind), drawn(rng, (6, 5), kind)
    zeros = [drawn(rng, (), kind) for _ in "aby"]
    a_scale, b_scale = F(0.5), (2.0 ** rng.integers(-3, 1, 5)).astype(F) if has_many else F(0.25)
    b_zero = drawn(rng, 5, kind) if has_many else zeros[1]
    actual = result("QLinearMatMul", a, a_scale, zeros[0], b, b_scale, b_zero, F(16), zeros[2])
    whole = (a.astype(int) - int(zeros[0])) @ (b.astype(int) - b_zero.astype(int))
    exact = np.clip(np.round(whole * (0.5 * b_scale / 16)) + int(zeros[2]), info.min, info.max)
    np.testing.assert_array_equal(actual, exact)

    x, w = drawn(rng, (2, 4, 7, 6), kind), drawn(rng, (6, 2, 3, 2), kind)
    w_zero = drawn(rng, 6, kind) if has_many else zeros[1]
    w_scale = (2.0 ** rng.integers(-3, 1, 6)).astype(F) if has_many else F(0.25)
    bias = rng.integers(-500, 500, 6, np.int32)
    attributes = {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]}
    left = np.pad(x.astype(np.float64) - int(zeros[0]), [(0, 0), (0, 0), (1, 1), (0, 1)])
    right = w.astype(np.float64) - w_zero.astype(np.float64).reshape(-1, 1, 1, 1)
    whole = np.zeros((2, 6, 4, 5))
    for k, (i, j) in enumerate(np.ndindex(3, 2)):
        part = left[:, :, i : i + 7 : 2, 2 * j : 2 * j + 5].reshape(2, 2, 2, 4, 5)
        taps = right.reshape(2, 3, 2, 6)[..., k]
        whole += np.einsum("ngchw,gfc->ngfhw", part, taps).reshape(whole.shape)
    plain = result("ConvInteger", x, w, zeros[0], w_zero, **attributes)
    assert plain.dtype == np.int32
    np.testing.assert_array_equal(plain, whole)
    actual = result(
        "QLinearConv", x, F(0.5), zeros[0], w, w_scale, w_zero, F(16), zeros[2], bias, **attributes
    )
    scales = np.reshape(0.5 * w_scale / 16, (-1, 1, 1))
    quotient = (whole + bias[:, None, None]) * scales
    exact = np.clip(np.round(quotient) + int(zeros[2]), info.min, info.max)
    assert actual.dtype == x.dtype
    np.testing.assert_array_equal(actual, exact)


def test_other_codes_than_bytes_are_refused() -> None:
    codes = np.ones((2, 2), ml_dtypes.float8_e4m3fn)
    one, zero = F(1), codes[0, 0]
    with pytest.raises(cto.DtypeError, match="expected uint8 or int8, got float8e4m3fn"):
        result("QLinearMatMul", codes, one, zero, codes, one, zero, one, zero)
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float8e4m3fn[2, 2] a, float s, float8e4m3fn z) => (float8e4m3fn[2, 2] y) {
        y = QLinearMatMul (a, s, z, a, s, z, s, z) }"""
    with pytest.raises(cto.ArgumentError, match="a: expected uint8 or int8, got float8e4m3fn"):
        cto.onnx.Session(onnx.parser.parse_model(text))

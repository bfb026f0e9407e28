# SPDX-License-Identifier: MIT
"""Gist kernels, exhaustively: bit for bit the CPU provider's answers, from every bit pattern."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.gist.operators import OPS, THREADS
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches, poison

DEVICE = Device(132, (9, 0))
ENCODERS = [name for name in OPS if "Encoder" in name]
DECODERS = [name for name in OPS if "Decoder" in name]
WIDE = (FLOAT32, FLOAT64)
NARROW = (FLOAT16, BFLOAT16)
ALIGNED = 4  # place of the argument that says whether both arrays are aligned

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
wide = pytest.mark.parametrize("dtype", WIDE, ids=dtype_name)
narrow = pytest.mark.parametrize("dtype", NARROW, ids=dtype_name)
encoders = pytest.mark.parametrize("name", ENCODERS)
decoders = pytest.mark.parametrize("name", DECODERS)
offsets = pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])


@np.errstate(all="ignore")
def cast(x: np.ndarray, dtype) -> np.ndarray:
    """NumPy's conversion, without its word on signalling NaN and overflow."""
    return x.astype(dtype)


def same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the sign of zero; any NaN for any NaN."""
    assert_matches(actual, expected, 0)
    if expected.dtype in FLOATS:
        numbers = ~np.isnan(cast(expected, FLOAT64))
        assert (np.signbit(actual) == np.signbit(expected))[numbers].all()


def check(run, op, x: np.ndarray, offset: int = 0) -> np.ndarray:
    """Run an operator's kernel on poisoned output; equal to its CPU provider; which kernel ran."""
    expected = op.cpu_function()(x, **op.attribute_values)
    out = poison(run.blank(Spec(expected.shape, expected.dtype), offset))
    with launch_log() as log:
        op(run.place(x, offset), out=out)
    assert [launch.symbol for launch in log] == [op.kernel]
    assert log[0].args[ALIGNED] == (offset == 0)
    same_bits(run.host(out), expected)
    return run.host(out)


def many(run) -> int:
    return 1_000_000 if run.on_gpu else 50_000


def random_bits(rng: np.random.Generator, dtype, n: int) -> np.ndarray:
    width = f"u{np.dtype(dtype).itemsize}"
    return rng.integers(0, np.iinfo(width).max, n, width, endpoint=True).view(dtype)


def close_exponents(rng: np.random.Generator, dtype, n: int) -> np.ndarray:
    """Random bits whose exponents in a tile of 8 are alike, down to float32's subnormals."""
    fraction, lowest = (23, 0) if dtype == FLOAT32 else (52, 896)
    exponent = rng.integers(0, 255, (n // 8, 1)) - rng.integers(0, 9, (n // 8, 8))
    exponent = (np.maximum(exponent, 0) + lowest).astype(np.uint64)
    bits = random_bits(rng, FLOAT64, n).view(np.uint64).reshape(-1, 8) >> np.uint64(12)
    sign = (bits & np.uint64(1)) << np.uint64(8 * dtype.itemsize - 1)
    word = sign | exponent << np.uint64(fraction) | bits >> np.uint64(52 - fraction)
    return word.astype(f"u{dtype.itemsize}").view(dtype).ravel()


def tiny(rng: np.random.Generator, dtype) -> np.ndarray:
    """Numbers around float32's smallest, and of float64 far below; zeros of both signs."""
    lowest = -1074 if dtype == FLOAT64 else -149
    exponents = rng.integers(lowest, -118, (512, 1)) + rng.integers(-4, 4, (512, 8))
    exponents[::2] = rng.integers(-151, -118, (256, 8))
    with np.errstate(under="ignore"):
        values = np.ldexp(rng.uniform(-2, 2, (512, 8)), exponents)
    return cast(values * (rng.random((512, 8)) > 0.2), dtype).ravel()


def halves_and_ties(dtype) -> np.ndarray:
    """Every finite half, the middle of each two, and what the type has next to them."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(FLOAT16).astype(FLOAT64)
    halves[-1] = 2.0**16
    points = np.concatenate([halves, (halves[:-1] + halves[1:]) / 2]).astype(dtype)
    far = dtype.type(np.inf)
    around = [np.nextafter(points, -far), points, np.nextafter(points, far)]
    return np.concatenate([*around, *(-p for p in around)])


# ---- encoders: every bit pattern -----------------------------------------------------------------


@encoders
@narrow
@offsets
def test_every_16_bit_pattern_encodes(run, rng, name, dtype, offset) -> None:
    patterns = np.arange(65_536, dtype=np.uint16)
    op = get_op(name)()
    check(run, op, patterns.view(dtype), offset)
    check(run, op, rng.permutation(patterns).view(dtype), offset)


@encoders
@wide
@offsets
def test_random_bit_patterns_encode(run, rng, name, dtype, offset) -> None:
    check(run, get_op(name)(), random_bits(rng, dtype, many(run)), offset)
    check(run, get_op(name)(), close_exponents(rng, dtype, many(run)), offset)


@encoders
@wide
def test_every_rounding_boundary_encodes(run, name, dtype) -> None:
    check(run, get_op(name)(), halves_and_ties(dtype))


@encoders
@floats
def test_subnormals_are_not_flushed(run, rng, name, dtype) -> None:
    """Whatever -ftz=true does to arithmetic, results are the CPU provider's."""
    fraction = {FLOAT16: 10, BFLOAT16: 7, FLOAT32: 23, FLOAT64: 52}[dtype]
    width = f"u{dtype.itemsize}"
    tiny = rng.integers(1, 2**fraction, 4096, width)
    signs = rng.integers(0, 2, 4096).astype(width) << np.array(8 * dtype.itemsize - 1, width)
    x = (tiny | signs).view(dtype)
    result = check(run, get_op(name)(), x)
    if name == "GistBinarizeEncoder":
        np.testing.assert_array_equal(result, signs == 0)


@pytest.mark.parametrize("keep_nonfinite", [False, True])
@offsets
def test_signs_are_kept_of_every_pattern(run, rng, keep_nonfinite, offset) -> None:
    """By bits: the GPU's arithmetic takes subnormals for zeros."""
    op = get_op("GistPackMsfp15Encoder")(keep_sign=True, keep_nonfinite=keep_nonfinite)
    patterns = np.arange(65_536, dtype=np.uint16)
    for dtype in NARROW:
        check(run, op, patterns.view(dtype), offset)
        check(run, op, rng.permutation(patterns).view(dtype), offset)
    for dtype in WIDE:
        check(run, op, random_bits(rng, dtype, many(run)), offset)
        check(run, op, close_exponents(rng, dtype, many(run)), offset)
        check(run, op, halves_and_ties(dtype), offset)
        check(run, op, tiny(rng, dtype), offset)


@floats
def test_signs_come_back_from_the_kernels(run, rng, dtype) -> None:
    x = (
        np.concatenate([close_exponents(rng, dtype, 8192), tiny(rng, dtype)])
        if (dtype in WIDE)
        else random_bits(rng, dtype, 8192)
    )
    x[~(np.abs(cast(x, FLOAT64)) < 2.0**127)] = 0
    codes = check(run, get_op("GistPackMsfp15Encoder")(keep_sign=True), x)
    decoded = check(run, get_op("GistPackMsfp15Decoder")(to=dtype), codes)
    np.testing.assert_array_equal(np.sign(cast(decoded, FLOAT64)), np.sign(cast(x, FLOAT64)))


def test_kept_nonfinite_tiles(run, rng) -> None:
    op = get_op("GistPackMsfp15Encoder")(keep_nonfinite=True)
    for dtype in FLOATS:
        x = random_bits(rng, dtype, many(run))
        codes = check(run, op, x)
        back = get_op("GistPackMsfp15Decoder")(to=dtype, keep_nonfinite=True)
        wide = cast(x, FLOAT64)
        decoded = cast(check(run, back, codes), FLOAT64)
        lost = ~(np.abs(wide) < 2.0**128)
        assert lost.any()
        expected = np.where(np.isnan(wide), wide, np.copysign(np.inf, wide))[lost]
        np.testing.assert_array_equal(decoded[lost], expected)
        assert np.isfinite(decoded[~lost]).all()


@pytest.mark.parametrize("dtype", [*NARROW, FLOAT32], ids=dtype_name)  # float64 it rounds twice
def test_pack8_is_ml_dtypes_e5m2(run, rng, dtype) -> None:
    x = random_bits(rng, dtype, many(run))
    codes = check(run, get_op("GistPack8Encoder")(), x)
    np.testing.assert_array_equal(codes, cast(x, ml_dtypes.float8_e5m2).view(np.uint8))


# ---- decoders: every code ------------------------------------------------------------------------


def every_msfp15_tile() -> np.ndarray:
    """For each of the 256 shared exponents, tiles with each of the 128 signs and magnitudes."""
    shared = np.arange(256)[:, None] >> np.arange(8) & 1
    elements = np.arange(128).reshape(16, 8)
    return (shared[:, None, :] << 7 | elements).astype(np.uint8).ravel()


def every_code(name: str) -> np.ndarray:
    if "Binarize" in name:
        return np.array([False, True] * 40)
    if "Msfp15" in name:
        return every_msfp15_tile()
    if "Pack16" in name:
        return np.arange(65_536, dtype=np.uint16).view(FLOAT16)
    return np.arange(256, dtype=np.uint8)


@decoders
@floats
@offsets
def test_every_code_decodes(run, name, dtype, offset) -> None:
    check(run, get_op(name)(to=dtype), every_code(name), offset)


@floats
def test_every_kept_msfp15_tile_decodes(run, dtype) -> None:
    """Also all that encode_nonfinite may write: each F with each sign and magnitude."""
    op = get_op("GistPackMsfp15Decoder")(to=dtype, keep_nonfinite=True)
    check(run, op, every_msfp15_tile())
    exponents = (np.arange(256)[:, None] >> np.arange(8) & 1) << 5
    elements = np.arange(32).reshape(4, 8) | (np.arange(2) << 6)[:, None, None]
    tiles = 0x80 | exponents[:, None, :] | elements.reshape(8, 8)
    decoded = check(run, op, tiles.astype(np.uint8).ravel())
    assert np.isnan(cast(decoded, FLOAT64)).sum() >= 256 * 2


NAN_BITS = [
    (FLOAT16, "7e00"), (BFLOAT16, "7fc0"), (FLOAT32, "7fc00000"), (FLOAT64, "7ff8000000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "bits"), NAN_BITS)
def test_a_kept_tiles_nan_has_one_pattern(anywhere, dtype, bits) -> None:
    codes = anywhere.place(np.full(16, 0x80, np.uint8))
    decoded = get_op("GistPackMsfp15Decoder")(to=dtype, keep_nonfinite=True)(codes)
    assert anywhere.host(decoded).byteswap().tobytes().hex() == 16 * bits


@floats
def test_random_msfp15_codes_decode(run, rng, dtype) -> None:
    codes = rng.integers(0, 256, many(run), np.uint8)
    check(run, get_op("GistPackMsfp15Decoder")(to=dtype), codes)


# ---- ends of blocks and of arrays ----------------------------------------------------------------


def decoded_spec(dtype, n: int) -> Spec:
    return Spec((n,), np.dtype(dtype))


def plan(op, x: Spec, aligned: tuple[bool, bool] = (True, True)):
    """The launch for an input, with both alignments as said."""
    (y,) = op.infer(x)
    pair = (Spec(s.shape, s.dtype, a) for s, a in zip((x, y), aligned, strict=True))
    (launch,) = op.plan(DEVICE, *pair).steps
    return launch


def block_elements(name: str, dtype) -> int:
    """How many decoded elements a block takes: the most that plan for one block."""

    def blocks(n: int) -> int:
        if "Encoder" in name:
            return plan(get_op(name)(), decoded_spec(dtype, n)).config.grid[0]
        op = get_op(name)(to=dtype, shape=(n,))
        codes = Spec((op.codes(n),), every_code(name).dtype)
        return plan(op, codes).config.grid[0]

    return bisect_left(range(1, 1 << 20), 2, key=blocks)


def boundary_sizes(name: str, dtype) -> list[int]:
    block = block_elements(name, dtype)
    ends = [k * block + d for k in (1, 2) for d in (-9, -8, -1, 0, 1, 7, 8)]
    return [*range(1, 34), *ends, block // 2 - 1, block // 2 + 1]


@encoders
@floats
def test_encoders_at_the_ends_of_blocks(run, rng, name, dtype) -> None:
    for n in boundary_sizes(name, dtype):
        for offset in (0, 1):
            check(run, get_op(name)(), random_bits(rng, dtype, n), offset)


@decoders
@floats
def test_decoders_at_the_ends_of_blocks(run, rng, name, dtype) -> None:
    codes = every_code(name)
    for n in boundary_sizes(name, dtype):
        op = get_op(name)(to=dtype, shape=(n,))
        for offset in (0, 1):
            check(run, op, rng.choice(codes, op.codes(n)), offset)


# ---- which kernel runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
@floats
@pytest.mark.parametrize("aligned", [(x, y) for x in (True, False) for y in (True, False)], ids=str)
def test_the_kernel_is_told_whether_both_arrays_are_aligned(name, dtype, aligned) -> None:
    if "Encoder" in name:
        op, x = get_op(name)(), decoded_spec(dtype, 4096)
    else:
        op, x = get_op(name)(to=dtype), Spec((4096,), every_code(name).dtype)
    launch = plan(op, x, aligned)
    assert launch.symbol == op.function_name
    assert launch.args[ALIGNED] == all(aligned)
    assert launch.slots["T"] == {
        FLOAT16: "__half", BFLOAT16: "__nv_bfloat16", FLOAT32: "float", FLOAT64: "double"
    }[dtype]  # fmt: skip
    assert launch.config.block == (THREADS,)


@encoders
@floats
def test_blocks_cover_the_array_and_no_more(name, dtype) -> None:
    block = block_elements(name, dtype)
    assert block % (4 * THREADS) == 0
    for n, blocks in ((1, 1), (block, 1), (block + 1, 2), (2**36, 2**36 // block)):
        assert plan(get_op(name)(), decoded_spec(dtype, n)).config.grid == (blocks,)


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
@pytest.mark.parametrize("offset_in", [0, 1])
@pytest.mark.parametrize("offset_out", [0, 1])
def test_the_chosen_variant_runs(run, rng, name, offset_in, offset_out) -> None:
    if "Encoder" in name:
        op, x = get_op(name)(), rng.standard_normal(3001).astype(FLOAT32)
    else:
        op, x = get_op(name)(to=FLOAT32), rng.choice(every_code(name), 3000)
    expected = op.cpu_function()(x, **op.attribute_values)
    out = poison(run.blank(Spec(expected.shape, expected.dtype), offset_out))
    with launch_log() as log:
        op(run.place(x, offset_in), out=out)
    assert [launch.symbol for launch in log] == [op.function_name]
    assert log[0].args[4] is (offset_in == offset_out == 0)
    same_bits(run.host(out), expected)


def test_an_empty_array_launches_nothing(run) -> None:
    with launch_log() as log:
        for name in ENCODERS:
            get_op(name)()(run.place(np.empty((0, 3), FLOAT32)))
        for name in DECODERS:
            get_op(name)(to=FLOAT16)(run.place(every_code(name)[:0]))
    assert not log


# ---- upstream's own answers ----------------------------------------------------------------------

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
CASES = sorted({key.split("|")[0] for key in ANSWERS.files if key.startswith("Gist")})


@pytest.mark.parametrize("case", CASES)
def test_upstreams_kernels_give_the_same(run, case) -> None:
    expected = ANSWERS[f"{case}|out0"]
    attributes = {"to": expected.dtype} if "Decoder" in case else {}
    out = check(run, get_op(case.partition("[")[0])(**attributes), ANSWERS[f"{case}|in|X"])
    same_bits(out, expected)

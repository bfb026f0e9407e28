# SPDX-License-Identifier: MIT
"""compress and Packed: what goes in comes back, as near as the codec says."""

from __future__ import annotations

import math
import pydoc
import types

import ml_dtypes
import numpy as np
import pytest
from codec_names import FLOAT_CODECS, SIGN_CODECS, SPARSE_CODECS, VALUE_CODECS
from foreign import Foreign

from cupy_training_ops import (
    CODECS,
    ArgumentError,
    DtypeError,
    OpError,
    Packed,
    compress,
)
from cupy_training_ops.dtypes import dtype_name
from cupy_training_ops.testing.compare import assert_matches, poison

from .cases import SHAPES, activations, floats


def as_documented(codec: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What decoding gives and how far it may be off, from the codec's own words."""
    size = np.abs(x.astype(np.float64))
    if codec in SIGN_CODECS:
        return (x > 0).astype(np.float64), np.zeros(x.shape)
    if codec == "sparse":
        return x.astype(np.float64), np.zeros(x.shape)
    if codec.startswith("block"):
        return x.astype(np.float64), scaled_bound(codec, size)
    if codec.startswith("int8"):
        return x.astype(np.float64), integer_bound(codec, size, x.dtype)
    if "msfp15" in codec:  # signs keep the bound
        is_in = size > 0 if codec.startswith("sparse") else np.full(size.shape, True)
        allowed = np.zeros(x.shape)  # of zeros, which sparse boxes leave out
        allowed[is_in] = box_bound(size[is_in])
        return x.astype(np.float64), allowed
    bits = {"pack8": 2, "pack16": 10, "fp10": 4, "sparse_fp10": 4}[codec]  # of the fraction
    return x.astype(np.float64), np.maximum(2.0 ** -(bits + 1) * size, 2.0 ** -(bits + 15))


def box_bound(size: np.ndarray) -> np.ndarray:
    """A unit of the last place of the largest number in each box of eight."""
    boxes = np.pad(size, (0, -size.size % 8)).reshape(-1, 8)
    _, exponent = np.frexp(boxes.max(axis=1, initial=0))
    return np.repeat(np.ldexp(2.0**-5, exponent - 1), 8)[: size.size]


def scaled_bound(codec: str, size: np.ndarray) -> np.ndarray:
    """Half a unit of the fraction, or of the smallest number that the block's scale leaves."""
    relative, below, most = {"block_e4m3": (4, 10, 464), "block_e5m2": (3, 17, 61_439)}[codec]
    blocks = np.pad(size.ravel(), (0, -size.size % 128)).reshape(-1, 128)
    largest = np.maximum(blocks.max(axis=1, initial=0), 2.0**-1000)
    scale = np.repeat(np.ceil(np.log2(largest / most)), 128)[: size.size].reshape(size.shape)
    return np.maximum(2.0**-relative * size, 2.0 ** (scale - below))


def integer_bound(codec: str, size: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Half a step of the block, a whole one for signs, and half a unit in the last place."""
    blocks = np.pad(size.ravel(), (0, -size.size % 32)).reshape(-1, 32)
    steps = np.maximum(blocks.max(axis=1, initial=0) / 126, 1e-30)
    step = np.repeat(steps, 32)[: size.size].reshape(size.shape)
    last = float(ml_dtypes.finfo(dtype).eps) / 2 * (size + step)
    return (1 if codec == "int8_signed" else 0.51) * step + last


# Upstream's; the kernels of the others are compiled anew for each type, and have samples.
FIRST_CODECS = ("binarize", "pack1", "pack8", "pack16", "msfp15")
mostly_first = pytest.mark.parametrize(
    "codec",
    [
        pytest.param(name, marks=() if name in FIRST_CODECS else pytest.mark.thorough)
        for name in FLOAT_CODECS
    ],
)


@mostly_first
@floats
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_goes_in_comes_back_within_the_bound(anywhere, rng, codec, dtype, shape) -> None:
    x = activations(rng, shape, dtype)
    packed = compress(anywhere.place(x), codec)
    back = anywhere.host(packed.decompress())
    assert (back.dtype, back.shape) == (x.dtype, x.shape)
    wanted, allowed = as_documented(codec, x)
    assert (np.abs(back.astype(np.float64) - wanted) <= allowed).all()
    assert (packed.codec, packed.dtype, packed.shape) == (codec, dtype_name(dtype), shape)


@pytest.mark.parametrize("codec", sorted(set(FLOAT_CODECS) - set(SPARSE_CODECS)))
@floats
def test_sizes_are_those_of_the_codes(rng, codec, dtype) -> None:
    packed = compress(activations(rng, (12, 1024), dtype), codec)
    assert packed.nbytes == packed.code.nbytes == 12 * 1024 * CODECS[codec].bits / 8
    assert packed.original_nbytes == 12 * 1024 * np.dtype(dtype).itemsize
    assert math.isclose(packed.ratio, 8 * np.dtype(dtype).itemsize / CODECS[codec].bits)


@pytest.mark.parametrize("shape", [(2, 3), (200, 300)], ids=str)
def test_the_repr_says_how_large_the_code_is_and_does_not_print_it(anywhere, rng, shape) -> None:
    packed = compress(anywhere.place(activations(rng, shape)), "msfp15", keep_nonfinite=True)
    assert repr(packed) == (
        f"Packed(codec='msfp15', dtype='float32', shape={shape}, "
        f"options={{'keep_nonfinite': True}}, nbytes={packed.code.nbytes})"
    )


def test_help_lists_the_codecs() -> None:
    text = pydoc.plain(pydoc.render_doc(compress))
    for codec in CODECS.values():
        for said in (codec.name, f"{codec.bits:.4g}-bit", codec.formula, codec.bound):
            assert said in text


def test_an_empty_array_has_a_ratio() -> None:
    assert compress(np.empty((0, 3), np.float32), "pack1").ratio == 1.0


def test_decompress_into_a_given_array(anywhere, rng) -> None:
    x = activations(rng)
    packed = compress(anywhere.place(x), "pack16")
    out = poison(anywhere.place(np.empty_like(x)))
    assert packed.decompress(out=out) is out
    assert_matches(anywhere.host(out), x.astype(np.float16).astype(np.float32), 0)


@floats
@pytest.mark.parametrize("codec", VALUE_CODECS)
def test_infinities_and_nan_are_kept_and_so_is_what_stands_beside(anywhere, rng, codec, dtype):
    """Lossy or not, by default: one NaN in eight numbers is no eight zeros."""
    x = rng.standard_normal(5000).astype(dtype)
    x[rng.random(x.size) < 0.5] = 0
    lost = rng.random(x.size) < 0.03
    x[lost] = rng.choice(np.array([np.nan, np.inf, -np.inf], dtype), int(lost.sum()))
    y = anywhere.host(compress(anywhere.place(x), codec).decompress()).astype(np.float64)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(y[lost], wide[lost])
    assert np.isfinite(y[~lost]).all()
    noise = np.square(y[~lost] - wide[~lost]).sum()
    assert noise < 10**-2.3 * np.square(wide[~lost]).sum()  # 23 dB, that of two bits


def test_options_go_with_the_codes(rng, tmp_path) -> None:
    x = activations(rng, (2, 8))
    x[0, 3] = np.nan
    for options, lost in (({}, 1), ({"keep_nonfinite": True}, 1), ({"keep_nonfinite": False}, 0)):
        packed = compress(x, "msfp15", **options)
        packed.save(tmp_path / "x.npz")
        for one in (packed, Packed.load(tmp_path / "x.npz")):
            decoded = one.decompress()
            assert np.isnan(decoded[0]).sum() == lost
            assert (decoded[0] == 0).all() != lost


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: compress(x, "zip"), ArgumentError, "no codec 'zip'; known: binarize, pack1"),
        (lambda x: compress(x, "pack8", level=9), ArgumentError, "GistPack8Encoder: level:"),
        (lambda x: compress(x, "msfp15", keep_nonfinite=2), ArgumentError, "keep_nonfinite:"),
        (lambda x: compress(x.astype(np.int32), "pack8"), DtypeError, "X: expected dtype float32"),
        (lambda x: compress(x[:, ::2], "pack8"), ArgumentError, "X: expected a dense array"),
        (lambda _: compress([1.0], "pack8"), ArgumentError, "GistPack8Encoder: X: expected a Num"),
        (lambda _: Packed("pack8", "float32", (3, 4), np.zeros(12, np.uint8)), ArgumentError, "of"),
        (lambda _: Packed("pack8", "float32", (4,), np.zeros(4, np.int8)), ArgumentError, "uint8"),
        (lambda _: Packed("pack8", "int32", (4,), np.zeros(4, np.uint8)), DtypeError, "int32"),
        (
            lambda _: Packed("pack1", "float32", (-8, -1), np.zeros(1, np.uint8)),
            ArgumentError,
            "-8",
        ),
        (lambda _: Packed("gone", "float32", (4,), np.zeros(4, np.uint8)), ArgumentError, "gone"),
    ],
)
def test_refusals(rng, call, error, message) -> None:
    with pytest.raises(error, match=message):
        call(activations(rng, (4, 6)))


KEPT = np.zeros(8, np.uint8)
UNSAVED = {
    "a codec that is no text": (b"pack8", "float32", (8,), KEPT, {}),
    "a dtype that is no text": ("pack8", np.float32, (8,), KEPT, {}),
    "a shape that is a list": ("pack8", "float32", [8], KEPT, {}),
    "extents of NumPy's": ("pack8", "float32", (np.int64(8),), KEPT, {}),
    "no shape": ("pack8", "float32", None, KEPT, {}),
    "options that are a list": ("pack8", "float32", (8,), KEPT, []),
    "no options": ("pack8", "float32", (8,), KEPT, None),
    "an option of NumPy's": ("msfp15", "float32", (8,), KEPT, {"keep_nonfinite": np.True_}),
    "an option without a name": ("pack8", "float32", (8,), KEPT, {1: True}),
    "a code that is a list": ("pack8", "float32", (8,), [0] * 8, {}),
    "a code that looks like one": (
        "pack8",
        "float32",
        (8,),
        types.SimpleNamespace(shape=(8,), dtype=np.dtype(np.uint8)),
        {},
    ),
    "a masked code": ("pack8", "float32", (8,), np.ma.masked_array(KEPT, KEPT == 0), {}),
    "no code": ("pack8", "float32", (8,), None, {}),
}


@pytest.mark.parametrize("arguments", UNSAVED.values(), ids=UNSAVED)
def test_what_no_file_could_say_is_refused_at_once(arguments) -> None:
    with pytest.raises(OpError, match=r"^Packed: "):
        Packed(*arguments)


def test_a_code_of_another_library_is_taken_over_the_same_memory(tmp_path) -> None:
    code = np.arange(8, dtype=np.uint8)
    packed = Packed("pack8", "float32", (8,), Foreign(code))
    assert np.shares_memory(packed.code, code)
    packed.save(tmp_path / "x.npz")
    assert_matches(Packed.load(tmp_path / "x.npz").code, code)


def test_the_table_of_codecs_says_what_is_true(rng) -> None:
    for name, codec in CODECS.items():
        assert (codec.name, codec.formula != "", codec.bound != "") == (name, True, True)
        x = rng.integers(1, 16, 3072).astype(codec.dtypes[0])
        zeros = np.zeros_like(x) if codec.leaves_room else x
        bits = 8 * compress(zeros, name).nbytes / x.size
        assert math.isclose(bits, codec.bits, rel_tol=0.1 if codec.leaves_room else 1e-9)
        back = compress(x, name).decompress()
        assert not codec.lossless or (back == (x > 0 if name in SIGN_CODECS else x)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("codec", SPARSE_CODECS)
def test_a_gpu_leaves_room_that_is_given_back(rng, codec) -> None:
    import cupy

    x = np.where(rng.random(70_000) < 0.3, rng.standard_normal(70_000), 0.0).astype(np.float32)
    with_room, on_host = compress(cupy.asarray(x), codec), compress(x, codec)
    trimmed = with_room.trimmed()
    assert on_host.nbytes == trimmed.nbytes < with_room.nbytes
    assert trimmed.code.get().tobytes() == on_host.code.tobytes()
    for packed in (with_room, trimmed):
        assert packed.decompress().get().tobytes() == on_host.decompress().tobytes()

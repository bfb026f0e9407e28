# SPDX-License-Identifier: MIT
"""The file of a Packed: what was saved comes back, what is damaged is refused."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cupy_training_ops import (
    ArgumentError,
    OpError,
    Packed,
    ProviderError,
    compress,
)
from cupy_training_ops.call import backends
from cupy_training_ops.codecs import numpy_file
from cupy_training_ops.codecs.packed import FORMAT
from cupy_training_ops.testing.compare import assert_matches

from .cases import SHAPES, activations, codecs, floats

DATA = Path(__file__).parents[1] / "data" / "packed"


def header_of(packed: Packed) -> dict:
    return {
        "format": FORMAT.name,
        "version": FORMAT.version,
        "codec": packed.codec,
        "dtype": packed.dtype,
        "shape": list(packed.shape),
        "options": packed.options,
    }


def written(packed: Packed, **members) -> io.BytesIO:
    """A file of these members: a Packed's own, unless named."""
    header = json.dumps(header_of(packed) | members.pop("header", {}))
    stream = io.BytesIO()
    np.savez(stream, **{"header": np.array(header), "code": packed.code} | members)
    stream.seek(0)
    return stream


@pytest.fixture
def packed(rng) -> Packed:
    return compress(activations(rng), "msfp15", keep_nonfinite=True)


@codecs
@floats
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_file_gives_back_the_same_packed(rng, tmp_path, codec, dtype, shape) -> None:
    packed = compress(activations(rng, shape, dtype), codec)
    packed.save(tmp_path / "x.npz")
    loaded = Packed.load(tmp_path / "x.npz")
    for name in ("codec", "dtype", "shape", "options"):
        assert getattr(loaded, name) == getattr(packed, name)
    assert_matches(loaded.code, packed.code, 0)
    assert_matches(loaded.decompress(), packed.decompress(), 0)


def test_an_open_file_is_written_and_read(packed) -> None:
    stream = io.BytesIO()
    packed.save(stream)
    stream.seek(0)
    assert_matches(Packed.load(stream).code, packed.code)


def test_codes_in_a_mapped_file_are_saved(packed, tmp_path) -> None:
    np.save(tmp_path / "code.npy", packed.code)
    mapped = np.load(tmp_path / "code.npy", mmap_mode="r")
    dataclasses.replace(packed, code=mapped).save(tmp_path / "x.npz")
    assert_matches(Packed.load(tmp_path / "x.npz").code, packed.code)


def test_a_path_without_npz_is_the_path_written(packed, tmp_path) -> None:
    packed.save(tmp_path / "activations")
    assert [path.name for path in tmp_path.iterdir()] == ["activations"]
    assert_matches(Packed.load(tmp_path / "activations").code, packed.code)


def test_a_save_that_fails_names_the_file_that_was_asked_for(packed, tmp_path) -> None:
    for path, error in (
        (tmp_path / "no" / "x.npz", FileNotFoundError),
        (tmp_path, IsADirectoryError),
    ):
        with pytest.raises(error) as refusal:
            packed.save(path)
        assert refusal.value.filename == str(path)


def test_an_aborted_save_leaves_the_old_file(packed, tmp_path, monkeypatch) -> None:
    path = tmp_path / "x.npz"
    packed.save(path)
    before = path.read_bytes()

    def breaks(stream, **_):
        stream.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", breaks)
    with pytest.raises(KeyboardInterrupt):
        packed.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_a_file_has_the_permissions_of_any_other(packed, tmp_path) -> None:
    packed.save(tmp_path / "x.npz")
    (tmp_path / "other").touch()
    assert os.stat(tmp_path / "x.npz").st_mode == os.stat(tmp_path / "other").st_mode


def test_the_hand_written_file_is_read(packed) -> None:
    """So that the damage below is the only thing wrong with its files."""
    assert_matches(Packed.load(written(packed)).code, packed.code)


DAMAGE = {
    "another format": {"header": {"format": "other"}},
    "no format": {"header": {"format": None}},
    "another codec": {"header": {"codec": "zip"}},
    "another shape": {"header": {"shape": [3, 5, 6]}},
    "a negative shape": {"header": {"shape": [-15, -7]}},
    "a shape of text": {"header": {"shape": "105"}},
    "no shape": {"header": {"shape": None}},
    "a nested shape": {"header": {"shape": [[3], [35]]}},
    "half an extent": {"header": {"shape": [1.5, 70]}},
    "another dtype": {"header": {"dtype": "int32"}},
    "an unknown dtype": {"header": {"dtype": "float8"}},
    "a nested dtype": {"header": {"dtype": ["float32"]}},
    "unknown options": {"header": {"options": {"level": 9}}},
    "options of text": {"header": {"options": "none"}},
    "codes of another dtype": {"code": np.zeros((3, 5, 7), np.int8)},
    "codes too short": {"code": np.zeros(96, np.uint8)},
    "codes that need pickle": {"code": np.array([{}, 1], object)},
    "a header of numbers": {"header": {}, "code": np.zeros(3, complex)},
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.filterwarnings("ignore:.*metadata.*:UserWarning")
def test_a_damaged_file_is_refused(packed, damage) -> None:
    with pytest.raises(ArgumentError):
        Packed.load(written(packed, **DAMAGE[damage]))


def test_a_type_that_is_no_type_is_refused(packed) -> None:
    """NumPy reads it as the Python literal 01, and raises a SyntaxError."""
    damaged = io.BytesIO()
    with zipfile.ZipFile(written(packed)) as whole, zipfile.ZipFile(damaged, "w") as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name).replace(b"|u1", b"|01"))
    damaged.seek(0)
    with pytest.raises(ArgumentError, match="leading zeros"):
        Packed.load(damaged)


def test_a_newer_format_version_says_so(packed) -> None:
    with pytest.raises(
        ArgumentError,
        match=f"version 1 or 2 or {FORMAT.version}, got {FORMAT.version + 1}; a newer",
    ):
        Packed.load(written(packed, header={"version": FORMAT.version + 1}))


def test_files_of_the_first_version_are_read(packed) -> None:
    first = Packed.load(written(packed, header={"version": 1}))
    assert_matches(first.decompress(), packed.decompress(), 0)


NAN = math.nan
REST = [1, 2, 3, 4, 5, 6, 7, -8]


@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("msfp15", [0] * 8),
        ("msfp15_kept", [NAN] * 8),
        ("msfp15_signed_kept", [NAN] * 8),
        ("sparse_msfp15", [0] * 8),
        ("int8", None),
        ("block_e4m3", [1.5, NAN, -2, 3, 0.25, NAN, 0, 7]),
    ],
)
def test_files_of_version_2_give_what_they_gave(name, box) -> None:
    """Codes of 1.5, NaN, -2, 3, 0.25, infinity, -0, 7 and REST, as that version wrote them."""
    packed = Packed.load(DATA / f"version_2_{name}.npz")
    expected = [NAN] * 16 if box is None else box + REST
    np.testing.assert_array_equal(packed.decompress(), np.array(expected, np.float32))


@pytest.mark.parametrize("version", [0, -1, None, "2", 1.5, [2], True])
def test_a_version_that_never_was_promises_nothing(packed, version) -> None:
    with pytest.raises(ArgumentError, match="expected format version 1 or 2 or 3, got") as refusal:
        Packed.load(written(packed, header={"version": version}))
    assert "newer" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "no archive", "\x93NUMPY", "PK\x03\x04", "[" * 100_000])
def test_what_is_no_archive_is_refused(tmp_path, text) -> None:
    (tmp_path / "x.npz").write_text(text, encoding="latin-1")
    with pytest.raises(ArgumentError, match=r"x\.npz"):
        Packed.load(tmp_path / "x.npz")


def test_a_missing_file_is_a_missing_file(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        Packed.load(tmp_path / "gone.npz")


def test_a_cut_file_is_refused_wherever_it_is_cut(packed) -> None:
    stream = io.BytesIO()
    packed.save(stream)
    whole = stream.getvalue()
    for length in range(0, len(whole), 7):
        with pytest.raises(ArgumentError):
            Packed.load(io.BytesIO(whole[:length]))


def test_a_flipped_byte_is_refused_or_does_not_matter(packed, rng) -> None:
    """The archive has checksums: what still loads has the same codes."""
    stream = io.BytesIO()
    packed.save(stream)
    whole = stream.getvalue()
    for place in rng.integers(0, len(whole), 300):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(8))
        try:
            loaded = Packed.load(io.BytesIO(bytes(broken)))
        except OpError:
            continue
        assert_matches(loaded.code, packed.code)
        assert_matches(loaded.decompress(), packed.decompress(), 0)


def test_codes_that_are_not_the_headers_are_not_read(packed, monkeypatch) -> None:
    """Zeros take a thousandth of their room in an archive: the file may be small."""
    stream = io.BytesIO()
    header = np.array(json.dumps(header_of(packed)))
    np.savez_compressed(stream, header=header, code=np.zeros(10**7, np.uint8))
    stream.seek(0)
    read, really = [], numpy_file.npy.read_array

    def noted(file, **options):
        read.append(really(file, **options))
        return read[-1]

    monkeypatch.setattr(numpy_file.npy, "read_array", noted)
    with pytest.raises(ArgumentError, match=r"damaged.* got uint8 of shape \(10000000,\)"):
        Packed.load(stream)
    assert [array.shape for array in read] == [()]


def test_an_unknown_provider_is_refused(packed) -> None:
    with pytest.raises(ArgumentError, match="provider: expected 'cpu' or 'cuda', got 'tpu'"):
        Packed.load(written(packed), "tpu")


def test_a_gpu_that_does_not_answer_is_a_provider_error(packed, monkeypatch) -> None:
    def from_host(_):
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    backend = types.SimpleNamespace(from_host=from_host)
    monkeypatch.setattr(backends, "cuda_backend", lambda: backend)
    with pytest.raises(ProviderError, match="provider: cannot use 'cuda' here: cudaErrorNoDevice"):
        Packed.load(written(packed), "cuda")
    with pytest.raises(ArgumentError, match="damaged"):  # what is no code never gets there
        Packed.load(written(packed, code=np.array(["no", "code"])), "cuda")


@pytest.mark.gpu
@codecs
def test_codes_load_onto_the_gpu(rng, tmp_path, codec) -> None:
    import cupy

    packed = compress(activations(rng), codec)
    packed.save(tmp_path / "x.npz")
    loaded = Packed.load(tmp_path / "x.npz", "cuda")
    assert isinstance(loaded.code, cupy.ndarray)
    assert_matches(loaded.decompress().get(), packed.decompress(), 0)
    loaded.save(tmp_path / "again.npz")
    assert_matches(Packed.load(tmp_path / "again.npz").code, packed.code)

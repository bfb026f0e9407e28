# SPDX-License-Identifier: MIT
"""The container: any header and array come back, and a message says what is wrong in one line."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest

from cupy_training_ops import ArgumentError
from cupy_training_ops.codecs import container, numpy_file

HEADER = {"kind": "anything", "extents": [3, 4], "nested": {"flag": True, "none": None}}


def written(header: dict, array: np.ndarray) -> io.BytesIO:
    stream = io.BytesIO()
    container.write(stream, header, array)
    stream.seek(0)
    return stream


def archive(**members: bytes) -> io.BytesIO:
    """A ZIP archive of raw members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    stream.seek(0)
    return stream


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.complex128, "U3"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 4)], ids=str)
def test_a_header_and_an_array_come_back(dtype, shape) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    header, read = container.read(written(HEADER, array))
    assert header == HEADER
    assert (read.dtype, read.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(read, array)


def test_a_file_begins_where_its_stream_stands() -> None:
    stream = io.BytesIO()
    stream.write(b"what came before")
    container.write(stream, HEADER, np.arange(3))
    stream.seek(len(b"what came before"))
    np.testing.assert_array_equal(container.read(stream)[1], np.arange(3))


class Minimal:
    """An open file with the methods of BinaryFile and no other."""

    def __init__(self) -> None:
        stream = io.BytesIO()
        names = {name for name in vars(numpy_file.BinaryFile) if not name.startswith("_")}
        vars(self).update({name: getattr(stream, name) for name in names})


def test_no_more_is_asked_of_an_open_file_than_is_declared() -> None:
    stream = Minimal()
    container.write(stream, HEADER, np.arange(3))
    stream.seek(0)
    np.testing.assert_array_equal(container.read(stream)[1], np.arange(3))


def test_numpy_reads_the_members_and_the_header_starts_with_the_format() -> None:
    """Files outlive the code: this is version 1 to the letter."""
    with np.load(written({"codec": "pack8"}, np.arange(3))) as members:
        assert members.files == ["header", "code"]
        assert members["header"].item() == (
            '{"format": "cupy-training-ops packed array", "version": 1, "codec": "pack8"}'
        )
        np.testing.assert_array_equal(members["code"], np.arange(3))


def test_a_newer_version_is_named_whatever_else_its_file_holds() -> None:
    text = json.dumps({"format": container.FORMAT, "version": 2})
    with pytest.raises(ArgumentError, match="format version 1, got 2; a newer"):
        container.read(archive(header=npy(np.array(text)), codes=npy(np.arange(3))))


@pytest.mark.parametrize("header", ["[]", '"text"', "1", "null", "{}"])
def test_json_that_is_no_header_is_refused(header) -> None:
    with pytest.raises(ArgumentError, match="its header does not say"):
        container.read(archive(header=npy(np.array(header)), code=npy(np.arange(3))))


@pytest.mark.parametrize("name", ["header", "code"])
def test_a_member_that_is_no_array_is_named(name) -> None:
    text = json.dumps({"format": container.FORMAT, "version": 1})
    members = {"header": npy(np.array(text)), "code": npy(np.arange(3))} | {name: b"raw bytes"}
    with pytest.raises(ArgumentError, match=f"member {name} is no array"):
        container.read(archive(**members))


def test_numpys_advice_to_trust_a_file_is_not_passed_on(tmp_path) -> None:
    """Its messages have several lines and suggest pickle, which is never allowed here."""
    fields = np.zeros(1, [(f"field{number}", "u1") for number in range(1000)])
    for file in (archive(header=npy(fields)), io.BytesIO(npy(fields))):
        with pytest.raises(ArgumentError, match="is large") as refusal:
            container.read(file)
        assert "\n" not in str(refusal.value)
        assert "pickle" not in str(refusal.value)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ArgumentError, match=r"text: no \.npy or \.npz file$"):
        container.read(tmp_path / "text")


def test_an_array_by_itself_is_refused_with_its_type() -> None:
    with pytest.raises(ArgumentError, match="it holds one of int64 as it is"):
        container.read(io.BytesIO(npy(np.arange(3))))

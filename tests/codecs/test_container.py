# SPDX-License-Identifier: MIT
"""The container: any header and array come back, and a message says what is wrong in one line."""

from __future__ import annotations

import io
import json
import os
import zipfile

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, Packed
from cupy_training_ops.codecs import container, numpy_file
from cupy_training_ops.codecs.packed import FORMAT

HEADER = {"kind": "anything", "extents": [3, 4], "nested": {"flag": True, "none": None}}


def written(header: dict, array: np.ndarray) -> io.BytesIO:
    stream = io.BytesIO()
    container.write(stream, FORMAT, header, {"code": array})
    stream.seek(0)
    return stream


def read(file) -> tuple[dict, np.ndarray]:
    with container.load(file, FORMAT) as opened:
        return opened.header, opened.member("code").read()


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
    header, code = read(written(HEADER, array))
    assert header == HEADER
    assert (code.dtype, code.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(code, array)


def test_a_file_begins_where_its_stream_stands() -> None:
    stream = io.BytesIO()
    stream.write(b"what came before")
    container.write(stream, FORMAT, HEADER, {"code": np.arange(3)})
    stream.seek(len(b"what came before"))
    np.testing.assert_array_equal(read(stream)[1], np.arange(3))


class Minimal:
    """An open file with the methods of BinaryFile and no other."""

    def __init__(self) -> None:
        stream = io.BytesIO()
        names = {name for name in vars(numpy_file.BinaryFile) if not name.startswith("_")}
        vars(self).update({name: getattr(stream, name) for name in names})


def test_no_more_is_asked_of_an_open_file_than_is_declared() -> None:
    stream = Minimal()
    container.write(stream, FORMAT, HEADER, {"code": np.arange(3)})
    stream.seek(0)
    np.testing.assert_array_equal(read(stream)[1], np.arange(3))


def test_numpy_reads_the_members_and_the_header_starts_with_the_format() -> None:
    """Files outlive the code: this is version 3 to the letter."""
    with np.load(written({"codec": "pack8"}, np.arange(3))) as members:
        assert members.files == ["header", "code"]
        assert members["header"].item() == (
            '{"format": "cupy-training-ops packed array", "version": 3, "codec": "pack8"}'
        )
        np.testing.assert_array_equal(members["code"], np.arange(3))


def test_a_newer_version_is_named_whatever_else_its_file_holds() -> None:
    text = json.dumps({"format": FORMAT.name, "version": 4})
    with pytest.raises(ArgumentError, match="format version 1 or 2 or 3, got 4; a newer"):
        read(archive(header=npy(np.array(text)), codes=npy(np.arange(3))))


@pytest.mark.parametrize("header", ["[]", '"text"', "1", "null", "{}"])
def test_json_that_is_no_header_is_refused(header) -> None:
    with pytest.raises(ArgumentError, match="its header does not say"):
        read(archive(header=npy(np.array(header)), code=npy(np.arange(3))))


@pytest.mark.parametrize("name", ["header", "code"])
def test_a_member_that_is_no_array_is_named(name) -> None:
    text = json.dumps({"format": FORMAT.name, "version": 1})
    members = {"header": npy(np.array(text)), "code": npy(np.arange(3))} | {name: b"raw bytes"}
    with pytest.raises(ArgumentError, match=f"member {name} is no array"):
        read(archive(**members))


def test_numpys_advice_to_trust_a_file_is_not_passed_on(tmp_path) -> None:
    """Its messages have several lines and suggest pickle, which is never allowed here."""
    fields = np.zeros(1, [(f"field{number}", "u1") for number in range(1000)])
    for file in (archive(header=npy(fields)), io.BytesIO(npy(fields))):
        with pytest.raises(ArgumentError, match="is large") as refusal:
            read(file)
        assert "\n" not in str(refusal.value)
        assert "pickle" not in str(refusal.value)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ArgumentError, match=r"text: no \.npy or \.npz file$"):
        read(tmp_path / "text")


def test_an_array_by_itself_is_refused_with_its_type() -> None:
    with pytest.raises(ArgumentError, match="it holds one of int64 as it is"):
        read(io.BytesIO(npy(np.arange(3))))


# ---- what is not damage --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (MemoryError("Unable to allocate"), True),
        (OSError(5, "Input/output error"), True),
        (OSError(22, "Invalid argument"), False),  # a place that damage made
        (OSError("Invalid data stream"), False),  # bz2's
        (SyntaxError("leading zeros"), False),
    ],
    ids=str,
)
def test_a_sound_file_is_not_called_damaged(monkeypatch, error, kept) -> None:
    file = written(HEADER, np.arange(3))

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(numpy_file.npy, "read_array", fails)
    with pytest.raises(type(error) if kept else ArgumentError) as refusal:
        read(file)
    assert (refusal.value is error) == kept


def test_a_folder_is_a_folder(tmp_path) -> None:
    with pytest.raises(IsADirectoryError):
        read(tmp_path)


def test_a_file_that_cannot_be_gone_through_is_not_damaged() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, open(writing, "wb") as sender:
        sender.write(written(HEADER, np.arange(3)).getvalue())
        sender.close()
        with pytest.raises(OSError, match="seek"):
            read(pipe)


@pytest.mark.parametrize("shape", ["(400,)", "(10000000000,)", "(3, -1)", "(2, 2)"])
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_no_memory_is_taken_for_what_a_header_promises(monkeypatch, shape, kind) -> None:
    whole = npy(np.arange(3))
    lying = whole[:10] + whole[10:128].replace(b"(3,)", shape.encode())[:117].ljust(117) + b"\n"
    lying += whole[128:]
    stream = io.BytesIO(lying) if kind == "npy" else archive(x=lying)
    monkeypatch.setattr(numpy_file.npy, "read_array", lambda *_, **__: pytest.fail("read"))
    actual = numpy_file.stored_arrays(stream, "x")
    stored = actual if kind == "npy" else actual["x"]
    with pytest.raises(ArgumentError, match="24 are there"):
        stored.header()
    with pytest.raises(ArgumentError, match="24 are there"):
        stored.read()


def test_an_array_that_says_less_than_its_member_holds_is_refused() -> None:
    """Its checksum is compared at the end of the member only."""
    actual = numpy_file.stored_arrays(archive(x=npy(np.arange(3)) + bytes(8)), "x")
    with pytest.raises(ArgumentError, match="goes on after its elements"):
        actual["x"].read()


def test_objects_are_refused_in_words_of_our_own() -> None:
    stored = numpy_file.stored_arrays(io.BytesIO(npy(np.array([{}], object))), "x")
    with pytest.raises(ArgumentError, match="x: holds Python objects, which are never loaded"):
        stored.read()


def test_a_header_as_long_as_an_array_is_not_read() -> None:
    text = np.array("x" * (FORMAT.longest_header // 4 + 1))
    with pytest.raises(ArgumentError, match="its header is <U262145"):
        read(archive(header=npy(text), code=npy(np.arange(3))))


LOUD = ["\x1b[31m\n" + "x" * 200_000, {"\x1b[2J" + "x" * 200_000: 1}, [1] * 100_000, 10**4000]


@pytest.mark.parametrize("loud", LOUD, ids=["text", "dictionary", "list", "integer"])
@pytest.mark.parametrize("key", ["format", "version", "codec", "dtype", "shape", "options"])
def test_what_a_header_says_is_a_short_line_of_a_message(key, loud) -> None:
    about = {"codec": "pack8", "dtype": "float32", "shape": [3], "options": {}}
    text = {"format": FORMAT.name, "version": FORMAT.version, **about, key: loud}
    header = np.array(json.dumps(text))
    with pytest.raises(ArgumentError) as caught:
        Packed.load(archive(header=npy(header), code=npy(np.zeros(3, np.uint8))))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("loud", LOUD, ids=["text", "dictionary", "list", "integer"])
@pytest.mark.parametrize("key", ["version", "optimizer", "shapes", "step", "more"])
def test_what_a_state_says_is_a_short_line_of_a_message(key, loud) -> None:
    optimizer = cto.AdamW([np.ones(3, np.float32)])
    whole = io.BytesIO()
    optimizer.save(whole)
    with zipfile.ZipFile(whole) as made:
        parts = {name.removesuffix(".npy"): made.read(name) for name in made.namelist()}
    text = json.loads(str(np.load(io.BytesIO(parts["header"])))) | {key: loud}
    with pytest.raises(ArgumentError) as caught:
        optimizer.load(archive(**parts | {"header": npy(np.array(json.dumps(text)))}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("x", [np.arange(6.0).reshape(2, 3), np.float32(3), np.zeros((0, 2))])
def test_a_plain_file_is_mapped_and_all_else_read(x, tmp_path):
    for array in (np.asarray(x), np.asfortranarray(x)):
        np.save(tmp_path / "x.npy", array)
        np.savez(tmp_path / "x.npz", x=array)
        with (tmp_path / "x.npy").open("rb") as plain, (tmp_path / "x.npz").open("rb") as archive:
            memory = io.BytesIO((tmp_path / "x.npy").read_bytes())
            files = [
                numpy_file.stored_arrays(plain, "x").map(),
                numpy_file.stored_arrays(archive, "x")["x"].map(),
                numpy_file.stored_arrays(memory, "x").map(),
            ]
        assert [isinstance(actual, np.memmap) for actual in files] == [x.size > 0, False, False]
        for actual in files:
            np.testing.assert_array_equal(actual, array, strict=True)


def test_a_file_that_lacks_elements_is_not_mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(100))
    os.truncate(tmp_path / "x.npy", 500)
    with (tmp_path / "x.npy").open("rb") as stream, pytest.raises(ArgumentError, match="800 bytes"):
        numpy_file.stored_arrays(stream, "x").map()


@pytest.mark.parametrize("file", [3, None, io.StringIO("text")], ids=["number", "none", "text"])
def test_what_is_neither_a_path_nor_a_binary_file_is_refused(file):
    expected = r"^packed array: file: expected a path, or a file opened in binary mode, got "
    with pytest.raises(ArgumentError, match=expected):
        Packed.load(file)
    with pytest.raises(ArgumentError, match=expected):
        cto.compress(np.ones(8, np.float32), "pack8").save(file)

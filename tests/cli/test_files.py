# SPDX-License-Identifier: MIT
"""`encode` and `decode`: what goes in comes out as the codec says, and no file is half written."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops import Packed, compress
from cupy_training_ops.cli import files, main
from cupy_training_ops.cli.inputs import Member
from cupy_training_ops.cli.roundtrip import OF_FLOATS
from cupy_training_ops.codecs import numpy_file
from cupy_training_ops.dtypes import BFLOAT16

ROOT = Path(__file__).parents[2]


def call(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return result


def assert_refused(result, *words):
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    for word in words:
        assert word in line


@pytest.fixture
def x(rng):
    return rng.standard_normal((5, 9)).astype(np.float32)


@pytest.fixture
def source(x, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, x)
    return path


@pytest.mark.parametrize("codec", OF_FLOATS)
def test_a_file_comes_back_as_the_codec_says(codec, x, source, tmp_path):
    packed, out = tmp_path / "x.packed", tmp_path / "y.npy"
    result = call("encode", source, packed, "--codec", codec)
    assert result.exit_code == 0
    assert f"{codec} of float32 (5, 9), 180 to {Packed.load(packed).nbytes} bytes" in result.stdout
    assert call("decode", packed, out).exit_code == 0
    np.testing.assert_array_equal(np.load(out), compress(x, codec).decompress())


def test_bfloat16_travels_as_raw_elements(rng, tmp_path):
    raw, packed, out = (tmp_path / name for name in ("x.npy", "x.packed", "y.npy"))
    x = rng.standard_normal(20).astype(BFLOAT16)
    np.save(raw, x)
    assert call("encode", raw, packed, "--codec", "pack8", "--dtype", "bfloat16").exit_code == 0
    result = call("decode", packed, out)
    assert "bfloat16" in result.stderr
    decoded = np.load(out)
    assert decoded.dtype == "V2"
    expected = compress(x, "pack8").decompress()
    np.testing.assert_array_equal(decoded.view(BFLOAT16).astype(float), expected.astype(float))
    again = call("encode", out, packed, "--codec", "pack8", "--dtype", "bfloat16", "--force")
    assert again.exit_code == 0
    np.testing.assert_array_equal(Packed.load(packed).code, compress(x, "pack8").code)


def test_one_array_of_several_goes_by_its_name(x, tmp_path):
    archive, packed = tmp_path / "x.npz", tmp_path / "x.packed"
    np.savez(archive, first=x, second=2 * x)
    refused = call("encode", archive, packed, "--codec", "pack16")
    assert_refused(refused, "x.packed holds one array", "--name", ".safetensors", "first, second")
    refused = call("encode", archive, packed, "--codec", "pack16", "--name", "third")
    assert_refused(refused, "'third'", "first, second")
    assert not packed.exists()
    done = call("encode", archive, packed, "--codec", "pack16", "--name", "second")
    assert done.exit_code == 0
    np.testing.assert_array_equal(Packed.load(packed).code, (2 * x).astype(np.float16))


def test_keep_nonfinite_travels_with_the_file(tmp_path):
    source, packed, out = (tmp_path / name for name in ("x.npy", "x.packed", "y.npy"))
    np.save(source, np.array([1, np.inf], np.float32))
    for options in ((), ("--keep-nonfinite",)):
        result = call("encode", source, packed, "--codec", "msfp15", *options, "--force")
        assert (result.exit_code, result.stderr) == (0, "")
        call("decode", packed, out, "--force")
        assert np.load(out).tolist() == [1, np.inf]


def test_zeros_in_place_of_nonfinite_are_counted_aloud(tmp_path):
    source, packed, out = (tmp_path / name for name in ("x.npy", "x.packed", "y.npy"))
    x = np.ones(21, np.float32)
    x[[3, 4, 20]] = np.nan, np.inf, -np.inf
    np.save(source, x)
    result = call("encode", source, packed, "--codec", "msfp15_signed", "--zero-nonfinite")
    said = "13 values became zeros, the tiles of 3 infinities and NaN (--zero-nonfinite)"
    assert result.stderr == f"{source}: x: {said}\n"
    call("decode", packed, out)
    assert np.load(out).tolist() == [0] * 8 + [1] * 8 + [0] * 5
    assert_refused(
        call("encode", source, packed, "--codec", "pack8", "--zero-nonfinite"),
        "--zero-nonfinite goes with msfp15, msfp15_signed, not with pack8",
    )


@pytest.mark.parametrize("array", [np.arange(3), np.ones(3, complex), np.array(["a"])])
def test_what_no_codec_takes_is_refused(array, tmp_path):
    source, packed = tmp_path / "x.npy", tmp_path / "x.packed"
    np.save(source, array)
    refused = call("encode", source, packed, "--codec", "pack8")
    said = f"{source}: x: pack8 does not take {array.dtype}; expected float32, float16"
    assert_refused(refused, said)
    assert not packed.exists()


def test_unknown_codec_is_refused(source, tmp_path):
    assert_refused(call("encode", source, tmp_path / "y", "--codec", "zip"), "zip", "msfp15")


@pytest.mark.parametrize(("command", "example"), [("encode", "OUT.npz"), ("decode", "OUT.npy")])
def test_one_path_alone_is_the_file_and_what_is_missing_is_out(command, example, source):
    """Not FILE, as Click would say."""
    assert_refused(call(command, source), f"{source}: where to? give OUT behind FILE", example)


@pytest.mark.parametrize("command", ["encode", "decode"])
def test_a_command_alone_misses_file_and_out(command):
    assert_refused(call(command), "expected FILE and OUT")


@pytest.mark.parametrize("paths", [("", "y.npz"), ("x.npy", "")], ids=["file", "out"])
@pytest.mark.parametrize("command", ["encode", "decode"])
def test_an_empty_path_is_refused(command, paths):
    """As "$UNSET" is one."""
    assert_refused(call(command, *paths), "Invalid value", "empty")


def test_packed_arrays_do_not_get_the_ending_of_one_that_is_not(source, tmp_path):
    out = tmp_path / "y.npy"
    assert_refused(call("encode", source, out), "y.npy: packed arrays are .npz or .safetensors")
    assert not out.exists()


def test_empty_files_are_called_so(tmp_path):
    for name in ("x.npy", "x.npz", "x.safetensors"):
        (tmp_path / name).touch()
        for command in ("encode", "decode"):
            refused = call(command, tmp_path / name, tmp_path / "y.npz")
            assert_refused(refused, "no .npy, .npz or .safetensors file, as it is empty")


def test_a_file_without_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz")
    assert_refused(call("encode", tmp_path / "x.npz", tmp_path / "y.npz"), "x.npz: no array in it")


def test_info_says_what_it_can_of_several_files(source, tmp_path):
    empty, text = tmp_path / "empty.npy", tmp_path / "text.npy"
    empty.touch()
    text.write_text("what else")
    result = call("info", empty, source, text)
    assert result.exit_code == 2
    assert f"{source}: 1 array" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {empty}: no ")
    assert f"; {text}: no " in line


def test_what_is_no_packed_file_is_refused(source, tmp_path):
    out = tmp_path / "y.npy"
    assert_refused(call("decode", tmp_path / "missing", out), "missing: No such file")
    assert_refused(call("decode", source, out), "no packed array")
    packed = tmp_path / "x.packed"
    call("encode", source, packed, "--codec", "pack8")
    packed.write_bytes(packed.read_bytes()[:-30])
    assert_refused(call("decode", packed, out), "x.packed")
    assert not out.exists()


def test_what_is_no_file_of_arrays_is_refused_with_the_kinds(tmp_path):
    text = tmp_path / "x.txt"
    text.write_text("what else")
    kinds = "no .npy, .npz or .safetensors file"
    for command in (("info", text), ("roundtrip", text), ("encode", text, "y", "--codec", "pack8")):
        assert_refused(call(*command), kinds)


def test_a_place_that_cannot_be_written_is_refused(source, tmp_path):
    missing = tmp_path / "missing" / "y"
    assert_refused(call("encode", source, missing, "--codec", "pack8"), "cannot write", "missing")
    assert_refused(call("encode", source, source / "y", "--codec", "pack8"), "cannot write")
    assert_refused(call("encode", source, f"{source}/y/", "--codec", "pack8"), "cannot write")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("command", ["encode", "decode"])
def test_a_write_that_breaks_leaves_the_old_file(command, source, tmp_path, monkeypatch):
    packed, out = tmp_path / "x.packed", tmp_path / "out"
    call("encode", source, packed, "--codec", "pack8")
    out.write_bytes(b"old")

    def full_disk(first, second, *_):
        stream = second if hasattr(second, "write") else first
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Packed, "save", full_disk)
    monkeypatch.setattr(files, "write_header", full_disk)
    arguments = (source, out, "--codec", "pack8") if command == "encode" else (packed, out)
    assert_refused(call(command, *arguments, "--force"), "cannot write", "No space left")
    assert out.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "x.npy", "x.packed"]


def test_an_input_is_not_overwritten_by_its_own_output(source, tmp_path):
    packed, link = tmp_path / "x.packed", tmp_path / "link.npy"
    call("encode", source, packed, "--codec", "pack8")
    link.symlink_to(source)
    os.link(source, tmp_path / "other.npy")
    kept = source.read_bytes(), packed.read_bytes()
    for out in (source, link, tmp_path / "other.npy", tmp_path / "." / "x.npy"):
        assert_refused(call("encode", source, out, "--codec", "pack8"), str(out), "FILE itself")
    assert_refused(call("decode", packed, packed), "FILE itself")
    assert (source.read_bytes(), packed.read_bytes()) == kept


@pytest.mark.skipif(not os.path.exists("/proc/self/fd/1"), reason="no /proc")
def test_stdout_as_out_gets_the_array_and_nothing_else(x, source, tmp_path):
    packed, out = tmp_path / "x.packed", tmp_path / "stdout"
    out.symlink_to("/proc/self/fd/1")  # as /dev/stdout, which no failing test may replace
    call("encode", source, packed, "--codec", "pack16")
    command = [sys.executable, "-m", "cupy_training_ops", "decode", str(packed), str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    expected = io.BytesIO()
    np.save(expected, compress(x, "pack16").decompress())
    assert out.is_symlink()
    assert result.stdout == expected.getvalue()
    assert result.stderr == f"{out}: float32 (5, 9) from pack16\n".encode()


@pytest.mark.skipif(not os.path.exists("/proc/self/fd/1"), reason="no /proc")
def test_a_log_that_stdout_goes_to_keeps_what_is_in_it(x, source, tmp_path):
    """With >> and with >, before and after; what was done is said elsewhere."""
    packed, log, stdout = tmp_path / "x.packed", tmp_path / "log", tmp_path / "stdout"
    stdout.symlink_to("/proc/self/fd/1")
    call("encode", source, packed, "--codec", "pack16")
    decode = f"{sys.executable} -m cupy_training_ops decode {packed} {stdout}"
    line = f"(echo before; {decode}; echo after) > {log}; {decode} >> {log}"
    result = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, check=True)
    array = io.BytesIO()
    np.save(array, compress(x, "pack16").decompress())
    assert log.read_bytes() == b"before\n" + array.getvalue() + b"after\n" + array.getvalue()
    assert result.stderr.count(b"float32 (5, 9) from pack16\n") == 2


@pytest.mark.parametrize("array", [np.array([{}], object), np.ones(3, complex)], ids=["O", "c"])
def test_an_array_that_is_not_asked_for_is_not_read(array, x, tmp_path, monkeypatch):
    archive, packed = tmp_path / "x.npz", tmp_path / "x.packed"
    np.savez(archive, odd=array, x=x)
    asked = []
    monkeypatch.setattr(Member, "read", lambda one, _: asked.append(one.unread.header().shape) or x)
    assert call("encode", archive, packed, "--codec", "pack16", "--name", "x").exit_code == 0
    assert asked == [x.shape]
    monkeypatch.undo()
    refused = call("encode", archive, packed, "--codec", "pack16", "--name", "odd", "--force")
    assert_refused(refused, "odd" if array.dtype.hasobject else "complex128")


def test_a_damaged_array_leaves_the_others(x, tmp_path):
    archive, packed = tmp_path / "x.npz", tmp_path / "x.packed"
    np.savez(archive, damaged=2 * x, x=x)
    archive.write_bytes(archive.read_bytes().replace((2 * x).tobytes(), bytes(x.nbytes)))
    assert call("encode", archive, packed, "--codec", "pack16", "--name", "x").exit_code == 0
    refused = call("encode", archive, packed, "--codec", "pack16", "--name", "damaged", "--force")
    assert_refused(refused, "member damaged", "CRC")


@pytest.mark.parametrize("array", [np.ones(3, np.float32), np.ones(3, np.float16), np.arange(3)])
def test_bfloat16_is_not_what_other_elements_are(array, tmp_path):
    """Read as asked for they would be other numbers; read as they are, not what was asked for."""
    source, packed = tmp_path / "x.npy", tmp_path / "x.packed"
    np.save(source, array)
    refused = call("encode", source, packed, "--codec", "pack8", "--dtype", "bfloat16")
    assert_refused(refused, "--dtype", "two-byte", str(array.dtype))
    assert not packed.exists()


def test_a_folder_is_called_a_folder_and_no_memory_no_memory(source, tmp_path, monkeypatch):
    for arguments in (("decode", tmp_path), ("encode", tmp_path, "--codec", "pack8")):
        command, file, *options = arguments
        assert_refused(call(command, file, tmp_path / "out", *options), "Is a directory")
    packed = tmp_path / "x.packed"
    call("encode", source, packed, "--codec", "pack8")

    def too_much(*_, **__):
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(numpy_file.npy, "read_array", too_much)
    monkeypatch.setattr(np, "memmap", too_much)
    short = "not enough memory: Unable to allocate 9 GiB"
    assert_refused(call("decode", packed, tmp_path / "out"), short)
    assert_refused(call("encode", source, tmp_path / "out", "--codec", "pack8"), short)


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.thorough)])
def test_a_kill_leaves_out_old_or_whole_and_nothing_beside_it(count, seed, rng, tmp_path):
    np.save(tmp_path / "x.npy", rng.standard_normal(300_000).astype(np.float32))
    (tmp_path / "to").mkdir()
    command = [sys.executable, ROOT / "tests" / "cli" / "kills.py", seed, count]
    result = subprocess.run(
        [*map(str, command), tmp_path / "x.npy", tmp_path / "to"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    wrong = [line for line in result.stdout.splitlines() if line.startswith("after")]
    assert wrong == []
    assert sum(ast.literal_eval(result.stdout.splitlines()[-1]).values()) > count // 3


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (5, 9)])
def test_decode_writes_what_numpy_would(shape, rng, tmp_path):
    for dtype in (np.float64, BFLOAT16):
        packed = compress(rng.standard_normal(shape).astype(dtype), "pack16")
        packed.save(tmp_path / "x.packed")
        call("decode", tmp_path / "x.packed", tmp_path / "y.npy", "--force")
        values = packed.decompress()
        expected = io.BytesIO()
        np.save(expected, values)
        assert (tmp_path / "y.npy").read_bytes() == expected.getvalue()


def test_memory_is_that_of_the_codes_and_of_a_part(rng, tmp_path, monkeypatch):
    monkeypatch.setattr("cupy_training_ops.codecs.packed.PART", 1 << 17)
    x, packed, out = (tmp_path / name for name in ("x.npy", "x.packed", "y.npy"))
    np.save(x, rng.standard_normal(4_000_000, np.float32))
    call("roundtrip", "--shape", "100000", "--provider", "cpu")  # imports, room
    most = {
        ("encode", x, packed, "--codec", "pack8"): 4_000_000,
        ("decode", packed, out): 4_000_000,
        ("roundtrip", x, "--provider", "cpu"): 0,
    }
    for arguments, codes in most.items():
        tracemalloc.start()
        result = call(*arguments)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert result.exit_code == 0
        assert peak < codes + 6_000_000, arguments

# SPDX-License-Identifier: MIT
"""Several arrays in one command, pipes, .safetensors, `info`, and what --force is for."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops import CODECS, Packed, compress
from cupy_training_ops.cli import main
from cupy_training_ops.cli.errors import Failure
from cupy_training_ops.cli.roundtrip import OF_FLOATS
from cupy_training_ops.dtypes import BFLOAT16, FLOATS, dtype_name

from .test_files import assert_refused, call

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "tests" / "data" / "digits_cnn_activations.npz"


def piped(content: bytes, *arguments: object):
    result = CliRunner().invoke(main, [*map(str, arguments)], input=content)
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return result


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def members(archive: str | Path) -> dict[str, np.ndarray]:
    with np.load(archive) as loaded:
        return dict(loaded)


@pytest.fixture
def x(rng) -> np.ndarray:
    return rng.standard_normal((5, 9)).astype(np.float32)


# ---- pipes ---------------------------------------------------------------------------------------


def test_a_pipe_of_commands_gives_what_roundtrip_measured(tmp_path) -> None:
    x = members(DIGITS)["conv1_relu_grad"]
    np.save(tmp_path / "x.npy", x)
    command = f"{sys.executable} -m cupy_training_ops"
    line = f"cat x.npy | {command} encode - - --codec pack8 | {command} decode - -"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    decoded = np.load(io.BytesIO(result.stdout)).astype(float)
    measured = call(
        "roundtrip", tmp_path / "x.npy", "--codec", "pack8", "--json", "--provider", "cpu"
    )
    (trial,) = [
        one for one in map(json.loads, measured.stdout.splitlines()) if one["type"] == "trial"
    ]
    error = np.abs(decoded - x)
    assert trial["max_abs_error"] == error.max()
    assert trial["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert result.stderr.decode().splitlines() == [
        "-: pack8 of float32 (128, 16, 8, 8), 524288 to 131072 bytes, ratio 4.0",
        "-: float32 (128, 16, 8, 8) from pack8",
    ]


@pytest.mark.parametrize("codec", OF_FLOATS)
def test_streams_are_the_files_bytes(codec, x, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.npy").write_bytes(saved(x))
    call("encode", "x.npy", "x.packed", "--codec", codec)
    call("decode", "x.packed", "y.npy")
    packed = piped(saved(x), "encode", "-", "-", "--codec", codec)
    assert Packed.load(io.BytesIO(packed.stdout_bytes)).nbytes == Packed.load("x.packed").nbytes
    decoded = piped(packed.stdout_bytes, "decode", "-", "-")
    assert decoded.stdout_bytes == Path("y.npy").read_bytes()
    as_file = piped(packed.stdout_bytes, "decode", "-", "z.npy")
    assert as_file.stdout == f"z.npy: float32 (5, 9) from {codec}\n"
    assert Path("z.npy").read_bytes() == decoded.stdout_bytes


def test_other_commands_read_stdin_too(x, tmp_path) -> None:
    shown = piped(saved(x), "roundtrip", "-", "--codec", "pack8", "--provider", "cpu")
    assert shown.stdout.startswith("array  float32 (5, 9)  180 bytes\n")
    assert piped(saved(x), "info", "-").stdout.startswith("-: 1 array\n")
    np.savez(tmp_path / "x.npz", one=x, two=x)
    content = (tmp_path / "x.npz").read_bytes()
    done = piped(content, "encode", "-", tmp_path / "packed", "--codec", "pack8", "--name", "two")
    assert done.exit_code == 0
    assert (
        "-: no array"
        in piped(content, "encode", "-", "-", "--codec", "pack8", "--name", "x").stderr
    )


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"text", b"PK\x03\x04", b"\x09" * 8 + b"{}"]
)
def test_what_is_no_array_in_a_pipe_is_refused(content) -> None:
    for arguments in (
        ["encode", "-", "-", "--codec", "pack8"],
        ["decode", "-", "-"],
        ["info", "-"],
    ):
        result = piped(content, *arguments)
        assert_refused(result, "-: ")
        assert result.stdout == ""


def test_a_file_called_by_a_hyphen_is_one(x, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-").write_bytes(saved(x))
    assert piped(b"", "encode", "./-", "./packed", "--codec", "pack8").exit_code == 0
    assert piped(b"", "decode", "./packed", "./-", "--force").exit_code == 0
    np.testing.assert_array_equal(np.load("./-"), compress(x, "pack8").decompress())


class Terminal(io.StringIO):
    """A stdout that people look at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stdout", "what"), [(None, "closed"), (Terminal(), "a terminal")])
def test_a_stdout_that_takes_no_array_gets_none(stdout, what, monkeypatch) -> None:
    command = main.commands["encode"].callback
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(Failure, match=f"-: stdout is {what}; expected a file or a pipe"):
        command((str(DIGITS),), "-", "pack8", ("pool1",), None, True, False, True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_named_pipe_is_read_as_stdin_is(x, tmp_path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for command in (["info", path], ["encode", path, tmp_path / "packed", "--codec", "pack8"]):
        writer = threading.Thread(target=path.write_bytes, args=[saved(x)])
        writer.start()
        assert call(*command).exit_code == 0
        writer.join()
    assert Packed.load(tmp_path / "packed").shape == x.shape


# ---- several arrays ------------------------------------------------------------------------------


def test_eight_arrays_in_one_command_there_and_back(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoded = call("encode", DIGITS, "packed/", "--codec", "pack16")
    assert encoded.exit_code == 0
    assert encoded.stderr == f"{DIGITS}: labels: skipped: pack16 does not take int64\n"
    arrays = {name: array for name, array in members(DIGITS).items() if name != "labels"}
    packed = sorted(Path("packed").iterdir())
    assert [path.stem for path in packed] == sorted(arrays)
    assert encoded.stdout.count("\n") == len(arrays) == 8
    for out in ("back.npz", "folder/"):
        assert call("decode", *packed, out).exit_code == 0
    back = members("back.npz")
    for name, array in arrays.items():
        expected = array.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(back[name], expected)
        np.testing.assert_array_equal(np.load(f"folder/{name}.npy"), expected)


def test_files_and_names_are_chosen_from(x, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", one=x, two=x)
    np.savez("b.npz", three=x, whole=np.arange(3))
    options = ("--codec", "pack8", "--name", "one", "--name", "three")
    assert call("encode", "a.npz", "b.npz", "packed/", *options).exit_code == 0
    assert sorted(os.listdir("packed")) == ["one.npz", "three.npz"]
    assert_refused(call("encode", "a.npz", "b.npz", "out/", *options, "--name", "tow"), "two?")
    assert_refused(
        call("encode", "a.npz", "a.npz", "out/", "--codec", "pack8"), "one.npz: two arrays"
    )
    assert_refused(
        call("encode", "a.npz", "b.npz", "out", "--codec", "pack8"), "folder", "one, two"
    )
    assert_refused(call("decode", "packed/one.npz", "packed/three.npz", "out.npy"), "one array")
    twice = ("packed/one.npz", "packed/one.npz")
    assert_refused(call("decode", *twice, "out.npz"), "two arrays would be called 'one'")
    assert_refused(call("decode", *twice, "out/"), "out/one.npy: two arrays")
    assert sorted(os.listdir()) == ["a.npz", "b.npz", "packed"]


@pytest.mark.parametrize(
    "name", ["a/b", "../a", "/etc/passwd", "a\\b", "50%", "%2F", "a\nb", "..", ".", ".bashrc", ""]
)
def test_a_name_leads_nowhere_else(name, x, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", **{name: x})
    assert call("encode", "x.npz", "to/packed/", "--codec", "pack8").exit_code == 0
    (file,) = (tmp_path / "to").rglob("*.npz")
    assert file.parent == tmp_path / "to" / "packed"
    assert not file.name.startswith(".")
    assert call("decode", file, "back.npz").exit_code == 0
    assert list(members("back.npz")) == [name or "array"]
    assert call("decode", file, "back/").exit_code == 0
    assert [path.name for path in Path("back").iterdir()] == [f"{file.stem}.npy"]


def test_what_is_there_is_kept_without_force(x, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", a=x, b=x)
    Path("link").symlink_to("old")
    call("encode", "x.npz", "packed/", "--codec", "pack8")
    for out, names in (("packed/", []), ("old", ["--name", "a"]), ("link", ["--name", "a"])):
        if not names:
            Path("packed/a.npz").unlink()
        Path("old").write_bytes(b"old")
        command = ("encode", "x.npz", out, "--codec", "pack8", *names)
        assert_refused(call(*command), "is there already; --force replaces it")
        assert Path("old").read_bytes() == b"old"
        assert not Path("packed/a.npz").exists() or names
        assert call(*command, "--force").exit_code == 0
    assert Path("link").is_symlink()
    assert Packed.load("old").codec == "pack8"
    assert_refused(call("decode", "old", "packed/a.npz"), "--force")
    assert call("encode", "x.npz", "/dev/null", "--codec", "pack8", "--name", "a").exit_code == 0


# ---- .safetensors --------------------------------------------------------------------------------


@pytest.fixture
def library():
    return pytest.importorskip("safetensors.numpy", reason="in the extra `safetensors`")


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_tensors_there_and_back_keep_their_type(dtype, library, rng, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = {"layer.0": rng.standard_normal((3, 5)).astype(dtype), "b": np.ones((), dtype)}
    library.save_file({**arrays, "labels": np.arange(3)}, "x.safetensors")
    assert call("encode", "x.safetensors", "packed/", "--codec", "pack16").exit_code == 0
    packed = sorted(Path("packed").iterdir())
    result = call("decode", *packed, "back.safetensors")
    assert (result.exit_code, result.stderr) == (0, "")
    back = library.load_file("back.safetensors")
    assert sorted(back) == sorted(arrays)
    for name, array in arrays.items():
        expected = compress(array, "pack16").decompress()
        assert (back[name].dtype, back[name].shape) == (dtype, array.shape)
        assert back[name].tobytes() == expected.tobytes()
    measured = call("roundtrip", "x.safetensors", "--provider", "cpu", "--codec", "pack16")
    assert f"layer.0  {dtype_name(dtype)} (3, 5)" in measured.stdout
    through = piped(Path("x.safetensors").read_bytes(), "encode", "-", "-", "--codec", "pack16",
                    "--name", "b")  # fmt: skip
    again = piped(through.stdout_bytes, "decode", "-", "-", "--format", "safetensors")
    Path("piped.safetensors").write_bytes(again.stdout_bytes)
    (tensor,) = library.load_file("piped.safetensors").values()
    assert (tensor.dtype, tensor.tobytes()) == (dtype, arrays["b"].tobytes())


def test_bfloat16_in_numpys_files_is_said_and_comes_back(rng, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = rng.standard_normal(20).astype(BFLOAT16)
    compress(x, "pack16").save("x.packed")
    for out in ("y.npy", "y.npz"):
        result = call("decode", "x.packed", out)
        assert "bfloat16 is written as raw two-byte elements ('<V2')" in result.stderr
        actual = np.load(out) if out == "y.npy" else members(out)["x"]
        assert actual.dtype == "V2"
        values = actual.view(ml_dtypes.bfloat16)
        assert values.tobytes() == compress(x, "pack16").decompress().tobytes()
        back = call("encode", out, "-", "--codec", "pack16", "--dtype", "bfloat16")
        assert Packed.load(io.BytesIO(back.stdout_bytes)).dtype == "bfloat16"


def test_a_type_that_numpy_lacks_leaves_the_others(library, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    eight = np.ones(4, ml_dtypes.float8_e4m3fn)
    library.save_file({"eight": eight, "x": np.ones(4, np.float32)}, "x.safetensors")
    result = call("encode", "x.safetensors", "packed/", "--codec", "pack8")
    assert result.exit_code == 0
    assert os.listdir("packed") == ["x.npz"]
    assert "eight: skipped" in result.stderr
    wanted = ("--codec", "pack8", "--name", "eight")
    assert_refused(call("encode", "x.safetensors", "y", *wanted), "eight")
    content = Path("x.safetensors").read_bytes()
    Path("odd.safetensors").write_bytes(content.replace(b"F8_E4M3", b"F8_NEWE"))
    assert "  eight  F8_NEWE " in call("info", "odd.safetensors").stdout


COMMANDS = [
    ("roundtrip", "x.safetensors"),
    ("roundtrip", "x.safetensors", "--codec", "sparse"),
    ("encode", "x.safetensors", "to/", "--codec", "sparse"),
]


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_tensor_that_cannot_be_read_is_left_out_by_its_name(
    library, x, tmp_path, monkeypatch, command, kind
) -> None:
    monkeypatch.chdir(tmp_path)
    library.save_file({"small": np.arange(4, dtype=np.uint8), "x": x}, "x.safetensors")
    content = Path("x.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["small"] |= {"dtype": kind, "shape": [8 if kind == "F4" else 4]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little")
    Path("x.safetensors").write_bytes(head + text + content[8 + length :])
    result = call(*command)
    assert result.exit_code == 0, result.output
    assert "x.safetensors: small: skipped: " in result.stderr
    if command[0] == "encode":
        assert os.listdir("to") == ["x.npz"]
    else:
        assert "sparse " in result.stdout


def test_the_library_is_not_needed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    compress(np.ones(3), "pack8").save("x.packed")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert call("info", "x.safetensors").stdout.startswith("x.safetensors: 0 arrays")
    assert call("decode", "x.packed", "y.safetensors").exit_code == 0
    assert "float64" in call("info", "y.safetensors").stdout


# ---- info ----------------------------------------------------------------------------------------


def test_info_says_what_a_packed_file_holds(x, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    compress(x, "msfp15", keep_nonfinite=True).save("x.packed")
    lines = call("info", "x.packed").stdout.splitlines()
    assert lines[:4] == [
        "x.packed: packed array",
        "  array    float32 (5, 9), 180 bytes",
        "  codes    48 bytes, 3.8 times smaller",
        "  codec    msfp15, keep_nonfinite True",
    ]
    assert " ".join("".join(lines[4:]).split()).startswith(f"formula {CODECS['msfp15'].formula}")


def test_info_lists_the_arrays_of_other_files(x, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", a=x, header=np.arange(3))
    np.save("x.npy", x)
    assert call("info", "x.npz", "x.npy").stdout.splitlines() == [
        "x.npz: 2 arrays",
        "  array   dtype    shape   bytes",
        "  a       float32  (5, 9)    180",
        "  header  int64    (3,)       24",
        "x.npy: 1 array",
        "  array  dtype    shape   bytes",
        "  x      float32  (5, 9)    180",
    ]


def test_info_finds_damage(x, tmp_path) -> None:
    packed = tmp_path / "x.packed"
    compress(x, "pack16").save(packed)
    code = compress(x, "pack16").code.tobytes()
    packed.write_bytes(packed.read_bytes().replace(code, bytes(len(code))))
    assert_refused(call("info", packed), "CRC")
    assert_refused(call("info", tmp_path / "missing"), "missing: No such file")

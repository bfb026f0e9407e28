# SPDX-License-Identifier: MIT
"""`roundtrip`: its table, its JSON, its verdict, the files it takes and those it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops.cli import machine, main
from cupy_training_ops.cli.roundtrip import OF_FLOATS
from cupy_training_ops.cli.trial import DISTRIBUTIONS, generate
from cupy_training_ops.dtypes import BFLOAT16, FLOATS, dtype_name
from cupy_training_ops.families.gist import reference as gist

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "tests" / "data" / "digits_cnn_activations.npz"


def call(*arguments):
    result = CliRunner().invoke(main, ["roundtrip", *map(str, arguments)])
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return result


def rows(*arguments):
    """The objects of a call on the CPU provider that goes well."""
    result = call("--json", "--provider", "cpu", *arguments)
    assert result.exit_code == 0, result.output
    return objects(result, "trial")


def objects(result, kind):
    """Those of a type among the lines of --json."""
    actual = map(json.loads, result.stdout.splitlines())
    return [one for one in actual if one["type"] == kind]


def saved(path, array):
    np.save(path, array)
    return path


def assert_refused(result, *words):
    """Exit code 2, one line on stderr with the words in it, nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    for word in words:
        assert word in line


def test_digits_print_their_table():
    result = call(DIGITS, "--provider", "cpu")
    assert result.exit_code == 0
    assert result.stdout.count(" ok\n") == 9 * len(OF_FLOATS)  # eight arrays, and the summary
    assert "8 arrays, provider cpu\n" in result.stdout
    assert "labels: skipped" in result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_has_what_the_arrays_say(rng, tmp_path):
    x = np.maximum(rng.standard_normal((9, 11)), 0).astype(np.float32)
    (row,) = rows(saved(tmp_path / "x.npy", x), "--codec", "pack16")
    error = np.abs(x.astype(np.float16).astype(np.float64) - x)
    assert row["array"], row["shape"] == ("x", [9, 11])
    assert (row["nbytes_before"], row["nbytes_after"], row["ratio"]) == (4 * 99, 2 * 99, 2)
    assert row["bits_per_value"] == 16
    assert row["max_abs_error"] == error.max()
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert row["cosine"] == pytest.approx(1, abs=1e-6)
    assert row["snr_db"] == pytest.approx(
        10 * np.log10(np.sum(x.astype(float) ** 2) / np.sum(error**2))
    )
    assert (row["zeros_kept"], row["provider"], row["verdict"]) == (1, "cpu", "ok")
    moved = 6 * 99 / 1e9
    assert row["encode_gb_per_s"] == pytest.approx(moved / row["encode_s"])
    assert row["decode_gb_per_s"] == pytest.approx(moved / row["decode_s"])


def test_padding_counts_in_bits_per_value(rng, tmp_path):
    x = saved(tmp_path / "x.npy", rng.standard_normal(9))
    after = {row["codec"]: row["nbytes_after"] for row in rows(x)}
    expected = {"binarize": 9, "pack1": 2, "pack8": 9, "pack16": 18, "msfp15": 16}
    assert after | expected == after
    assert rows(x, "--codec", "pack1")[0]["bits_per_value"] == 16 / 9


@pytest.mark.parametrize("dtype", [dtype_name(dtype) for dtype in FLOATS])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_made_data_passes(distribution, dtype, seed):
    made = ("--distribution", distribution, "--dtype", dtype, "--shape", "7,33", "--seed", seed)
    actual = rows(*made, "--keep-nonfinite")
    assert [row["codec"] for row in actual] == list(OF_FLOATS)
    assert {(row["dtype"], tuple(row["shape"])) for row in actual} == {(dtype, (7, 33))}


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_distributions_are_what_they_are_called(dtype, seed):
    normal, relu, uniform, denormal, special = (
        generate(name, (100, 100), dtype, seed).astype(np.float64) for name in DISTRIBUTIONS
    )
    assert abs(normal.mean()) < 0.05
    assert normal.std() == pytest.approx(1, abs=0.05)
    assert relu.min() == 0
    assert np.mean(relu == 0) == pytest.approx(0.5, abs=0.05)
    assert uniform.min() >= -1
    assert uniform.max() <= 1
    tiny = {"float16": 2.0**-14, "float64": 2.0**-1022}.get(dtype.name, 2.0**-126)
    assert 0.9 * tiny < np.abs(denormal).max() <= tiny
    assert np.isnan(special).any()
    assert np.isinf(special).any()
    again = generate("special", (100, 100), dtype, seed).astype(np.float64)
    np.testing.assert_array_equal(special, again)


def test_a_violation_is_a_failed_check(monkeypatch, rng, tmp_path):
    x = saved(tmp_path / "x.npy", rng.uniform(1, 2, (4, 5)).astype(np.float32))
    right = gist.gist_pack8_decoder

    def wrong(codes, **attributes):
        decoded = right(codes, **attributes)
        decoded.reshape(-1)[13] *= 1.5
        return decoded

    monkeypatch.setattr(gist, "gist_pack8_decoder", wrong)
    result = call(x, "--provider", "cpu")
    assert result.exit_code == 1
    assert result.stdout.count("FAIL") == 2  # of the array, and in the summary
    assert "pack8: 1 of 20 values outside the bound (2^-3 |x|" in result.stdout
    assert "the first at (2, 3)" in result.stdout
    assert call(x, "--json", "--provider", "cpu").exit_code == 1


def test_any_layout_and_byte_order_is_read(rng, tmp_path):
    x = rng.standard_normal((6, 10)).astype(np.float32)
    plain = rows(saved(tmp_path / "x.npy", x))
    for other in (np.asfortranarray(x), x.astype(">f4")):
        for row, expected in zip(rows(saved(tmp_path / "x.npy", other)), plain, strict=True):
            kept = ("dtype", "shape", "max_abs_error", "snr_db", "verdict")
            assert [row[name] for name in kept] == [expected[name] for name in kept]


@pytest.mark.parametrize("raw", ["V2", "uint16", "int16", "bfloat16"])
def test_raw_two_byte_arrays_are_read_as_bfloat16(raw, rng, tmp_path):
    x = rng.standard_normal(40).astype(BFLOAT16)
    path = saved(tmp_path / "x.npy", x if raw == "bfloat16" else x.view(raw))
    actual = rows(path, "--dtype", "bfloat16", "--codec", "pack8")
    assert (actual[0]["dtype"], actual[0]["nbytes_before"]) == ("bfloat16", 80)
    assert_refused_with_skip(call(path))


def assert_refused_with_skip(result):
    assert result.exit_code == 2
    skipped, error = result.stderr.splitlines()
    assert "skipped" in skipped
    assert error.startswith("Error: ")


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path):
    files = [tmp_path / folder / "x.npy" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        saved(file, np.ones(3))
    actual = rows(*files, "--codec", "pack1")
    assert [row["array"] for row in actual] == [f"{file}:x" for file in files]


def test_json_has_null_where_the_table_has_no_finite_number(tmp_path):
    x = saved(tmp_path / "x.npy", np.ones(8, np.float32))
    assert " inf " in call(x, "--codec", "pack16").stdout
    (row,) = rows(x, "--codec", "pack16")
    assert (row["snr_db"], row["zeros_kept"], row["max_abs_error"]) == (None, None, 0)
    assert "null for inf and -" in " ".join(call("--help").stdout.split())


def test_a_dtype_no_codec_takes_gets_a_line_and_no_failure(tmp_path):
    result = call(saved(tmp_path / "x.npy", np.ones(3, np.longdouble)))
    assert result.exit_code == 0
    refused = f"not for {np.dtype(np.longdouble)}: {', '.join(OF_FLOATS)}"
    assert refused in " ".join(result.stdout.split())


def test_bfloat16_that_nothing_can_be_read_as_is_refused(tmp_path):
    x = saved(tmp_path / "x.npy", np.ones(3, np.float32))
    assert_refused(call(x, "--dtype", "bfloat16"), "no raw two-byte elements")
    raw = saved(tmp_path / "raw.npy", np.ones(3, np.uint16))
    assert {row["dtype"] for row in rows(x, raw, "--dtype", "bfloat16")} == {"float32", "bfloat16"}


def damaged(path):
    """A compressed archive with one byte in the middle of its data changed."""
    np.savez_compressed(path, x=np.random.default_rng(0).random(100))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def truncated(path):
    writer = np.save if path.suffix == ".npy" else np.savez
    writer(path, np.ones(100))
    path.write_bytes(path.read_bytes()[:-40])


def mistyped(path):
    """NumPy reads this type as the Python literal 04, and raises a SyntaxError."""
    np.save(path, np.ones(3, np.float32))
    path.write_bytes(path.read_bytes().replace(b"<f4", b"<04"))


BAD_FILES = {
    "missing.npy": lambda path: path.unlink(missing_ok=True),
    "folder.npy": lambda path: path.mkdir(),
    "empty.npy": lambda path: path.write_bytes(b""),
    "text.npy": lambda path: path.write_text("not an array"),
    "truncated.npy": truncated,
    "truncated.npz": truncated,
    "damaged.npz": damaged,
    "mistyped.npy": mistyped,
    "nothing.npz": lambda path: np.savez(path),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_gets_one_line(name, tmp_path):
    BAD_FILES[name](tmp_path / name)
    assert_refused(call(tmp_path / name), name)


NOT_FLOATING = [np.arange(3), np.ones(3, complex), np.array([{}], object), np.array(["\x1b[2J"])]


@pytest.mark.parametrize("array", NOT_FLOATING, ids=lambda array: array.dtype.kind)
def test_what_is_not_floating_only_is_skipped_and_refused(array, tmp_path):
    assert_refused_with_skip(call(saved(tmp_path / "x.npy", array)))
    np.savez(tmp_path / "x.npz", x=array)
    assert_refused_with_skip(call(tmp_path / "x.npz"))


@pytest.mark.parametrize("array", NOT_FLOATING, ids=lambda array: array.dtype.kind)
def test_one_array_that_no_codec_takes_leaves_the_others(array, tmp_path):
    np.savez(tmp_path / "x.npz", odd=array, x=np.ones(3, np.float32))
    result = call(tmp_path / "x.npz", "--codec", "pack1", "--json", "--provider", "cpu")
    assert result.exit_code == 0
    assert [row["array"] for row in objects(result, "trial")] == ["x"]
    (line,) = result.stderr.splitlines()
    assert f"odd: skipped: pack1 does not take {array.dtype}" in line


def test_what_is_no_array_leaves_the_others(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones(3, np.float32))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("README.txt", "three ones")
    result = call(tmp_path / "x.npz", "--codec", "pack1", "--provider", "cpu")
    assert (result.exit_code, "README.txt: skipped: no array" in result.stderr) == (0, True)


@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"])
def test_no_damage_ends_in_a_traceback(kind, rng, tmp_path):
    path = tmp_path / ("x.npy" if kind == "npy" else "x.npz")
    writer = {"npy": np.save, "npz": np.savez, "compressed": np.savez_compressed}[kind]
    writer(path, rng.standard_normal(20).astype(np.float32))
    whole = path.read_bytes()
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            content[rng.integers(len(content))] = rng.integers(256)
        path.write_bytes(content[: rng.integers(len(whole)) if rng.random() < 0.3 else None])
        with warnings.catch_warnings(action="ignore"):
            result = call(path, "--provider", "cpu", "--codec", "pack1")
        assert result.exit_code in (0, 2)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--codec", "zip"], "msfp15"),
        (["--provider", "tpu"], "cuda"),
        (["--shape", "3,x"], "3,x"),
        (["--shape", "-3"], "-3"),
        (["--shape", "99999999999999"], "memory"),
        (["--shape", "99999999999999999999"], "99999999999999999999"),
        (["--shape", "9223372036854775807,2"], "fewer than 2^59 elements"),
        (["--shape", "0,9223372036854775807"], "fewer than 2^59 elements"),
        (["--shape", ",".join("1" * 65)], "64"),
        (["--shape", ""], "8,128"),
        (["--seed", "-1"], "seed"),
        (["--min-snr", "nan"], "expected a number"),
        (["--max-abs", "nan"], "expected a number"),
        (["--max-abs", "-1"], "max-abs"),
        (["--dtype", "int8"], "float32"),
        (["--frobnicate"], "frobnicate"),
        ([DIGITS, "--shape", "3"], "--shape"),
        ([DIGITS, "--dtype", "float32"], "--dtype"),
    ],
)
def test_bad_usage_gets_one_line(arguments, word):
    assert_refused(call(*arguments), word)


def test_cuda_without_a_gpu_is_exit_code_3(monkeypatch):
    monkeypatch.setattr(machine, "why_no_gpu", lambda: "none in here")
    result = call("--provider", "cuda")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "none in here" in result.stderr
    assert "provider cpu" in call("--provider", "auto", "--shape", "9").stdout


def test_a_shell_sees_the_exit_code_and_no_traceback():
    command = [sys.executable, "-m", "cupy_training_ops", "roundtrip", "missing.npy"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "Error: missing.npy: No such file or directory\n"


def test_importing_the_command_line_imports_no_extras():
    extras = "{'cupy', 'safetensors', 'matplotlib'}"
    code = f"import sys, cupy_training_ops.cli; assert not {extras} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.gpu
def test_the_gpu_gives_the_numbers_of_the_cpu():
    on_gpu = objects(call(DIGITS, "--json", "--provider", "cuda"), "trial")
    for row, expected in zip(on_gpu, rows(DIGITS), strict=True):
        assert row["provider"] == "cuda"
        for name in ("array", "codec", "nbytes_after", "max_abs_error", "snr_db", "verdict"):
            assert row[name] == expected[name]

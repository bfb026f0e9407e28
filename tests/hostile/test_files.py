# SPDX-License-Identifier: MIT
"""Damaged files: one line that says what is wrong, or what the file held; no half of anything."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops import OpError, Packed
from cupy_training_ops.cli import main

from .damage import damaged, packed_array, sound_files
from .findings import Findings
from .outcomes import LONGEST_MESSAGE, limited_memory

SOUND = sound_files()
NAMES = list(SOUND)
CASES = 500
KEPT = b"what was there before"


def test_damaged_files_are_refused_or_read(cases, seed, tmp_path) -> None:
    findings = Findings(__file__, seed)
    with limited_memory():
        for case in cases:
            rng = np.random.default_rng([seed, case])
            name = NAMES[case % len(NAMES)]
            data, how = damaged(SOUND[name], rng)
            file = tmp_path / name
            file.write_bytes(data)
            actual = by_commands(file, rng)
            if file.suffix == ".packed":
                actual += by_load(file, data, "lying" in how)
            findings.add(case, f"{name}: {how}", actual)
    findings.assert_none()


def by_load(file: Path, data: bytes, is_lie: bool) -> list[str]:
    """What is wrong with how Packed.load takes a file, by its path and as a stream."""
    actual, ends = [], []
    for source in (file, io.BytesIO(data)):
        try:
            packed = Packed.load(source)
            ends.append(repr(packed))
            decoded = packed.decompress()
            sound = Packed.load(io.BytesIO(SOUND[file.name]))
            if not is_lie and decoded.tobytes() != sound.decompress().tobytes():
                actual.append("damage is not noticed")
        except OpError as error:
            ends.append(str(error).partition(": ")[2])
            if len(str(error)) > LONGEST_MESSAGE:
                actual.append(f"says {len(str(error))} characters: {str(error)[:200]}")
        except MemoryError:
            return actual
        except Exception as error:
            actual.append(f"Packed.load leaks {type(error).__name__}: {error}")
    return actual


def by_commands(file: Path, rng: np.random.Generator) -> list[str]:
    """What is wrong with how a command takes a file."""
    out = file.with_name("out")
    had = rng.random() < 0.5
    if had:
        out.write_bytes(KEPT)
    commands = (
        [
            "encode",
            file,
            out,
            "--codec",
            rng.choice(["pack8", "pack1", "msfp15", "sparse", "fp10"]),
        ],
        ["encode", file, out, "--codec", "pack16", "--name", rng.choice(["x", "float32", "raw"])],
        ["roundtrip", file, "--codec", "pack16", "--provider", "cpu"],
    )
    command = commands[rng.integers(3)]
    if file.suffix == ".packed":
        command = ["decode", file, out]
    command += ["--force"] * (command[0] != "roundtrip")
    actual = of_command([str(part) for part in command])
    kept = out.read_bytes() if out.exists() else None
    if actual or command[0] == "roundtrip":
        written = kept != (KEPT if had else None)
        actual = [wrong for wrong in actual if wrong != REFUSED] + ["wrote to OUT"] * written
    elif kept in (None, KEPT):
        actual.append("has no OUT")
    out.unlink(missing_ok=True)
    return actual + [f"leaves {path.name}" for path in file.parent.glob(".*.tmp")]


REFUSED = "refused, as it should"


def of_command(command: list[str]) -> list[str]:
    """REFUSED for a command that ends as it should with bad input, and what is wrong otherwise."""
    result = CliRunner().invoke(main, command, color=True)  # as on a terminal
    label = " ".join(part for part in command if "/" not in part)
    if not isinstance(result.exception, SystemExit | None):
        return [f"{label} leaks {type(result.exception).__name__}: {result.exception}"]
    lines = result.stderr.splitlines()
    if not all(line.isprintable() for line in lines + result.stdout.splitlines()):
        return [f"{label} prints raw {result.stderr!r} {result.stdout!r}"]
    if result.exit_code == 0:
        return []
    errors = [line for line in lines if line.startswith("Error: ")]
    skipped = [line for line in lines if "skipped" in line]
    if result.exit_code != 2 or len(errors) != 1 or len(lines) != 1 + len(skipped):
        return [f"{label} ends with {result.exit_code}: {result.stderr}"]
    if len(errors[0]) > LONGEST_MESSAGE:
        return [f"{label} says {len(errors[0])} characters: {errors[0][:200]}"]
    return [REFUSED]


@pytest.mark.parametrize("name", NAMES)
def test_sound_files_are_taken(name, tmp_path) -> None:
    """Or the damage would tell nothing; of the arrays those of a floating-point type."""
    file = tmp_path / name
    file.write_bytes(SOUND[name])
    if file.suffix == ".packed":
        assert Packed.load(file).decompress().shape == packed_array(file.stem).shape
        assert of_command(["decode", str(file), str(tmp_path / "out")]) == []
    else:
        some = {"whole.npy", "raw.npy", "bools.npy", "fields.npy"}
        assert of_command(["roundtrip", str(file), "--codec", "pack16"]) == [REFUSED] * (
            name in some
        )

# SPDX-License-Identifier: MIT
"""`completion`: what a shell is told of commands, shells, operators, codecs and array names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from cupy_training_ops import CODECS
from cupy_training_ops.cli import COMMAND, TURNED_ON, VARIABLE, main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path) -> str:
    np.savez(tmp_path / "x.npz", conv1=np.ones(3), conv2=np.ones(3), logits=np.ones(3))
    (tmp_path / "text").write_text("no array")
    return str(tmp_path / "x.npz")


def completed(*words: str) -> list[str]:
    """What the last word may become, as Click's classes for all shells ask."""
    of_shell = BashComplete(main, {}, COMMAND, VARIABLE)
    return [item.value for item in of_shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ro"], ["roundtrip"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["ops", "GistPack8"], ["GistPack8Decoder", "GistPack8Encoder"]),
        (["ops", "gist_pack1_e"], ["gist_pack1_encoder"]),
        (["verify", "--op", "SigmoidG"], ["SigmoidGrad"]),
        (["compile", "--op", "sigmoid_g"], ["sigmoid_grad"]),
        (["roundtrip", "--codec", ""], list(CODECS)),
        (["encode", "x", "y", "--codec", "msfp"], ["msfp15", "msfp15_signed"]),
        (["roundtrip", "--min"], ["--min-snr"]),
    ],
)  # fmt: skip
def test_names_are_completed(words, expected) -> None:
    assert completed(*words) == expected


def test_arrays_of_packed_files_are_completed(file, tmp_path) -> None:
    for packed in ("packed.npz", "packed.safetensors"):
        command = ["encode", file, str(tmp_path / packed), "--codec", "pack16"]
        assert CliRunner().invoke(main, command).exit_code == 0
        before = ("decode", str(tmp_path / packed), "out.npz", "--name")
        assert completed(*before, "conv") == ["conv1", "conv2"]


def test_arrays_of_the_files_that_are_given_are_completed(file) -> None:
    for before in ([file], [file, "out"], [file, "out", "--codec", "pack8"]):
        assert completed("encode", *before, "--name", "conv") == ["conv1", "conv2"]
    assert completed("encode", file, file, "o", "--name", "l") == ["logits"] * 2
    for nothing in ("missing", str(Path(file).with_name("text")), str(ROOT)):
        assert completed("encode", nothing, "out", "--name", "") == []


@pytest.mark.parametrize("shell", TURNED_ON)
def test_help_has_the_line_that_turns_it_on(shell) -> None:
    line = TURNED_ON[shell]
    assert line in CliRunner().invoke(main, ["completion", "-h"]).output
    script = CliRunner().invoke(main, ["completion", shell])
    assert (script.exit_code, script.stderr) == (0, "")
    assert VARIABLE in script.stdout


@pytest.mark.thorough  # four processes
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes(file, tmp_path) -> None:
    """The line of the help, evaluated, asks a command of that name for the names."""
    command = tmp_path / COMMAND
    command.write_text(f"#!{sys.executable}\nfrom cupy_training_ops.cli import main\nmain()\n")
    command.chmod(0o755)
    script = f"""{TURNED_ON["bash"]}
COMP_WORDS=({COMMAND} encode {file} out --name con); COMP_CWORD=5
_cupy_training_ops_completion {COMMAND}
echo "${{COMPREPLY[@]}}" """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (result.stdout, result.stderr) == ("conv1 conv2\n", "")

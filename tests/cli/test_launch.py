# SPDX-License-Identifier: MIT
"""`launch`: ranks with their variables, lines with the rank in front, one status for all."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cupy_training_ops.cli import main

ROOT = Path(__file__).resolve().parents[2]


def call(folder: Path, code: str, *arguments: str, options=("--ranks", "2")):
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    return CliRunner().invoke(main, ["launch", *options, str(script), *arguments])


def test_each_rank_has_torchruns_variables_and_its_arguments(tmp_path) -> None:
    code = """
        import os, sys
        names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR CTO_TIMEOUT".split()
        print(*(os.environ[name] for name in names), *sys.argv[1:])
        print("CTO_SECRET" in os.environ, int(os.environ["MASTER_PORT"]) > 0, file=sys.stderr)
    """
    options = ("--ranks", "3", "--timeout", "7")
    result = call(tmp_path, code, "--ranks", "x", options=options)
    assert result.exit_code == 0, result.output
    expected = [f"[{rank}] {rank} {rank} 3 3 127.0.0.1 7.0 --ranks x" for rank in range(3)]
    assert sorted(result.stdout.splitlines()) == expected
    assert sorted(result.stderr.splitlines()) == [f"[{rank}] False True" for rank in range(3)]


def test_a_failure_ends_all_and_gives_its_status(tmp_path) -> None:
    code = """
        import os, sys, time
        if os.environ["RANK"] == "1":
            print("going")
            sys.exit(7)
        time.sleep(60)
    """
    started = time.monotonic()
    result = call(tmp_path, code)
    assert result.exit_code == 7
    assert result.stdout == "[1] going\n"
    assert time.monotonic() - started < 20


@pytest.mark.thorough
def test_who_does_not_want_to_end_is_killed(tmp_path) -> None:
    code = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        if os.environ["RANK"] == "1":
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    """
    result = call(tmp_path, code)
    assert result.exit_code == 128 + 9
    for line in result.stdout.splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)


def test_lines_of_any_bytes_are_handed_on(tmp_path) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'a\xffb\r\nno end')"
    assert call(tmp_path, code, options=("--ranks", "1")).stdout == "[0] a\\xffb\n[0] no end\n"


def test_wrong_options_are_refused(tmp_path) -> None:
    for arguments in (["--ranks", "0", __file__], ["--ranks", "2", str(tmp_path / "none.py")]):
        assert CliRunner().invoke(main, ["launch", *arguments]).exit_code == 2


def test_the_readmes_two_ranks_outside_the_checkout(tmp_path) -> None:
    """Its script and its command, in another folder."""
    words = "cupy-training-ops launch --ranks 2 examples/two_ranks.py"
    assert f"\n    {words}\n" in (ROOT / "README.md").read_text()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-m", "cupy_training_ops", *words.split()[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"[{rank}] [3. 3. 3.]" for rank in (0, 1)]

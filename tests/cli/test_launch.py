# SPDX-License-Identifier: MIT
"""`launch`: ranks with their variables, lines with the rank in front, one status for all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cupy_training_ops.cli import main
from cupy_training_ops.cli.launch import _lines

# JAX, which other tests import, warns of each fork; the launcher itself has none.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
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


def test_more_ranks_than_can_be_connected_are_refused(tmp_path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        result = call(tmp_path, "", options=("--ranks", "99"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result.exit_code == 2
    assert "cannot connect 99 ranks: Too many open files (ulimit -n)" in result.stderr


def test_the_readmes_two_ranks_outside_the_checkout(tmp_path) -> None:
    """Its script and its command, in another folder."""
    words = "cupy-training-ops launch --ranks 2 examples/two_ranks.py"
    assert f"\n    {words}\n" in (ROOT / "README.md").read_text()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-m", "cupy_training_ops", *words.split()[1:]]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"[{rank}] [3. 3. 3.]" for rank in (0, 1)]


# ---- whatever ends it ----------------------------------------------------------------------------

STUBBORN = """
    import os, signal, subprocess, sys, time
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(os.getpid(), child.pid, flush=True)
    time.sleep(60)
"""


def started(folder: Path, code: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A launcher, and the processes that its two ranks name."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    command = [sys.executable, "-m", "cupy_training_ops", "launch", "--ranks", "2", str(script)]
    launcher = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    lines = [launcher.stdout.readline() for _ in range(2)]
    return launcher, [int(number) for line in lines for number in line.split()[1:]]


def is_running(number: int) -> bool:
    """Whether there is such a process, and it is more than an entry of a table."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_gone(numbers: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(map(is_running, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [number for number in numbers if is_running(number)]
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert not left


SIGNALS = ["SIGINT", "SIGQUIT"]
SIGNALS += [pytest.param(name, marks=pytest.mark.thorough) for name in ("SIGUSR1", "SIGTERM")]


@pytest.mark.parametrize("name", SIGNALS)
def test_nothing_is_left_after_a_signal(tmp_path, name) -> None:
    """Of ranks that do not want to end, and of what they started; Ctrl-C, as often as it comes."""
    launcher, numbers = started(tmp_path, STUBBORN)
    with launcher:
        for _ in range(4 if name == "SIGINT" else 1):
            launcher.send_signal(getattr(signal, name))
            time.sleep(0.3)
        status = launcher.wait(20)
    number = getattr(signal, name)  # 130: Ctrl-C while nothing of Python's ends already
    assert status in ((130, -number) if name == "SIGINT" else (-number,))
    assert_gone(numbers)


@pytest.mark.skipif(
    sys.platform != "linux", reason="a child is told of its parent's death on Linux"
)
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path) -> None:
    launcher, (first, first_child, second, second_child) = started(tmp_path, STUBBORN)
    with launcher:
        launcher.kill()
        launcher.wait(10)
    try:
        assert_gone([first, second])
    finally:
        for child in (first_child, second_child):  # nobody could tell them
            os.kill(child, signal.SIGKILL)


def test_children_that_hold_the_pipes_are_not_waited_for(tmp_path) -> None:
    code = """
        import os, subprocess, sys
        code = "import time; time.sleep(20)"
        alone = os.environ["RANK"] == "0"  # in a session of its own nobody ends it
        print(subprocess.Popen([sys.executable, "-c", code], start_new_session=alone).pid)
    """
    since = time.monotonic()
    result = call(tmp_path, code, options=("--ranks", "3"))
    assert time.monotonic() - since < 10
    assert result.exit_code == 0
    actual = dict(line.split() for line in result.stdout.splitlines())
    os.kill(int(actual.pop("[0]")), signal.SIGKILL)
    assert_gone(list(map(int, actual.values())))


def test_a_process_that_a_rank_started_is_no_rank(tmp_path) -> None:
    code = """
        import subprocess, sys
        code = "import cupy_training_ops as cto; cto.ProcessGroup()"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr)
    """
    result = call(tmp_path, code, options=("--ranks", "1"))
    assert "GroupError: ProcessGroup: a process that launch started makes one group" in (
        result.stdout
    )


def test_a_second_group_of_a_rank_is_refused(tmp_path) -> None:
    code = """
        import cupy_training_ops as cto
        with cto.ProcessGroup() as group:
            print(group)
        cto.ProcessGroup()
    """
    result = call(tmp_path, code, options=("--ranks", "1"))
    assert "[0] <ProcessGroup rank 0 of 1, embedded>\n" in result.stdout
    assert "makes one group, itself: it was made here before" in result.stderr


def test_a_line_of_many_megabytes_is_handed_on() -> None:
    """Bars of progress and images in base64 have lines without an end."""
    lines: list[bytes] = []
    source, target = os.pipe()

    def read() -> None:
        with open(source, "rb") as stream:
            lines.extend(_lines(stream, threading.Event()))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def write() -> None:
        with open(target, "wb") as stream:
            stream.write(b"x" * (2**26) + b"\n\nlast")

    threading.Thread(target=write, daemon=True).start()
    reader.join(15.0)
    assert not reader.is_alive()
    assert [len(line) for line in lines] == [2**26, 0, 4]

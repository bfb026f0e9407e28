# SPDX-License-Identifier: MIT
"""gpu_check.sh, beside stand-ins: which steps it runs, with what, and what it says of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from families import operators

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.sh"
STEPS = ["compile", "tests", "planted", "memcheck", "racecheck", "verify"]
AFTER = ["peers", "large", "benchmark", "report"]
STAND_IN = f"""#!/bin/bash
case "$*" in
  scripts/families.py*) exec {sys.executable} "$@" ;;
  *"$FAILING"*) echo "FAILED $FAILING"; exit 3 ;;
  *"$HANGING"*) exec sleep 60 ;;
esac
echo "arguments: $*, commit: $CTO_COMMIT"
"""
CHECKER = """#!/bin/bash
[[ "$*" = *--plant* ]] && exit 9
exit 0
"""


@pytest.fixture
def begun(tmp_path):
    """A function that starts the script beside stand-ins for Python and the memory checker."""
    for name, text in (("python", STAND_IN), ("compute-sanitizer", CHECKER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def begin(*families: str, failing: str = "nothing", hanging: str = "nothing"):
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHON": str(tmp_path / "python"),
            "FAILING": failing,
            "HANGING": hanging,
            "CTO_COMMIT": "abc1234",
        }
        command = ["bash", str(SCRIPT), str(tmp_path / "out"), *families]
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, start_new_session=True
        )

    return begin


def log(folder: Path, step: str) -> str:
    return (folder / "out" / f"{step}.log").read_text()


def statuses(folder: Path) -> dict[str, int]:
    report = json.loads((folder / "out" / "gpu_check.json").read_text())
    assert report["commit"] == "abc1234"
    return {row["step"]: row["status"] for row in report["steps"]}


def test_of_one_family_its_operators_alone(begun, tmp_path) -> None:
    process = begun("elementwise")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert statuses(tmp_path) == dict.fromkeys([*STEPS, *AFTER], 0)
    assert out.startswith("commit abc1234, families: elementwise\n")
    assert all(f"\n{step:10} status   0 " in out for step in (*STEPS, *AFTER))
    named = "".join(f" --op {name}" for name in operators(["elementwise"]))
    for step in ("compile", "verify"):
        assert f"{named}, commit: abc1234\n" in log(tmp_path, step)
    for step in ("tests", "memcheck", "racecheck", "large", "peers", "benchmark"):
        assert " --family elementwise" in log(tmp_path, step)


def test_of_all_families_where_none_is_named(begun, tmp_path) -> None:
    process = begun()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert statuses(tmp_path) == dict.fromkeys([*STEPS, "roundtrip", *AFTER], 0)
    assert not any("--op" in log(tmp_path, step) for step in statuses(tmp_path))
    assert not any("--family" in log(tmp_path, step) for step in statuses(tmp_path))


@pytest.mark.parametrize(("failing", "step"), [("verify", "verify"), ("-m large", "large")])
def test_a_step_that_fails_is_told_and_the_others_run(begun, tmp_path, failing, step) -> None:
    process = begun("gist", failing=failing)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    everything = dict.fromkeys([*STEPS, "roundtrip", *AFTER], 0)
    assert statuses(tmp_path) == everything | {step: 3}
    assert f"FAILED {failing}" in out


def test_a_memory_checker_that_finds_nothing_planted_has_failed(begun, tmp_path) -> None:
    (tmp_path / "compute-sanitizer").write_text("#!/bin/bash\n")
    process = begun("gist")
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert {step for step, status in statuses(tmp_path).items() if status} == {"planted"}


def test_an_unknown_family_is_refused(begun, tmp_path) -> None:
    process = begun("frobnication")
    process.communicate(timeout=60)
    assert process.returncode == 2
    assert not (tmp_path / "out" / "compile.log").exists()


def test_when_ended_it_ends_its_steps(begun) -> None:
    process = begun("gist", hanging="compile")
    while not sleeping(process):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 130
    deadline = time.monotonic() + 5.0  # of a step's own child, which the signal has reached
    while sleeping(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not sleeping(process)


def sleeping(process) -> bool:
    """Whether a step of the script's session sleeps."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition(") ")
        except OSError:  # it has just ended
            continue
        if int(rest.split()[3]) == process.pid and name.endswith("(sleep"):
            return True
    return False

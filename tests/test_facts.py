# SPDX-License-Identifier: MIT
"""Facts that plans and kernels share stand once, in Python; headers of them are generated."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cupy_training_ops.declare.facts import Struct
from cupy_training_ops.runtime.source import families, load

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, CUDA = ROOT / "cupy_training_ops", ROOT / "cuda_src"
SHARED_CUDA = ("algorithm", "core", "format", "math")
SHARED_PYTHON = ("facts.py", "plan.py", "planning", "rules")
NUMBER = re.compile(
    r"^(?:static )?constexpr \w+ (\w+) = ([\d'.]+);|^#define CTO_(\w+) (\d+)$", re.MULTILINE
)

Numbers = Mapping[str, float]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_headers_are_up_to_date() -> None:
    checked = run("scripts/generate_headers.py", "--check")
    assert checked.returncode == 0, checked.stderr


def test_a_stale_header_is_named_with_the_command() -> None:
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import generate_headers as g;"
        "g.core.SUMS_NBYTES = 64; g.main(['--check'])"
    )
    checked = run("-c", code)
    assert checked.returncode == 1
    expected = "cuda_src/core/facts.cuh: stale, run python scripts/generate_headers.py"
    assert expected in checked.stderr


def test_every_generated_header_has_its_facts(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    generated = importlib.import_module("generate_headers").generated()
    assert set(CUDA.rglob("facts.cuh")) == set(generated)


# ---- what stands by hand in both -----------------------------------------------------------------


def texts(homes: list[Path], suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Files of these folders, or files, without those that are generated."""
    for home in homes:
        for path in [home] if home.is_file() else sorted(home.glob("*.*")):
            if path.suffix in suffixes and path.name != "facts.cuh":
                yield path, path.read_text(encoding="utf-8")


@functools.cache
def in_cuda(text: str) -> Numbers:
    """Numbers that a CUDA text gives a name."""
    found = (match.groups() for match in NUMBER.finditer(text))
    return {a or b: float((x or y).replace("'", "")) for a, x, b, y in found}


@functools.cache
def in_python(text: str) -> Numbers:
    """Those of a Python module, in capitals; what is imported stands elsewhere."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id.lstrip("_"), number_of(node.value)
            if name.isupper() and value is not None:
                found[name] = value
    return found


def number_of(node: ast.expr) -> float | None:
    """The value of an expression of numbers alone."""
    parts = (ast.Constant, ast.BinOp, ast.operator, ast.Call, ast.Name, ast.Load)
    if any(not isinstance(part, parts) for part in ast.walk(node)):
        return None
    try:
        return float(eval(ast.unparse(node), {"Slot": int}))
    except (NameError, TypeError, ValueError):
        return None


def are_one(a: tuple[str, float], b: tuple[str, float]) -> bool:
    """Whether two names are the same, or one ends like the other and the values are the same."""
    names = sorted((a[0], b[0]), key=len)
    return names[0] == names[1] or (a[1] == b[1] and names[1].endswith(f"_{names[0]}"))


def twice(cuda: Iterator[tuple[Path, str]], python: Iterator[tuple[Path, str]]) -> list[str]:
    """What both declare."""
    numbers = [(path.name, item) for path, text in python for item in in_python(text).items()]
    return [
        f"{path.name}: {name} is {module}: {item[0]}"
        for path, text in cuda
        for name, value in in_cuda(text).items()
        for module, item in numbers
        if are_one((name, value), item)
    ]


@pytest.mark.parametrize("family", families())
def test_no_number_stands_in_a_plan_and_in_a_kernel(family) -> None:
    python = [PACKAGE / name for name in (*SHARED_PYTHON, f"families/{family}")]
    cuda = [CUDA / name for name in (*SHARED_CUDA, family)]
    assert twice(texts(cuda, (".cu", ".cuh")), texts(python, (".py",))) == []


@pytest.mark.parametrize(
    ("cuda", "python", "found"),
    [
        ("constexpr int TILE_NBYTES = 16384;", "TILE_NBYTES = 16_384  # of a tile", 1),
        ("constexpr int TILE_NBYTES = 16384;", "TILE_NBYTES = 2**13", 1),
        ("constexpr u32 THREADS = 256;  // of a block", "SUM_THREADS = 256", 1),
        ("constexpr int SUM_THREADS = 256;", "_THREADS: int\nTHREADS = Slot(256)", 1),
        ("constexpr int THREADS = 256;", "SUM_THREADS = 128", 0),
        ("constexpr int THREADS = 256;", "from .facts import THREADS\nHEAD = len('THREADS')", 0),
        ("constexpr int THREADS = CTO_THREADS;", "THREADS = 256", 0),
        ("#ifndef CTO_THREADS\n#define CTO_THREADS 256\n#endif", "THREADS = 256", 1),
    ],
)
def test_a_planted_copy_is_named(cuda, python, found) -> None:
    paths = Path("k.cu"), Path("plan.py")
    named = twice(iter([(paths[0], cuda)]), iter([(paths[1], python)]))
    assert [text.partition(":")[0] for text in named] == ["k.cu"] * found


SCALARS = re.compile(r"bool|[iu]\d+|float|double|ACC|T")


def declared(family: str) -> set[str]:
    """The structs of a family's facts, and of all families'."""
    names = ["cupy_training_ops.facts", f"cupy_training_ops.families.{family}.facts"]
    modules = [importlib.import_module(n) for n in names if importlib.util.find_spec(n)]
    return {v.name for m in modules for v in vars(m).values() if isinstance(v, Struct)}


@pytest.mark.parametrize("family", families())
def test_a_struct_that_a_kernel_takes_is_declared(family) -> None:
    parameters = (p for ps in load(family).kernels.values() for p in ps if not p.pointer)
    names = {p.c_type.rpartition("::")[2].partition("<")[0] for p in parameters}
    assert {name for name in names if not SCALARS.fullmatch(name)} <= declared(family)

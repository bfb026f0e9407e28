# SPDX-License-Identifier: MIT
"""The stub says what there is: generated from the declarations, read by checkers and editors."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from probe import frame_probe, list_probe, probe

import cupy_training_ops as cto
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Input, Output, attribute, optional
from cupy_training_ops.errors import ArgumentError

ROOT = Path(__file__).resolve().parent.parent
STUB = (ROOT / "cupy_training_ops" / "__init__.pyi").read_text(encoding="utf-8")
USES = Path("tests") / "typing_uses"

# ---- the stub ------------------------------------------------------------------------------------


@pytest.fixture
def generate_stub(monkeypatch) -> Any:
    """The script that writes it."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("generate_stub")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_stub_is_up_to_date() -> None:
    checked = run("scripts/generate_stub.py", "--check")
    assert checked.returncode == 0, checked.stderr


def test_a_stale_stub_is_named_with_the_command() -> None:
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import generate_stub as g;"
        "g.HEAD += '# stale'; g.main(['--check'])"
    )
    checked = run("-c", code)
    assert checked.returncode == 1
    assert "__init__.pyi is stale: run python scripts/generate_stub.py" in checked.stderr


def public(tree: ast.Module) -> dict[str, ast.stmt]:
    """The stub's own functions, classes and variables, and what it imports to be seen."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name: node for alias in node.names if alias.asname}
    return {name: node for name, node in found.items() if name[0] != "_" or name == "__version__"}


def test_the_stub_has_the_names_that_there_are() -> None:
    assert sorted(public(ast.parse(STUB))) == dir(cto)
    starred = next(n for n in ast.parse(STUB).body if isinstance(n, ast.Assign))
    assert ast.literal_eval(starred.value) == cto.__all__


def test_the_stubs_functions_take_what_the_functions_take() -> None:
    for name, node in public(ast.parse(STUB)).items():
        if name.islower() and isinstance(node, ast.FunctionDef) and name not in vars(cto):
            more = [node.args.kwarg] if node.args.kwarg else []
            declared = [a.arg for a in (*node.args.args, *node.args.kwonlyargs, *more)]
            assert declared == list(inspect.signature(getattr(cto, name)).parameters), name


# What the parts of the frame look like that no registered operator has yet.
EXPECTED = {
    probe.ProbeHalves: "def __call__(self, X: _Array, Unused: _Array | None = None, *, out: "
    "tuple[_Memory | None, _Memory | None, _Memory | None] | None = None, outputs: "
    'Sequence[Literal["Low", "High", "Sizes"]] | None = None, workspace: _Memory | None = None'
    ") -> tuple[Any, Any, NDArray[np.int64]]: ...",
    probe.ProbeJoin: "def __call__(self, shape: _Integers, Xs: Sequence[_Array], *, out: "
    '_Memory | None = None, outputs: Sequence[Literal["Y"]] | None = None, '
    "workspace: _Memory | None = None) -> Any: ...",
    frame_probe.ProbeEither: "rate: _Reals | _Array, step: _Integers | _Array, "
    "state: _Integers | _Array, *",
    frame_probe.ProbeDecay: "X: _Array, rate: _Reals, step: _Integers | None = None, *",
    frame_probe.ProbeRows: "def workspace_nbytes(self, X: _Array, Z: _Array | None = None, *, "
    'outputs: Sequence[Literal["Y"]] | None = None) -> int: ...',
    list_probe.ProbeSpread: "Ws: Sequence[_Array | None], *, out: tuple[tuple[_Memory | None, "
    "...] | None, _Memory | None, tuple[_Memory | None, ...] | None, "
    "tuple[_Memory | None, ...] | None] | None = None,",
    frame_probe.ProbeRead: "X: _Array, value: object | _Array, *",
    list_probe.ProbeMomentum: ") -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]: ...",
    frame_probe.ProbeFill: "def __init__(self, *, n: _Integer, value: _Real = 1.0, provider: "
    'Literal["cpu", "cuda"] = "cpu") -> None: ... def __call__(self, *, out',
    list_probe.ProbeDescend: "def bound(self, Xs: Sequence[_Array] | EllipsisType, Gs: "
    "Sequence[_Array] | EllipsisType, rate: _Reals | _Array | None | EllipsisType = None, *",
}


@pytest.mark.parametrize("cls", EXPECTED, ids=lambda cls: cls.name)
def test_all_that_can_be_declared_has_its_types(generate_stub, cls) -> None:
    text = " ".join(" ".join(generate_stub.operator_class(cls, cls.name)).split())
    assert EXPECTED[cls] in text.replace("( ", "(").replace(", )", ")")


def test_versions_have_a_class_each(generate_stub) -> None:
    old, new = frame_probe.OPS["ProbeScale"]
    versions = {"ProbeScale": (new, old)}
    classes = "\n".join(generate_stub.classes(versions))
    assert "class ProbeScale(Op):" in classes
    assert "class _ProbeScale_12(Op):" in classes
    (function,) = generate_stub.functions(versions)
    assert "factor: _Real = 3.0" in function
    assert list(generate_stub.versions([old, new])["ProbeScale"]) == [new, old]
    assert list(generate_stub.look_up(versions))[:2] == [
        '@overload\ndef get_op(name: Literal["ProbeScale"], version: None = None) '
        "-> type[ProbeScale]: ...",
        '@overload\ndef get_op(name: Literal["ProbeScale"], version: int) '
        "-> type[ProbeScale] | type[_ProbeScale_12]: ...",
    ]


def test_an_optional_input_before_a_required_one_is_given_as_none(generate_stub) -> None:
    class Between(Op):
        """Y = X."""

        inputs = (Input("A", "float32", optional=True), Input("B", "float32"))
        outputs = (Output("Y", "float32"),)

    assert generate_stub.inputs(Between) == ["A: _Array | None", "B: _Array"]


def gives_a_set(value) -> set[int]:
    """Integers."""
    return set(value)


def test_a_converter_of_an_unknown_type_is_named(generate_stub) -> None:
    class Odd(Op):
        """Y = X."""

        outputs = (Output("Y", "float32"),)
        places = attribute(optional(gives_a_set), None)

    with pytest.raises(ArgumentError, match=r"Odd: places: scripts/generate_stub.py: TAKEN"):
        list(generate_stub.operator_class(Odd, "Odd"))


# ---- checkers and editors ------------------------------------------------------------------------


def mypy(file: Path) -> set[int]:
    """The lines with an error."""
    pytest.importorskip("mypy", reason="mypy is in the extra dev")
    checked = run("-m", "mypy", "--strict", "--output=json", str(file))
    assert checked.returncode in (0, 1), checked.stderr
    return {json.loads(row)["line"] for row in checked.stdout.splitlines() if '"error"' in row}


def pyright(file: Path) -> set[int]:
    """The lines with an error."""
    pytest.importorskip("pyright", reason="pyright is in the extra dev")
    checked = run("-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(file))
    found = json.loads(checked.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    rows = found["generalDiagnostics"]
    return {row["range"]["start"]["line"] + 1 for row in rows if row["severity"] == "error"}


def lines_with(file: Path, text: str) -> set[int]:
    rows = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return {number for number, row in enumerate(rows, 1) if text in row}


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_right_uses_pass_and_wrong_ones_do_not(checker: Callable[[Path], set[int]]) -> None:
    right, wrong = USES / "right.py", USES / "wrong.py"
    assert len(lines_with(right, "cto.")) >= 30
    assert len(lines_with(wrong, "# wrong: ")) >= 10
    assert checker(right) == set()
    assert checker(wrong) == lines_with(wrong, "# wrong: ")


@pytest.mark.thorough
def test_an_editor_completes_operators() -> None:
    jedi = pytest.importorskip("jedi", reason="jedi is in the extra dev")
    start = "import cupy_training_ops as cto\ncto."
    project = jedi.Project(ROOT)
    names = {c.name for c in jedi.Script(f"{start}gist_", project=project).complete()}
    assert names == {name for name in dir(cto) if name.startswith("gist_")}
    (signature,) = jedi.Script(f"{start}GatherGrad(", project=project).get_signatures()
    assert [p.name for p in signature.params] == ["axis", "deterministic", "check"]

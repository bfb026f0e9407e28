# SPDX-License-Identifier: MIT
"""The stub says what there is: generated from the declarations, read by checkers and editors."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probe import frame_probe, list_probe, probe

import cupy_training_ops as cto
from cupy_training_ops import registry
from cupy_training_ops.activations import policies
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Input, Output, attribute, optional
from cupy_training_ops.errors import ArgumentError
from cupy_training_ops.testing.samples import all_samples, placed_inputs, sampled_operators

ROOT = Path(__file__).resolve().parent.parent
STUB = (ROOT / "cupy_training_ops" / "__init__.pyi").read_text(encoding="utf-8")
USES = Path("tests") / "typing_uses"
EXAMPLES = ROOT / "examples"

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
    results: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            results[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            results[node.target.id] = node
        elif isinstance(node, ast.ImportFrom):
            results |= {alias.asname: node for alias in node.names if alias.asname}
    return {name: node for name, node in results.items() if name[0] != "_" or name == "__version__"}


def test_the_stub_has_the_names_that_there_are() -> None:
    assert sorted(public(ast.parse(STUB))) == dir(cto)
    starred = next(
        node for node in ast.parse(STUB).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )  # fmt: skip
    assert ast.literal_eval(starred.value) == cto.__all__


def test_the_stubs_functions_take_what_the_functions_take() -> None:
    for name, node in public(ast.parse(STUB)).items():
        if name.islower() and isinstance(node, ast.FunctionDef) and name not in vars(cto):
            more = [node.args.kwarg] if node.args.kwarg else []
            declared = [a.arg for a in (*node.args.args, *node.args.kwonlyargs, *more)]
            assert declared == list(inspect.signature(getattr(cto, name)).parameters), name


# What the parts of the frame look like that no registered operator has yet.
EXPECTED = {
    probe.ProbeHalves: "@overload def __call__(self, X: CupyArray, Unused: CupyArray | None = None"
    ", *, out: tuple[CupyArray | None, CupyArray | None, CupyArray | None] | None = None, outputs: "
    'Sequence[Literal["Low", "High", "Sizes"]], workspace: _Memory | None = None'
    ") -> tuple[CupyArray | Any, CupyArray | Any, NDArray[np.int64] | Any]: ...",
    probe.ProbeJoin: "def __call__(self, shape: _Integers, Xs: Sequence[Tensor[_T]], *, out: "
    'Tensor[_T] | None = None, outputs: Sequence[Literal["Y"]] | None = None, '
    "workspace: _Memory | None = None) -> _T: ...",
    frame_probe.ProbeEither: "rate: _Reals | _Array, step: _Integers | _Array, "
    "state: _Integers | _Array, *",
    frame_probe.ProbeDecay: "X: _Array, rate: _Reals, step: _Integers | None = None, *",
    frame_probe.ProbeRows: "def workspace_nbytes(self, X: _Array, Z: _Array | None = None, *, "
    'outputs: Sequence[Literal["Y"]] | None = None) -> int: ...',
    list_probe.ProbeSpread: "Ws: Sequence[_Other | None], *, out: tuple[tuple[_Other | None, "
    "...] | None, _Other | None, tuple[_Other | None, ...] | None, "
    "tuple[_Other | None, ...] | None] | None = None,",
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
        '@overload\ndef get_op(name: Literal["ProbeScale"], version: None = None, '
        'domain: Literal["com.microsoft"] | None = None) -> type[ProbeScale]: ...',
        '@overload\ndef get_op(name: Literal["ProbeScale"], version: int, '
        'domain: Literal["com.microsoft"] | None = None) '
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

    with pytest.raises(ArgumentError, match=r"Odd: places: scripts/generate_stub.py: INPUT_TYPES"):
        list(generate_stub.operator_class(Odd, "Odd"))


# ---- checkers and editors ------------------------------------------------------------------------


Lines = dict[str, set[int]]  # with an error, by name of the file
Checker = Callable[[Sequence[Path], Path, Path], Lines]
SETTINGS = "[mypy]\nstrict = {}\ncheck_untyped_defs = true\nignore_missing_imports = true\n"
SILENT = "[mypy-cupy_training_ops.*]\nfollow_imports = silent\n"


def mypy(files: Sequence[Path], python: Path, folder: Path, *, strict: bool = True) -> Lines:
    """Check files with what is installed for a Python."""
    pytest.importorskip("mypy", reason="mypy is in the extra dev")
    settings = folder / "mypy.ini"
    settings.write_text(f"{SETTINGS.format(strict)}mypy_path = {ROOT}\n{SILENT}", "utf-8")
    options = ["--config-file", str(settings), "--python-executable", str(python)]
    paths = ["--scripts-are-modules", "--output=json", *map(str, files)]
    checked = run("-m", "mypy", "--cache-dir", str(folder.parent / "mypy"), *options, *paths)
    assert checked.returncode in (0, 1), checked.stderr
    rows = [json.loads(row) for row in checked.stdout.splitlines() if '"error"' in row]
    return by_file(files, [(row["file"], row["line"]) for row in rows])


def pyright(files: Sequence[Path], python: Path, folder: Path, *, strict: bool = True) -> Lines:
    """Check files with what is installed for a Python."""
    pytest.importorskip("pyright", reason="pyright is in the extra dev")
    settings = folder / "pyrightconfig.json"
    mode = {"typeCheckingMode": "standard" if strict else "basic", "reportMissingImports": False}
    copies = [folder / file.name for file in files]
    for file, copy in zip(files, copies, strict=True):
        if file != copy:
            copy.write_bytes(file.read_bytes())
    include = {"extraPaths": [str(ROOT)], "include": [str(copy) for copy in copies]}
    settings.write_text(json.dumps(mode | include), "utf-8")
    checked = run("-m", "pyright", "--outputjson", "--pythonpath", str(python), "-p", str(settings))
    listed = json.loads(checked.stdout)
    assert listed["summary"]["filesAnalyzed"] == len(files)
    rows = [row for row in listed["generalDiagnostics"] if row["severity"] == "error"]
    return by_file(files, [(row["file"], row["range"]["start"]["line"] + 1) for row in rows])


def by_file(files: Sequence[Path], errors: Sequence[tuple[str, int]]) -> Lines:
    """Lines with errors, by name of the file."""
    lines: Lines = {file.name: set() for file in files}
    for file, line in errors:
        lines[Path(file).name].add(line)
    return lines


def lines_with(file: Path, text: str) -> set[int]:
    rows = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return {number for number, row in enumerate(rows, 1) if text in row}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory) -> Path:
    """A Python with NumPy alone, for checkers: neither CuPy nor PyTorch is installed."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "numpy").symlink_to(Path(np.__file__).parent)
    return folder / "bin" / "python"


def assert_planted_errors_are_found(
    checker: Checker, python: Path, folder: Path, right: str, wrong: str
) -> None:
    files = [ROOT / USES / right, ROOT / USES / wrong]
    assert checker(files, python, folder) == {right: set(), wrong: lines_with(files[1], "# wrong")}


def test_there_are_enough_planted_errors() -> None:
    assert len(lines_with(USES / "right.py", "cto.")) >= 50
    assert len(lines_with(USES / "wrong.py", "# wrong")) >= 50


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_planted_errors_are_found(checker: Checker, tmp_path) -> None:
    python = Path(sys.executable)
    assert_planted_errors_are_found(checker, python, tmp_path, "right.py", "wrong.py")


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_planted_errors_are_found_without_cupy_and_pytorch(
    checker: Checker, bare_python, tmp_path
) -> None:
    assert_planted_errors_are_found(checker, bare_python, tmp_path, "right.py", "wrong.py")


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_planted_errors_with_tensors_are_found(checker: Checker, tmp_path) -> None:
    pytest.importorskip("torch")
    files = "tensors_right.py", "tensors_wrong.py"
    assert_planted_errors_are_found(checker, Path(sys.executable), tmp_path, *files)


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_documents_and_examples_raise_no_alarm(checker: Any, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    snippets = importlib.import_module("snippets")
    texts = {f"example_{file.name}": file.read_text("utf-8") for file in EXAMPLES.glob("*.py")}
    for page in snippets.documents():
        text = page.read_text("utf-8")
        blocks = [block[2] for block in snippets.BLOCK.finditer(text) if block[1] == "python"]
        if page.suffix == ".py":
            before, *cells = snippets.CELL.split(text)
            blocks = [before + cell for cell in cells]
        blocks = [block for block in blocks if "import triton" not in block]
        texts |= {f"{page.stem}_{i}.py": block for i, block in enumerate(blocks)}
    assert len(texts) > 150
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
    files = [tmp_path / name for name in texts]
    alarms = checker(files, Path(sys.executable), tmp_path, strict=False)
    assert {name: lines for name, lines in alarms.items() if lines} == {}


@pytest.mark.thorough
def test_an_editor_completes_operators() -> None:
    jedi = pytest.importorskip("jedi", reason="jedi is in the extra dev")
    start = "import cupy_training_ops as cto\ncto."
    project = jedi.Project(ROOT)
    names = {c.name for c in jedi.Script(f"{start}gist_", project=project).complete()}
    assert names == {name for name in dir(cto) if name.startswith("gist_")}
    (signature,) = jedi.Script(f"{start}GatherGrad(", project=project).get_signatures()
    assert [p.name for p in signature.params] == ["axis", "deterministic", "check"]


def test_an_optimizer_shows_its_arguments() -> None:
    names = list(inspect.signature(cto.AdamW).parameters)
    assert names[:3] == ["parameters", "lr", "betas"]
    assert {"state", "group"} <= set(names)


def test_names_are_those_that_there_are() -> None:
    assert typing.get_args(cto.typing.OperatorName) == registry.names()
    assert typing.get_args(cto.typing.CodecName) == tuple(cto.CODECS)
    assert typing.get_args(cto.typing.Policy) == tuple(policies.POLICIES)
    assert typing.get_args(cto.typing.Need) == policies.NEEDS
    assert typing.get_args(cto.typing.Provider) == tuple(sorted(registry.PROVIDERS))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sampled_operators())
def test_an_output_that_may_be_none_is_declared_so(name, rng) -> None:
    """Its stub says so; samples have each attribute that leaves an output out."""
    for sample in all_samples()[name]:
        op = cto.get_op(name).shared(**sample.attributes)
        inputs = sample.make(rng)
        results = op(*placed_inputs(op, inputs, 0, np))
        absent = {item.name for item, x in zip(op.inputs, inputs, strict=False) if x is None}
        absent |= {item.name for item in op.inputs[len(inputs) :]}
        pairs = zip(op.outputs, results, strict=True) if len(op.outputs) > 1 else ()
        for output, result in pairs:
            assert result is not None or output.optional or output.aliases in absent, output.name

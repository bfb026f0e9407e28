# SPDX-License-Identifier: MIT
"""The wheel holds what runs, runs on its own, and needs what it says it needs."""

from __future__ import annotations

import ast
import configparser
import email
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import cupy_training_ops
from cupy_training_ops.device.source import families

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = sorted((ROOT / "cupy_training_ops").rglob("*.py"))
TYPES = {"cupy_training_ops/__init__.pyi", "cupy_training_ops/py.typed"}
FAMILIES = sorted((ROOT / "tests" / "families").rglob("*.py"))
KERNELS = sorted(path for path in (ROOT / "cuda_src").rglob("*") if path.suffix in (".cu", ".cuh"))
SHIPPED = (
    "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff",
    "CONTRIBUTING.md", "SECURITY.md", ".gitignore",
)  # fmt: skip
FOLDERS = ("cuda_src", "cupy_training_ops", "docs", "examples", "scripts", "site", "tests")
# What CuPy's wheels bring; everything else is a dependency or Python's own.
WITH_CUPY = {"cupy", "cupy_backends", "cupyx", "cuda"}
# Imported where they are used, and missed with a remedy.
IN_EXTRAS = {"matplotlib", "mpi4py", "onnx", "safetensors"}
LATE = (("device", "tensors.py"), ("process_group", "of_torch.py"))  # import PyTorch


def built(target: str, tree: Path, into: Path) -> Path:
    """The wheel or sdist of a source tree."""
    pytest.importorskip("hatchling", reason="building needs hatchling (in the test extra)")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (path,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building leaves nothing behind."""
    copy = tmp_path_factory.mktemp("tree")
    for name in SHIPPED:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    return copy


@pytest.fixture(scope="session")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's files and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def members(wheel: Path) -> set[str]:
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if ".dist-info/" not in name}


def run(code: str, folder: Path, cwd: Path) -> str:
    """What a fresh Python prints that finds the package in `folder` only."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_wheel_holds_modules_kernels_and_nothing_else(wheel) -> None:
    expected = {path.relative_to(ROOT).as_posix() for path in MODULES}
    expected |= {f"cupy_training_ops/{path.relative_to(ROOT).as_posix()}" for path in KERNELS}
    assert members(wheel) == expected | TYPES


def test_the_wheels_metadata(installed) -> None:
    (info,) = installed.glob("*.dist-info")
    metadata = email.message_from_string((info / "METADATA").read_text())
    assert metadata["Name"] == "cupy-training-ops"
    assert metadata["Version"] == cupy_training_ops.__version__ == PROJECT["version"]
    assert metadata["License-Expression"] == "MIT"
    assert (info / "licenses" / "LICENSE").is_file()
    assert {"cuda12x", "cuda13x", "test"} <= set(metadata.get_all("Provides-Extra"))


def described(tree: Path, **urls: str) -> str:
    """Return the description in the metadata of a project with these addresses."""
    pytest.importorskip("hatchling", reason="building needs hatchling (in the test extra)")
    code = "import json; from hatchling.metadata.core import ProjectMetadata as P; "
    code += "from hatchling.plugin.manager import PluginManager as M; "
    code += "print(json.dumps(P('.', M()).core.readme))"
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    (tree / "pyproject.toml").write_text(f"{text}\n[project.urls]\n{lines}", "utf-8")
    for name in ("README.md", "hatch_build.py", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    ran = subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True)
    return str(json.loads(ran.stdout))


def test_links_of_the_readme_are_absolute_once_there_is_an_address(tmp_path) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert described(tmp_path, Homepage="https://example.org") == text
    shown = described(tmp_path, Source="https://example.org/a/b/")
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", shown)
    places = re.findall(r"!?\[[^\]]*\]\(([^)]*)\)", text)
    kinds = {"": "blob", "!": "raw"}
    expected = [
        f"https://example.org/a/b/{kinds[mark]}/HEAD/{place}"
        for (mark, _), place in zip(links, places, strict=True)
    ]
    assert [link for _, link in links] == expected
    assert {mark for mark, _ in links} == kinds.keys()


def test_links_that_are_absolute_or_within_the_page_stay(monkeypatch) -> None:
    pytest.importorskip("hatchling", reason="building needs hatchling (in the test extra)")
    monkeypatch.syspath_prepend(str(ROOT))
    with_absolute_links = importlib.import_module("hatch_build").with_absolute_links
    text = "[a](https://b.org/c) [d](#e) `x[0](y)` [f](g.md#h)"
    assert with_absolute_links(text, "https://s.org") == text.replace(
        "(g.md#h)", "(https://s.org/blob/HEAD/g.md#h)"
    )


def test_the_command_is_there(installed) -> None:
    (info,) = installed.glob("*.dist-info")
    entries = configparser.ConfigParser()
    entries.read(info / "entry_points.txt")
    module, _, name = entries["console_scripts"]["cupy-training-ops"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


WITHOUT_CUPY = """
import sys
sys.modules["cupy"] = None  # as if it were not installed
import numpy as np, cupy_training_ops as cto
from cupy_training_ops.device import source
x = np.linspace(-3, 3, 64, dtype=np.float32)
assert abs(cto.compress(x, "msfp15").decompress() - x).max() < 0.1
try:
    from cupy_training_ops.call import backends
    backends.cuda_backend()
except cto.ProviderError as error:
    assert "pip install 'cupy-training-ops[cuda12x]'" in str(error)
print(source.source_folder(), *source.families(), sep="\\n")
"""


@pytest.mark.parametrize("where", ["installed", "checkout"])
def test_it_runs_by_itself_and_without_cupy(request, tmp_path, where) -> None:
    """From the wheel's files, and from a checkout that nobody installed."""
    home = request.getfixturevalue("installed") if where == "installed" else ROOT
    kernels = home / "cupy_training_ops" if where == "installed" else home
    folder, *results = run(WITHOUT_CUPY, home, tmp_path).splitlines()
    assert Path(folder) == kernels / "cuda_src"
    assert results == list(families())


def test_the_sdist_builds_the_same_wheel(tree, wheel, tmp_path) -> None:
    sdist = built("sdist", tree, tmp_path)
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in 3.11.2
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **safely)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "tests/data/registrations.json", "docs"):
        assert (unpacked / name).exists(), name
    again = built("wheel", unpacked, tmp_path / "again")
    assert members(again) == members(wheel)


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports anywhere in it, but for checkers alone."""
    results, tree = set(), ast.parse(path.read_text())
    for branch in (node for node in tree.body if isinstance(node, ast.If)):
        if ast.unparse(branch.test) == "TYPE_CHECKING":
            branch.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            results |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            results.add(str(node.module))
    return results


def test_imports_are_declared_dependencies() -> None:
    declared = {text.partition(">")[0].replace("-", "_") for text in PROJECT["dependencies"]}
    assert set.union(*map(brought, ("mpi", "onnx", "plot", "safetensors"))) == IN_EXTRAS
    known = declared | WITH_CUPY | IN_EXTRAS | set(sys.stdlib_module_names)
    used = set()
    for path in MODULES:
        roots = {name.partition(".")[0] for name in imported(path)}
        is_late = "torch" in path.parts[-3:-1] or path.parts[-2:] in LATE
        of_torch = {"torch"} if is_late else set()  # imported where a tensor is given
        assert roots <= known | of_torch, f"{path}: {roots - known} is in no dependency"
        used |= roots
    assert declared <= used, f"pyproject.toml: nothing imports {declared - used}"


def test_nothing_reads_installed_metadata() -> None:
    for path in MODULES:
        assert not imported(path) & {"importlib.metadata", "importlib.resources", "pkg_resources"}


def test_extras_bring_cupy_its_compiler_and_headers() -> None:
    for extra in ("cuda12x", "cuda13x"):
        named = " ".join(PROJECT["optional-dependencies"][extra])
        for part in (f"cupy-{extra}", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"):
            assert part in named


def brought(extra: str) -> set[str]:
    """The distributions that an extra names, through the other extras that it names."""
    results = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, others = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()
        if name == PROJECT["name"]:
            results = results.union(*map(brought, others.split(",")))
        else:
            results.add(name)
    return results


def test_cupy_and_its_cuda_come_with_their_own_extras_only() -> None:
    """So that a host chooses its CUDA beside `test` or `dev`."""
    for extra in ("test", "dev"):
        assert not [name for name in brought(extra) if "cupy" in name or "nvidia" in name]
    assert not [name for name in brought("cuda13x") if re.search("12x|cu12", name)]


def test_checkers_and_editors_are_for_those_who_work_on_it() -> None:
    tools = {"jedi", "mypy", "pyright"}
    assert tools <= brought("dev")
    assert not tools & brought("test")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_source_file_names_its_license(folder) -> None:
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in (".py", ".pyi", ".cu", ".cuh", ".cpp"):
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            sign = "#" if path.suffix.startswith(".py") else "//"
            assert first == f"{sign} SPDX-License-Identifier: MIT", path


@pytest.mark.parametrize(("files", "most"), [(MODULES, 700), (KERNELS, 500), (FAMILIES, 400)])
def test_no_file_outgrows_its_reader(files, most) -> None:
    for path in files:
        lines = path.read_text().count("\n")
        assert lines <= most, f"{path}: {lines} lines: split the family in all homes at once"

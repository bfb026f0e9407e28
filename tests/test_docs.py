# SPDX-License-Identifier: MIT
"""What the documents say is what the package does."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runs import gpu_reason

from cupy_training_ops.cpu import activation as cpu_activation
from cupy_training_ops.ops import activation
from cupy_training_ops.testing.compare import TOLERANCE, assert_matches

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_tables_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate_tables.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_checking_the_readme_writes_nothing() -> None:
    path = ROOT / "README.md"
    before = path.stat()
    test_the_readmes_tables_are_up_to_date()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_the_tolerances_are_those_of_the_comparison() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\n## Tolerances\n(.*?)\n## ", text, flags=re.DOTALL)
    rows = re.findall(r"\| (\w*float\d+) \| (\S+) \|", section)
    assert {dtype: float(tolerance) for dtype, tolerance in rows} == TOLERANCE


# That of several ranks is tested with `launch`, which it needs.
EXAMPLES = [
    text
    for text in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    if "ProcessGroup" not in text
]


@pytest.mark.parametrize("example", EXAMPLES, ids=["compress", "optimizer"])
def test_the_readmes_examples_run(example: str, tmp_path: Path) -> None:
    """They print what stands beside their `print`."""
    assert_prints(example, tmp_path, {"PYTHONPATH": str(ROOT), "PATH": ""}, "-W", "error")


def assert_prints(example: str, folder: Path, environment: dict[str, str], *options: str) -> None:
    (folder / "example.py").write_text(example)  # Triton reads a kernel's source
    result = subprocess.run(
        [sys.executable, *options, "example.py"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stderr == ""
    assert result.stdout.split("\n") == [
        *re.findall(r"^print.*  # (.*)$", example, re.MULTILINE),
        "",
    ]


INTEROP = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
OF_INTEROP = dict(
    zip(
        tuple(f"control-{name}" for name in ("group", "events", "yield"))
        + tuple(f"interop-{name}" for name in ("python", "pytorch", "triton", "kernel")),
        re.findall(r"```python\n(.*?)```", INTEROP, flags=re.DOTALL),
        strict=True,
    )
)


@pytest.mark.parametrize("name", OF_INTEROP)
def test_the_examples_of_interop_run(name: str, tmp_path: Path) -> None:
    """They print what stands beside their `print`."""
    for module in ("torch", "triton"):
        if f"import {module}" in OF_INTEROP[name] and not importlib.util.find_spec(module):
            pytest.skip(f"{module} is in no extra")
    if "import triton" in OF_INTEROP[name] and (reason := gpu_reason()):
        pytest.skip(reason)
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    assert_prints(OF_INTEROP[name], tmp_path, {**os.environ, "PYTHONPATH": path})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_documents_lead_to_a_heading(document: Path) -> None:
    for target, anchor in re.findall(
        r"\]\((?!http)([^)#]+)#([^)]+)\)", document.read_text(encoding="utf-8")
    ):
        headings = re.findall(
            r"^#+ (.*)$", (document.parent / target).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_are_named_exist(document: Path) -> None:
    named = re.findall(r"`([a-z_/]+\.py)`", document.read_text(encoding="utf-8"))
    folders = (ROOT, ROOT / "cupy_training_ops")
    assert [
        path for path in named if not any((folder / path).is_file() for folder in folders)
    ] == []


def test_the_operator_that_is_added_works(anywhere, monkeypatch, tmp_path, rng) -> None:
    """The page's class, kernel and NumPy function, put where the page puts them."""
    text = (ROOT / "docs" / "adding_an_operator.md").read_text(encoding="utf-8")
    declaration, kernel, function = re.findall(r"```(?:python|cuda)\n(.*?)```", text, re.DOTALL)
    shutil.copytree(  # not the permissions: the checkout may be read-only
        ROOT / "cuda_src", tmp_path, copy_function=shutil.copyfile, dirs_exist_ok=True
    )
    with (tmp_path / "activation.cu").open("a", encoding="utf-8") as source:
        source.write(kernel)
    added = dict(vars(activation)) | dict(vars(cpu_activation)) | {"__name__": activation.__name__}
    exec(declaration + function, added)
    monkeypatch.setattr(cpu_activation, "softplus_grad", added["softplus_grad"], raising=False)
    added["SoftplusGrad"].source_folder = tmp_path
    dy, x = rng.standard_normal((2, 3, 1003))
    dx = anywhere.host(added["SoftplusGrad"]()(anywhere.place(dy), anywhere.place(x)))
    assert_matches(dx, dy / (1 + np.exp(-x)))

# SPDX-License-Identifier: MIT
"""The promises of docs/compatibility.md: public names, deprecation, versions, metadata."""

from __future__ import annotations

import json
import re
import tomllib
import warnings
from pathlib import Path

import pytest

import cupy_training_ops as cto
from cupy_training_ops import registry
from cupy_training_ops.cli import main
from cupy_training_ops.codecs import packed
from cupy_training_ops.errors import deprecated
from cupy_training_ops.onnx import training_state
from cupy_training_ops.optimizers import state

ROOT = Path(__file__).parent.parent
NAMES = Path(__file__).parent / "data" / "public_names.json"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
CLASSES = (
    "ActivationStash", "Adam", "AdamW", "GradientBuckets", "Lamb", "Packed", "ProcessGroup", "SGD",
    "SplitStep",
)  # fmt: skip


OPERATORS = {*registry.OPERATORS, *registry.names()}  # a new one needs no line in the snapshot


def members(cls: type) -> list[str]:
    """Public attributes of a class, and the fields that instances have."""
    own = {name for name in dir(cls) if not name.startswith("_")}
    return sorted(own | {n for n in getattr(cls, "__annotations__", {}) if not n.startswith("_")})


def public_names() -> dict[str, list[str]]:
    """Names by place; those of PyTorch's part only where it is installed."""
    names = {"cupy_training_ops": dir(cto), "onnx": dir(cto.onnx)}
    names |= {name: members(getattr(cto, name)) for name in CLASSES}
    names["typing"] = cto.typing.__all__
    names["commands"] = sorted(main.commands)
    return names


def test_public_names_are_those_of_the_snapshot() -> None:
    """A name that goes breaks somebody's program: docs/compatibility.md says how one may go."""
    known, now = json.loads(NAMES.read_text("utf-8")), public_names()
    for place in sorted(p for p in known.keys() | now.keys() if not p.startswith("torch")):
        gone = sorted(set(known.get(place, ())) - set(now.get(place, ())))
        new = sorted(set(now.get(place, ())) - set(known.get(place, ())) - OPERATORS)
        assert not gone, f"{place}: {gone} went without a deprecation"
        assert not new, f"{place}: {new}: add them to {NAMES.name}, and a line to CHANGELOG.md"


def test_names_of_pytorchs_part_are_those_of_the_snapshot() -> None:
    pytest.importorskip("torch")
    places = {
        "torch": cto.torch,
        "torch.functional": cto.torch.functional,
        "torch.nn": cto.torch.nn,
    }
    known = json.loads(NAMES.read_text("utf-8"))
    assert {place: dir(module) for place, module in places.items()} == {
        place: known[place] for place in places
    }


# ---- deprecation ---------------------------------------------------------------------------------


@deprecated("0.3", "0.5", "new(x)")
def old(x: int) -> int:
    """Return x."""
    return x


class Old:
    @deprecated("0.3", "0.5", "other()")
    def method(self) -> str:
        return "there"


def test_a_deprecated_function_works_and_warns_at_the_callers_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [old(1), old(x=2), Old().method()] == [1, 2, "there"]
    assert [str(w.message) for w in caught] == [
        "old: deprecated since 0.3, and gone in 0.5: write new(x)",
        "old: deprecated since 0.3, and gone in 0.5: write new(x)",
        "Old.method: deprecated since 0.3, and gone in 0.5: write other()",
    ]
    assert {w.filename for w in caught} == {__file__}
    assert {w.category for w in caught} == {DeprecationWarning}
    assert (old.__name__, old.__doc__) == (
        "old",
        "Return x.\n\nDeprecated since 0.3, and gone in 0.5: write new(x).",
    )


# ---- versions and metadata -----------------------------------------------------------------------


def test_the_page_has_the_versions_that_the_package_asks_for() -> None:
    extras = PROJECT["optional-dependencies"]
    stated = dict(re.findall(r"^\| (\w[^|]*?) \| ([^|]*?) \|", PAGE, re.M))
    assert stated["Python"].startswith(PROJECT["requires-python"].removeprefix(">="))
    (numpy,) = [d for d in PROJECT["dependencies"] if d.startswith("numpy")]
    assert stated["NumPy"].startswith(numpy.removeprefix("numpy>="))
    cupy = re.fullmatch(r"cupy-cuda12x>=([\d.]+),<(\d+)", extras["cuda12x"][0])
    assert stated["CuPy"].startswith(cupy[1])
    (onnx,) = [d for d in extras["onnx"] if d.startswith("onnx")]
    assert stated["onnx"].startswith(onnx.removeprefix("onnx>="))


def test_classifiers_name_the_pythons_of_the_page() -> None:
    listed = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    first, last = re.search(r"^\| Python \| (3\.\d+) to (3\.\d+) \|", PAGE, re.M).groups()
    assert listed == [f"3.{n}" for n in range(int(first[2:]), int(last[2:]) + 1)]
    known = pytest.importorskip("trove_classifiers", reason="hatchling brings it").classifiers
    assert set(PROJECT["classifiers"]) <= known


def test_all_versions_of_files_are_read() -> None:
    for format in (packed.FORMAT, state.FORMAT, training_state.FORMAT):
        assert format.oldest == 1
        name = format.name.removeprefix("cupy-training-ops ")
        assert f"| {name} | 1 to {format.version} |" in PAGE


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {cto.__version__}\n" in text
    assert f"\nlicense: {PROJECT['license']}\n" in text
    assert f'\ntitle: "{PROJECT["name"]}: ' in text


def test_urls_are_whole_once_there_are_any() -> None:
    urls = PROJECT.get("urls")
    assert not urls or {"Source", "Documentation", "Issues", "Changelog"} <= urls.keys()


def test_the_newest_changes_are_read_in_two_minutes() -> None:
    """About 240 words a minute."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = text.split("\n## ")[1].partition("\n### In detail")[0]
    assert newest.startswith(cto.__version__)
    assert len(newest.split()) <= 480

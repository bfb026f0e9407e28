# SPDX-License-Identifier: MIT
"""docs/coming_from_pytorch.md: each row of its tables is computed both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

torch.set_num_threads(1)  # threads that wait for a core cost more than they do here
PAGE = Path(__file__).resolve().parent.parent / "docs" / "coming_from_pytorch.md"
TEXT = PAGE.read_text(encoding="utf-8")
GRADIENTS = re.findall(r"^\| `(.*)` \| `(.*)` \| `(.*)` \|$", TEXT, flags=re.MULTILINE)
SAME = re.findall(r"^\| `([^`]*)` \| `([^`]*)` \|$", TEXT, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def named() -> dict[str, object]:
    """The tensors that the page names."""
    (block,) = (
        text for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "row" in text
    )
    results: dict[str, object] = {}
    exec(block, results)
    return results


def test_the_tables_are_found() -> None:
    assert len(GRADIENTS) > 20
    assert len(SAME) > 5


@pytest.mark.parametrize(("theirs", "sources", "ours"), GRADIENTS)
def test_a_gradient_is_autograds(named, theirs, sources, ours) -> None:
    places = sources.split(", ")
    leaves = {name: named[name].clone().requires_grad_() for name in places}
    y = eval(theirs, named | leaves)
    dy = torch.randn(y.shape)
    expected = torch.autograd.grad(y, list(leaves.values()), dy)
    actual = eval(ours, named | {"y": y.detach(), "dy": dy})
    actual = actual if isinstance(actual, tuple) else (actual,)
    for name, a, b in zip(places, actual, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-5), name


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_what_does_the_same_does(named, theirs, ours) -> None:
    expected, results = eval(theirs, named), eval(ours, named)
    assert torch.equal(results, expected) or torch.allclose(results, expected, atol=1e-6)

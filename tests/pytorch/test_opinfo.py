# SPDX-License-Identifier: MIT
"""PyTorch's own samples of its functions, with which its tests call them, for ours of these names.

A sample passes if values and gradients are those of PyTorch's function in float64, or, where our
function calls it, in the same type; an error input if it raises PyTorch's error.
"""

from __future__ import annotations

import random
import re
import sys
import types
import unittest
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops.torch import functional  # noqa: E402

from .pairs import PYTORCHS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
QUICK = 40  # samples of each function in the default tier
SHARE = re.compile(r"^ *\| `(\w+)` \| (\d+) % \|", re.MULTILINE)
PAGE = Path(__file__).parents[2] / "docs" / "coming_from_pytorch.md"


@pytest.fixture(scope="module")
def entries():
    """Entries of OpInfo by names; a package that its module imports, and these do not need."""
    if "expecttest" not in sys.modules:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    named = {name: [] for name in PYTORCHS}
    for entry in op_db:
        named.get(entry.name.removeprefix("nn.functional."), []).append(entry)
    return named


def call(name, functions, sample):
    """Return a sample's result, and gradients of its tensors."""
    first, args, kwargs = sample.input, sample.args, sample.kwargs
    if name == "embedding":
        first, args = args[0], (first, *args[1:])
    y = getattr(functions, name)(first, *args, **kwargs)
    tensors = (sample.input, *args, *kwargs.values())
    leaves = [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = list({id(x): x for x in leaves}.values())
    if not y.requires_grad:
        return y, []
    slope = 1 + torch.arange(y.numel(), dtype=torch.float64).view(y.shape) % 8 / 8  # exact in all
    return y, torch.autograd.grad(y, leaves, slope.to(y.dtype), allow_unused=True)


def leaf(x, dtype=None):
    """Return the same numbers as a leaf; some samples' tensors are leaves and views at once."""
    if not (isinstance(x, torch.Tensor) and x.is_floating_point()):
        return x
    return x.detach().to(dtype or x.dtype).requires_grad_(x.requires_grad)


def wide(x):
    """Return the same numbers as float64, which results are compared with."""
    return leaf(x, torch.float64)


def is_drawn(name, sample, actual) -> bool:
    """Return True if a dropout of ones is zeros and what makes up for them: draws are never the
    same."""
    p = sample.kwargs.get("p", 0.5)
    if name != "dropout" or not sample.kwargs.get("training", True) or not 0 < p < 1:
        return False
    y, (dx,) = actual
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, sample.input / (1 - p), 0), rtol=1e-2, atol=0)
    return dx.shape == y.shape


def check(name, sample) -> bool:
    """Check a sample, and return True if kernels computed it.

    By PyTorch's function of float64; a fallback by that of the same type.
    """
    cto.torch.fallbacks(reset=True)
    sample = sample.transform(leaf)
    actual = call(name, functional, sample)
    is_ours = not cto.torch.fallbacks()
    if is_drawn(name, sample, actual):
        return is_ours
    theirs = torch if name in ("softmax", "log_softmax") else torch.nn.functional
    if not is_ours:
        torch.testing.assert_close(actual, call(name, theirs, sample), equal_nan=True)
        return False
    near = {"atol": 1e-5, "rtol": 1e-4, "equal_nan": True, "check_dtype": False}
    exact_sample = sample.transform(wide)
    exact_sample.kwargs.pop("options", None)  # of how PyTorch sums, not of what
    exact = call(name, theirs, exact_sample)
    if sample.input.dtype.itemsize == 2:
        near |= {"rtol": 2e-2, "atol": max(2e-2, error(call(name, theirs, sample), exact))}
    torch.testing.assert_close(actual, exact, **near)
    return True


def error(actual, exact) -> float:
    """Return the largest difference of a result and its gradients."""
    pairs = zip((actual[0], *actual[1]), (exact[0], *exact[1]), strict=True)
    differences = [(a - b).abs().nan_to_num(0) for a, b in pairs if a is not None and a.numel()]
    return max([float(each.max()) for each in differences], default=0.0)


def check_samples(name, samples) -> int:
    """Check them all; return the percentage that kernels compute."""
    wrong, n_kernels = [], 0
    for sample in samples:
        try:
            n_kernels += check(name, sample)
        except (AssertionError, cto.OpError, TypeError, RuntimeError) as error:
            wrong.append((sample, error))
    assert not wrong, (len(wrong), len(samples), *wrong[:3])
    return 100 * n_kernels // max(len(samples), 1)


def samples_of(entries, *, references):
    """Return samples of four types, with gradients."""
    return [
        sample
        for entry in entries
        for dtype in TYPES
        if dtype in entry.dtypes
        for sample in (entry.reference_inputs if references else entry.sample_inputs)(
            "cpu", dtype, requires_grad=True
        )
    ]


@pytest.mark.parametrize("name", PYTORCHS)
def test_some_samples_are_pytorchs(entries, seed, name) -> None:
    samples = samples_of(entries[name], references=False)
    check_samples(name, random.Random(seed).sample(samples, min(len(samples), QUICK)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PYTORCHS)
def test_samples_are_pytorchs(entries, name) -> None:
    """Kernels compute the share of PyTorch 2.13's samples that the page has."""
    share = check_samples(name, samples_of(entries[name], references=False))
    shares = dict(SHARE.findall(PAGE.read_text()))
    assert shares.keys() == set(PYTORCHS)
    if torch.__version__ >= "2.13":
        assert share == int(shares[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", PYTORCHS)
def test_reference_inputs_are_pytorchs(entries, name) -> None:
    check_samples(name, samples_of(entries[name], references=True))


@pytest.mark.parametrize("name", PYTORCHS)
def test_errors_are_pytorchs(entries, name) -> None:
    for entry in entries[name]:
        for wrong in entry.error_inputs("cpu") if entry.error_inputs_func else ():
            with pytest.raises(wrong.error_type) as raised:
                call(name, functional, wrong.sample_input)
            assert re.search(wrong.error_regex, str(raised.value))

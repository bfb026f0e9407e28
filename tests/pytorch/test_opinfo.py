# SPDX-License-Identifier: MIT
"""PyTorch's own samples of its functions, as its tests call them, given to ours of these names."""

from __future__ import annotations

import sys
import types
import unittest
from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from cupy_training_ops import ArgumentError, DtypeError  # noqa: E402
from cupy_training_ops.torch import functional  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]

# Samples that pass, and those that are refused, of four types and with gradients: the first may
# only grow, the second only shrink. Refused are distributions as targets, scalars, eps below 0.
COUNTS = {
    "cross_entropy": (44, 40),
    "dropout": (76, 0),
    "embedding": (12, 0),
    "gelu": (32, 0),
    "layer_norm": (20, 4),
    "log_softmax": (48, 8),
    "relu": (16, 0),
    "rms_norm": (20, 4),
    "softmax": (48, 8),
}
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture
def samples(monkeypatch):
    """What makes an entry's samples; a package that its module imports, and these do not need."""
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    if "expecttest" not in sys.modules:
        monkeypatch.setitem(sys.modules, "expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    def made(name):
        for entry in op_db:
            if entry.name.removeprefix("nn.functional.") == name:
                for dtype in TYPES:
                    if dtype in entry.dtypes:
                        yield from entry.sample_inputs("cpu", dtype, requires_grad=True)

    return made


def call(name, functions, sample):
    """The result of a sample, and gradients of its tensors."""
    first, args, kwargs = sample.input, sample.args, sample.kwargs
    if name == "embedding":
        first, args = args[0], (first, *args[1:])
    y = getattr(functions, name)(first, *args, **kwargs)
    leaves = [x for x in (sample.input, *args) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = list({id(x): x for x in leaves}.values())
    if not y.requires_grad:
        return y, []
    slope = torch.linspace(1, 2, max(y.numel(), 1), dtype=y.dtype)[: y.numel()].view(y.shape)
    return y, torch.autograd.grad(y, leaves, slope, allow_unused=True)


def wide(x):
    """The same numbers as float64, which results are compared with."""
    if not (isinstance(x, torch.Tensor) and x.is_floating_point()):
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def is_drawn(name, sample, found) -> bool:
    """Whether a dropout of ones is zeros and what makes up for them: draws are never the same."""
    p = sample.kwargs.get("p", 0.5)
    if name != "dropout" or not sample.kwargs.get("training", True) or not 0 < p < 1:
        return False
    y, (dx,) = found
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, sample.input / (1 - p), 0), rtol=1e-2, atol=0)
    return dx.shape == y.shape


@pytest.mark.parametrize("name", sorted(set(functional.__all__) - {"linear_cross_entropy"}))
def test_pytorchs_samples(samples, name) -> None:
    counts = Counter[str]()
    for sample in samples(name):
        try:
            found = call(name, functional, sample)
        except (ArgumentError, DtypeError, TypeError):
            counts["refused"] += 1
            continue
        if not is_drawn(name, sample, found):
            theirs = torch if name in ("softmax", "log_softmax") else torch.nn.functional
            is_brief = sample.input.dtype.itemsize == 2
            near = {"atol": 2e-2, "rtol": 2e-2} if is_brief else {"atol": 1e-5, "rtol": 1e-4}
            expected = call(name, theirs, sample.transform(wide))
            near |= {"equal_nan": True, "check_dtype": False}
            torch.testing.assert_close(found, expected, **near)
        counts["passed"] += 1
    passed, refused = COUNTS[name]
    assert counts["passed"] >= passed, counts
    assert counts["refused"] <= refused, counts

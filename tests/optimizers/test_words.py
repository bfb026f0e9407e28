# SPDX-License-Identifier: MIT
"""What optimizers and losses say: of themselves, and of what they refuse, by the caller's names."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError

torch = pytest.importorskip("torch")

SPARSE = r"{}: gradients\[0\]: cannot share its memory: it is no dense tensor, but torch.sparse_coo"


def with_gradient(dtype=torch.float32, *, is_sparse: bool = False):
    parameter = torch.nn.Parameter(torch.ones(4, 3, dtype=dtype))
    parameter.grad = torch.ones(4, 3, dtype=dtype)
    if is_sparse:
        parameter.grad = parameter.grad.to_sparse()
    return parameter


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
def test_a_sparse_gradient_is_refused_for_what_it_is(name) -> None:
    for options in ({}, {"max_norm": 1.0}, *([{"state": "8bit"}] if name == "AdamW" else ())):
        optimizer = getattr(cto.torch, name)([with_gradient(is_sparse=True)], **options)
        with pytest.raises(ArgumentError, match=SPARSE.format(f"^{name}")):
            optimizer.step()
    p, g = torch.ones(4, 3), torch.ones(4, 3).to_sparse()
    with pytest.raises(ArgumentError, match=SPARSE.format(f"^{name}")):
        getattr(cto, name)([p]).step([g])
    with pytest.raises(ArgumentError, match=r"^Gelu: X: .* no dense tensor, but torch.sparse_coo"):
        cto.gelu(torch.ones(4, 3).to_sparse())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_moments_of_8_bits_name_the_type(dtype) -> None:
    optimizer = cto.torch.AdamW([with_gradient(dtype)], state="8bit")
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(DtypeError, match=f"^AdamW: params: expected float32, .*, got {name}$"):
        optimizer.step()
    optimizer = cto.torch.AdamW([with_gradient(torch.float64)], state="8bit")
    with pytest.raises(
        ArgumentError, match=r"^AdamW: state: expected None, .* float64, got '8bit'"
    ):
        optimizer.step()


def test_targets_are_refused_by_the_function_that_was_called() -> None:
    functional, scores = cto.torch.functional, torch.randn(4, 5)
    words = (
        r"^cross_entropy: target: expected classes in int64 or int32, or probabilities .*, "
        r"got torch.bool of shape \(4,\); PyTorch: expected (target dtype|scalar type)"
    )
    with pytest.raises(ArgumentError, match=words):
        functional.cross_entropy(scores, torch.ones(4, dtype=torch.bool))
    with pytest.raises(ArgumentError, match=r"^cross_entropy: target: expected a tensor"):
        functional.cross_entropy(scores, None)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Lamb"])
def test_signatures_name_all_arguments(name) -> None:
    make = getattr(cto, name)
    given, own = inspect.signature(make).parameters, inspect.signature(make.__init__).parameters
    assert list(given.items()) == list(own.items())[1:]
    for argument in ("group", "state") if name == "AdamW" else ():
        assert f"    {argument}: " in make.__doc__
    if name != "Lamb":
        assert "parameters: a list of arrays" in make.__doc__
        assert not re.search(r"As Adam|\bas for\b", make.__doc__)


def test_states_in_codes_are_shown() -> None:
    p = np.ones(3, np.float32)
    assert repr(cto.AdamW([p], state="8bit")) == "AdamW(1 parameters, 3 elements, state='8bit')"
    assert repr(cto.AdamW([p])) == "AdamW(1 parameters, 3 elements)"
    coded = cto.torch.AdamW([with_gradient()], state="8bit", max_norm=2.0)
    assert repr(coded).endswith("max_norm: 2.0\nstate: '8bit'\n)")
    assert "state: None" in repr(cto.torch.AdamW([with_gradient()]))


@pytest.mark.parametrize("name", ["functional", "nn", "ops"])
def test_modules_list_what_is_public(name) -> None:
    module = getattr(cto.torch, name)
    assert dir(module) == sorted(module.__all__)

# SPDX-License-Identifier: MIT
"""PyTorch's own configurations of its optimizers, `optim_db`: every step is that of PyTorch here.

All but complex and `differentiable`, which are refused. Where numbers are apart, PyTorch's are: its
fused steps on the CPU (docs/differences.md), or its for-loop in 16 bits, which rounds after each
operation; a for-loop in float64 says so. data/optim_db.json has the counts, which may only become
better.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("expecttest", reason="PyTorch's tests import it")

from torch.testing._internal import common_optimizers  # noqa: E402

import cupy_training_ops as cto  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]

TABLE = json.loads((Path(__file__).parents[1] / "data" / "optim_db.json").read_text())
SHAPES = ((10, 5), (10,))
N_STEPS = 5
TOLERANCES = {  # relative, absolute
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
}


def trained(make: Any, dtype: Any, options: dict[str, Any], *, is_strided: bool) -> list[Any]:
    """Parameters after some steps, in float64; gradients lie as PyTorch makes them."""
    generator = torch.Generator().manual_seed(0)

    def drawn(shape: tuple[int, ...]) -> Any:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    start = [drawn(shape) for shape in SHAPES]
    if is_strided:
        start = [x.t().contiguous().t() for x in start]
    parameters = [torch.nn.Parameter(x) for x in start]
    optimizer = make(parameters, **options)
    for _ in range(N_STEPS):
        for parameter in parameters:
            parameter.grad = drawn(tuple(parameter.shape))
        optimizer.step()
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return [parameter.detach().to(wide) for parameter in parameters]


def apart(some: list[Any], others: list[Any]) -> float:
    """The largest difference; infinite where one is no number."""
    actual = max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))
    return actual if actual == actual else float("inf")


@pytest.mark.parametrize("name", TABLE["counts"])
def test_steps_are_those_of_pytorch(name) -> None:
    (info,) = (x for x in common_optimizers.optim_db if x.optim_cls.__name__ == name)
    inputs = common_optimizers._get_optim_inputs_including_global_cliquey_kwargs(
        "cpu", torch.float32, info, skip=("differentiable",)
    )
    actual = Counter(dict.fromkeys(("pass", "complex", "fused", "half"), 0))
    for given, dtype, is_strided in itertools.product(inputs, TOLERANCES, (False, True)):
        place = (given.kwargs, dtype, is_strided)
        if dtype.is_complex:
            with pytest.raises(cto.OpError):
                trained(getattr(cto.torch, name), dtype, given.kwargs, is_strided=is_strided)
            actual["complex"] += 1
            continue
        ours = trained(getattr(cto.torch, name), dtype, given.kwargs, is_strided=is_strided)
        theirs = trained(info.optim_cls, dtype, given.kwargs, is_strided=is_strided)
        if are_close(ours, theirs, dtype):
            actual["pass"] += 1
            continue
        plain = {k: v for k, v in given.kwargs.items() if k not in ("foreach", "fused")}
        exact = trained(info.optim_cls, torch.float64, plain, is_strided=is_strided)
        assert apart(ours, exact) <= apart(theirs, exact), place
        is_half = dtype in (torch.float16, torch.bfloat16)
        assert is_half or are_close(ours, exact, dtype), place
        assert is_half or given.kwargs.get("fused"), place
        actual["fused" if given.kwargs.get("fused") else "half"] += 1
    if torch.__version__.startswith(TABLE["torch"]):  # another one has other faults
        wanted = TABLE["counts"][name]
        assert sum(actual.values()) == sum(wanted.values())
        assert actual["pass"] >= wanted["pass"], dict(actual)


def are_close(some: list[Any], others: list[Any], dtype: Any) -> bool:
    relative, absolute = TOLERANCES[dtype]
    pairs = zip(some, others, strict=True)
    return all(torch.allclose(a, b, rtol=relative, atol=absolute) for a, b in pairs)


@pytest.mark.parametrize("name", TABLE["counts"])
def test_what_pytorch_refuses_is_refused(name) -> None:
    """By an error of the same kind, in words of this package."""
    (info,) = (x for x in common_optimizers.optim_db if x.optim_cls.__name__ == name)
    n_refused = 0
    for given in info.optim_error_inputs_func("cpu", torch.float32):
        item = given.optimizer_error_input
        if given.error_type is UserWarning:
            continue
        parameters = item.params
        if parameters is None:
            parameters = [torch.nn.Parameter(torch.randn(2, 3))]
        with pytest.raises(given.error_type):
            getattr(cto.torch, name)(parameters, **item.kwargs)
        n_refused += 1
    assert n_refused >= 5

# SPDX-License-Identifier: MIT
"""A call that is like one before passes few functions, from the operator down to the launch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import cupy_training_ops as cto

pytest.importorskip("cupy", reason="CuPy is in the extras")

from cupy_training_ops.testing.hollow import hollow, hollow_launches

PACKAGE = Path(cto.__file__).parent
MOST = 8
# Folders and modules of the package: a function of one calls none of one before it.
DOWN = ("functions", "call/op", "call/key", "call/run", "call", "device")


def holds(value, array, depth: int = 2) -> bool:
    """Whether a value is the array, or has it among its items."""
    if value is array:
        return True
    items = value.values() if isinstance(value, dict) else value
    nested = isinstance(value, dict | tuple | list) and depth > 0
    return nested and any(holds(item, array, depth - 1) for item in items)


def passed(action, array) -> list[tuple[str, str]]:
    """The package's functions that are given an array, by module, with the module that calls."""
    results = []

    def module(frame) -> str:
        file = Path(frame.f_code.co_filename)
        inside = PACKAGE in file.parents and "testing" not in file.parts
        return file.relative_to(PACKAGE).with_suffix("").as_posix() if inside else ""

    def note(frame, event, _) -> None:
        if (
            event == "call"
            and module(frame)
            and any(holds(value, array) for value in frame.f_locals.values())
        ):
            results.append((module(frame.f_back), f"{module(frame)}:{frame.f_code.co_qualname}"))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return results


def rank(module: str) -> int:
    """Where a module stands from above; a caller that is not the package's above all."""
    return next((i for i, start in enumerate(DOWN) if module.startswith(start)), -1)


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize("has_out", [False, True])
def test_dy_of_gather_grad_passes_few_functions_downwards(by_function, has_out) -> None:
    with hollow_launches() as launches:
        dy, indices = hollow((64, 32), np.float32), hollow((64,), np.int64)
        out = {"out": hollow((100, 32), np.float32)} if has_out else {}
        call = cto.gather_grad if by_function else cto.GatherGrad()

        def action() -> None:
            call((100, 32), indices, dy, **out)

        action()
        launches.clear()
        result = passed(action, dy)
        assert launches
    names = [name for _, name in result]
    assert "call/op:Op.__call__" in names
    assert len(names) <= MOST, names
    assert all(rank(caller) <= rank(name) for caller, name in result), result


def modules_passed(action) -> list[tuple[str, str]]:
    """(module, function) of the package at each call of one, comprehensions apart."""
    functions: list[tuple[str, str]] = []

    def note(frame, event, _) -> None:
        file, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        inside = PACKAGE in file.parents and "testing" not in file.parts
        if event == "call" and inside and not name.endswith(("listcomp>", "genexpr>")):
            functions.append((str(file), name))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return functions


def test_dy_of_gather_grad_passes_few_modules() -> None:
    with hollow_launches():
        op, dy, indices = cto.GatherGrad(), hollow((64, 32), "f4"), hollow((64,), "i8")
        op((100, 32), indices, dy)
        functions = modules_passed(lambda: op((100, 32), indices, dy))
    assert len(functions) <= 20, functions
    assert len({module for module, _ in functions}) <= 7, functions


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_a_step_of_torch_optimizers_passes_few_modules(momentum) -> None:
    torch = pytest.importorskip("torch")
    from tensor_backends import HollowTensors, tensors_on

    weights = [torch.nn.Parameter(torch.zeros(3, i + 1)) for i in range(10)]
    for each in weights:
        each.grad = torch.ones_like(each)
    sgd = momentum is not None
    with tensors_on(HollowTensors()) as backend:
        optimizer = cto.torch.SGD(weights, momentum=momentum) if sgd else cto.torch.AdamW(weights)
        for _ in range(3):
            optimizer.step()
        backend.launches.clear()
        functions = {*modules_passed(optimizer.step)}
        assert backend.launches
    assert len(functions) <= 59, functions
    assert len({module for module, _ in functions}) <= 12, functions

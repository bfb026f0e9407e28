# SPDX-License-Identifier: MIT
"""Calls with one wrong argument whose arrays are PyTorch's: what arrays come to, in the same words.

The tensors stand for a GPU's, launches left out; they lie over the memory of the arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cupy_training_ops.testing.samples import all_samples

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, numpy_of, tensors_on  # noqa: E402

from .findings import Findings  # noqa: E402
from .mutations import Call, mutated  # noqa: E402
from .outcomes import Outcome, changed, described, limited_memory, memory_of, outcome  # noqa: E402

SAMPLES = [sample for samples in all_samples().values() for sample in samples]
CASES = 2000


class NoTensorError(Exception):
    """No tensor lies over this memory, or none that stands for a GPU's."""


def over_tensors(call: Call) -> Call:
    """The call with tensors over its arrays."""
    inputs = [
        value if declared.memory == "host" else tensors_of(value)
        for declared, value in zip(call.op.inputs, call.inputs, strict=False)
    ]
    inputs += call.inputs[len(call.op.inputs) :]
    return dataclasses.replace(
        call, inputs=inputs, out=tensors_of(call.out), workspace=tensors_of(call.workspace)
    )


def tensors_of(value: Any) -> Any:
    """Tensors over arrays, also in lists; anything else that is no array as it is."""
    if isinstance(value, list | tuple):
        return type(value)(map(tensors_of, value))
    if not isinstance(value, np.ndarray):
        return value
    if type(value) is not np.ndarray or not value.flags.writeable or not value.size:
        raise NoTensorError
    try:
        if value.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(value)
    except (TypeError, ValueError, RuntimeError):  # a dtype of NumPy's alone, backwards
        raise NoTensorError from None


def complaints(call: Call) -> Iterator[str]:
    """What of a call differs where its arrays are tensors."""
    try:
        given = over_tensors(call)
    except NoTensorError:
        return
    memory = [(array, array.tobytes()) for array in memory_of(call)]
    with torch.no_grad(), tensors_on(HollowTensors()) as backend:
        actual, _ = outcome(given)
    if backend.launches:  # else it may have been taken as arrays are
        yield from changed(memory, set())
    if ": workspace: expected a uint8 array" in actual.text:  # the CPU provider needs none
        return
    expected, _ = outcome(call)
    if expected.kind == "short of memory" or "tensor(" in actual.text:  # which prints otherwise
        return
    if actual.kind == "ok":
        actual = actual._replace(text=str([described(numpys_of(r)) for r in actual.results]))
    if said(actual) != said(expected):
        yield f"arrays: {said(expected)} | tensors: {said(actual)}"


def numpys_of(value: Any) -> Any:
    return tuple(map(numpys_of, value)) if isinstance(value, tuple) else numpy_of(value)


def said(actual: Outcome) -> str:
    """How it ends, wherever it does."""
    text = actual.text.replace("cuda device 0", "the host").replace(
        "got one Tensor", "got one ndarray"
    )
    return f"{actual.kind} {text}"


def test_tensors_are_answered_as_arrays_are(cases, seed) -> None:
    findings = Findings(__file__, seed)
    with limited_memory():
        for case in cases:
            call = mutated(SAMPLES[case % len(SAMPLES)], np.random.default_rng([seed, case]))
            findings.add(case, str(call), list(complaints(call)))
    findings.assert_none()

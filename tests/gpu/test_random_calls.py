# SPDX-License-Identifier: MIT
"""Random calls in sequence through functions on a GPU, arrays of CuPy and of PyTorch.

CTO_RANDOM_CALLS says how many, 1,000 by default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_calls import CALLS, call, compare, drawn_case

from cupy_training_ops.call import interop
from cupy_training_ops.testing.samples import place

pytestmark = pytest.mark.gpu

N_CALLS = int(os.environ.get("CTO_RANDOM_CALLS", "1000"))


def of_cupy() -> Callable[[Any], Any]:
    import cupy

    return lambda value: (
        [place(item, 0, cupy) for item in value]
        if isinstance(value, list)
        else place(value, 0, cupy)
    )


def of_torch() -> Callable[[Any], Any]:
    pytest.importorskip("torch", reason="PyTorch is in no extra")
    place = of_cupy()

    def tensor(value: Any) -> Any:
        if isinstance(value, list):
            return [tensor(item) for item in value]
        return interop.as_tensor(place(value)) if isinstance(value, np.ndarray) else value

    return tensor


def on_host(result: Any) -> np.ndarray:
    array = interop.share_memory(result) if interop.is_tensor(result) else result
    return array if isinstance(array, np.ndarray) else array.get()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arrays", [of_cupy, of_torch])
def test_no_call_of_many_is_wrong(rng, arrays) -> None:
    place, wrong = arrays(), []
    for number in range(N_CALLS):
        name = str(rng.choice(list(CALLS)))
        inputs, attributes = drawn_case(name, rng)
        try:
            result = call(name, inputs, place, **attributes)
            compare(name, inputs, result, on_host, **attributes)
        except AssertionError as error:
            wrong.append(f"call {number}, {name}: {error}")
    assert not wrong, f"{len(wrong)} of {N_CALLS}: {wrong[:5]}"

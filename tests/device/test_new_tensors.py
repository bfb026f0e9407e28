# SPDX-License-Identifier: MIT
"""New tensors of PyTorch's, which are made past its dispatcher where nobody is to see it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cupy_training_ops.declare.schema import Spec  # noqa: E402
from cupy_training_ops.device import tensors  # noqa: E402


@pytest.fixture
def backend():
    """Tensors of the host in the place of a GPU's."""
    return HollowTensors()


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 1, 7), (2, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16, np.bool_])
def test_new_tensors_are_as_pytorchs_own(backend, shape, dtype) -> None:
    expected = torch.empty(shape, dtype=tensors._OWN[np.dtype(dtype)])
    with torch.enable_grad(), torch.device("meta"):
        actual = backend.maker(Spec(shape, np.dtype(dtype)), 0)()
    for name in ("shape", "dtype", "device", "requires_grad", "is_leaf", "grad_fn", "layout"):
        assert getattr(actual, name) == getattr(expected, name), name
    assert actual.stride() == expected.stride()
    assert type(actual) is torch.Tensor
    assert actual.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    with torch.inference_mode():
        assert backend.maker(Spec(shape, np.dtype(dtype)), 0)().is_inference()


def test_a_mode_is_told_of_new_tensors(backend) -> None:
    """Else they are made past the dispatcher."""

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, _, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    make, seen = backend.maker(Spec((3,), np.dtype(np.float32)), 0), []
    make()
    with Seen():
        make()
    make()
    assert seen == ["aten.empty_strided.default"]


@pytest.mark.parametrize("is_there", [True, False])
def test_what_makes_tensors_on_the_current_device_is_asked_for_no_other(
    backend, monkeypatch, is_there
) -> None:
    current, asked = [0], []
    quick = SimpleNamespace(_empty_strided_cpu=lambda *given: asked.append(given))
    monkeypatch.setattr(tensors, "_guards", quick if is_there else None)
    monkeypatch.setattr(backend, "is_alone", lambda _: False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    make = backend.maker(Spec((3, 2), np.dtype(np.float32)), 0)
    for current[0] in (1, 0, 1):
        made = make()
        assert (made is None) == (is_there and current[0] == 0)
    assert asked == [((3, 2), (2, 1), torch.float32)] * is_there

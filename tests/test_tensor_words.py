# SPDX-License-Identifier: MIT
"""Odd arguments beside PyTorch's tensors: what the hostile tests found, each by its name."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, get_op

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import EmulatedTensors, HollowTensors, tensors_on  # noqa: E402


@pytest.fixture
def backend():
    """Tensors of the host with kernels that are noted."""
    with torch.no_grad(), tensors_on(HollowTensors()) as result:
        yield result


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("argument", [[], (), [1.0]])
def test_a_list_in_the_place_of_an_array(argument) -> None:
    labels = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="scores: expected a NumPy or CuPy array, got"):
        get_op("SoftmaxCrossEntropyLoss")()(argument, labels)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("argument", [np.str_("a"), np.datetime64(0, "s"), np.array([None])])
def test_a_workspace_of_a_dtype_that_no_tensor_has(argument) -> None:
    with pytest.raises(ArgumentError, match="ReluGrad: workspace: expected a uint8 array"):
        get_op("ReluGrad")()(*torch.randn(2, 3, 70), workspace=argument)


@pytest.mark.parametrize("is_bound", [True, False])
def test_complex_results(backend, is_bound) -> None:
    values = torch.view_as_complex(torch.randn(1003, 2))
    packed = get_op("GistSparseEncoder")()(values)
    assert backend.launches
    op = get_op("GistSparseDecoder")(shape=(1003,), to="complex64")
    result = op.bound(packed)() if is_bound else op(packed)
    assert (result.dtype, result.shape) == (torch.complex64, (1003,))


def test_conjugated_numbers_are_not_taken_by_their_memory() -> None:
    z = torch.view_as_complex(torch.randn(70, 2))
    shape = {"shape": (70,), "to": "complex64"}
    with tensors_on(EmulatedTensors()):
        packed = get_op("GistSparseEncoder")()(z)
        assert torch.equal(get_op("GistSparseDecoder")(**shape)(packed), z)
        with pytest.raises(ArgumentError, match="X"):
            get_op("GistSparseEncoder")()(z.conj())


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 1e-300), (torch.float32, 1e-30)])
def test_numbers_are_checked_for_the_elements_type(dtype, least) -> None:
    op, x = get_op("FakeQuant")(), torch.ones(70, dtype=dtype)
    op(x, least, 0)
    with pytest.raises(ArgumentError, match=f"normal in {str(dtype)[6:]}"):
        op(x, least * 1e-20, 0)

# SPDX-License-Identifier: MIT
"""Bound calls over PyTorch's tensors by their metadata: what may change is seen each time.

Without a GPU: tensors of the host stand for a GPU's, with hollow kernels.
"""

from __future__ import annotations

import pytest

from cupy_training_ops import ArgumentError, get_op

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, tensors_on  # noqa: E402


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("how", ["set_", "data", "resize_", "t_"])
@pytest.mark.parametrize("opened", [True, False])
def test_a_bound_call_refuses_a_tensor_that_became_another(made, how, native, opened) -> None:
    """Also where arrays stand for tensors."""
    dy, x, other, out = made(*[(6, 6)] * 4)

    def made_others() -> None:
        bound = get_op("ReluGrad")().bound(... if opened else dy, x, out=out)
        given = {"dY": dy} if opened else {}
        assert bound(**given) is out
        if how == "set_":
            x.set_(other)
        elif how == "data":
            x.data = other
        elif how == "resize_":
            x.resize_(3, 6)
        else:
            x.t_()
        for _ in range(2):
            with pytest.raises(ArgumentError, match="ReluGrad: X: expected the tensor as it was"):
                bound(**given)

    if not native:
        made_others()
        return
    with tensors_on(HollowTensors()) as backend:
        made_others()
        assert len(backend.launches) == 1


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_a_bound_call_looks_for_gradients_each_time(made, native, opened) -> None:
    dy, x = made((6,), (6,))

    def recorded() -> None:
        with torch.no_grad():
            bound = get_op("ReluGrad")().bound(... if opened else dy, x)
            given = {"dY": dy} if opened else {}
            bound(**given)
        x.requires_grad_()
        with pytest.raises(ArgumentError, match=r"ReluGrad: X: .* requires no gradient"):
            bound(**given)
        with torch.no_grad():
            bound(**given)

    if not native:
        recorded()
        return
    with tensors_on(HollowTensors()) as backend:
        recorded()
        assert len(backend.launches) == 2


def test_an_open_call_over_a_tensor_refuses_arrays(backend, made) -> None:
    """It goes on with tensors after that."""
    (x,), bound = made((6,)), None
    with torch.no_grad():
        bound = get_op("ReluGrad")().bound(..., x)
        for _ in range(2):
            backend.launches.clear()
            (dy,) = made((6,))
            assert type(bound(dY=dy)) is torch.Tensor
            assert len(backend.launches) == 1
            with pytest.raises(ArgumentError, match="X: expected an array of NumPy, as dY is"):
                bound(dY=dy.numpy())
            assert len(backend.launches) == 1


@pytest.mark.usefixtures("backend")
def test_open_lists_of_other_lengths_are_told_apart(made) -> None:
    """Two lists that together hold as many tensors as before."""
    sums, values = made((3,), (3,)), made((3,), (3,))
    bound = get_op("InPlaceAccumulatorList")().bound(..., ...)
    names = [item.name for item in get_op("InPlaceAccumulatorList").inputs[:2]]
    bound(**dict(zip(names, (sums, values), strict=True)))
    with pytest.raises(ArgumentError, match="InPlaceAccumulatorList"):
        bound(**dict(zip(names, ([*sums, values[0]], values[1:]), strict=True)))

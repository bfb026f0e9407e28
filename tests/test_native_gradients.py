# SPDX-License-Identifier: MIT
"""Tensors that record operations: operators take them where no gradient is lost in silence."""

from __future__ import annotations

import contextlib

import pytest

from cupy_training_ops import ArgumentError, get_op

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, tensors_on  # noqa: E402


@pytest.mark.parametrize("provider", ["native", "adopted"])
def test_a_gradient_is_not_lost_in_silence(provider) -> None:
    on = tensors_on(HollowTensors()) if provider == "native" else contextlib.nullcontext()
    dy, x = torch.randn(2, 3, 70)
    x.requires_grad_()
    op = get_op("ReluGrad")()
    with on as backend:
        with pytest.raises(ArgumentError, match=r"ReluGrad: X: .*X\.detach\(\)"):
            op(dy, x)
        with pytest.raises(ArgumentError, match=r"ReluGrad: X: .*X\.detach\(\)"):
            op.bound(dy, x)
        assert not (backend and backend.launches)
        op(dy, x.detach())
        with torch.no_grad():
            op(dy, x)
            bound = op.bound(dy, x)
            bound()
        if provider == "native":
            with pytest.raises(ArgumentError, match=r"X\.detach\(\)"):
                bound()


@pytest.mark.parametrize("provider", ["native", "adopted"])
def test_a_gradient_of_a_number_is_not_lost_in_silence(provider) -> None:
    on = tensors_on(HollowTensors()) if provider == "native" else contextlib.nullcontext()
    x, scale = torch.randn(3, 70), torch.tensor(0.5, requires_grad=True)
    op = get_op("Scale")()
    with on:
        bound, refused = op.bound(x, 2.0), r"Scale: scale: .*scale\.detach\(\)"
        for call in (lambda: op(x, scale), lambda: op.bound(x, scale), lambda: bound(scale=scale)):
            with pytest.raises(ArgumentError, match=refused):
                call()
        op(x, scale.detach())
        with torch.no_grad():
            bound(scale=scale)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own
@pytest.mark.parametrize("provider", ["native", "adopted"])
def test_a_tangent_is_not_lost_in_silence(provider) -> None:
    """Forward-mode differentiation goes on where nothing is recorded."""
    on = tensors_on(HollowTensors()) if provider == "native" else contextlib.nullcontext()
    (dy, x), op = torch.randn(2, 3, 70), get_op("ReluGrad")()
    bound = op.bound(dy, x)
    with on, torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        for call in (lambda: op(dy, dual), lambda: op.bound(dy, dual)):
            with pytest.raises(ArgumentError, match=r"ReluGrad: X: .*tangent.*X\.detach\(\)"):
                call()
        op(dy, dual.detach())
        op(dy, x)
        bound()
        assert get_op("GistPack16Encoder")()(dual) is not None


@pytest.mark.parametrize("provider", ["native", "adopted"])
def test_encoders_and_updates_take_data(provider) -> None:
    on = tensors_on(HollowTensors()) if provider == "native" else contextlib.nullcontext()
    x = torch.randn(3, 70, requires_grad=True)
    with on:
        assert not get_op("GistPack16Encoder")()(x).requires_grad
        get_op("SGDOptimizer")()(torch.tensor([0.1]), x, torch.randn(3, 70))

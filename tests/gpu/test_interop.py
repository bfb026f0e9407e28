# SPDX-License-Identifier: MIT
"""Python functions on a GPU: PyTorch's over the same memory and stream, Triton's kernels."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ProviderError, PythonOp, PythonOpGrad, TritonOp
from cupy_training_ops.callables import contexts

pytestmark = pytest.mark.gpu

SHAPE = (257, 129)
TYPES = {"output_tensor_types": ["float32"]}


@pytest.fixture(params=["default", "own"])
def stream(request):
    """CuPy's default stream, or one that waits for no other; current in the test."""
    import cupy

    if request.param == "default":
        yield cupy.cuda.Stream.null
        return
    with cupy.cuda.Stream(non_blocking=True) as current:
        yield current
        current.synchronize()


def slow_addition(x, n: int = 50):
    """Work that takes a while, on the current stream."""
    for _ in range(n):
        x += 1


# ---- plain functions -----------------------------------------------------------------------------


def test_a_plain_function_gets_cupys_arrays(stream) -> None:
    import cupy

    got = []

    def forward(ctx, x, k):
        got.append(x)
        ctx.k = k
        assert cupy.cuda.get_current_stream().ptr == stream.ptr
        return x * k

    cto.register_python_op("gpu scaled", forward, lambda ctx, dy: (dy * ctx.k, None))
    constants = {"input_float_scalars": [3.0], "input_float_scalar_positions": [1]}
    op = PythonOp(
        func_name="gpu scaled", input_convention="dc", training_mode=1, **constants, **TYPES
    )
    grad = PythonOpGrad(
        func_name="gpu scaled", output_convention="dc", output_tensor_requires_grads=[1], **TYPES
    )
    x = cupy.ones(SHAPE, np.float32)
    context, (y,) = op([x])
    assert got[0] is x
    (dx,) = grad(context, [y])
    assert bool((y == 3).all())
    assert bool((dx == 9).all())


# ---- PyTorch -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    """PyTorch, with an autograd function under a name."""
    actual = pytest.importorskip("torch", reason="PyTorch is in no extra")
    saw = {}

    class Product(actual.autograd.Function):
        """x y; notes what it gets."""

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            z = x * y
            saw["forward"] = [t.data_ptr() for t in (x, y, z)]
            saw["stream"] = actual.cuda.current_stream().cuda_stream
            return z

        @staticmethod
        def backward(ctx, dz):
            x, y = ctx.saved_tensors
            dx, dy = dz * y, dz * x
            saw["backward"] = [t.data_ptr() for t in (dz, dx, dy)]
            return dx, dy

    cto.register_python_op("gpu product", Product)
    actual.Product, actual.saw = Product, saw
    return actual


def product() -> tuple[PythonOp, PythonOpGrad]:
    op = PythonOp(
        func_name="gpu product",
        input_convention="dd",
        input_requires_grads=[1, 1],
        training_mode=1,
        **TYPES,
    )
    grad = PythonOpGrad(
        func_name="gpu product",
        output_convention="dd",
        output_tensor_types=["float32"] * 2,
        output_tensor_requires_grads=[1, 1],
    )
    return op, grad


def test_a_pytorch_function_and_its_gradient_without_a_copy(torch, stream, seed) -> None:
    import cupy

    rng = cupy.random.default_rng(seed)
    x, y, dz = (rng.standard_normal(SHAPE, dtype=np.float32) for _ in range(3))
    op, grad = product()
    context, (z,) = op([x, y])
    dx, dy = grad(context, [dz])
    assert torch.saw["forward"] == [x.data.ptr, y.data.ptr, z.data.ptr]
    assert torch.saw["backward"] == [dz.data.ptr, dx.data.ptr, dy.data.ptr]
    assert torch.saw["stream"] == stream.ptr
    stream.synchronize()
    tensors = [torch.from_numpy(a.get()).cuda().requires_grad_() for a in (x, y)]
    own = torch.Product.apply(*tensors)
    grads = torch.autograd.grad(own, tensors, torch.from_numpy(dz.get()).cuda())
    for array, tensor in zip((z, dx, dy), (own, *grads), strict=True):
        assert isinstance(array, cupy.ndarray)
        assert array.get().tobytes() == tensor.detach().cpu().numpy().tobytes()
    assert not len(op.contexts)


def test_what_was_queued_before_and_after_is_in_order(torch, stream) -> None:  # noqa: ARG001
    """On one stream, whichever it is: no library waits for the other."""
    import cupy

    x, y = cupy.zeros(1 << 24, np.float32), cupy.ones(1 << 24, np.float32)
    total = cupy.zeros_like(x)
    op, grad = product()
    for step in range(1, 6):
        slow_addition(x)
        context, (z,) = op([x, y])
        dx, _ = grad(context, [z])
        total += dx
        assert float(total.max()) == sum(50 * n for n in range(1, step + 1))


def test_tensors_come_back_as_tensors_on_pytorchs_stream(torch) -> None:
    op, grad = product()
    stream = torch.cuda.Stream()
    x, y = (torch.full((1 << 24,), 2.0, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.add_(1)
        context, (z,) = op([x, y])
        dx, dy = grad(context, [z])
        result = dx + dy
    assert torch.saw["stream"] == stream.cuda_stream
    stream.synchronize()
    assert all(isinstance(t, torch.Tensor) and t.is_cuda for t in (z, dx, dy))
    assert bool((result == 6 * 2 + 6 * 3).all())


def test_forwards_without_backward_leave_nothing(torch) -> None:  # noqa: ARG001
    import cupy

    before, x = contexts.count(), cupy.ones(8, np.float32)
    op, _ = product()
    for _ in range(1000):
        op([x, x])
    assert contexts.count() == before + 1000
    del op
    assert contexts.count() == before


def test_a_result_on_the_host_is_refused(torch) -> None:
    import cupy

    class Home(torch.autograd.Function):
        """x on the host."""

        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x.cpu()

    cto.register_python_op("gpu home", Home)
    op = PythonOp(func_name="gpu home", input_convention="d", training_mode=1, **TYPES)
    with pytest.raises(cto.ArgumentError, match="of 'gpu home': expected an array on cuda device"):
        op([cupy.ones(8, np.float32)])
    assert not len(op.contexts)


# ---- Triton --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def triton():
    """Triton, with the kernels of triton_kernels.py under names."""
    actual = pytest.importorskip("triton", reason="Triton is in no extra")
    from gpu import triton_kernels

    triton_kernels.register()
    return actual


@pytest.mark.parametrize("n", [1, 1000, 4099])
def test_a_triton_addition_equals_numpy(triton, stream, n, seed) -> None:  # noqa: ARG001
    import cupy

    rng = cupy.random.default_rng(seed)
    x, y = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    (z,) = cto.triton_op([x, y], func_name="triton add", block=256)
    assert z.get().tobytes() == (x.get() + y.get()).tobytes()


@pytest.mark.parametrize("shape", [(1, 8), (37, 100), (257, 1023)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_triton_softmax_equals_numpy(triton, stream, shape, dtype, seed) -> None:  # noqa: ARG001
    import cupy

    x = cupy.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(dtype)
    (y,) = TritonOp(func_name="triton softmax")([x])
    wide = x.get().astype(np.float64)
    expected = np.exp(wide - wide.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y.get(), expected, rtol=0, atol=2e-3 if dtype == "float16" else 1e-6)


def test_triton_launches_in_order(triton, stream) -> None:  # noqa: ARG001
    import cupy

    x, y = cupy.zeros(1 << 24, np.float32), cupy.ones(1 << 24, np.float32)
    for step in range(1, 6):
        slow_addition(x)
        (z,) = cto.triton_op([x, y], func_name="triton add", block=1024)
        z += 1
        assert float(z.max()) == float(z.min()) == 50 * step + 2


def test_another_stream_than_tritons_is_refused(triton) -> None:  # noqa: ARG001
    import cupy

    x = cupy.ones(8, np.float32)
    (wrapped,) = cto.triton_args(x)
    assert wrapped.data_ptr() == x.data.ptr
    with (
        cupy.cuda.Stream(non_blocking=True),
        pytest.raises(ProviderError, match="expected PyTorch's current stream to be CuPy's"),
    ):
        cto.triton_args(x)

# SPDX-License-Identifier: MIT
"""Tensors of PyTorch and arrays of JAX on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.device import compiler

torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
from tensor_cases import every_tensor  # noqa: E402

pytestmark = pytest.mark.gpu
SHAPE = (4, 8, 6, 5)


@pytest.fixture
def tensor(seed):
    """Makes normal tensors on the GPU."""
    generator = torch.Generator().manual_seed(seed)

    def made(dtype=torch.float32, layout=torch.contiguous_format, gradients=False):
        x = torch.randn(SHAPE, generator=generator).to("cuda", dtype)
        return x.to(memory_format=layout).requires_grad_(gradients)

    return made


def assert_like(result, expected, layout) -> None:
    """A tensor on the GPU that is near the one that the CPU provider made."""
    assert isinstance(result, torch.Tensor)
    assert result.is_cuda
    assert result.is_contiguous(memory_format=layout)
    assert result.dtype == expected.dtype
    tolerance = {"atol": 3e-2, "rtol": 3e-2} if result.is_floating_point() else {}
    assert torch.allclose(result.cpu().double(), expected.double(), **tolerance)


@every_tensor
@pytest.mark.parametrize("codec", ["binarize", "pack8", "pack16"])
def test_compress_and_decompress(tensor, dtype, layout, gradients, codec) -> None:
    x = tensor(dtype, layout, gradients)
    packed, expected = cto.compress(x, codec), cto.compress(x.detach().cpu(), codec)
    assert packed.code.is_cuda
    assert torch.equal(packed.code.cpu(), expected.code)
    t = torch.empty_like(x, requires_grad=False)
    assert packed.decompress(out=t) is t
    for result in (t, packed.decompress()):
        assert_like(result, expected.decompress(), layout)


@torch.no_grad()
@every_tensor
def test_gelu_grad_in_and_out(tensor, dtype, layout, gradients) -> None:
    dy, x = tensor(dtype, layout, gradients), tensor(dtype, layout, gradients)
    expected = cto.gelu_grad(dy.detach().cpu(), x.detach().cpu())
    out = torch.empty_like(x, requires_grad=False)
    assert cto.gelu_grad(dy, x, out=out) is out
    for result in (out, cto.gelu_grad(dy, x), get_op("GeluGrad")().bound(dy, x)()):
        assert_like(result, expected, layout)


@torch.no_grad()
def test_nothing_is_copied(tensor) -> None:
    import cupy

    x = tensor(torch.bfloat16, torch.contiguous_format, True)
    (view,) = cto.view(x, [(32, 30)])
    assert view.data_ptr() == x.data_ptr()
    with pytest.raises(
        ArgumentError, match="X: expected an array of PyTorch, as dY is, got one of"
    ):
        cto.gelu_grad(x, cupy.from_dlpack(x.detach()))


def test_a_call_runs_on_pytorchs_current_stream() -> None:
    """What was queued there before is seen; what is queued there after sees the result."""
    stream = torch.cuda.Stream()
    x, late = torch.zeros(2**24, device="cuda"), torch.ones(2**24, device="cuda")
    total = torch.zeros(2**24, device="cuda")
    torch.cuda.synchronize()
    for _ in range(10):
        with torch.cuda.stream(stream):
            x.zero_()
            torch.cuda._sleep(10_000_000)
            x.add_(late)
            cto.in_place_accumulator(total, x)
            y = cto.scale(total, 2.0)
            z = y + 0
        stream.synchronize()
        assert torch.equal(z, 2 * total)
    assert torch.equal(total, 10 * late)


def test_a_call_is_captured_with_pytorchs_graph(tensor) -> None:
    x = tensor()
    out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    cto.gelu(x, out=out)
    with torch.cuda.graph(graph):
        cto.gelu(x, out=out)
        new = cto.gelu(x)  # in the graph's own memory
    x.copy_(tensor())
    graph.replay()
    torch.cuda.synchronize()
    for actual in (out, new):
        assert torch.allclose(actual.cpu(), cto.gelu(x.cpu()), atol=1e-5)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("gives_workspace", [True, False])
def test_a_first_call_is_captured_with_pytorchs_graph(
    tensor, monkeypatch, gives_workspace, mode
) -> None:
    """It loads several modules; a workspace of PyTorch's is taken without a word to its stream."""
    monkeypatch.setattr(compiler, "_memo", {})
    x, dy, w = tensor(), tensor(), torch.randn(8, 8, 3, 3, device="cuda")
    out = torch.empty_like(x), torch.empty_like(w), torch.empty(8, device="cuda")
    op, memory = cto.ConvGrad(pads=(1,) * 4), torch.empty(1 << 26, dtype=torch.uint8).cuda()
    workspace, graph = memory if gives_workspace else None, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        op(dy, x, w, out=out, workspace=workspace)
    x.copy_(tensor())
    graph.replay()
    torch.cuda.synchronize()
    for actual, expected in zip(out, op(dy.cpu(), x.cpu(), w.cpu()), strict=True):
        assert torch.allclose(actual.cpu(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("captures", ["CuPy", "PyTorch"])
def test_what_would_end_a_capture_is_refused_and_the_capture_goes_on(tensor, captures) -> None:
    """Arrays of both libraries, whose streams differ."""
    import cupy

    x, dy, out = tensor(), tensor(), torch.zeros(SHAPE, device="cuda")
    mixed, stream = cupy.zeros(SHAPE, "f"), cupy.cuda.Stream(non_blocking=True)
    graph: Any = torch.cuda.CUDAGraph()
    ours = captures == "CuPy"
    with stream if ours else torch.cuda.graph(graph):
        if ours:
            stream.begin_capture()
        with pytest.raises(
            ArgumentError, match="X: expected an array of CuPy, as dY is, got one of"
        ):
            cto.gelu_grad(mixed, x)
        if ours:
            cto.gelu(mixed, out=mixed)
            graph = stream.end_capture()
        else:
            cto.gelu_grad(dy, x, out=out)
    if ours:
        graph.launch(stream)
        stream.synchronize()
    else:
        graph.replay()
        assert torch.allclose(out.cpu(), cto.gelu_grad(dy.cpu(), x.cpu()), atol=1e-5)


def test_a_negative_bit_is_refused(tensor) -> None:
    with pytest.raises(ArgumentError, match="X: cannot share its memory: its negative bit is set"):
        cto.gelu(torch._neg_view(tensor()))


def test_host_and_device_do_not_mix(tensor) -> None:
    x = tensor()
    with pytest.raises(ArgumentError, match="dY is on cuda device 0, X is on the host"):
        cto.gelu_grad(x, x.cpu())

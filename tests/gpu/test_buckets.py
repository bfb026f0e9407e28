# SPDX-License-Identifier: MIT
"""Gradients of PyTorch's tensors on a GPU, in buckets of a rank alone: they are as they were."""

from __future__ import annotations

import pytest

import cupy_training_ops as cto
from cupy_training_ops.call.backends import info, tensor_backend

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; GPU machines have it")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_an_array_over_a_tensor_is_as_dlpacks(dtype) -> None:
    from cupy_training_ops.call.arguments import adopt
    from cupy_training_ops.device.tensors import array_over

    for shape in ((3, 5), (), (0, 4), (1,), (2, 1, 7)):
        x = torch.randn(shape, device="cuda").to(dtype)
        actual, expected = array_over(x, tensor_backend().info(x)), adopt("X", "x", x)
        assert info(actual)[:3] == info(expected)[:3]
        assert info(actual)[4:] == info(expected)[4:]
        if x.numel():
            assert actual.data.ptr == expected.data.ptr == x.data_ptr()
            assert actual.tobytes() == expected.tobytes()


def test_gradients_of_a_backward_pass_come_back() -> None:
    model, x = torch.nn.Linear(40, 30, device="cuda"), torch.randn(7, 40, device="cuda")
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    side = torch.cuda.Stream()
    with cto.ProcessGroup(0, 1) as group:
        buckets = cto.torch.GradientBuckets(model.parameters(), group, megabytes=0.001)
        for stream in (torch.cuda.current_stream(), side, side):
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                model.zero_grad()
                model(x).square().sum().backward()
                actual = buckets.wait()
                for p, own, wanted in zip(model.parameters(), actual, expected, strict=True):
                    assert own is p.grad
                    assert torch.equal(own, wanted)
            torch.cuda.synchronize()


def test_other_gradients_are_refused_as_before() -> None:
    w = torch.nn.Parameter(torch.zeros(3, 4, device="cuda"))
    with cto.ProcessGroup(0, 1) as group:
        buckets = cto.GradientBuckets([w], group)
        with pytest.raises(cto.ArgumentError, match="C-contiguous"):
            buckets.ready(0, torch.ones(4, 3, device="cuda").t())
        with pytest.raises(cto.ArgumentError, match="expected"):
            buckets.ready(0, torch.ones(4, 3, device="cuda"))
        buckets.ready(0, torch.ones(3, 4, device="cuda"))
        assert bool((buckets.wait()[0] == 1).all())

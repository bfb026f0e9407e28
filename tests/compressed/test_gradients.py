# SPDX-License-Identifier: MIT
"""PyTorch's saved tensors as codes: every case that frameworks make, on CPU tensors.

`tests/gpu/test_compressed.py` has what only a GPU shows.
"""

from __future__ import annotations

import gc
import weakref

import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional  # noqa: E402

from .cases import N, assert_as_without, gradients, pack16  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


def network(x, w1, w2, scale, bias):
    y = functional.conv2d(x * 1, w1, padding=1)
    y = torch.relu(functional.batch_norm(y, None, None, scale, bias, training=True))
    y = functional.max_pool2d(functional.conv2d(y, w2, padding=1), 2)
    return functional.log_softmax(y.flatten(1), 1) ** 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_lossless_gradients_are_the_same_bits(tensor, layout) -> None:
    x = tensor(8, 4, 32, 32).detach().contiguous(memory_format=layout).requires_grad_()
    weights = [tensor(8, 4, 3, 3), tensor(8, 8, 3, 3), tensor(8), tensor(8)]
    report = assert_as_without([x, *weights], network)
    assert report["tensors"] >= 3
    assert report["held"] == 0
    assert {"parameter", "small"} <= report["passed"].keys()


def test_default_and_small_are_near(tensor) -> None:
    """One step of a layer and a ReLU: with `default` its mask, and so a gradient, is exact."""
    x, w = tensor(128, 256), tensor(256, 256)

    def loss(x, w):
        return torch.relu((x * 1) @ w / 16)

    expected = torch.autograd.grad(loss(x, w).sum(), (x, w))
    for policy, bounds in (("default", (0, 0.015)), ("small", (0.01, 0.02))):
        actual, report = gradients([x, w], loss, policy)
        assert report["before"] >= 4 * report["after"]
        for one, other, bound in zip(actual, expected, bounds, strict=True):
            assert (one - other).norm() <= bound * other.norm()


def test_a_tensor_that_is_saved_twice_is_compressed_and_decompressed_once(tensor, moves) -> None:
    """A ReLU's result is the next layer's input, there in another shape."""
    x, w = tensor(16, 1024), tensor(16, 32, 32)
    report = assert_as_without([x, w], lambda x, w: w * torch.relu(x).view(16, 32, 32), pack16)
    assert (report["tensors"], report["shared"]) == (1, 1)
    assert moves == {"encode": 1, "decode": 1}


def test_no_more_than_two_decoded_tensors_are_held(tensor, moves) -> None:
    kept, tensors = cto.torch.compressed_activations(pack16), [tensor() * 1 for _ in range(3)]
    with kept:
        saved = [[kept.pack(x) for x in tensors] for _ in range(2)]
    first = [weakref.ref(kept.unpack(each)) for each in saved[0]]
    assert [x() is not None for x in first] == [False, True, True]
    for each, x in zip(saved[1], tensors, strict=True):
        assert torch.equal(kept.unpack(each), x)
    assert [x() is not None for x in first] == [False] * 3
    assert moves == {"encode": 3, "decode": 4}


def test_kernels_are_told_that_an_address_is_unaligned(tensor, moves) -> None:
    kept = cto.torch.compressed_activations(pack16)
    x = (tensor(N + 4) * 1)[1:]
    assert torch.equal(kept.unpack(kept.pack(x)), x)
    assert moves == {"encode_unaligned": 1, "decode": 1}


def test_an_address_that_is_used_again_is_another_tensor(tensor, moves) -> None:
    kept, source, saved, addresses = cto.torch.compressed_activations(pack16), tensor(), [], set()
    with kept:
        for i in range(50):
            x = source * i
            saved.append(kept.pack(x))
            addresses.add(x.data_ptr())
            del x  # the next one may get its memory
    assert len(addresses) < 50
    assert moves["encode"] == 50
    for i, each in enumerate(saved):
        assert torch.allclose(kept.unpack(each), source * i, rtol=1e-3)


def test_a_change_after_saving_leaves_the_gradient_of_what_was_saved(tensor) -> None:
    x = tensor()
    with cto.torch.compressed_activations(pack16):
        y = x * 2
        total = (y * y).sum()
        y.add_(1)
        second = (y * y).sum()  # saved anew
    assert torch.equal(torch.autograd.grad(total, x, retain_graph=True)[0], 8 * x)
    actual = torch.autograd.grad(second, x)[0]
    assert torch.allclose(actual, 4 * (2 * x + 1), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(N,), (8,)], ids=["leaf", "small"])
def test_a_change_of_what_passed_is_an_error(shape) -> None:
    x = torch.ones(shape, requires_grad=True)
    held = torch.full(shape, 3.0)
    with cto.torch.compressed_activations(pack16):
        total = (x * held).sum()
    held.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .* version 1; exp"):
        total.backward()


def test_a_parameter_that_was_stepped_is_an_error(tensor) -> None:
    x, w = tensor(64, 256), torch.nn.Parameter(tensor(256, 256).detach())
    with cto.torch.compressed_activations():
        total = ((x * 1) @ w.t()).sum()
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("policy", ["default", lambda *_: None], ids=["codes", "passed"])
def test_a_forward_without_a_backward_leaves_nothing(tensor, policy) -> None:
    x = tensor()
    kept = cto.torch.compressed_activations(policy)
    gc.collect()
    gc.disable()
    try:
        with kept:
            y = torch.relu(x * 1).exp()
        gone = weakref.ref(y.untyped_storage())
        del y
        assert gone() is None
        assert kept.report()["held"] == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("policy", ["default", lambda *_: None], ids=["codes", "passed"])
def test_what_is_written_after_it_was_saved_leaves_nothing(tensor, policy) -> None:
    """Plainly such a graph, of which nobody asks the gradients, holds itself."""
    kept = cto.torch.compressed_activations(policy)
    gc.collect()
    gc.disable()
    try:
        with kept:
            x = tensor() * 1
            y = x * tensor()
            x += y
        gone = weakref.ref(x.untyped_storage())
        del x, y
        assert gone() is None
    finally:
        gc.enable()


def test_layouts_come_back(tensor) -> None:
    kept = cto.torch.compressed_activations(pack16)
    x = tensor(2, 8, 32, 32) * 1
    for y in (x, x.transpose(1, 3), x.contiguous(memory_format=torch.channels_last), x[1:]):
        restored = kept.unpack(kept.pack(y))
        assert restored.stride() == y.stride()
        assert torch.equal(restored, y)
    assert kept.report()["tensors"] == 3  # the transposed one has the same memory


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x[:, ::2], "layout"),
        (lambda x: x.expand(2, *x.shape), "layout"),
        (lambda x: x[:2], "small"),
        (lambda x: torch.complex(x, x), "dtype"),
        (lambda x: torch._neg_view(x), "layout"),
        (lambda x: x.to_sparse(), "layout"),
        (lambda x: x.detach().to_sparse(), "leaf"),
        (lambda x: x.log_softmax(1), "log-probabilities"),
        (lambda x: x.log_softmax(1).view(-1).float(), "log-probabilities"),
        (lambda x: x.detach(), "leaf"),
        (lambda x: x.long(), "leaf"),
    ],
)
def test_what_passes_untouched(tensor, change, reason) -> None:
    kept = cto.torch.compressed_activations()
    x = change(tensor(64, 512) * 1)
    saved = kept.pack(x)
    assert kept.report()["passed"].keys() == {reason}
    assert not saved[0].requires_grad
    assert kept.unpack(saved).is_sparse or kept.unpack(saved).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("view", [lambda w: w, lambda w: w.t(), lambda w: w.bfloat16().t()])
def test_parameters_their_views_and_casts_pass(tensor, view) -> None:
    kept = cto.torch.compressed_activations()
    kept.pack(view(torch.nn.Parameter(tensor(256, 256).detach())))
    assert kept.report()["passed"].keys() == {"parameter"}


def test_statistics_pass(tensor) -> None:
    """One number a row, from which every gradient of the row is computed."""
    kept = cto.torch.compressed_activations("plain_msfp15")
    with kept:
        y = functional.group_norm(tensor(N // 2, 2, 4) * 1, 2)
    assert kept.report()["passed"]["statistics"] == 2 * 4 * N
    assert kept.report()["tensors"] == 1
    del y


def test_bools_are_packed(tensor) -> None:
    kept = cto.torch.compressed_activations("default")
    seen = []

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x > 0

    mask = Masked.apply(tensor(1, 2 * 65_536))
    seen.append(mask)
    assert torch.equal(kept.unpack(kept.pack(mask)), mask)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "tiny",
            r"policy: expected one of 'lossless', 'default', 'wide', 'small', 'plain_msfp15' or a",
        ),
        (lambda *_: "zip", r"expected the name of a codec \(.*\) or None for 'ExpBackward0', got"),
        (
            lambda *_: "pack1",
            "expected a codec that keeps the values of 'ExpBackward0', got 'pack1'",
        ),
    ],
    ids=["name", "codec", "sign"],
)
def test_a_wrong_policy_is_one_error(tensor, policy, message) -> None:
    with pytest.raises(ArgumentError, match=message), cto.torch.compressed_activations(policy):
        (tensor() * 2).exp()


def test_a_policy_is_told_what_is_saved(tensor) -> None:
    seen = []

    def policy(*given):
        seen.append(given)

    with cto.torch.compressed_activations(policy) as kept:
        torch.relu(tensor(2, N)).exp()
    assert ("ReluBackward0", "float32", (2, N), "value") in seen
    assert kept.report()["passed"]["policy"] >= 2 * 4 * N


def test_importing_the_package_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, cupy_training_ops as cto; cto.ActivationStash; print('torch' in sys.modules)"
    )
    actual = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert actual.stdout.strip() == b"False"


def test_the_report_names_what_was_kept(tensor) -> None:
    x = tensor(4, N)
    with cto.torch.compressed_activations("plain_msfp15") as kept:
        y = torch.relu(x).sin().cos()
    report = kept.report()
    assert report["names"] == {
        name: {"tensors": 1, "shared": n, "before": 16 * N, "after": 4 * N}
        for name, n in (("ReluBackward0 msfp15", 1), ("SinBackward0 msfp15", 0))
    }
    assert report["peak"] == report["held"] == report["after"] == 8 * N
    del y
    assert kept.report()["held"] == 0

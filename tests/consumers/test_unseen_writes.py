# SPDX-License-Identifier: MIT
"""Memory that is written without a tensor's version: codes of before are nobody else's."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.overrides import TorchFunctionMode  # noqa: E402

from .calls import run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


def through_an_alias(h) -> None:
    other = torch.empty(0)
    other.data = h.detach()
    other.mul_(3)


def by_numpy(h) -> None:
    array = h.detach().numpy()
    array *= 3


WRITES = {
    "data": lambda h: h.data.mul_(3),
    "numpy": by_numpy,
    "array": lambda h: np.multiply(np.asarray(h.detach()), 3, out=np.asarray(h.detach())),
    "dlpack": lambda h: torch.from_dlpack(h.detach()).mul_(3),
    "alias": through_an_alias,
    "address": lambda h: ctypes.memset(h.data_ptr(), 0, h.nbytes // 2),
    "storage": lambda h: torch.empty(0).set_(h.untyped_storage(), 0, h.shape).mul_(3),
    "apply": lambda h: h.detach().apply_(lambda value: 3 * value),
}


def second_gradient(write, x, a, b):
    """Of two products of one tensor, which is written between them: plain, and with codes."""

    def function(x, a, b):
        h = x * 1
        first = (h @ a).sum()
        write(h)
        return first + (h @ b).sum()

    (plain,) = torch.autograd.grad(function(x, a, b), b)
    (_, _, actual), report = run("default", function, x, a, b)
    return plain, actual, report


@pytest.mark.parametrize("name", WRITES)
def test_what_is_saved_after_an_unseen_write_is_encoded_anew(tensor, weight, name) -> None:
    other = (weight.detach() * 2).requires_grad_()
    plain, actual, report = second_gradient(WRITES[name], tensor(), weight, other)
    assert (actual - plain).norm() <= 0.02 * plain.norm()
    assert (report["tensors"], report["shared"]) == (2, 0)


def compiled(h) -> None:
    torch.compile(lambda h: h.data.mul_(3), backend="eager")(h)


def run_eagerly(h) -> None:
    """A compiled function that PyTorch does not compile, as beyond its limit of compilations."""
    write = torch.compile(by_numpy, backend="eager")
    with torch.compiler.set_stance("force_eager"):
        write(h)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
@pytest.mark.parametrize("write", [compiled, run_eagerly])
def test_compiled_functions_may_write_unseen(tensor, weight, write) -> None:
    torch._dynamo.reset()
    other = (weight.detach() * 2).requires_grad_()
    plain, actual, report = second_gradient(write, tensor(), weight, other)
    assert (actual - plain).norm() <= 0.02 * plain.norm()
    assert (report["tensors"], report["shared"]) == (2, 0)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
def test_what_is_saved_inside_of_a_compiled_function_is_encoded_anew(tensor, weight) -> None:
    torch._dynamo.reset()
    product = torch.compile(lambda h, w: h.data.mul_(3) is None or h @ w, backend="eager")

    def function(x, a, b):
        h = x * 1
        first = (h @ a).sum()
        return first + product(h, b).sum()

    inputs = tensor(), weight, (weight.detach() * 2).requires_grad_()
    *_, plain = torch.autograd.grad(function(*inputs), inputs)
    (*_, actual), _ = run("plain_msfp15", function, *inputs)
    assert (actual - plain).norm() <= 0.05 * plain.norm()


@pytest.mark.parametrize("name", ["data", "numpy"])
def test_memory_that_was_lent_before_may_be_written_at_any_time(tensor, weight, name) -> None:
    lend = {"data": lambda h: h.data, "numpy": lambda h: h.detach().numpy()}[name]
    other = (weight.detach() * 2).requires_grad_()

    def function(x, a, b):
        h = x * 1
        alias = lend(h)
        first = (h @ a).sum()
        alias *= 3
        return first + (h @ b).sum()

    inputs = tensor(), weight, other
    (plain,) = torch.autograd.grad(function(*inputs), other)
    (_, _, actual), _ = run("default", function, *inputs)
    assert (actual - plain).norm() <= 0.02 * plain.norm()


def test_what_is_read_alone_is_shared(tensor, weight) -> None:
    """Also by functions that take the address before it was saved."""
    other = (weight.detach() * 2).requires_grad_()
    _, _, report = second_gradient(
        lambda h: (h.shape, h.sum(), h.detach()), tensor(), weight, other
    )
    assert (report["tensors"], report["shared"]) == (1, 1)

    def function(x, a, b):
        h = x * 1
        assert h.data_ptr()
        return (h @ a).sum() + (h @ b).sum()

    _, report = run("default", function, tensor(), weight, other)
    assert (report["tensors"], report["shared"]) == (1, 1)


class Replayed(torch.autograd.Function):
    """As a CUDA graph that is captured once: each call writes the same memory, and is no write."""

    memory = torch.zeros(256, 128)
    alias = memory.numpy()

    @staticmethod
    def forward(_, x):
        Replayed.alias[:] = x.detach()
        return Replayed.memory.detach()

    @staticmethod
    def backward(_, slope):
        return slope


def test_memory_that_another_call_fills_is_another_tensor(tensor, weight) -> None:
    other = (weight.detach() * 2).requires_grad_()

    def function(x, a, b):
        first = (Replayed.apply(x) @ a).sum()
        return first + (Replayed.apply(3 * x) @ b).sum()

    inputs = tensor(), weight, other
    (plain,) = torch.autograd.grad(function(*inputs), other)
    (_, _, actual), _ = run("default", function, *inputs)
    assert (actual - plain).norm() <= 0.02 * plain.norm()


class Other(TorchFunctionMode):
    """Writes beside what it is asked."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sum:
            args[0].data.mul_(3)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", ["default", "lossless"])
def test_below_another_mode_nothing_is_shared(tensor, weight, policy) -> None:
    other = (weight.detach() * 2).requires_grad_()
    with Other():
        plain, actual, report = second_gradient(torch.sum, tensor(), weight, other)
        _, _, report = second_gradient(torch.sum, tensor(), weight, other)
    assert torch.equal(plain, actual)  # who saves it is unknown
    assert report["shared"] == 0

    def function(x, a, b):
        h = x * 1
        return (h @ a).sum() + (h @ b).sum()

    with Other():
        _, report = run(policy, function, tensor(), weight, other)
    assert report["shared"] == 0


# ---- checking ------------------------------------------------------------------------------------


def unseen(h) -> None:
    """Not seen: the capsule is made by a function that no mode is told of."""
    torch.from_dlpack(torch._C._to_dlpack(h.detach())).mul_(3)


@pytest.mark.parametrize("policy", ["default", "lossless"])
def test_checking_finds_what_was_written_unseen(tensor, weight, policy) -> None:
    for write, is_found in ((unseen, True), (WRITES["data"], True), (lambda _: None, False)):
        with cto.torch.compressed_activations(policy, check=True) as kept:
            h = tensor() * 1
            total = (h @ weight).sum()
            write(h)
            total = total + (h @ weight).sum()
        if is_found:
            with pytest.raises(RuntimeError, match="PyTorch was not told"):
                total.backward()
        else:
            total.backward()
    assert kept.report()["shared"] == 1


@pytest.mark.parametrize("policy", ["default", "lossless"])
def test_checking_finds_codes_of_before_where_the_second_alone_is_asked(
    tensor, weight, policy
) -> None:
    other = (weight.detach() * 2).requires_grad_()
    for write, is_found in ((unseen, True), (lambda _: None, False)):
        with cto.torch.compressed_activations(policy, check=True) as kept:
            h = tensor() * 1
            total = (h @ weight).sum()
            write(h)
            total = total + (h @ other).sum()
        if is_found:
            with pytest.raises(RuntimeError, match="PyTorch was not told"):
                torch.autograd.grad(total, other)
        else:
            torch.autograd.grad(total, other)
    assert kept.report()["shared"] == 1


def test_checking_takes_shared_codes_under_another_shape(tensor, weight) -> None:
    with cto.torch.compressed_activations(check=True) as kept:
        h = tensor() * 1
        total = (h @ weight).sum() + (weight.t() @ h.t()).sum()
        total = total + (h.view(-1, 64) @ weight[:64]).sum()
    total.backward()
    assert kept.report()["shared"] >= 1


def test_checking_takes_writes_that_pytorch_counts(tensor, weight) -> None:
    with cto.torch.compressed_activations(check=True):
        h = tensor() * 1
        total = (h @ weight).sum()
        h.add_(1)
        other = torch.where(tensor() > 0, torch.nan, tensor())  # not equal to itself
        total = total + (other @ weight).sum()
    total.backward()


def test_what_was_lent_is_not_held(tensor) -> None:
    kept = cto.torch.compressed_activations()
    with kept:
        h = tensor() * 1
        h.data.mul_(3)
    gone = weakref.ref(h.untyped_storage())
    assert len(kept._exposed) == 1
    del h
    assert gone() is None
    assert not kept._exposed

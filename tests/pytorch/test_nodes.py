# SPDX-License-Identifier: MIT
"""Autograd's nodes whose class holds what other calls note in each: of calls that are alike."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from torch.nn import functional as theirs  # noqa: E402

from cupy_training_ops import OpError  # noqa: E402
from cupy_training_ops.torch import functional, ops  # noqa: E402
from cupy_training_ops.torch.ops import dispatch  # noqa: E402

# Of a matrix, two rows and labels, by names that both have.
CALLS = {
    "layer_norm": lambda module, x, row, shift, _: module.layer_norm(x, (24,), row, shift),
    "layer_norm plain": lambda module, x, *_: module.layer_norm(x, (24,)),
    "rms_norm": lambda module, x, row, *_: module.rms_norm(x, (24,), row),
    "softmax": lambda module, x, *_: module.softmax(x, -1),
    "log_softmax": lambda module, x, *_: module.log_softmax(x, 0),
    "gelu": lambda module, x, *_: module.gelu(x),
    "relu": lambda module, x, *_: module.relu(x),
    "embedding": lambda module, x, _row, _shift, target: module.embedding(target % 5, x),
    "cross_entropy": lambda module, x, _row, _shift, target: module.cross_entropy(x, target),
    "weighted": lambda module, x, row, _shift, target: module.cross_entropy(
        x, target, row.detach()
    ),
}
every_call = pytest.mark.parametrize("name", CALLS)


def is_of_a_kind(y: torch.Tensor) -> bool:
    return "needs_input_grad" in vars(type(y.grad_fn))


def noted(call) -> torch.Tensor:
    """The result of the first call that has such a node, behind as few others as it takes."""
    for _ in range(2):
        assert not is_of_a_kind(call())
    y = call()
    assert is_of_a_kind(y)
    return y


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    doors_of_all = ops.DOORS.values()
    for door in doors_of_all:
        for inside in (door._every, door._first):
            inside.recent.forget()


@every_call
def test_gradients_are_the_same_whatever_needs_them(made, labels, name) -> None:
    """Each set of tensors that need gradients is a kind; they take turns, with new numbers."""
    call, n_of_a_kind = CALLS[name], 0
    sets = [needs for needs in itertools.product((True, False), repeat=3) if any(needs)]
    for needs in sets * 4:
        tensors = [made(5, 24), made(24).abs(), made(24)]
        target = labels(24, 5)
        wanted = [
            x.requires_grad_() for x, is_needed in zip(tensors, needs, strict=True) if is_needed
        ]
        actual, expected = (call(module, *tensors, target) for module in (functional, theirs))
        assert actual.requires_grad == expected.requires_grad
        if not actual.requires_grad:
            continue
        n_of_a_kind += is_of_a_kind(actual)
        dy = made(*expected.shape)
        grads, theirs_of = (
            torch.autograd.grad(y, wanted, dy, allow_unused=True) for y in (actual, expected)
        )
        for grad, expected_grad in zip(grads, theirs_of, strict=True):
            assert (grad is None) == (expected_grad is None)
            if grad is not None:
                torch.testing.assert_close(grad, expected_grad, atol=2e-5, rtol=2e-5)
    assert n_of_a_kind


@every_call
def test_what_a_node_of_all_calls_says_it_says_too(made, labels, name) -> None:
    """The name, what is saved, the refusal of a second derivative."""
    x, rows, target = made(5, 24).requires_grad_(), (made(24).abs(), made(24)), labels(24, 5)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        results = [CALLS[name](functional, x, *rows, target) for _ in range(4)]
        first, *_, y = results
    assert [*map(is_of_a_kind, results)] == [False, False, True, True]
    assert y.grad_fn.name() == first.grad_fn.name()
    n = len(saved) // 4
    assert [t.shape for t in saved] == [t.shape for t in saved[:n]] * 4
    dy = made(*y.shape).requires_grad_()
    with pytest.raises(OpError, match="create_graph"):  # at once, or where it is asked for
        torch.autograd.grad(torch.autograd.grad(y, x, dy, create_graph=True)[0].sum(), dy)


@pytest.mark.parametrize("changed", ["x", "row"])
def test_what_is_saved_must_not_change(made, changed) -> None:
    x, row = made(5, 24).requires_grad_(), made(24).requires_grad_()
    y = noted(lambda: functional.layer_norm(x, (24,), row))
    with torch.no_grad():
        (x if changed == "x" else row).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(torch.ones_like(y))


def test_a_result_that_is_saved_must_not_change(made) -> None:
    x = made(5, 24).requires_grad_()
    y = noted(lambda: functional.softmax(x, -1))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_dropout_draws_in_each_call_and_keeps_its_own_mask(made) -> None:
    x = made(64, 64).abs().requires_grad_()
    results = [noted(lambda: functional.dropout(x)), *[functional.dropout(x) for _ in range(3)]]
    assert all(map(is_of_a_kind, results))
    for y, other in itertools.pairwise(results):
        assert (y != other).any()
    for y in results:
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        torch.testing.assert_close(dx, torch.where(y == 0, 0.0, 2.0))


def test_a_gradient_that_is_not_there_stays_so(made) -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, __):
            return None

    x = made(5, 24).requires_grad_()
    y = noted(lambda: functional.gelu(x))
    (dx,) = torch.autograd.grad(Nothing.apply(y), x, torch.ones_like(y), allow_unused=True)
    assert dx is None


@every_call
def test_no_class_holds_a_tensor(made, labels, name) -> None:
    def held() -> list[weakref.ref]:
        tensors = [made(5, 24).requires_grad_(), made(24).abs().requires_grad_(), made(24)]
        target = labels(24, 5)
        y = noted(lambda: CALLS[name](functional, *tensors, target))
        return [*map(weakref.ref, (*tensors, y))]

    actual = held()
    gc.collect()
    assert [x() for x in actual] == [None] * 4


def test_what_is_kept_beside_a_calls_own_has_no_class(made) -> None:
    """A tensor that `save` makes, or attributes that are tensors, are of each call."""
    x = made(5, 24).requires_grad_()
    for kept in ("saved", "attribute"):
        operator = ops.DOORS["quick_gelu"].operator

        def keep(ctx, arguments, _, kept=kept):
            x, ctx.alpha = arguments
            copy = x.detach().clone()
            ctx.save_for_backward(copy if kept == "saved" else x)
            ctx.more = 1 if kept == "saved" else copy

        changed = type(operator)(**{**vars(operator), "save": keep})
        door = dispatch.Door(changed, ops.DOORS["quick_gelu"].registered)
        for _ in range(4):
            y = door.every(x, 1.5)
            assert not is_of_a_kind(y)
            (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
            expected = x.detach().requires_grad_()
            (expected_dx,) = torch.autograd.grad(
                (expected * (1.5 * expected).sigmoid()).sum(), expected
            )
            torch.testing.assert_close(dx, expected_dx)

# SPDX-License-Identifier: MIT
"""Calls that look like a recent one to PyTorch's guard: what they run, and what looks otherwise."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, tensors_on  # noqa: E402
from torch.nn import functional as theirs  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cupy_training_ops.torch import functional, ops  # noqa: E402
from cupy_training_ops.torch.ops import dispatch, launching  # noqa: E402


@pytest.fixture
def longer(monkeypatch):
    """Calls that matched no recent one."""
    count = []
    inside = dispatch._DirectCall.run_directly

    def counted(self, arguments):
        count.append(self)
        return inside(self, arguments)

    monkeypatch.setattr(dispatch._DirectCall, "run_directly", counted)
    return count


def calls(x, row, target):
    return {
        "layer_norm": lambda: functional.layer_norm(x, (24,), row, row * 2),
        "rms_norm": lambda: functional.rms_norm(x, (24,), row),
        "rms_norm plain": lambda: functional.rms_norm(x, (24,)),
        "softmax": lambda: functional.softmax(x, -1),
        "gelu": lambda: functional.gelu(x),
        "gelu with a bias": lambda: functional.gelu(x, "tanh", bias=row),
        "relu": lambda: functional.relu(x),
        "dropout": lambda: functional.dropout(x, 0.25),
        "embedding": lambda: functional.embedding(target, x),
        "cross_entropy": lambda: functional.cross_entropy(x, target),
    }


CALLS = list(calls(None, None, None))


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("gradients", [False, True])
def test_the_second_call_takes_the_short_way(made, labels, longer, gradients, case) -> None:
    x, row = made(5, 24), made(24)
    call = calls(x, row, labels(5, 5))[case]
    x.requires_grad_(gradients)
    with tensors_on(HollowTensors()):
        for n in range(4):
            y = call()
            if gradients:
                y.backward(torch.ones_like(y))
            if not n:
                n_longer = len(longer)
    is_plain = case == "relu" and not gradients  # PyTorch's own
    assert n_longer == (0 if is_plain else 2 if gradients and "entropy" not in case else 1)
    assert len(longer) == n_longer


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen = [*getattr(self, "seen", []), str(function)]
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("emulated")
def test_what_looks_otherwise_is_computed_as_it_is(made) -> None:
    """After a call that is noted; each of these has one thing that is not as it was."""
    x, row, shift = made(6, 24), made(24), made(24)
    given = {
        "shape": (made(3, 24), row, shift),
        "more dimensions": (made(2, 3, 24), row, shift),
        "strides": (made(24, 6).t(), row, shift),
        "a row with gaps": (x, made(48)[::2], shift),
        "alignment": (made(1 + 6 * 24)[1:].view(6, 24), row, shift),
        "negative": (torch.complex(x, -x).conj().imag, row, shift),
        "no weight": (x, None, shift),
        "no bias": (x, row, None),
        "neither": (x, None, None),
        "the same twice": (x, row, row),
        "parameter": (x, torch.nn.Parameter(row), shift),
        "gradient": (made(6, 24).requires_grad_(), row, shift),
        "as it was": (x, row, shift),
    }
    for what in (*given, *reversed(given)):
        functional.layer_norm(x, (24,), row, shift)
        actual, expected = (
            module.layer_norm(given[what][0], (24,), *given[what][1:])
            for module in (functional, theirs)
        )
        torch.testing.assert_close(actual, expected, msg=lambda text, what=what: f"{what}: {text}")
        assert actual.requires_grad == expected.requires_grad, what
    wide = [tensor.double() for tensor in (x, row, shift)]
    expected = theirs.layer_norm(wide[0], (24,), *wide[1:])
    torch.testing.assert_close(functional.layer_norm(wide[0], (24,), *wide[1:]), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is")
@pytest.mark.parametrize("case", ["mode", "vmap", "forward mode", "trace", "inference", "autocast"])
def test_who_looks_on_is_seen(made, case) -> None:
    """Ways that are noted outside are none there."""
    x, row = made(6, 24), made(24)
    given = (x, (24,), row, 1e-5)
    door = ops.DOORS["rms_norm"]
    for _ in range(3):
        door.first(*given)
    find = door._first.recent.caller(lambda *_: None)
    assert find(*given) is not None
    seen = []
    with contextlib.ExitStack() as stack:
        if case == "vmap":
            torch.vmap(lambda y: (seen.append(find(*given)), y)[1])(x)
        elif case == "trace":
            torch.jit.trace(lambda y: (seen.append(find(*given)), y)[1], (x,))
        else:
            stack.enter_context(
                {
                    "mode": Mode,
                    "forward mode": torch.autograd.forward_ad.dual_level,
                    "inference": torch.inference_mode,
                    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
                }[case]()
            )
            seen.append(find(*given))
    assert set(seen) == {None}


class Functions(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen += function in ops.DOORS["rms_norm"].nodes
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("gradients", [False, True])
def test_who_looks_on_is_told_of_calls_like_those_before(made, gradients) -> None:
    """By the functions that are called, whose shortest way is one of its own."""
    x, row = made(6, 24).requires_grad_(gradients), made(24)

    def call(y=x):
        return functional.rms_norm(y, (24,), row, 0.5)

    for _ in range(3):
        call()
    with Mode() as mode:
        call()
    assert any("rms_norm" in name for name in mode.seen)
    with Functions() as functions:
        for n in range(3):
            call()
            assert functions.seen == (n + 1) * gradients
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        torch.testing.assert_close(call(dual), theirs.rms_norm(dual, (24,), row, 0.5))
    traced, other = torch.jit.trace(call, (x,)), made(6, 24)
    torch.testing.assert_close(traced(other), theirs.rms_norm(other, (24,), row, 0.5))


def test_where_nothing_is_drawn_the_longer_way_draws(made) -> None:
    x, drawn = made(6, 24), [(3, 0), None]
    call = ops.DOORS["bitmask_dropout"].drawing(lambda _: drawn.pop(0), lambda *_: "longer")
    for _ in range(3):
        functional.dropout(x, 0.25)
    given = x, None, None, 0.25
    assert isinstance(call(*given), torch.Tensor)
    assert call(*given) == "longer"
    assert not drawn


def test_memory_that_is_gone_is_seen(made) -> None:
    """As fully_shard leaves parameters between their uses."""
    x, row = made(6, 24), made(24)
    with tensors_on(HollowTensors()) as backend:
        for _ in range(3):
            functional.rms_norm(x, (24,), row)
        n_launches = len(backend.launches)
        row.untyped_storage().resize_(0)
        with contextlib.suppress(Exception):  # whatever the longer way says
            functional.rms_norm(x, (24,), row)
        assert len(backend.launches) == n_launches


def test_gradients_are_recorded_by_the_mode_of_the_call(made) -> None:
    x, row = made(6, 24), torch.nn.Parameter(made(24))
    for _ in range(3):
        with torch.no_grad():
            assert not functional.rms_norm(x, (24,), row).requires_grad
        assert functional.rms_norm(x, (24,), row).requires_grad
        assert not functional.rms_norm(x, (24,), row.detach()).requires_grad


def test_without_pytorchs_guard_all_calls_go_the_longer_way(made, monkeypatch, longer) -> None:
    monkeypatch.setattr(dispatch, "_TensorGuards", None)
    x = made(6, 24)
    for _ in range(3):
        torch.testing.assert_close(functional.softmax(x, -1), theirs.softmax(x, -1))
    assert len(longer) == 3


def test_few_kinds_are_noted(made, monkeypatch) -> None:
    """Every so many longer calls one, and no more than a few with the same numbers, or others."""
    monkeypatch.setattr(dispatch, "_TRACE_EVERY", 4)
    inside = ops.DOORS["softmax"]._every.recent
    monkeypatch.setattr(inside, "_n_fallbacks", 0)
    with tensors_on(HollowTensors()):
        for n in range(1, 4):
            functional.softmax(made(n, 8), -1)
        assert not any(inside._calls)
        for n in range(4, 200):
            functional.softmax(made(n, 8), -1)
            assert 1 <= len(inside._calls[True][launching.exact((-1,))]) <= dispatch._MAX_ALIKE
        monkeypatch.setattr(dispatch, "_TRACE_EVERY", 1)
        for n in range(1, 100):
            functional.rms_norm(made(2, 8), (8,), None, n * 0.01)
        numbers = ops.DOORS["rms_norm"]._first.recent._calls[True]
        assert 1 <= len(numbers) <= 8 * dispatch._MAX_ALIKE


def test_numbers_that_are_no_key_are_taken(made) -> None:
    """A list in the place of a shape, and arguments that are left out."""
    x, row = made(6, 24), made(24)
    for _ in range(3):
        actual = functional.rms_norm(x, [24], row, 0.5)
        torch.testing.assert_close(actual, theirs.rms_norm(x, (24,), row, 0.5))
        torch.testing.assert_close(ops.gelu(x), theirs.gelu(x))


@pytest.mark.parametrize("case", ["forward", "backward"])
def test_the_dispatchers_operators_go_the_short_way_too(made, monkeypatch, case) -> None:
    count, trace = [], launching.trace
    monkeypatch.setattr(dispatch, "compute", None)
    monkeypatch.setattr(dispatch, "trace", lambda *given: count.append(1) or trace(*given))
    row = made(24)
    with tensors_on(HollowTensors()):
        for n in range(4):
            x, dy, inv_std = made(5, 24), made(5, 24), made(5, 1)
            if case == "forward":
                torch.ops.cto.rms_norm.default(x, [24], row, 1e-3)
            else:
                torch.ops.cto.rms_norm_backward.default(dy, x, [24], row, inv_std, [True, True])
            if not n:
                n_longer = len(count)
    assert n_longer == len(count) == 1


@pytest.mark.usefixtures("emulated")
def test_the_dispatchers_operators_look_at_the_mask(made) -> None:
    """In turns, with new numbers."""
    for mask in [(True, True, True), (True, False, True), (False, True, False)] * 3:
        x, row, shift, dy = made(5, 24), made(24), made(24), made(5, 24)
        y, *statistics = torch.ops.cto.layer_norm.default(x, [24], row, shift, 0.5)
        leaves = [each.clone().requires_grad_() for each in (x, row, shift)]
        expected = theirs.layer_norm(leaves[0], (24,), *leaves[1:], 0.5)
        torch.testing.assert_close(y, expected.detach(), atol=2e-6, rtol=2e-6)
        actual = torch.ops.cto.layer_norm_backward.default(dy, x, [24], row, *statistics, [*mask])
        for dx, expected_dx, is_wanted in zip(
            actual, torch.autograd.grad(expected, leaves, dy), mask, strict=True
        ):
            if is_wanted:
                torch.testing.assert_close(dx, expected_dx, atol=2e-5, rtol=2e-5)
            else:
                assert not dx.numel()

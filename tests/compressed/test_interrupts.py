# SPDX-License-Identifier: MIT
"""A context that is interrupted where it begins or ends is closed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

import interrupts  # noqa: E402
from torch.autograd.graph import saved_tensors_hooks  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

import cupy_training_ops as cto  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


def state():
    """Hooks and modes of this thread."""
    return (
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.overrides._get_current_function_mode_stack(),
    )


def enter_and_leave(kept) -> None:
    with kept:
        pass


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within itself"])
def test_an_interrupt_leaves_it_closed(within) -> None:
    kept = cto.torch.compressed_activations()

    def check(subject, line) -> None:
        assert state() == before, line
        assert len(subject._entered.statements) == within, line
        assert subject._thread.mode.sees_all is within, line

    def all_lines() -> None:
        nonlocal before
        before = state()
        lines = interrupts.at_each_line(lambda: kept, enter_and_leave, check)
        assert len(lines) > 40

    before = state()
    if within:
        with kept:
            all_lines()
    else:
        all_lines()
    x = torch.randn(256, 128, requires_grad=True)
    with kept:
        total = torch.relu(x * 1).sum()
    total.backward()
    assert kept.report()["tensors"] == 1


class Nothing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_what_was_entered_inside_and_is_not_left_stays() -> None:
    before = state()
    kept, mode = cto.torch.compressed_activations(), Nothing()
    hooks = saved_tensors_hooks(lambda x: x, lambda x: x)
    kept.__enter__()
    mode.__enter__()
    hooks.__enter__()
    kept.__exit__(None, None, None)
    assert state() == ((hooks.pack_hook, hooks.unpack_hook), [*before[1], mode])
    hooks.__exit__()
    mode.__exit__(None, None, None)
    assert state() == before

# SPDX-License-Identifier: MIT
"""The window of what is decided late, as on a GPU."""

from __future__ import annotations

import gc
import weakref

import pytest
from late_events import Event

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional  # noqa: E402

from cupy_training_ops.torch.error_checks import PendingChecks  # noqa: E402

from .calls import NBYTES, SHAPE  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


@pytest.fixture
def late(monkeypatch):
    """Guards whose numbers come late; the events, and the size of a window."""
    events = []

    def late(numbers, _):
        events.append(Event())
        return numbers, events[-1]

    monkeypatch.setattr("cupy_training_ops.torch.error_checks.read_later", late)
    return events


def windowed(limit):
    kept = cto.torch.compressed_activations()
    kept._checks.pending = PendingChecks(limit)
    return kept


def test_the_host_waits_only_where_the_window_is_full(tensor, weight, late) -> None:
    kept, xs = windowed(3 * NBYTES), [tensor() for _ in range(5)]
    with kept:
        made = [(x * 1) @ weight for x in xs]
        assert [event.waits for event in late] == [1, 1, 0, 0, 0]
        late[2].done = True
        made.append((xs[0] * 1) @ weight)
        assert [event.waits for event in late] == [1, 1, 0, 0, 0, 0]
    sum(y.sum() for y in made[:4]).backward()
    assert [event.waits for event in late] == [1, 1, 0, 1, 0, 0]
    assert kept.report()["window"] == 3 * NBYTES


def test_originals_go_when_their_codes_are_good(tensor, weight, late) -> None:
    kept, gone = windowed(8 * NBYTES), []
    with kept:
        for x in [tensor() for _ in range(4)]:
            y = x * 1
            gone.append(weakref.ref(y.untyped_storage()))
            total = (y @ weight).sum()
            for event in late[:-1]:
                event.done = True
            del y, x
        gc.collect()
        assert [each() is None for each in gone] == [True, True, True, False]
    assert total is not None


def test_a_late_failure_gives_the_original(tensor, weight, late) -> None:
    x, kept = tensor(), windowed(8 * NBYTES)
    with kept:
        total = ((x + 100) @ weight).sum()
    assert kept.report()["failed"] == {"matmul tiles": 1}
    (actual,) = torch.autograd.grad(total, weight)
    assert torch.equal(actual, torch.autograd.grad(((x + 100) @ weight).sum(), weight)[0])
    assert late[0].waits == 1


def test_a_late_failure_of_what_was_written_is_an_error(tensor, weight, late) -> None:
    x, kept = tensor(), windowed(8 * NBYTES)
    with kept:
        y = x + 100
        total = (y @ weight).sum()
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    assert late[0].waits == 1


def test_the_window_holds_the_largest_tensor(tensor, weight, late) -> None:
    kept = windowed(0)
    with kept:
        made = [(tensor() * 1) @ weight for _ in range(3)]
    assert made
    assert kept.report()["window"] == NBYTES
    assert [event.waits for event in late] == [1, 1, 1]


def test_a_late_device_is_not_waited_for_while_a_share_of_a_step_waits(
    tensor, weight, late, monkeypatch
) -> None:
    monkeypatch.setattr("cupy_training_ops.activations.pending.SHARE", 2)
    kept, waits = windowed(NBYTES), []
    for _ in range(2):
        late.clear()
        with kept:
            made = [((tensor() * 1) @ weight).sum() for _ in range(8)]
            waits.append([event.waits for event in late])
        sum(made).backward()
    assert waits == [[1] * 7 + [0], [1] * 4 + [0] * 4]
    assert kept.report()["window"] == 4 * NBYTES


def test_a_context_of_every_step_goes_on_where_the_one_before_it_was(
    tensor, weight, late, monkeypatch
) -> None:
    """Whoever makes a new one for each step does not wait in each as in the first."""
    monkeypatch.setattr("cupy_training_ops.activations.pending.SHARE", 2)
    steps, waits = {}, []
    monkeypatch.setattr("cupy_training_ops.torch.activations._steps", steps)
    for _ in range(2):
        late.clear()
        kept = cto.torch.compressed_activations()
        kept._checks.pending._limit = NBYTES
        with kept:
            made = [((tensor() * 1) @ weight).sum() for _ in range(8)]
            waits.append([event.waits for event in late])
        sum(made).backward()
    assert waits == [[1] * 7 + [0], [1] * 4 + [0] * 4]
    assert len(steps) == 1


def test_originals_wait_in_the_room_of_codes_that_are_to_come(
    tensor, weight, late, monkeypatch
) -> None:
    """A step like the last one has all of its codes in the end: 32 of a quarter's bytes each."""
    monkeypatch.setattr("cupy_training_ops.activations.pending.SHARE", 1 << 40)
    kept, waits = windowed(NBYTES), []
    for _ in range(2):
        late.clear()
        with kept:
            made = [((tensor() * 1) @ weight).sum() for _ in range(3)]
            waits.append([event.waits for event in late])
            made += [((tensor() * 1) @ weight).sum() for _ in range(29)]
            waits.append([event.waits for event in late])
        sum(made).backward()
    assert waits == [[1, 1, 0], [1] * 31 + [0], [0, 0, 0], [1] * 31 + [0]]
    assert kept.report()["window"] == 3 * NBYTES


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("n_between", [0, 2])
def test_what_comes_behind_the_limit_changes_no_decision(weight, n_between, monkeypatch) -> None:
    """A norm centres the product of a tensor that is good for the product alone."""
    monkeypatch.setattr("cupy_training_ops.activations.pending.SHARE", 1)
    kept, parts = windowed(NBYTES), []
    for _ in range(2):  # the first finds how much may wait
        x = (torch.randn(SHAPE) * 0.1 + 10 * torch.randn(SHAPE[1])).requires_grad_()
        with kept:
            product = (x * 1) @ weight
            parts = [((torch.randn(SHAPE).requires_grad_() * 1) @ weight) for _ in range(n_between)]
            total = functional.batch_norm(product, None, None, training=True)[0].sum()
        torch.autograd.grad(total + sum(part.sum() for part in parts), x)
    failed = kept.report()["failed"].get("matmul features", 0)
    assert failed == (0 if n_between else 2)


@pytest.mark.usefixtures("late")
def test_decisions_do_not_depend_on_when_they_are_made(weight) -> None:
    """The backward pass of the newest asks while the window is open."""
    actual = []
    for limit in (0, 8 * NBYTES):
        x, w = torch.ones(SHAPE).cumsum(1).requires_grad_(), weight
        with windowed(limit):
            total = (torch.relu((x * 1) @ w) @ w).sum()
        actual.append(torch.autograd.grad(total, (x, w)))
    assert all(map(torch.equal, *actual))


def test_under_capture_decisions_of_steps_before_hold(tensor, weight, monkeypatch) -> None:
    from cupy_training_ops.torch import activations

    kept, x = cto.torch.compressed_activations(), tensor()

    def step(far):
        with kept:
            total = ((x + far) @ weight).sum() + ((x * 1) @ weight).sum()
        return total

    step(100).backward()
    kept._checks._later[x.device] = torch.zeros((), dtype=torch.int64)
    monkeypatch.setattr(activations, "is_captured", lambda _: True)
    captured = step(100)
    assert kept.report()["failed_later"] == 0
    assert kept.report()["held"] == NBYTES // 4
    assert captured is not None
    monkeypatch.setattr(activations, "is_captured", lambda _: False)
    fresh = cto.torch.compressed_activations()
    kept = fresh
    step(0).backward()
    kept._checks._later[x.device] = torch.zeros((), dtype=torch.int64)
    monkeypatch.setattr(activations, "is_captured", lambda _: True)
    captured = step(100)
    assert kept.report()["failed_later"] == 1  # what replays would show

# SPDX-License-Identifier: MIT
"""Launches that are noted, and made again over the same memory."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.device import recording, workspace

torch = pytest.importorskip("torch")

from tensor_backends import EmulatedTensors, HollowTensors, tensors_on  # noqa: E402


@pytest.fixture
def backend():
    with tensors_on(EmulatedTensors()) as actual:
        yield actual


@pytest.fixture
def hollow():
    with tensors_on(HollowTensors()) as actual:
        yield actual


@pytest.mark.usefixtures("backend")
def test_launches_are_made_again_over_what_is_in_the_memory_then(rng) -> None:
    """The first call's scratch memory is its own: later calls of the operator use other memory."""
    indices = torch.from_numpy(rng.integers(0, 1000, 5000))
    dy, out = torch.from_numpy(rng.standard_normal((5000, 2))), torch.empty((1000, 2)).double()
    op, stores = cto.GatherGrad(), {}
    with recording.recorded() as noted, workspace.in_stores(stores):
        op((1000, 2), indices, dy, out=out)
    assert noted.is_whole
    assert len(noted.calls) > 1
    assert len(stores) == 1
    for _ in range(2):
        indices.copy_(torch.from_numpy(rng.integers(0, 1000, 5000)))
        dy.copy_(torch.from_numpy(rng.standard_normal((5000, 2))))
        expected = op((1000, 2), indices.clone(), dy.clone()).clone()
        out.fill_(np.nan)
        recording.make_again(noted.calls)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_memory_of_an_owner_stays_where_it_is(backend) -> None:
    """Another size has other memory; zeros that may not be zero are cleared before the next use."""
    spaces, stores = workspace.Workspaces("Op"), {}
    with workspace.in_stores(stores):
        first = spaces.get(backend, 0, 100, 16)
        larger = spaces.get(backend, 0, 200, 16)
        first.zeros.fill_(7)
        first.is_zero = False
        again = spaces.get(backend, 0, 100, 16)
    assert again is first
    assert larger is not first
    assert first.is_zero
    assert not first.zeros.any()
    assert spaces.get(backend, 0, 100, 16) not in (first, larger)


@pytest.mark.usefixtures("hollow")
def test_what_another_thread_queues_is_not_noted(rng) -> None:
    x = torch.from_numpy(rng.standard_normal(64))
    dy, other = x.clone(), torch.empty_like(x)
    thread = threading.Thread(target=lambda: cto.relu_grad(dy, x, out=other))
    with recording.recorded() as noted:
        thread.start()
        thread.join()
    assert not noted.calls
    assert not recording.active


@pytest.mark.usefixtures("hollow")
def test_numbers_that_an_operator_supplies_cannot_be_noted(rng) -> None:
    """Each call draws others."""
    x = torch.from_numpy(rng.standard_normal(64).astype(np.float32))
    with recording.recorded() as noted:
        cto.Dropout(seed=3)(x, 0.5, True)
    assert not noted.is_whole


@pytest.mark.usefixtures("hollow")
def test_an_inner_recording_does_not_note_for_the_outer_one(rng) -> None:
    x = torch.from_numpy(rng.standard_normal(64))
    with recording.recorded() as outer:
        with recording.recorded() as inner:
            cto.relu_grad(x, x)
        assert recording.current() is outer
    assert (len(inner.calls), len(outer.calls)) == (1, 0)

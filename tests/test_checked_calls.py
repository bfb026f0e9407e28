# SPDX-License-Identifier: MIT
"""Calls with open inputs that are checked once and made again and again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from probe.frame_probe import ProbeCopy, ProbeDelegate
from probe.list_probe import (
    ProbeDescend,
    ProbeMomentum,
)
from probe.probe import ProbeCut

from cupy_training_ops import ArgumentError
from cupy_training_ops.testing.compare import assert_matches

SIZES = (3, 5)


def ones(anywhere, value: float = 1.0) -> list:
    return [anywhere.place(np.full(n, value, np.float32)) for n in SIZES]


def test_a_checked_call_is_made_as_often_as_it_is_called(anywhere) -> None:
    """With the values of its check, and with new ones; those of another check are its own."""
    ws, ms, vs = ones(anywhere, 0.0), ones(anywhere, 0.0), ones(anywhere, 0.0)
    opened = ProbeMomentum().bound(ws, ..., ms, vs, 0.5)
    gs = ones(anywhere)
    first, second = opened.checked(Gs=gs), opened.checked(Gs=gs, rate=2.0)
    assert list(first.changing) == ["rate"]
    assert not anywhere.host(vs[0]).any()  # nothing is launched yet
    expected, m = 0.0, 0.0
    for call, values, rate in (
        (first, {}, 0.5), (second, {}, 2.0), (first, {"rate": 4.0}, 4.0), (second, {}, 2.0),
    ):  # fmt: skip
        assert call(**values) is None
        m = 0.9 * m + 1
        expected -= rate * m
    for w, v in zip(ws, vs, strict=True):
        assert_matches(anywhere.host(w), np.full(w.shape, expected, np.float32))
        assert_matches(anywhere.host(v), np.full(v.shape, 4.0, np.float32))


def test_it_keeps_no_list_that_tables_hold_the_addresses_of(run) -> None:
    opened = ProbeMomentum().bound(ones(run), ..., ones(run), ones(run), 0.5)
    gs = ones(run)
    call = opened.checked(Gs=gs)
    call()
    alive = weakref.ref(gs[0])
    gs.clear()
    gc.collect()
    assert alive() is None


def test_it_keeps_what_a_kernel_takes_itself(anywhere) -> None:
    x, y = anywhere.place(np.arange(300, dtype=np.float32)), anywhere.place(np.zeros(300, "f4"))
    call = ProbeCopy().bound(..., out=y).checked(X=x)
    del x
    gc.collect()
    call()
    assert_matches(anywhere.host(y), np.arange(300, dtype=np.float32), 0)


def test_arrays_for_numbers_are_kept(anywhere) -> None:
    ws, rate = ones(anywhere), anywhere.place(np.full(1, 0.5, np.float32))
    gs = ones(anywhere)
    call = ProbeDescend().bound(ws, ..., ...).checked(Gs=gs, rate=rate)
    assert not call.changing
    call()
    rate[...] = 0.25
    call()
    assert_matches(anywhere.host(ws[0]), np.full(3, 0.25, np.float32), 0)


def test_what_a_call_refuses_is_refused_when_it_is_checked(anywhere) -> None:
    ws = ones(anywhere)
    opened = ProbeMomentum().bound(ws, ..., ones(anywhere), ones(anywhere), 0.5)
    call = opened.checked(Gs=ones(anywhere))
    for wrong, message in (
        ({}, "expected an argument, because it was left open"),
        ({"Gs": ones(anywhere)[:1]}, "expected the shapes of Ws"),
        ({"Gs": ws}, "expected memory of its own"),
        ({"Gs": ones(anywhere), "rate": "a"}, "expected a number"),
    ):
        with pytest.raises(ArgumentError, match=f"^ProbeMomentum: .*{message}"):
            opened.checked(**wrong)
    with pytest.raises(ArgumentError, match="Gs: expected a name among"):
        call(Gs=ones(anywhere))
    assert_matches(anywhere.host(ws[0]), np.ones(3, np.float32), 0)


@pytest.mark.parametrize(("op", "value"), [(ProbeCut, (100, 200)), (ProbeDelegate, 2.0)])
def test_a_call_that_returns_other_arrays_each_time_is_not_checked(anywhere, op, value) -> None:
    opened, x = op().bound(..., value), anywhere.place(np.ones(300, np.float32))
    with pytest.raises(ArgumentError, match=f"^{op.name}: checked: expected a call that writes"):
        opened.checked(X=x)
    assert len(opened(X=x)) == 2


class Emptied(dict):
    """A table that another thread empties between two look-ups."""

    def __contains__(self, key: object) -> bool:
        is_there = super().__contains__(key)
        self.clear()
        return is_there


def test_another_thread_empties_the_table_of_addresses(anywhere) -> None:
    x, y = ones(anywhere, 3.0)[0], ones(anywhere, 0.0)[0]
    opened = ProbeCopy().bound(..., out=y)
    opened(X=x)
    (form,) = opened._forms.values()
    (call,) = form._calls.values()
    call._placed = Emptied(call._placed)
    x[...] = 5.0
    opened(X=x)
    assert_matches(anywhere.host(y), np.full(3, 5.0, np.float32), 0)

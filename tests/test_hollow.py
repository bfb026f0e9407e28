# SPDX-License-Identifier: MIT
"""The way to a launch on CuPy's own arrays, without a GPU: addresses are made up, launches noted.

What the emulator cannot show: its arrays are NumPy's, on the device and on the host alike.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from probe import frame_probe, list_probe
from runs import drawn_samples

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.samples import all_samples, as_tuple, mapped_inputs, mapped_outputs
from cupy_training_ops.testing.samples import flat as taken_apart

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")

from cupy_training_ops.testing.hollow import hollow, hollow_launches  # noqa: E402


def samples() -> Iterator[Any]:
    """Those of the types that the session draws; the others are thorough."""
    drawn = drawn_samples(int(os.environ["CTO_SEED"]))
    for sample in chain.from_iterable(all_samples().values()):
        marks = () if sample.id in drawn else pytest.mark.thorough
        yield pytest.param(sample, id=sample.id, marks=marks)


@pytest.fixture
def launches():
    """What is launched from here on, CuPy's arrays being hollow ones."""
    with hollow_launches() as result:
        yield result


def inputs_of(op, values, offset: int) -> list:
    return mapped_inputs(op, values, lambda x: like(x, offset))


def like(value, offset: int = 0):
    """A hollow array like an array; anything else as it is."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    return hollow(value.shape, value.dtype, offset)


def assert_like(results, expected) -> None:
    """Arrays in the same places, of the same shapes and dtypes; those of the host are NumPy's."""
    for result, wanted in zip(taken_apart(results), taken_apart(expected), strict=True):
        assert (result is None) == (wanted is None)
        if wanted is not None:
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.parametrize("sample", list(samples()))
def test_every_call_reaches_its_launches(sample: Sample, launches, rng) -> None:
    """With new outputs; then with outputs and a workspace of the caller's."""
    op, values = get_op(sample.op)(**sample.attributes), sample.make(rng)
    expected = op(*values)
    inputs = inputs_of(op, values, sample.offset)
    results = op(*inputs)
    assert_like(results, expected)
    if op.no_out:
        assert not launches
        return
    place = functools.partial(like, offset=sample.offset_of_out)
    out = mapped_outputs(op, values, expected, place)
    workspace = hollow((op.workspace_nbytes(*inputs, out=out),), np.uint8)
    launches.clear()
    argument = op(*inputs, out=out, workspace=workspace)
    assert_like(argument, expected)
    pairs = list(zip(taken_apart(argument), taken_apart(out), strict=False))
    assert all(a is b for a, b in pairs if b is not None)
    assert bool(launches) == any(array is not None and array.size for _, array in pairs)


def flat(*shape: int, dtype=np.float32):
    return hollow(shape, dtype)


NUMBERS = (0.5, 3, (5, 7))
ARRAYS = (flat(dtype=np.float16), flat(1, dtype=np.int64), flat(2, dtype=np.uint64))
LISTS = ([flat(3), flat(5)], [flat(3), flat(5)])
PROBES = [
    (frame_probe.ProbeEither(), (flat(300), *NUMBERS), ["probe_either"]),
    (frame_probe.ProbeEither(), (flat(300), *ARRAYS), ["probe_either"]),
    (frame_probe.ProbeSupplied(), (flat(300),), ["probe_either"]),
    (frame_probe.ProbeSupplied(), (flat(300), (5, 7)), ["probe_either"]),
    (frame_probe.ProbeDecay(), (flat(300), 0.5, 1), ["probe_decay"]),
    (frame_probe.ProbeDecay(), (flat(300), 0.5), ["probe_decay"]),
    (frame_probe.ProbeRows(), (flat(300), flat(300)), ["probe_rows"]),
    (
        list_probe.ProbeMomentum(),
        (*([flat(n) for n in (3, 5)] for _ in range(4)), 0.5),
        ["probe_momentum"],
    ),
    (list_probe.ProbeSpread(), LISTS, ["probe_spread"]),
    (list_probe.ProbeSpread(), (LISTS[0], [None, None]), ["probe_spread"]),
    (list_probe.ProbeDescend(), LISTS, ["probe_descend"]),
    (list_probe.ProbeDescend(), (*LISTS, 0.5), ["probe_descend"]),
    (list_probe.ProbeDescend(), (*LISTS, flat(1)), ["probe_descend"]),
    (frame_probe.ProbeRead(), (flat(300), 2**40), ["probe_read"]),
    (list_probe.ProbeMixed(), ([flat(3), flat(3, dtype=np.float16)],), ["probe_mixed"] * 2),
    (frame_probe.ProbeCopy(), (flat(300),), ["copy"]),
    (frame_probe.ProbeBorrow(), (flat(300),), ["zero_gradient", "copy"]),
    (frame_probe.ProbeFill(n=300, provider="cuda"), (), ["probe_fill"]),
    (frame_probe.ProbeDelegate(), (flat(300), 2.0), []),
    (frame_probe.ProbeShared(), (flat(25_600),), ["probe_shared"]),
    (frame_probe.ProbeScale12(), (flat(300),), ["probe_old_scale"]),
    (frame_probe.ProbeScale13(), (flat(300),), ["probe_old_scale"]),
]


@pytest.mark.parametrize(("op", "inputs", "symbols"), PROBES)
def test_every_probe_reaches_its_launches(op, inputs, symbols, launches, monkeypatch) -> None:
    """When it is called, called again, bound, and bound with its first input open."""
    monkeypatch.setattr(frame_probe.ProbeDelegate, "function", staticmethod(lambda x, _: (x, x)))
    bound, opened = op.bound(*inputs), op.bound(..., *inputs[1:]) if inputs else op.bound()
    first = {item.name: value for item, value in zip(op.inputs, inputs[:1], strict=False)}
    for call in (lambda: op(*inputs), lambda: op(*inputs), bound, lambda: opened(**first)):
        launches.clear()
        results = as_tuple(call())
        assert [name for name, _ in launches] == symbols
        assert all(isinstance(array, cupy.ndarray) for array in as_tuple(results[0]))


def test_no_probe_is_left_out() -> None:
    modules = vars(frame_probe) | vars(list_probe)
    declared = {v for v in modules.values() if hasattr(v, "outputs")}
    assert declared == {type(op) for op, *_ in PROBES}


@pytest.mark.parametrize("nbytes", [-1, 417, 2**80, 1.5, "x"])
def test_on_a_gpu_too_what_is_no_length_of_a_code_is_refused(nbytes) -> None:
    with hollow_launches():
        packed = cto.compress(hollow((100,), np.float32), "sparse")
        assert packed.nbytes == 416
        with pytest.raises(ArgumentError, match="Packed: nbytes: expected"):
            packed.trimmed(nbytes)


def test_an_array_that_takes_the_place_of_one_that_is_gone(launches) -> None:
    """It may have the other's identity, and has memory of its own."""
    op, out, others = cto.ConcatTraining(axis=0), (flat(64), None), []
    xs = [flat(64)]
    op(xs, out=out)
    gone = id(xs.pop())
    while not others or id(others[-1]) != gone:
        others.append(flat(64))  # the next object takes the place
        assert len(others) < 1000
    op(others[-1:], out=out)
    (_, before), (_, after) = launches
    assert addresses_in(before) != addresses_in(after)


def addresses_in(arguments) -> list[object]:
    """Of a launch whose inputs are in a table."""
    return [np.asarray(value).tobytes() for value in arguments[:-1]]

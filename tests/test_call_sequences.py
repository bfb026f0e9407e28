# SPDX-License-Identifier: MIT
"""Calls of random shapes in sequence, through the instances that functions share."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from random_calls import CALLS, DTYPES, Case, call, compare, drawn_case
from runs import Run, drawn_run, drawn_samples, reason_not_to_run

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.call.op import Op
from cupy_training_ops.testing.compare import poison
from cupy_training_ops.testing.samples import (
    all_samples,
    mapped_inputs,
    mapped_outputs,
    sampled_operators,
)

FAMILIES = sorted({get_op(name).family for name in CALLS})


def machine_of(family: str, run: Run, dtypes: Sequence[Any]) -> type[RuleBasedStateMachine]:
    """Calls of one family's operators, in any order and of any sizes."""
    names = [name for name in CALLS if get_op(name).family == family]

    class Calls(RuleBasedStateMachine):
        @rule(name=st.sampled_from(names), seed=st.integers(0, 2**32))
        def call(self, name, seed):
            inputs, attributes = drawn_case(name, np.random.default_rng(seed), dtypes)
            result = call(name, inputs, run.place, **attributes)
            compare(name, inputs, result, run.host, **attributes)

    return Calls


def run_sequences(
    family: str, run_name: str, seed: int, examples: int, steps: int, dtypes: Sequence[Any] = DTYPES
) -> None:
    with Run(run_name, seed) as run:
        bounds = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        run_state_machine_as_test(machine_of(family, run, dtypes), settings=bounds)


def test_all_operators_with_scratch_memory_are_called() -> None:
    """As samples show which have some."""
    pytest.importorskip("cupy")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    def place(value):
        if isinstance(value, list):
            return [place(array) for array in value]
        return hollow(value.shape, value.dtype) if isinstance(value, np.ndarray) else value

    rng, results = np.random.default_rng(0), set()
    with hollow_launches():
        for sample in (sample for name in sampled_operators() for sample in all_samples()[name]):
            op = get_op(sample.op)(**sample.attributes)
            if type(op).plan is Op.plan or sample.op in results:
                continue
            with contextlib.suppress(ArgumentError):  # arrays that are none of ours
                if op.workspace_nbytes(*mapped_inputs(op, sample.make(rng), place)):
                    results.add(sample.op)
    assert results == set(CALLS)


def drawn_dtypes(name: str, seed: int) -> Sequence[Any]:
    """The one that the session draws for the operator's samples, too, so that it is built once."""
    samples = (sample for sample in all_samples()[name] if sample.id in drawn_samples(seed))
    drawn = {np.dtype(dtype).name: dtype for dtype in DTYPES}
    results = [drawn[word] for sample in samples for word in sample.types if word in drawn]
    return results[:1] or DTYPES[:1]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_in_sequence(family, seed) -> None:
    """In one type: g++ takes seconds for each."""
    if reason := reason_not_to_run("emulated-forward"):
        pytest.skip(reason)
    name = next(name for name in CALLS if get_op(name).family == family)
    run_sequences(family, drawn_run(family, seed), seed, 2, 20, drawn_dtypes(name, seed))


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_many_calls_in_sequence(family, seed) -> None:
    run_sequences(family, drawn_run(family, seed), seed, 6, 40)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_in_sequence_on_a_gpu(family, seed) -> None:
    run_sequences(family, "cuda", seed, 30, 50)


def in_one_workspace(names: list[str], run: Run, rng: np.random.Generator, seed: int) -> None:
    """Each operator after any other, in memory that holds what those before left."""
    workspace = run.place(rng.integers(0, 256, 2 ** (25 if run.on_gpu else 22), np.uint8))
    for name in rng.permutation(names):
        dtypes = DTYPES if run.on_gpu else drawn_dtypes(name, seed)
        inputs, attributes = drawn_case(name, rng, dtypes)
        result = call(name, inputs, run.place, workspace, **attributes)
        compare(name, inputs, result, run.host, **attributes)


def test_one_workspace_serves_all_operators_in_turn(run, rng, seed) -> None:
    in_one_workspace(list(CALLS) * (20 if run.on_gpu else 1), run, rng, seed)


@pytest.mark.parametrize("turned", [False, True])
def test_each_gradient_of_a_quotient_has_room_for_its_sums(run, rng, turned) -> None:
    """They use the same place in turn, and the one that needs more may be either."""
    shapes = [(1, 2), (1500, 1)] if turned else [(1500, 1), (1, 2)]
    a, b = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in shapes)
    dy = rng.standard_normal((1500, 2)).astype(np.float32)
    compare("DivGrad", [dy, a, b], get_op("DivGrad")()(*map(run.place, (dy, a, b))), run.host)


# ---- graphs --------------------------------------------------------------------------------------


def arrays_in(values: Any) -> list[Any]:
    """CuPy's arrays among them, lists and tuples taken apart."""
    if isinstance(values, list | tuple):
        return [array for value in values for array in arrays_in(value)]
    return [values] if hasattr(values, "data") and hasattr(values.data, "ptr") else []


def case_with(name: str, attributes: dict[str, Any], rng: np.random.Generator) -> Case:
    """A case that has these attributes, and a dY of the shape that goes with them."""
    while True:
        inputs, result = drawn_case(name, rng)
        if result == attributes:
            return inputs, result


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_replays_and_eager_calls_alternate(rng, seed, name) -> None:
    """A graph keeps the memory that it was captured with, also where eager calls outgrow it."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with Run("cuda", seed) as run, stream:
        inputs, attributes = drawn_case(name, rng)
        op, placed = get_op(name).shared(**attributes), run.place_inputs(get_op(name), inputs)
        arguments, before = arrays_in(placed), arrays_in(run.place_inputs(op, inputs))
        out = mapped_outputs(op, placed, op(*placed), lambda array: array)
        stream.begin_capture()
        results = op(*placed, out=out)
        graph = stream.end_capture()
        for _ in range(5):
            others, _ = case_with(name, attributes, rng)
            compare(name, others, op(*run.place_inputs(op, others)), run.host, **attributes)
            op.workspaces.poison()
            for target in arrays_in(out):
                poison(target)
            for array, values in zip(arguments, before, strict=True):
                array[...] = values  # some are updated in place
            graph.launch(stream)
            stream.synchronize()
            compare(name, inputs, results, run.host, **attributes)


# ---- loops ---------------------------------------------------------------------------------------


def trained(batches, weights, loss_and_gradient, rate=0.5):
    """Losses of a linear classifier, a step for each batch."""
    losses = []
    for x, labels in batches:
        loss, gradient = loss_and_gradient(x @ weights, labels)
        weights = weights - rate * x.T @ gradient
        losses.append(float(loss))
    return losses


def in_float64(scores, labels):
    shifted = scores - scores.max(1, keepdims=True)
    log_prob = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(labels.size)
    gradient = np.exp(log_prob)
    gradient[rows, labels] -= 1
    return -log_prob[rows, labels].mean(), gradient / labels.size


@pytest.mark.parametrize("fused", [True, False], ids=["one operator", "loss and gradient"])
def test_a_loop_whose_last_batch_is_smaller(anywhere, rng, fused) -> None:
    x, labels = rng.standard_normal((300, 12)), rng.integers(0, 7, 300)
    weights, order = rng.standard_normal((12, 7)), [(0, 128), (128, 256), (256, 300)] * 3
    batches = [(x[a:b], labels[a:b]) for a, b in order]

    def ours(scores, labels):
        scores, labels = anywhere.place(scores.astype(np.float32)), anywhere.place(labels)
        if fused:
            loss, gradient = cto.cross_entropy_loss_and_grad(scores, labels)
        else:
            loss, log_prob = cto.softmax_cross_entropy_loss(scores, labels)
            one = anywhere.place(np.ones((), np.float32))
            gradient = cto.softmax_cross_entropy_loss_grad(one, log_prob, labels)
        return float(anywhere.host(loss)), anywhere.host(gradient).astype(np.float64)

    results, expected = (trained(batches, weights, f) for f in (ours, in_float64))
    np.testing.assert_allclose(results, expected, rtol=2e-6)


# ---- calls that end with an exception ------------------------------------------------------------


class StoppedError(Exception):
    """Raised between two launches."""


@pytest.mark.parametrize("name", ["CrossEntropyLossAndGrad", "GistSparseEncoder", "LambOptimizer"])
def test_a_call_that_stops_between_two_launches_changes_none(run, rng, monkeypatch, name) -> None:
    """Also where kernels before the exception have left their zeros as they are in between."""
    for stop_after in (0, 1):
        inputs, attributes = drawn_case(name, rng, DTYPES[:1])
        attributes.pop("reduction", None)
        op, left = get_op(name)(**attributes), [stop_after]
        op(*run.place_inputs(op, inputs))
        for call_ in op._remembered.values():
            around_launches(monkeypatch, call_.ready, partial(stopping, left))
        with pytest.raises(StoppedError):
            op(*run.place_inputs(op, inputs))
        monkeypatch.undo()
        for store in op.workspaces._stores.values():
            assert store.is_zero
            assert not run.host(store.zeros).any()
        others, _ = drawn_case(name, rng, DTYPES[:1])
        compare(name, others, op(*run.place_inputs(op, others)), run.host, **attributes)


def stopping(left, function):
    def launch(*args):
        if left[0] == 0:
            raise StoppedError
        left[0] -= 1
        function(*args)

    return launch


def around_launches(monkeypatch, ready, around) -> None:
    """Put a function around each launch of a plan, of objects or of packed arguments."""
    for packed in ready._queued or ():
        monkeypatch.setattr(packed, "_block", partial(block_around, around, packed._block))
        monkeypatch.setattr(packed, "_free", [])
    steps = [(around(function), *rest) for function, *rest in ready._steps]
    monkeypatch.setattr(ready, "_steps", steps)


def block_around(around, block):
    """A block of packed arguments with a function around each of its launches."""
    prepared = block()
    return prepared._replace(
        launches=tuple((around(launch), at) for launch, at in prepared.launches)
    )


def test_a_call_inside_another_has_memory_of_its_own(run, rng, monkeypatch) -> None:
    """As a finalizer or a signal handler would make it, between two launches."""
    cls = get_op("CrossEntropyLossAndGrad")
    op = cls()
    scores, labels = (rng.standard_normal((200, 9)).astype(np.float32), rng.integers(0, 9, 200))
    others = rng.standard_normal((90, 5)).astype(np.float32), rng.integers(0, 5, 90)
    for case in ((scores, labels), others):
        op(*map(run.place, case))
    inner = []
    call_ = next(iter(op._remembered.values()))

    def interrupted(function):
        def launch(*args):
            function(*args)
            inner.append(op(*map(run.place, others)))

        return launch

    around_launches(monkeypatch, call_.ready, interrupted)
    outer = op(*map(run.place, (scores, labels)))
    monkeypatch.undo()
    assert len(inner) == len(call_.ready._steps) > 1
    compare(cls.name, [scores, labels], outer, run.host)
    for result in inner:
        compare(cls.name, list(others), result, run.host)

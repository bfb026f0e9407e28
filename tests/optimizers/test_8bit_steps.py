# SPDX-License-Identifier: MIT
"""AdamW over arrays with moments of a byte each: steps, states and files."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from parameter_lists import assert_all_match, normal

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.dtypes import FLOAT32

SHAPES = ((7, 40), (130,), (3,))
MOMENTS = ("moment_1", "moment_2")


def made(run, rng, **options):
    """An optimizer and its parameters."""
    parameters = [run.place(normal(rng, shape)) for shape in SHAPES]
    return cto.AdamW(parameters, 1e-2, state="8bit", **options), parameters


def steps(run, rng, optimizer, n=4, **given) -> None:
    for _ in range(n):
        optimizer.step([run.place(normal(rng, shape)) for shape in SHAPES], **given)


def codes(run, optimizer) -> list[list[np.ndarray]]:
    return [[run.host(x).copy() for x in optimizer._moments[m]] for m in MOMENTS]


def assert_codes_same(run, one, other) -> None:
    for some, others in zip(codes(run, one), codes(run, other), strict=True):
        for a, b in zip(some, others, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_is_that_of_numbers(anywhere, rng) -> None:
    """The first: after it the moments are codes."""
    optimizer, parameters = made(anywhere, rng, weight_decay=0.1)
    others = [anywhere.host(p).copy() for p in parameters]
    gradients = [normal(rng, shape) for shape in SHAPES]
    numbers = {"loss_scale": 2.0, "max_norm": 0.5}
    cto.AdamW(others, 1e-2, weight_decay=0.1).step(gradients, **numbers)
    optimizer.step([anywhere.place(g) for g in gradients], **numbers)
    assert_all_match(anywhere, [parameters], [others])


def test_both_moments_take_two_bytes_a_parameter() -> None:
    optimizer = cto.AdamW([np.ones((1000, 100), FLOAT32)], state="8bit")
    assert sum(optimizer._moments[m][0].nbytes for m in MOMENTS) <= 2.1 * 100_000


def test_a_gradient_that_is_not_finite_changes_nothing(anywhere, rng) -> None:
    optimizer, parameters = made(anywhere, rng)
    steps(anywhere, rng, optimizer)
    before = [[anywhere.host(p).copy() for p in parameters], *codes(anywhere, optimizer)]
    gradients = [normal(rng, shape) for shape in SHAPES]
    gradients[1][5] = np.inf
    optimizer.step([anywhere.place(g) for g in gradients])
    assert_all_match(anywhere, [parameters, *(optimizer._moments[m] for m in MOMENTS)], before, 0)
    assert optimizer.state_dict()["step"] == 4


def test_states_are_numbers_and_go_on_bit_for_bit(anywhere, rng, seed) -> None:
    """By a dictionary and by a file; those of an AdamW of numbers are taken, too."""
    optimizer, parameters = made(anywhere, rng)
    steps(anywhere, rng, optimizer)
    state = optimizer.state_dict()
    assert [x.shape for x in state["moment_2"].values()] == list(SHAPES)
    assert {x.dtype for m in MOMENTS for x in state[m].values()} == {FLOAT32}
    assert all((x > 0).all() for x in state["moment_2"].values())
    file = io.BytesIO()
    optimizer.save(file)
    file.seek(0)
    copies = [[anywhere.place(anywhere.host(p)) for p in parameters] for _ in range(2)]
    others = [cto.AdamW(given, 1e-2, state="8bit") for given in copies]
    others[0].load_state_dict(state)
    others[1].load(file)
    cto.AdamW([p.copy() for p in copies[0]]).load_state_dict(state)
    for one in (optimizer, *others):
        steps(anywhere, np.random.default_rng(seed), one)
    for other, given in zip(others, copies, strict=True):
        assert_codes_same(anywhere, other, optimizer)
        assert_all_match(anywhere, [given], [[anywhere.host(p) for p in parameters]], 0)


def test_a_pickled_optimizer_goes_on(rng) -> None:
    optimizer = cto.AdamW([normal(rng, shape) for shape in SHAPES], 1e-2, state="8bit")
    gradients = [normal(rng, shape) for shape in SHAPES]
    optimizer.step(gradients)
    copied = pickle.loads(pickle.dumps(optimizer))
    for one in (optimizer, copied):
        one.step(gradients)
    for p, q in zip(optimizer.parameters, copied.parameters, strict=True):
        np.testing.assert_array_equal(p, q)


def test_training_ends_where_that_of_numbers_does(rng) -> None:
    """A regression, by steps that are large enough for its second moments to fall far."""
    x, truth = normal(rng, (256, 20)), normal(rng, (20,))
    losses = []
    for state in (None, "8bit"):
        w = np.zeros(20, FLOAT32)
        optimizer = cto.AdamW([w], 0.05, weight_decay=0.0, state=state)
        for _ in range(400):
            optimizer.step([x.T @ (x @ w - truth @ x.T) / len(x)])
        losses.append(float(np.square(x @ w - x @ truth).mean()))
    start = float(np.square(x @ truth).mean())
    assert max(losses) < 1e-3 * start


def test_what_it_does_not_serve_is_refused_in_words() -> None:
    with pytest.raises(ArgumentError, match="AdamW: state: expected None or '8bit', got '4bit'"):
        cto.AdamW([np.ones(3, FLOAT32)], state="4bit")
    with pytest.raises(ArgumentError, match=r"AdamW: state: expected None, where .* float64"):
        cto.AdamW([np.ones(3)], state="8bit")
    with pytest.raises(ArgumentError, match="AdamW: moment_dtype: expected None"):
        cto.AdamW([np.ones(3, FLOAT32)], state="8bit", moment_dtype="float32")

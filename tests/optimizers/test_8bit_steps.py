# SPDX-License-Identifier: MIT
"""AdamW over arrays with moments in codes of 8 or 4 bits: steps, states and files."""

from __future__ import annotations

import io
import pickle
import sys

import numpy as np
import pytest
from parameter_lists import assert_all_match, normal

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.optimizers.state import Codes

SHAPES = ((7, 40), (130,), (3,))
MOMENTS = ("moment_1", "moment_2")


STATE = "8bit"
pytestmark = pytest.mark.usefixtures("all_coded")


@pytest.fixture(params=["8bit", "4bit"], autouse=True)
def state(request, monkeypatch) -> str:
    """The form of moments in this test."""
    monkeypatch.setattr(sys.modules[__name__], "STATE", request.param)
    return request.param


def made(run, rng, **options):
    """An optimizer and its parameters."""
    parameters = [run.place(normal(rng, shape)) for shape in SHAPES]
    return cto.AdamW(parameters, 1e-2, state=STATE, **options), parameters


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


def test_bytes_of_a_parameter() -> None:
    optimizer = cto.AdamW([np.ones((1000, 100), FLOAT32)], state=STATE)
    most = 2.1 if STATE == "8bit" else 1.1
    assert sum(optimizer._moments[m][0].nbytes for m in MOMENTS) <= most * 100_000


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
    others = [cto.AdamW(given, 1e-2, state=STATE) for given in copies]
    others[0].load_state_dict(state)
    others[1].load(file)
    cto.AdamW([p.copy() for p in copies[0]]).load_state_dict(state)
    for one in (optimizer, *others):
        steps(anywhere, np.random.default_rng(seed), one)
    for other, given in zip(others, copies, strict=True):
        assert_codes_same(anywhere, other, optimizer)
        assert_all_match(anywhere, [given], [[anywhere.host(p) for p in parameters]], 0)


def test_a_pickled_optimizer_goes_on(rng) -> None:
    optimizer = cto.AdamW([normal(rng, shape) for shape in SHAPES], 1e-2, state=STATE)
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
    for state in (None, STATE):
        w = np.zeros(20, FLOAT32)
        optimizer = cto.AdamW([w], 0.05, weight_decay=0.0, state=state)
        for _ in range(400):
            optimizer.step([x.T @ (x @ w - truth @ x.T) / len(x)])
        losses.append(float(np.square(x @ w - x @ truth).mean()))
    start = float(np.square(x @ truth).mean())
    assert max(losses) < 1e-3 * start


def test_what_it_does_not_serve_is_refused_in_words() -> None:
    with pytest.raises(ArgumentError, match="AdamW: state: expected None or '8bit' or '4bit', got"):
        cto.AdamW([np.ones(3, FLOAT32)], state="2bit")
    with pytest.raises(ArgumentError, match=r"AdamW: state: expected None, where .* float64"):
        cto.AdamW([np.ones(3)], state=STATE)
    with pytest.raises(ArgumentError, match="AdamW: moment_dtype: expected None"):
        cto.AdamW([np.ones(3, FLOAT32)], state=STATE, moment_dtype="float32")
    with pytest.raises(
        ArgumentError, match="AdamW: amsgrad: expected False, with moments in codes"
    ):
        cto.AdamW([np.ones(3, FLOAT32)], state=STATE, amsgrad=True)


def test_small_parameters_have_numbers(anywhere, coded_from, rng) -> None:
    """In one step with those in codes, clipped by the norm of all, and counted once."""
    coded_from(200)
    optimizer, parameters = made(anywhere, rng)
    others = [anywhere.host(p).copy() for p in parameters]
    plain = cto.AdamW(others, 1e-2)
    for _ in range(3):
        gradients = [normal(rng, shape) for shape in SHAPES]
        optimizer.step([anywhere.place(g) for g in gradients], max_norm=0.5)
        plain.step(gradients, max_norm=0.5)
    assert [x.dtype for x in optimizer._moments["moment_1"]] == [np.uint8, FLOAT32, FLOAT32]
    assert_all_match(anywhere, [parameters[1:]], [others[1:]])
    assert optimizer.state_dict()["step"] == 3
    wrong = [anywhere.place(normal(rng, shape)) for shape in (*SHAPES[:2], (4,))]
    with pytest.raises(ArgumentError, match=r"gradients\[2\]: expected shape \(3,\)"):
        optimizer.step(wrong)
    assert optimizer.state_dict()["step"] == 3


def test_pickles_of_older_versions_go_on(rng) -> None:
    """Their codes were relative to the largest of a block, of small parameters too."""
    optimizer = cto.AdamW([np.ones(300, FLOAT32)], 1e-2, state="8bit")
    signs = np.arange(300) % 2
    codes = (112 + 128 * signs, np.full(300, 240))
    ends = (np.full(3, 123), np.full(3, 119))
    old = [np.concatenate(pair).astype(np.uint8) for pair in zip(codes, ends, strict=True)]
    content = optimizer.__getstate__()
    content["_moments"] = {m: (x,) for m, x in zip(MOMENTS, old, strict=True)}
    content["_form"] = form = Codes.__new__(Codes)
    form.dtype = FLOAT32
    again = cto.AdamW.__new__(cto.AdamW)
    again.__setstate__(content)
    state = again.state_dict()
    np.testing.assert_array_equal(state["moment_1"]["0"], (1 - 2 * signs) / 16)
    np.testing.assert_array_equal(state["moment_2"]["0"], np.full(300, 2.0**-8))
    again.step([normal(rng, 300)])
    assert again.state_dict()["step"] == 1

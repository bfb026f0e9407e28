# SPDX-License-Identifier: MIT
"""LAMB against known vectors, a float64 transcription of the paper and upstream's answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parameter_lists import SHAPES, array, normal

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.families.lamb.samples import slack
from cupy_training_ops.testing.compare import assert_matches

INF, NAN = np.inf, np.nan
ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")


def lamb(w, g, m, v, *mixed, lr=0.5, step=None, scale=None, norm=None, update=None, **attributes):
    """One parameter."""
    call = {name: attributes.pop(name) for name in ("outputs", "out") if name in attributes}
    arrays = ([x] for x in (w, g, m, v, *mixed))
    return get_op("LambOptimizer")(**attributes)(update, scale, norm, lr, step, *arrays, **call)


# ---- known vectors -------------------------------------------------------------------------------

RULE = {"lambda_": 0.5, "alpha": 0.2, "beta": 0.8, "epsilon": 1e-6}
STEPS = {None: (0.355503, 1.086423), 1: (0.387638, 1.064579), 3: (0.374578, 1.073260)}


def parameter(t=FLOAT32):
    return array(1, 2, t=t), array(3, 4, t=t), array(-1, -2, t=t), array(2, 1, t=t)


@pytest.mark.parametrize("t", [FLOAT32, FLOAT64], ids=dtype_name)
@pytest.mark.parametrize("step", STEPS)
def test_steps(step, t) -> None:
    w, g, m, v = parameter(t)
    after, *lists = lamb(w, g, m, v, step=step, norm=1.0, **RULE)
    assert after is None if step is None else after == step + 1
    expected = (w,), (g,), (m,), (v,)
    assert all(a[0] is b[0] for a, b in zip(lists, expected, strict=False))
    assert_matches(w, array(*STEPS[step], t=t), 1e-6)
    assert_matches(m, array(2.2, 2.8, t=t), 1e-6)
    assert_matches(v, array(3.4, 4.0, t=t), 1e-6)


def test_the_ratio_is_one_without_a_norm() -> None:
    w, g, m, v = array(0, 0), array(1, -1), *parameter()[2:]
    lamb(w, g, m, v, **RULE)
    assert_matches(g, array(-0.223607, 0.599999), 2e-6)
    assert_matches(w, g, 0)


@pytest.mark.parametrize(
    ("w", "limit", "expected"),
    [((-1, 1), {"ratio_max": 0.1}, (-0.997361, 1.035)),
     ((1e-4, -1e-4), {"ratio_min": 1}, (-0.223532, 0.599924))],
)  # fmt: skip
def test_the_ratio_has_limits(w, limit, expected) -> None:
    weights = array(*w)
    lamb(weights, array(1, -1), *parameter()[2:], **RULE, **limit)
    assert_matches(weights, array(*expected), 2e-6)


SCALARS = {
    "plain": ({}, {}, 0.5, None, None),
    "clipped": ({"max_norm_clip": 0.1}, {"norm": 3.0}, 1.5, -1.92, 0.802),
    "scaled": ({}, {"scale": 8.0, "norm": 4.0}, 1.5, -1.7, 0.828125),
}


@pytest.mark.parametrize("case", SCALARS)
def test_scalars(case) -> None:
    attributes, numbers, weight, mean, square = SCALARS[case]
    w, g, m, v = array(1), array(3), array(-10), array(1)
    lamb(w, g, m, v, **RULE, **attributes, **numbers)
    for results, expected in ((w, weight), (m, mean), (v, square)):
        if expected is not None:
            assert_matches(results, array(expected), 1e-6)


def test_upstreams_answers(anywhere) -> None:
    case = "LambOptimizer[f4,one]"
    names = ("update", "scale", "norm", "R", "step", "W", "G", "M", "V")
    placed = (anywhere.place(ANSWERS[f"{case}|in|{name}"]) for name in names)
    update, scale, norm, rate, step, *arrays = placed
    numbers = {"lr": rate, "step": step, "scale": scale, "norm": norm, "update": update}
    results = lamb(*arrays, lambda_=0.01, **numbers)
    expected = [ANSWERS[f"{case}|out{i}"] for i in range(5)]
    assert_matches(anywhere.host(results[0]), expected[0], 0)
    for (result,), wanted in zip(results[1:5], expected[1:], strict=True):
        assert_matches(anywhere.host(result), wanted)


# ---- the paper -----------------------------------------------------------------------------------


class Paper:
    """Algorithm 2 of You et al. in float64, with the ratio kept between limits."""

    def __init__(self, weights, lr, decay, limits=(0.0, INF), betas=(0.9, 0.999), eps=1e-6):
        self.weights, self.lr, self.decay, self.limits = list(weights), lr, decay, limits
        self.betas, self.eps, self.t = betas, eps, 0
        self.moments = [(0.0, 0.0)] * len(self.weights)

    def step(self, gradients) -> None:
        self.t += 1
        (a, b), t = self.betas, self.t
        for i, (x, g) in enumerate(zip(self.weights, gradients, strict=True)):
            m, v = self.moments[i]
            m, v = a * m + (1 - a) * g, b * v + (1 - b) * g**2
            r = (m / (1 - a**t)) / (np.sqrt(v / (1 - b**t)) + self.eps)
            u = r + self.decay * x
            ratio = np.linalg.norm(x) / np.linalg.norm(u)
            ratio = min(max(ratio, self.limits[0]), self.limits[1])
            self.weights[i], self.moments[i] = x - self.lr * ratio * u, (m, v)


def test_two_steps_of_the_paper_by_hand() -> None:
    """Without decay the direction is the sign of a gradient that stays: |w| / sqrt(n) of it."""
    w, g = array(3, 4, t=FLOAT64), array(2, -7, t=FLOAT64)
    m, v = np.zeros(2), np.zeros(2)
    expected = np.array([3.0, 4.0])
    for step in (1, 2):
        expected -= 0.1 * np.linalg.norm(expected) / np.sqrt(2) * np.sign(g)
        lamb(w, g, m, v, lr=0.1, step=step, epsilon=0.0, outputs=STATE)
        assert_matches(w, expected)


STATE = ("new_step", "new_weights", "new_moment_1", "new_moment_2")


@pytest.mark.parametrize("limits", [(0.0, INF), (0.3, 0.7)])
def test_a_hundred_steps_are_those_of_the_paper(rng, limits) -> None:
    weights = [normal(rng, shape, FLOAT64) for shape in SHAPES]
    paper = Paper(weights, 0.01, 0.1, limits)
    moments = [[np.zeros_like(w) for w in weights] for _ in range(2)]
    op = get_op("LambOptimizer")(lambda_=0.1, ratio_min=limits[0], ratio_max=limits[1])
    for step in range(1, 101):
        gradients = [normal(rng, shape, FLOAT64) for shape in SHAPES]
        paper.step(gradients)
        op(None, None, None, 0.01, step, weights, gradients, *moments, outputs=STATE)
    for ours, theirs in zip(weights, paper.weights, strict=True):
        assert_matches(ours, theirs)


# ---- numbers of each parameter -------------------------------------------------------------------


def test_each_parameter_has_its_own_numbers(rng) -> None:
    names = ("alpha", "beta", "lambda_", "epsilon", "max_norm_clip")
    rules = [dict(zip(names, rng.uniform(0.1, 0.9, 5).tolist(), strict=True)) for _ in SHAPES]
    groups = [[normal(rng, s, FLOAT32), normal(rng, s, FLOAT32)] for s in SHAPES]
    moments = [[normal(rng, s, FLOAT32), np.abs(normal(rng, s, FLOAT32))] for s in SHAPES]
    parameters = [[*a, *b] for a, b in zip(groups, moments, strict=True)]
    alone = [[x.copy() for x in p] for p in parameters]
    for rule, (w, g, m, v) in zip(rules, alone, strict=True):
        lamb(w, g, m, v, norm=3.0, step=2, **rule)
    attributes = {name: [rule[name] for rule in rules] for name in names}
    together = [list(column) for column in zip(*parameters, strict=True)]
    get_op("LambOptimizer")(**attributes)(None, None, 3.0, 0.5, 2, *together)
    for one, other in zip(alone, parameters, strict=True):
        for expected, actual in zip(one, other, strict=True):
            assert_matches(actual, expected, 0)


# ---- what is skipped, and what is left alone -----------------------------------------------------


def test_elements_that_are_not_finite_are_skipped_alone() -> None:
    w, g, m, v = array(1, 2, 3), array(NAN, INF, 1), array(1, 1, 2), array(1, 1, 1)
    lamb(w, g, m, v)
    assert_matches(w[:2], array(1, 2), 0)
    assert_matches(m[:2], array(1, 1), 0)
    assert_matches(g[:2], array(0, 0), 0)
    assert m[2] != 2
    assert w[2] != 3


def test_the_gradient_is_left_alone_unless_it_is_asked_for() -> None:
    w, g, m, v = parameter()
    lamb(w, g, m, v, outputs=("new_weights",))
    assert_matches(g, parameter()[1], 0)
    expected = parameter()
    lamb(*expected)
    for actual, after in zip((w, m, v), (expected[0], *expected[2:]), strict=True):
        assert_matches(actual, after, 0)
    assert (w != parameter()[0]).all()


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_the_copy_is_made_without_the_weights(half) -> None:
    w, g, m, v = parameter()
    copy = np.full(2, NAN).astype(half)
    lamb(w, g, m, v, copy, outputs=("new_mixed_precision_weights",))
    expected = parameter()
    lamb(*expected)
    assert_matches(copy, expected[0].astype(half), 0)
    assert_matches(w, parameter()[0], 0)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_skipped_step_changes_nothing(on_device) -> None:
    step = array(3, t=INT64) if on_device else 3
    update = array(False, t=bool) if on_device else False
    arguments = [*parameter(), np.full(2, 7, FLOAT16)]
    after, *_ = lamb(*arguments, step=step, update=update)
    assert after == 3
    for result, before in zip(arguments, [*parameter(), np.full(2, 7, FLOAT16)], strict=True):
        assert_matches(result, before, 0)


BAD = {
    "alpha: expected a number, or 1 like weights, got 2": lambda: lamb(
        *parameter(), alpha=(0.1, 0.2)
    ),
    "max_norm_clip: expected a number above 0, got 0.0": lambda: get_op("LambOptimizer")(
        max_norm_clip=(1, 0)
    ),
    "max_norm_clip: expected a number above 0, got -1.0": lambda: get_op("LambOptimizer")(
        max_norm_clip=-1
    ),
    "gradients[0]: expected shape (2,) like weights[0]": lambda: lamb(
        parameter()[0], array(1), *parameter()[2:]
    ),
    "moment2: expected 1 arrays like weights, got 0": lambda: get_op("LambOptimizer")()(
        None, None, None, 1, 1, *([x] for x in parameter()[:3]), []
    ),
    "weights: expected at least one array": lambda: get_op("LambOptimizer")()(
        None, None, None, 1, 1, [], [], [], []
    ),
    "step: expected a step of at least 1, got 0": lambda: lamb(*parameter(), step=0),
    "step: expected an array, as update_signal is one": lambda: lamb(
        *parameter(), step=1, update=array(True, t=bool)
    ),
    "R: expected a value, got None": lambda: lamb(*parameter(), lr=None),
    "expected memory of its own": lambda: get_op("LambOptimizer")()(
        None, None, None, 1, 1, *([x] * 2 for x in parameter())
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused(message) -> None:
    with pytest.raises(ArgumentError) as caught:
        BAD[message]()
    assert message in str(caught.value)


# ---- what a comparison allows --------------------------------------------------------------------


def test_weights_have_slack_where_a_direction_may_be_rounded_to_either_side() -> None:
    """Directions are the moments here; 1 + 2^-8 lies between two numbers of bfloat16."""
    rate, tie, step = 0.5, 1 + 2.0**-8, 2.0**-7
    plain = {"alpha": 1.0, "beta": 1.0, "epsilon": 1.0, "do_bias_correction": False}
    m, zeros = array(tie, tie + 1e-6, tie + 1e-5, 1.0, -tie, 0.0), np.zeros(6, FLOAT32)
    w = np.full(6, 3, FLOAT32)
    arguments = [None, None, None, rate, None, [w], [zeros.astype(BFLOAT16)], [m], [zeros]]
    of_step, of_weights = slack(arguments, plain)
    assert of_step == 0
    actual = of_weights / (rate * np.linalg.norm(w) / np.linalg.norm(m))
    share = 3**0.5 * step / np.linalg.norm(m)  # of three that are open, in the trust ratio
    expected = np.array([1, 1, 0, 0, 1, 0]) * step + np.abs(m) * share
    np.testing.assert_allclose(actual, expected, rtol=0.02)
    assert slack([False, *arguments[1:]], plain) == []


def test_slack_of_float32_is_that_of_its_roundings(rng) -> None:
    w, g, m = (normal(rng, 100, FLOAT32) for _ in range(3))
    arguments = [None, None, None, 1.0, 3, [w], [g], [m], [np.abs(normal(rng, 100, FLOAT32)) + 1]]
    change = np.abs(w - lamb(w.copy(), g, m, arguments[-1][0], lr=1.0, step=3)[1][0])
    of_weights = slack(arguments, {})[1]
    assert (of_weights < 1e-5 * (np.linalg.norm(w) + change)).all()
    assert (of_weights > 0).all()

# SPDX-License-Identifier: MIT
"""Adam against the paper worked by hand, known vectors, optax and upstream's answers."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from parameter_lists import SHAPES, array, normal

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.testing.compare import assert_matches

NAN = np.nan
ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")


def parameter(t=FLOAT32, moment=FLOAT32) -> list[np.ndarray]:
    """Weights, gradients and both moments."""
    arguments = (1, 2, 3), (4, 5, 6), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    return [array(*v, t=m) for v, m in zip(arguments, (t, t, moment, moment), strict=True)]


def adam(*inputs, outputs=None, out=None, **attributes):
    return get_op("AdamOptimizer")(**attributes)(*inputs, outputs=outputs, out=out)


# ---- known vectors -------------------------------------------------------------------------------


def test_a_step_without_correction() -> None:
    w, g, m, v = parameter()
    step, *results = adam(0.5, 3, w, g, m, v, do_bias_correction=False)
    assert step == 4
    assert [a is b for a, b in zip(results, (m, v, w, g), strict=False)] == [True] * 4
    assert results[4] is None
    assert_matches(m, array(0.49, 0.68, 0.87), 1e-6)
    assert_matches(v, array(0.4156, 0.5245, 0.6354), 1e-6)
    assert_matches(w, array(0.619961, 1.530532, 2.454285), 1e-6)
    assert_matches(g, array(-0.380039, -0.469468, -0.545715), 1e-6)


VECTORS = {
    (0, False): (-3.62104, -2.80746, -3.37226),
    (0, True): (-1.45877, -0.645184, -1.20998),
    (1, False): (-3.58942, -2.77584, -3.34063),
    (1, True): (-1.44877, -0.635184, -1.19998),
}


@pytest.mark.parametrize(("mode", "corrected"), VECTORS)
def test_modes_of_decay_and_correction(mode, corrected) -> None:
    w, g = array(-0.4634, 0.3584, -0.2121), array(0.4171, 0.9485, 1.2289)
    attributes = {"weight_decay_mode": mode, "do_bias_correction": corrected, "lambda_": 0.01}
    adam(1, 1, w, g, *np.zeros((2, 3), FLOAT32), **attributes)
    assert_matches(w, array(*VECTORS[mode, corrected]), 1e-5)


def test_clipping() -> None:
    w, g, m, v = parameter()
    attributes = {"max_norm_clip": 0.001, "do_bias_correction": False}
    adam(0.5, 3, w, g, m, v, None, None, 0.01, **attributes)
    assert_matches(m, array(0.13, 0.23, 0.33), 1e-6)
    assert_matches(v, array(0.39976, 0.49975, 0.59976), 1e-6)
    assert_matches(w, array(0.897195, 1.837325, 2.786943), 1e-6)


@pytest.mark.parametrize("norm", [0.01, NAN, 0.0])
def test_norms_that_clip_nothing(norm) -> None:
    plain, other = parameter(), parameter()
    adam(0.5, 3, *plain)
    adam(0.5, 3, *other, None, 1.0, norm)
    for expected, result in zip(plain, other, strict=True):
        assert_matches(result, expected, 0)


def test_an_infinite_norm_leaves_no_gradient() -> None:
    (w, g, m, v), zero = parameter(), parameter()
    g[0] = np.inf
    zero[1][:] = NAN, 0, 0
    adam(0.5, 3, w, g, m, v, None, None, np.inf)
    adam(0.5, 3, *zero)
    for expected, result in zip(zero, (w, g, m, v), strict=True):
        assert_matches(result, expected, 0)


@pytest.mark.parametrize(
    ("case", "attributes"),
    [
        ("AdamOptimizer[f4]", {"lambda_": 0.01}),
        (
            "AdamOptimizer[f4,mode1,clip]",
            {
                "weight_decay_mode": 1,
                "lambda_": 0.02,
                "max_norm_clip": 0.5,
                "beta": 0.99,
                "epsilon": 1e-6,
            },
        ),
    ],
)
def test_upstreams_answers(anywhere, case, attributes) -> None:
    names = ("lr", "step", "W", "G", "M", "V", "W16", "loss_scale", "norm")
    actual = (f"{case}|in|{name}" for name in names)
    inputs = [anywhere.place(ANSWERS[key]) for key in actual if key in ANSWERS]
    results = adam(*inputs, **attributes)
    expected = [ANSWERS.get(f"{case}|out{i}") for i in range(6)]
    for result, wanted in zip(results, expected, strict=True):
        if wanted is not None:
            bound = 1e-3 if wanted.dtype == FLOAT16 else 1e-6
            assert_matches(anywhere.host(result), wanted, bound)


# ---- the papers ----------------------------------------------------------------------------------


def test_two_steps_of_the_paper_by_hand() -> None:
    """m = 0.1 g and v = 0.001 g^2, then 0.19 g and 0.001999 g^2: corrected g and g^2 both times."""
    w, g = array(1, -1, t=FLOAT64), array(2, 0.5, t=FLOAT64)
    m, v = np.zeros(2), np.zeros(2)
    op = get_op("AdamOptimizerList")(epsilon=0.0)
    for step in (1, 2):
        op(0.1, step, [w], [g], [m], [v], outputs=LEFT_ALONE)
        assert_matches(m, (1 - 0.9**step) * g)
        assert_matches(v, (1 - 0.999**step) * g * g)
        assert_matches(w, array(1, -1, t=FLOAT64) - 0.1 * step)


@pytest.mark.parametrize("mode", [0, 1])
def test_a_hundred_steps_are_those_of_optax(rng, mode) -> None:
    """AdamW, over lists, by both operators; without decay both modes are Adam."""
    decay = 0.01 if mode == 0 else 0.0
    weights = [normal(rng, shape, FLOAT64) for shape in SHAPES]
    theirs = [jnp.asarray(w) for w in weights]
    tiny = 1e-30 if mode else 1e-8  # where it is added makes no difference then
    rule = optax.adamw(1e-2, eps=tiny, weight_decay=decay)
    state = rule.init(theirs)
    both = [[w.copy() for w in weights] for _ in range(2)]
    moments = [[[np.zeros_like(w) for w in weights] for _ in range(2)] for _ in range(2)]
    of_list = get_op("AdamOptimizerList")(lambda_=decay, epsilon=tiny, weight_decay_mode=mode)
    adam_w = get_op("AdamWOptimizer")(weight_decay=decay, epsilon=tiny, adam_mode=mode)
    for step in range(1, 101):
        gradients = [normal(rng, shape, FLOAT64) for shape in SHAPES]
        updates, state = rule.update([jnp.asarray(g) for g in gradients], state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        adam_w(1e-2, step, both[0], gradients, *moments[0])
        of_list(1e-2, step, both[1], gradients, *moments[1], outputs=LEFT_ALONE)
    for ours in both:
        for result, other in zip(ours, theirs, strict=True):
            assert_matches(result, np.asarray(other), 1e-11)


LEFT_ALONE = ("new_T", "new_moment_1", "new_moment_2", "new_weights")


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_moments_of_16_bits_against_float64(rng, half) -> None:
    """They are rounded after the weights have had them."""
    shape = (1000,)
    w, g = normal(rng, shape, FLOAT32), normal(rng, shape, half)
    m, v = normal(rng, shape, half), np.abs(normal(rng, shape, half))
    exact = [x.astype(FLOAT64) for x in (w, g, m, v)]
    get_op("AdamOptimizerList")()(0.1, 5, [exact[0]], [exact[1]], [exact[2]], [exact[3]])
    adam(0.1, 5, w, g, m, v)
    assert_matches(w, exact[0].astype(FLOAT32))
    for result, wanted in zip((m, v), exact[2:], strict=True):
        assert_matches(result, wanted.astype(FLOAT32).astype(half))


# ---- what is asked for, and what is left alone ---------------------------------------------------


def test_gradients_are_left_alone_unless_asked_for() -> None:
    w, g, m, v = parameter()
    adam(0.5, 3, w, g, m, v, outputs=("new_weights",))
    assert_matches(g, parameter()[1], 0)
    expected = parameter()
    adam(0.5, 3, *expected)
    for array_, after in zip((w, m, v), (expected[0], *expected[2:]), strict=True):
        assert_matches(array_, after, 0)


def test_the_copy_is_made_without_the_weights() -> None:
    w, g, m, v = parameter()
    copy = np.full(3, NAN).astype(FLOAT16)
    adam(0.5, 3, w, g, m, v, copy, outputs=("new_mixed_precision_weights",))
    expected = parameter()
    adam(0.5, 3, *expected)
    assert_matches(copy, expected[0].astype(FLOAT16), 0)
    assert_matches(w, parameter()[0], 0)


@pytest.mark.parametrize("place", ["host", "array"])
def test_a_skipped_step_changes_nothing(place) -> None:
    """Not the count either, wherever it is."""
    step, signal = (3, False) if place == "host" else (array(3, t=INT64), array(False, t=bool))
    arguments = [*parameter(), np.full(3, 7, FLOAT16)]
    arguments[1][1] = NAN
    before = [x.copy() for x in arguments]
    result, *_ = adam(0.5, step, *arguments, None, None, signal)
    assert result == 3
    assert (result is step) == (place == "array")
    for actual, expected in zip(arguments, before, strict=True):
        assert_matches(actual, expected, 0)
    out = tuple(np.full_like(x, 9) for x in (*before[2:4], before[0], before[1], before[4]))
    adam(0.5, step, *arguments, None, None, signal, out=(None, *out))
    for actual, expected in zip(out, (*before[2:4], *before[:2], before[4]), strict=True):
        assert_matches(actual, expected, 0)


def test_a_step_on_the_device_is_counted_there() -> None:
    step = array(3, t=INT64)
    result, *_ = adam(0.5, step, *parameter())
    assert result is step
    assert step.tolist() == [4]


@pytest.mark.parametrize("step", [0, -5])
def test_an_array_below_one_corrects_nothing(step) -> None:
    plain, other = parameter(), parameter()
    adam(0.5, array(step, t=INT64), *other)
    adam(0.5, 1, *plain, do_bias_correction=False)
    for expected, result in zip(plain, other, strict=True):
        assert_matches(result, expected, 0)


def test_a_number_that_changes_prepares_nothing_anew() -> None:
    op = get_op("AdamOptimizer")()
    for step in range(1, 4):
        op(0.1 / step, step, *parameter(), None, 2.0**step, float(step), bool(step % 2))
    assert len(op._remembered) == 1


def test_bias_is_corrected_in_double() -> None:
    """Upstream's AdamWOptimizer rounds the power first: 3e-5 off at the first step."""
    w = [np.zeros(1, FLOAT32)]
    zeros = [np.zeros(1, FLOAT32)], [np.zeros(1, FLOAT32)]
    attributes = {"epsilon": 0.0, "weight_decay": 0.0}
    get_op("AdamWOptimizer")(**attributes)(1.0, 1, w, [array(3)], *zeros)
    assert_matches(w[0], array(-1), 2e-7)


# ---- bad input -----------------------------------------------------------------------------------


def lists(**changed) -> list[list[np.ndarray]]:
    names = ("weights", "gradients", "m", "v")
    return [changed.get(n, [x]) for n, x in zip(names, parameter(), strict=True)]


BAD = {
    "gradients: expected shape (3,) like weights": lambda: adam(
        1, 1, parameter()[0], array(1, 2), *parameter()[2:]
    ),
    "moment_2: expected shape (3,) like weights": lambda: adam(1, 1, *parameter()[:3], array(1)),
    "mixed_precision_weights: expected shape": lambda: adam(
        1, 1, *parameter(), np.zeros(2, FLOAT16)
    ),
    "T: expected a step of at least 1, got 0": lambda: adam(1, 0, *parameter()),
    "T: expected a step below 2^63 - 1, got 9": lambda: adam(1, 2**63 - 1, *parameter()),
    "T: expected a number or an array of 1 element": lambda: adam(
        1, array(1, 2, t=INT64), *parameter()
    ),
    "R: expected a number or an array of 1 element, got shape (2,)": lambda: adam(
        array(1, 2), 1, *parameter()
    ),
    "T: expected an array, as update_signal is one": lambda: adam(
        1, 1, *parameter(), None, None, None, array(True, t=bool)
    ),
    "max_norm_clip: expected a number above 0, got 0.0": lambda: adam(max_norm_clip=0),
    "max_norm_clip: expected a number above 0, got -1.0": lambda: adam(max_norm_clip=-1),
    "alpha: expected a number below 1, as biases are corrected, got 1.5": lambda: adam(alpha=1.5),
    "beta: expected a finite number of at least 0, got nan": lambda: adam(beta=np.nan),
    "weight_decay_mode: expected one of (0, 1), got 2": lambda: adam(weight_decay_mode=2),
    "adam_mode: expected one of (0, 1), got 2": lambda: get_op("AdamWOptimizer")(adam_mode=2),
    "correct_bias: expected True in adam_mode 0": lambda: get_op("AdamWOptimizer")(
        correct_bias=False
    ),
    "momentums_1: expected 1 arrays like weights, got 0": lambda: get_op("AdamWOptimizer")()(
        1, 1, *lists(m=[])
    ),
    "weights: expected at least one array": lambda: get_op("AdamOptimizerList")()(
        1, 1, [], [], [], []
    ),
    "expected memory of its own": lambda: get_op("AdamWOptimizer")()(
        1, 1, *([x] * 2 for x in parameter())
    ),
    "max_norm: expected a number above 0": lambda: get_op("AdamOptimizerList")()(
        1, 1, *lists(), None, None, None, None, -1
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused(message) -> None:
    with pytest.raises(ArgumentError) as caught:
        BAD[message]()
    assert message in str(caught.value)


def test_rows_that_do_not_exist_are_refused() -> None:
    w, g, m, v = parameter(FLOAT32, FLOAT16)
    with pytest.raises(DtypeError, match="types: expected such as weights=float32, "):
        adam(1, 1, w, g.astype(BFLOAT16), m, v)
    with pytest.raises(DtypeError, match="AdamOptimizer: weights: expected dtype float32"):
        adam(1, 1, *parameter(FLOAT64, FLOAT64))


def test_ten_steps_are_those_of_pytorch(rng) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    start = [rng.standard_normal(shape) for shape in ((3, 4), (5,))]
    ours = [w.copy() for w in start]
    moments = [[np.zeros_like(w) for w in start] for _ in range(2)]
    theirs = [torch.tensor(w, requires_grad=True) for w in start]
    stepper = torch.optim.AdamW(theirs, lr=0.05, weight_decay=0.02)
    op = get_op("AdamWOptimizer")(weight_decay=0.02)
    for step in range(1, 11):
        gradients = [rng.standard_normal(w.shape) for w in start]
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = torch.tensor(gradient)
        stepper.step()
        op(0.05, step, ours, gradients, *moments)
    for result, wanted in zip(ours, theirs, strict=True):
        assert_matches(result, wanted.detach().numpy(), 1e-12)

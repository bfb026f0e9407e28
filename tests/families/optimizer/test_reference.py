# SPDX-License-Identifier: MIT
"""Gradient descent, norms and clipping against worked tables, optax and upstream's answers."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.optimizer import reference as optimizer
from cupy_training_ops.testing.compare import assert_matches

NAN, INF = np.nan, np.inf
ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")

floats = pytest.mark.parametrize("t", FLOATS, ids=dtype_name)


def array(*values, t=FLOAT32) -> np.ndarray:
    return np.array(values).astype(t)


def normal(rng: np.random.Generator, shape, t=FLOAT32) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape)).astype(t)


# ---- gradient descent ----------------------------------------------------------------------------


@floats
def test_a_step_worked_by_hand(t) -> None:
    w, g = array(1, 2, 3, t=t), array(4, 5, 6, t=t)
    new_w, delta = get_op("SGDOptimizer")()(0.5, w, g)
    assert (new_w is w, delta is g) == (True, True)
    assert_matches(w, array(-1, -0.5, 0, t=t), 0)
    assert_matches(g, array(-2, -2.5, -3, t=t), 0)


@pytest.mark.parametrize("place", [(), (1,), (1, 1)])
def test_the_learning_rate_may_be_an_array(place) -> None:
    w, g = array(1, 2, 3), array(4, 5, 6)
    get_op("SGDOptimizer")()(np.full(place, 0.5, FLOAT16), w, g, outputs=("NG",))
    assert_matches(w, array(1, 2, 3), 0)
    assert_matches(g, array(-2, -2.5, -3), 0)


def test_upstreams_gradient_descent(anywhere) -> None:
    case = "SGDOptimizer[f4]"
    inputs = (anywhere.place(ANSWERS[f"{case}|in|{name}"]) for name in ("eta", "W", "G"))
    new_w, delta = get_op("SGDOptimizer")()(*inputs)
    assert_matches(anywhere.host(new_w), ANSWERS[f"{case}|out0"], 1e-6)
    assert_matches(anywhere.host(delta), ANSWERS[f"{case}|out1"], 1e-6)


SHAPES = ((2, 3), (3,), (3, 2), (2,))


def test_a_hundred_steps_are_those_of_optax(rng) -> None:
    """With the gradients clipped by their global norm, which some steps are beyond."""
    weights = [normal(rng, shape, FLOAT64) for shape in SHAPES]
    chain = optax.chain(optax.clip_by_global_norm(2.5), optax.sgd(0.1))
    theirs = [jnp.asarray(w) for w in weights]
    state = chain.init(theirs)
    step, norm_of = get_op("SGDOptimizerList")(), get_op("GradientNorm")()
    for _ in range(100):
        gradients = [normal(rng, shape, FLOAT64) for shape in SHAPES]
        updates, state = chain.update([jnp.asarray(g) for g in gradients], state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        norm, finite = norm_of(gradients)
        step(0.1, weights, gradients, None, None, norm, 2.5, finite)
    for ours, other in zip(weights, theirs, strict=True):
        assert_matches(ours, np.asarray(other))


def test_a_list_is_updated_in_place() -> None:
    weights, gradients = [array(1, 2), array(3)], [array(10, 20), array(30)]
    done, updated = get_op("SGDOptimizerV2")()(0.1, weights, gradients)
    assert done.tolist() is True
    assert all(a is b for a, b in zip(updated, weights, strict=True))
    assert_matches(weights[0], array(0, 0))
    assert_matches(gradients[0], array(10, 20), 0)


@pytest.mark.parametrize("signal", [False, np.array(False), np.array([False])], ids=repr)
def test_a_skipped_step_changes_nothing(signal) -> None:
    weights, gradients = [array(1, 2)], [array(NAN, 20)]
    done, _ = get_op("SGDOptimizerV2")()(0.1, weights, gradients, signal)
    assert not done.any()
    assert_matches(weights[0], array(1, 2), 0)


def test_unscaling_clipping_and_the_copy() -> None:
    """Norm 10 of unscaled gradients, clipped to 5, by hand."""
    copy = [np.full(2, NAN).astype(FLOAT16), None]
    weights, gradients = [array(1, 2), array(3)], [array(48, 64), array(0)]
    _, new, copies = get_op("SGDOptimizerList")()(1, weights, gradients, copy, 8, 80, 5)
    assert_matches(new[0], array(-2, -2))
    assert copies[0] is copy[0]
    assert copies[1] is None
    assert_matches(copies[0], array(-2, -2, t=FLOAT16))


def test_the_weights_are_updated_where_only_the_copy_comes_back() -> None:
    weights, copy = [array(1, 2)], [np.zeros(2, BFLOAT16)]
    call = {"outputs": ("updated_mixed_precision_weights",)}
    get_op("SGDOptimizerList")()(1, weights, [array(1, 1)], copy, **call)
    assert_matches(weights[0], array(0, 1), 0)
    assert_matches(copy[0], array(0, 1, t=BFLOAT16), 0)


# ---- norms ---------------------------------------------------------------------------------------

TWELVE = ((1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11, 12))


@floats
@pytest.mark.parametrize(("most", "factor"), [(12, 0.470679), (100, 1), (0, 0)])
def test_clipping_worked_by_hand(t, most, factor) -> None:
    """The squares of 1 to 12 add up to 650."""
    gradients = [array(*values, t=t) for values in TWELVE]
    clipped = get_op("InplaceClipGradNorm")(max_norm=most)(gradients)
    for result, argument, values in zip(clipped, gradients, TWELVE, strict=True):
        assert result is argument
        expected = (np.array(values) * factor).astype(t)
        assert_matches(result, expected, 1e-6 if t == FLOAT64 else None)


@pytest.mark.parametrize(
    ("value", "expected"), [(NAN, [1, NAN]), (INF, [0, NAN]), (-INF, [0, NAN])]
)
def test_norms_that_are_not_finite(value, expected) -> None:
    """NaN clips nothing, as upstream does it; of what is infinite only zeros and NaN are left."""
    gradients = [array(1), array(value)]
    norm, finite = get_op("GradientNorm")()(gradients)
    assert not finite
    assert not np.isfinite(norm)
    get_op("InplaceClipGradNorm")()(gradients)
    assert_matches(np.concatenate(gradients), array(*expected), 0)


@floats
def test_the_norm_of_a_list(rng, t) -> None:
    gradients = [normal(rng, shape, t) for shape in ((40, 30), (), (0,), (7,))]
    whole = np.concatenate([g.ravel().astype(FLOAT64) for g in gradients])
    norm, finite = get_op("GradientNorm")()(gradients)
    wide = FLOAT64 if t == FLOAT64 else FLOAT32
    assert_matches(norm, np.asarray(np.linalg.norm(whole)).astype(wide))
    assert finite
    assert finite.dtype == bool


def test_half_gradients_do_not_overflow() -> None:
    norm, finite = get_op("GradientNorm")()([np.full(4, 60_000, FLOAT16)])
    assert_matches(norm, np.array(119_999.9, FLOAT32), 1e-3)
    assert finite


# ---- bad input -----------------------------------------------------------------------------------

ONE = [np.ones(3, FLOAT32)]
BAD = {
    "SGDOptimizer: G: expected shape": lambda: get_op("SGDOptimizer")()(1, ONE[0], array(1, 2)),
    "ETA: expected a number or an array of 1 element, got shape (2,)": lambda: get_op(
        "SGDOptimizer"
    )()(array(1, 2), ONE[0], array(1, 2, 3)),
    "ETA: expected a number or a NumPy or CuPy array, got str": lambda: get_op("SGDOptimizer")()(
        "fast", *ONE, *ONE
    ),
    "weights: expected at least one array": lambda: get_op("SGDOptimizerV2")()(1, [], []),
    "gradients: expected 1 arrays like weights, got 2": lambda: get_op("SGDOptimizerV2")()(
        1, ONE, [*ONE, *ONE]
    ),
    "gradients[0]: expected shape (3,) like weights[0]": lambda: get_op("SGDOptimizerV2")()(
        1, ONE, [array(1, 2)]
    ),
    "weights[1]: expected memory of its own": lambda: get_op("SGDOptimizerV2")()(
        1, [*ONE, *ONE], [array(1, 2, 3)] * 2
    ),
    "max_norm: expected a number above 0, got 0.0": lambda: get_op("SGDOptimizerList")()(
        1, ONE, [array(1, 2, 3)], None, 1, 1, 0.0
    ),
    "mixed_precision_weights[0]: expected shape": lambda: get_op("SGDOptimizerList")()(
        1, ONE, [array(1, 2, 3)], [np.zeros(2, FLOAT16)]
    ),
    "max_norm: expected a number of at least 0, got -1.0": lambda: get_op("InplaceClipGradNorm")(
        max_norm=-1
    ),
    "max_norm: expected a number of at least 0, got nan": lambda: get_op("InplaceClipGradNorm")(
        max_norm=NAN
    ),
    "norm_type: expected one of ('fro',)": lambda: get_op("InplaceClipGradNorm")(norm_type="inf"),
    "gradients: expected at least one array": lambda: get_op("InplaceClipGradNorm")()([]),
    "GradientNorm: gradients: expected at least": lambda: get_op("GradientNorm")()([]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused(message) -> None:
    with pytest.raises(ArgumentError) as caught:
        BAD[message]()
    assert message in str(caught.value)
    assert_matches(ONE[0], np.ones(3, FLOAT32), 0)


def test_rows_that_do_not_exist_are_refused() -> None:
    with pytest.raises(DtypeError, match="types: expected such as weights=float32, "):
        get_op("SGDOptimizerV2")()(1, [array(1, t=FLOAT16)], [array(1)])


def test_the_function_is_the_operators() -> None:
    assert get_op("GradientNorm").cpu_function() is optimizer.gradient_norm

# SPDX-License-Identifier: MIT
"""Steps of the optimizers for training loops: what their operators give, skipped, and refused."""

from __future__ import annotations

import gc
import itertools
import math
import weakref

import numpy as np
import pytest
from runs import Run
from training import (
    LOSS_SCALE,
    MAX_NORM,
    N_STEPS,
    OPTIMIZERS,
    SKIPPED,
    Training,
    assert_same,
)

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, OpError
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.optimizers.steps import LambStep
from cupy_training_ops.plan import Device, Scratch
from cupy_training_ops.runtime.launch import launch_log
from cupy_training_ops.testing.compare import assert_matches

RULES = {"AdamW": {"lambda_": 0.01}, "Lamb": {"lambda_": 0.01}}


def by_operators(training: Training, name: str, run: Run) -> None:
    """One step after the other by the operators that are behind an optimizer."""
    weights = training.parameters
    zeros = [np.zeros(w.shape, np.float32) for w in weights]
    moments = [[run.place(array) for array in zeros] for _ in range(2)]
    step, rules = 1, RULES.get(name, {})
    for i in range(N_STEPS):
        training.prepare(i)
        norm, is_finite = cto.gradient_norm(training.gradients)
        if not bool(is_finite):
            continue
        lists = weights, training.gradients
        copies, numbers = training.copies, (LOSS_SCALE, norm)
        if name == "SGD":
            cto.sgd_optimizer_list(training.lr, *lists, copies, *numbers, MAX_NORM)
        elif name == "Lamb":
            outputs = [o.name for o in cto.LambOptimizer.outputs if o.name != "new_gradients"]
            cto.lamb_optimizer(
                None, *numbers, training.lr, step, *lists, *moments, copies,
                max_norm_clip=MAX_NORM, outputs=outputs, **rules,
            )  # fmt: skip
        else:
            outputs = [o.name for o in cto.AdamOptimizerList.outputs if o.name != "new_gradients"]
            cto.adam_optimizer_list(
                training.lr, step, *lists, *moments, copies, *numbers, max_norm=MAX_NORM,
                outputs=outputs, **rules,
            )  # fmt: skip
        step += 1
    training.optimizer.load_state_dict(state_of(training, moments, step - 1))


def state_of(training: Training, moments: list, step: int) -> dict:
    """The state of an optimizer whose steps others made."""
    state = training.optimizer.state_dict()
    for name, arrays in zip(training.optimizer.moments, moments, strict=False):
        state[name] = dict(zip(state[name], arrays, strict=True))
    return state | ({"step": step} if "step" in state else {})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_operators(name, anywhere, seed) -> None:
    made, expected = (Training(anywhere, name, np.random.default_rng(seed)) for _ in range(2))
    by_operators(expected, name, anywhere)
    for i in range(N_STEPS):
        made.prepare(i)
        made.step()
        assert bool(anywhere.host(made.optimizer.is_finite)) == (i != SKIPPED)
    assert_same(made.results(), expected.results())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_kernels_step_as_the_cpu_provider(name, run, seed) -> None:
    """Emulated kernels: ten steps, one skipped, within the tolerance of one."""
    results = []
    for where in (Run("cpu", seed), run):
        with where:
            training = Training(where, name, np.random.default_rng(seed))
            for i in range(N_STEPS):
                training.prepare(i)
                training.step()
            results.append(training.results())
    for actual, wanted in zip(*reversed(results), strict=True):
        assert_matches(actual, wanted)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_changes_nothing(name, anywhere, rng) -> None:
    training = Training(anywhere, name, rng)
    training.prepare(0)
    training.step()
    before = training.results()
    for bad in (np.nan, np.inf, -np.inf):
        training.gradients[-1][...] = bad
        training.step()
        assert_same(training.results(), before)
    assert not np.isfinite(anywhere.host(training.optimizer.gradient_norm))


def test_parameters_without_gradients_stay(anywhere) -> None:
    training, other = (Training(anywhere, "AdamW", np.random.default_rng(7)) for _ in range(2))
    training.prepare(0)
    before = training.results()
    training.optimizer.step([None] * 5)
    assert_same(training.results(), before)
    training.optimizer.step([None, training.gradients[1], None, training.gradients[3], None])
    alone = [other.parameters[1], other.parameters[3]]
    cto.AdamW(alone, other.lr).step([training.gradients[1], training.gradients[3]])
    for i in (0, 2, 4):
        assert_same([np.array(anywhere.host(training.parameters[i]))], [before[i]])
    host = [np.array(anywhere.host(array)) for array in (*alone, *training.parameters)]
    assert_same(host[:2], [host[3], host[5]])
    state = training.optimizer.state_dict()
    assert state["step"] == 1
    assert not state["moment_1"]["0"].any()
    assert state["moment_1"]["1"].any()


def test_a_step_launches_the_norm_first_and_then_the_update(run, rng) -> None:
    training = Training(run, "AdamW", rng)
    training.prepare(0)
    for _ in range(2):  # the second one with the arrays of the first
        with launch_log() as log:
            training.step()
        assert [step.symbol for step in log][-2:] == ["adam__list", "adam__count"]
        assert log[0].family == "optimizer"


def test_gradients_are_not_kept_and_new_ones_are_taken(run) -> None:
    p = run.place(np.zeros(64, np.float32))
    optimizer = cto.SGD([p], 1.0)
    for value in (1.0, 2.0, 4.0):
        g = run.place(np.full(64, value, np.float32))
        optimizer.step([g])
        alive = weakref.ref(g)
        del g
        gc.collect()
        assert alive() is None
    assert_matches(run.host(p), np.full(64, -7.0, np.float32), 0)


def test_each_number_may_be_new_and_an_array_or_not(anywhere) -> None:
    """Also where gradients are the same arrays in each step."""
    p, g = (anywhere.place(np.full(3, v, np.float32)) for v in (0, 1))
    optimizer = cto.SGD([p], lr=1.0)
    one = anywhere.place(np.full((), 16.0, np.float32))
    scales = [(1.0, None), (np.float32(2), 4), (one, 8.0), (0.5, one), (one, one), (None, 4.0)]
    moved = 0.0
    for lr, scale in scales:
        optimizer.step([g], lr=lr, loss_scale=scale)
        rate = 1.0 if lr is None else float(anywhere.host(np.asarray(lr)) if lr is not one else 16)
        moved -= rate / (1.0 if scale is None else 16 if scale is one else scale)
        assert_matches(anywhere.host(p), np.full(3, moved, np.float32), 0)
    optimizer.lr = 3.0
    optimizer.step([g])
    assert_matches(anywhere.host(p), np.full(3, moved - 3, np.float32), 0)


def test_arrays_of_other_libraries_keep_their_memory() -> None:
    class Foreign:
        def __init__(self, array: np.ndarray) -> None:
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    p = np.zeros(3, np.float32)
    cto.SGD([Foreign(p)], 1.0).step([Foreign(np.ones(3, np.float32))])
    np.testing.assert_array_equal(p, -1)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_parameters_of_other_types(dtype, anywhere, rng) -> None:
    p = anywhere.place(rng.standard_normal(40).astype(dtype))
    before, g = anywhere.host(p).copy(), anywhere.place(np.ones(40, dtype))
    optimizer = cto.Adam([p], 0.25)
    optimizer.step([g])
    assert_matches(anywhere.host(p), (before - 0.25 / (1 + 1e-8)).astype(dtype))
    wide = np.float64 if dtype is np.float64 else np.float32
    assert optimizer.state_dict()["moment_1"]["0"].dtype == wide


# ---- what is refused, in the same words everywhere, and then nothing has changed -----------------

P, G = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
NO_OPTIMIZER = {
    "a list": (lambda a: cto.SGD(a(P)), ArgumentError, "SGD: parameters: expected a list"),
    "none": (lambda _: cto.Adam([]), ArgumentError, "Adam: parameters: expected at least one"),
    "None": (lambda _: cto.Adam([None]), ArgumentError, r"Adam: parameters\[0\]: .* got None"),
    "text": (lambda _: cto.Adam(["w"]), ArgumentError, r"Adam: parameters\[0\]: .* got str"),
    "whole": (
        lambda a: cto.AdamW([a(P.astype(int))]),
        DtypeError,
        r"AdamW: parameters\[0\]: expected float32, .*, got int64",
    ),
    "mixed": (
        lambda a: cto.AdamW([a(P), a(P.astype("f2"))]),
        DtypeError,
        r"parameters\[1\]: expected float32 like parameters\[0\], got float16",
    ),
    "names": (
        lambda a: cto.Lamb([a(P), a(P)], names=["w", "w"]),
        ArgumentError,
        "Lamb: names: expected texts that differ",
    ),
    "few names": (lambda a: cto.Lamb([a(P)], names=[]), ArgumentError, "names: expected 1 entries"),
    "copies": (
        lambda a: cto.SGD([a(P)], low_precision=[None, None]),
        ArgumentError,
        "SGD: low_precision: expected 1 entries like parameters, got 2",
    ),
    "betas": (lambda a: cto.Adam([a(P)], betas=0.9), ArgumentError, "Adam: betas: expected two"),
    "a beta": (lambda a: cto.Adam([a(P)], betas=("a", 0)), ArgumentError, "Adam: betas: expected"),
}


@pytest.mark.parametrize("case", NO_OPTIMIZER)
def test_what_is_no_optimizer_is_refused(case, anywhere) -> None:
    make, kind, message = NO_OPTIMIZER[case]
    with pytest.raises(kind, match=message):
        make(anywhere.place)


STEPS = {
    "one array": ({"gradients": lambda a: a(G)}, "gradients: expected a list, got ndarray"),
    "too many": ({"gradients": lambda a: [a(G)] * 3}, "gradients: expected 2 entries like"),
    "a shape": (
        {"gradients": lambda a: [a(G), a(G)]},
        r"gradients\[1\]: expected shape \(5,\) like weights\[1\], got shape \(2, 3\)$",
    ),
    "a shape of few": (
        {"gradients": lambda a: [None, a(G)]},
        r"gradients\[0\]: expected shape \(5,\) .* \(counted without those .* None\)$",
    ),
    "a type": ({"gradients": lambda a: [a(G.astype("i4")), a(np.ones(5, "i4"))]}, "gradients"),
    "two types": ({"gradients": lambda a: [a(G), a(np.ones(5, "f2"))]}, r"gradients\[1\]"),
    "no array": ({"gradients": lambda a: [1.0, a(np.ones(5, "f4"))]}, r"gradients\[0\]: expected"),
    "a view": ({"gradients": lambda a: [a(np.ones((4, 3), "f4"))[::2], None]}, r"gradients\[0\]"),
    "two rates": ({"lr": lambda a: a(np.ones(2, "f4"))}, "lr: expected a number or an array of 1"),
    "a text": ({"lr": lambda _: "0.1"}, "lr: expected a number or a NumPy or CuPy array, got str"),
    "a whole": ({"loss_scale": lambda a: a(np.ones(1, int))}, "loss_scale"),
    "no norm": ({"max_norm": lambda _: 0}, "max_norm.*: expected a number above 0, got 0.0"),
    "below": ({"max_norm": lambda _: -1.0}, "max_norm.*: expected a number above 0, got -1.0"),
}


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
@pytest.mark.parametrize("case", STEPS)
def test_a_wrong_step_is_refused(case, name, anywhere) -> None:
    given, message = STEPS[case]
    parameters = [anywhere.place(P), anywhere.place(np.ones(5, np.float32))]
    optimizer = getattr(cto, name)(parameters)
    gradients = [anywhere.place(G), anywhere.place(np.ones(5, np.float32))]
    optimizer.step(gradients)
    before = [np.array(anywhere.host(p)) for p in parameters]
    wrong = {argument: make(anywhere.place) for argument, make in given.items()}
    with pytest.raises(OpError, match=f"^{name}: {message}") as refusal:
        optimizer.step(**({"gradients": gradients} | wrong))
    assert "\n" not in str(refusal.value)
    assert_same([np.array(anywhere.host(p)) for p in parameters], before)
    assert bool(anywhere.host(optimizer.is_finite))
    assert optimizer.state_dict().get("step", 1) == 1


NO_STEPS = {
    "lr NaN": {"lr": math.nan},
    "lr infinite": {"lr": math.inf},
    "scale NaN": {"loss_scale": math.nan},
    "scale infinite": {"loss_scale": math.inf},
    "scale 0": {"loss_scale": 0.0},
    "scale below 0": {"loss_scale": -8.0},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("case", NO_STEPS)
def test_numbers_that_no_step_can_be_made_with(case, name, anywhere) -> None:
    """On the device they skip the step, which then does not count; on the host they are refused."""
    copy = anywhere.place(np.zeros(P.shape, np.float16))
    optimizer = getattr(cto, name)([anywhere.place(P.copy())], low_precision=[copy])
    gradients = [anywhere.place(G)]
    optimizer.step(gradients)
    own = [*optimizer.parameters, copy, *itertools.chain(*optimizer._moments.values())]
    before = [np.array(anywhere.host(x)) for x in own]
    given = NO_STEPS[case]
    for host in (given, {k: np.float32(v) for k, v in given.items()}):
        with pytest.raises(ArgumentError, match=f"{name}: {next(iter(given))}: expected a"):
            optimizer.step(gradients, **host)
    on_device = {k: anywhere.place(np.array(v, np.float32)) for k, v in given.items()}
    for clip in ({}, {"max_norm": 0.5}):
        optimizer.step(gradients, **on_device, **clip)
    assert_same([np.array(anywhere.host(x)) for x in own], before)
    assert optimizer.state_dict().get("step", 1) == 1
    optimizer.step(gradients)
    assert not np.array_equal(anywhere.host(own[0]), before[0])


@pytest.mark.parametrize("lr", ["0.1", math.nan, math.inf, -0.1, True, [0.1], None, b"1"], ids=repr)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_that_is_none_is_refused_at_once(name, lr) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: lr: expected a"):
        getattr(cto, name)([P.copy()], lr)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Lamb"])
def test_what_makes_no_optimizer_is_refused_at_once(name) -> None:
    make = getattr(cto, name)
    for wrong in (-1, math.nan):
        with pytest.raises(ArgumentError, match=f"^{name}: epsilon: expected a number of at least"):
            make([P.copy()], epsilon=wrong)
    if name != "Adam":
        with pytest.raises(ArgumentError, match=f"^{name}: weight_decay: expected a finite number"):
            make([P.copy()], weight_decay=math.nan)
    if name == "Lamb":
        with pytest.raises(ArgumentError, match=f"^{name}: ratio_limits: expected a number, got"):
            make([P.copy()], ratio_limits=(0.0, math.nan))
        with pytest.raises(ArgumentError, match=f"^{name}: ratio_limits: expected the lower one"):
            make([P.copy()], ratio_limits=(2, 1))
    with pytest.raises(ArgumentError, match=f"^{name}: moment_dtype: expected float32 or bfloat16"):
        make([P.copy()], moment_dtype="float16")
    with pytest.raises(ArgumentError, match=f"^{name}: moment_dtype: .* bfloat16, .*, got int8"):
        make([P.copy()], moment_dtype="int8")
    with pytest.raises(ArgumentError, match=f"^{name}: moment_dtype: expected float64, .* float32"):
        make([P.astype(np.float64)], moment_dtype="float32")


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_small_gradients_move_as_far_with_moments_of_16_bits(name) -> None:
    """A second moment that vanished would make steps of any size."""
    moved = []
    for dtype in ("float32", "bfloat16"):
        p = np.zeros(64, np.float32)
        optimizer = getattr(cto, name)([p], 1e-3, moment_dtype=dtype)
        for _ in range(200):
            optimizer.step([np.full(64, 1e-4, np.float32)])
        moved.append(float(p[0]))
    assert abs(moved[1] / moved[0] - 1) < 0.1
    assert abs(moved[0] + 0.2) < 0.01


def test_the_same_array_twice_is_refused(anywhere) -> None:
    p, g = anywhere.place(P), anywhere.place(G)
    for optimizer, gradients in ((cto.SGD([p, p]), [g, g]), (cto.SGD([p]), [p])):
        with pytest.raises(ArgumentError, match=r"SGD: .*: expected memory of its own"):
            optimizer.step(gradients)
    assert_matches(anywhere.host(p), P, 0)


def test_a_largest_norm_of_lamb_is_a_number(anywhere) -> None:
    optimizer = cto.Lamb([anywhere.place(P)])
    with pytest.raises(ArgumentError, match="Lamb: max_norm: expected a number, got"):
        optimizer.step([anywhere.place(G)], max_norm=anywhere.place(np.ones(1, np.float32)))


def test_norm_and_update_share_no_scratch_memory() -> None:
    device, op = Device(132, (9, 0)), LambStep()
    number = Spec((1,), FLOAT32)
    w, m = ([Spec((5_000_000,), FLOAT32, place=0)] * 300 for _ in range(2))
    specs = (number, None, number, number, None, w, m, m, m, None)
    plan = op.plan(device, *specs, None, w, [None] * 300, m, m, None)
    of_norm, *_ = (s.args for s in plan.steps if s.symbol == "optimizer__norm")
    of_update = next(s.args for s in plan.steps if s.symbol == "lamb__direction")
    for zeros in (False, True):
        norm, update = (
            {a.offset for a in args if isinstance(a, Scratch) and a.zeros == zeros}
            for args in (of_norm, of_update)
        )
        assert max(norm) < min(update)


# ---- CuPy's arrays, without a GPU ----------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_reach_their_launches_on_cupys_arrays(name) -> None:
    """New gradients, the same ones again, numbers and arrays; nothing is read from the device."""
    pytest.importorskip("cupy", reason="CuPy comes with the extras of CUDA")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches() as launches:
        parameters = [hollow(shape, np.float32) for shape in ((3, 4), (0,), (5,))]
        optimizer = getattr(cto, name)(parameters, hollow((1,), np.float32))
        gradients = [hollow(p.shape, np.float32) for p in parameters]
        found = []
        for lr, loss_scale in ((None, None), (None, None), (0.1, 2.0), (0.1, 4.0)):
            optimizer.step(gradients, lr=lr, loss_scale=loss_scale, max_norm=1.0)
            found.append([symbol for symbol, _ in launches])
            launches.clear()
        assert len({tuple(symbols) for symbols in found}) == 1
        assert any(symbol.startswith("optimizer__norm") for symbol in found[0])
        assert found[0][-1].startswith({"SGD": "optimizer", "Lamb": "lamb"}.get(name, "adam"))

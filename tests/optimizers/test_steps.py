# SPDX-License-Identifier: MIT
"""Steps of the optimizers for training loops: what their operators give, and skipped."""

from __future__ import annotations

import gc
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
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.optimizers.steps import LambStep
from cupy_training_ops.plan import Device, Scratch
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
    assert state["step"] == {"0": 0, "1": 1, "2": 0, "3": 1, "4": 0}
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

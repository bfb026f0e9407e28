# SPDX-License-Identifier: MIT
"""Steps are counted for each parameter: one without a gradient has not made the others' steps."""

from __future__ import annotations

import io

import numpy as np
import pytest
from optimizers.sharded_training import SHAPES as MANY
from optimizers.sharded_training import RankTraining
from ranks import in_threads, results
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.optimizers import parts

SHAPES = ((33, 7), (130,), (), (40,))
N_STEPS, SKIPPED = 8, 5
KINDS = {
    "Adam": (cto.Adam, {}),
    "AMSGrad": (cto.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "SGD": (cto.SGD, {"momentum": 0.9, "dampening": 0.5}),
    "AdamW": (cto.AdamW, {"weight_decay": 0.1}),
    "AdamW in codes": (cto.AdamW, {"state": "8bit"}),
    "AdamW in few bits": (cto.AdamW, {"state": "4bit"}),
    "Lamb": (cto.Lamb, {"weight_decay": 0.1}),
}

pytestmark = pytest.mark.usefixtures("large_coded")


def drawn(seed: int) -> tuple[list[np.ndarray], list[list[np.ndarray | None]]]:
    """Parameters, and gradients of each step: the last one has its first in the fifth."""
    rng = np.random.default_rng(seed)
    start = [np.asarray(rng.standard_normal(shape), np.float32) for shape in SHAPES]
    every = []
    for i in range(N_STEPS):
        actual = [np.asarray(rng.standard_normal(shape), np.float32) for shape in SHAPES]
        missing = rng.random(len(SHAPES)) < 0.4
        missing[-1], missing[0] = i < 4, i in (2, 3)
        if i == SKIPPED:
            actual[0].flat[3] = np.nan
        every.append([None if m else g for m, g in zip(missing, actual, strict=True)])
    return start, every


@pytest.mark.parametrize("kind", KINDS)
def test_each_parameter_is_updated_as_if_it_were_alone(kind, anywhere, seed) -> None:
    """Bit for bit, but that a NaN in one gradient skips the step of all."""
    make, options = KINDS[kind]
    start, every = drawn(seed)
    together = [anywhere.place(p) for p in start]
    optimizer = make(together, 0.1, **options)
    for given in every:
        optimizer.step([None if g is None else anywhere.place(g) for g in given], loss_scale=2.0)
    state, made = optimizer.state_dict(), {}
    for i, p in enumerate(start):
        alone = anywhere.place(p)
        own = make([alone], 0.1, **options)
        for k, given in enumerate(every):
            if given[i] is not None and k != SKIPPED:
                own.step([anywhere.place(given[i])], loss_scale=2.0)
        expected = own.state_dict()
        assert_same([np.array(anywhere.host(together[i]))], [np.array(anywhere.host(alone))])
        for moment in optimizer.moments:
            assert_same([state[moment][str(i)]], [expected[moment]["0"]])
        made[str(i)] = expected["step"]
    assert state["step"] == made
    assert len(set(made.values())) > 1


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_steps_are_those_of_pytorch(max_norm, seed) -> None:
    torch = pytest.importorskip("torch")
    start, every = drawn(seed)
    own = [p.copy() for p in start]
    others = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in start]
    optimizer, reference = cto.AdamW(own, 0.1), torch.optim.AdamW(others, lr=0.1)
    for k, given in enumerate(every):
        optimizer.step(given, max_norm=max_norm)
        for p, g in zip(others, given, strict=True):
            p.grad = None if g is None else torch.from_numpy(g.copy())
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(others, max_norm)
        if k != SKIPPED:
            reference.step()
    for p, q in zip(own, others, strict=True):
        np.testing.assert_allclose(p, q.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_step_is_one_update_until_counts_differ(run) -> None:
    """And one of each count from then on, behind one norm; whole patterns come back."""
    parameters = [run.place(np.ones(40, np.float32)) for _ in range(3)]
    gradients = [run.place(np.full(40, 0.5, np.float32)) for _ in range(3)]
    optimizer = cto.AdamW(parameters)

    def symbols(*places: int) -> list[str]:
        with launch_log() as log:
            optimizer.step([g if i in places else None for i, g in enumerate(gradients)])
        actual = [step.symbol for step in log]
        return [s for s in actual if s.startswith("adam__")], "optimizer__norm" in str(actual)

    one = ["adam__list", "adam__count"]
    assert symbols(0, 1, 2) == (one, True)
    assert symbols(0, 1) == (one, True)  # of a part alone
    for _ in range(2):
        assert symbols(0, 1, 2) == (2 * one, True)
    assert symbols(0, 2) == (2 * one, True)
    assert symbols(0, 1, 2) == (3 * one, True)
    assert optimizer.state_dict()["step"] == {"0": 6, "1": 5, "2": 5}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_the_counts(kind, anywhere, seed) -> None:
    make, options = KINDS[kind]
    start, every = drawn(seed)
    every = [[None if g is None else anywhere.place(g) for g in given] for given in every]
    whole = [anywhere.place(p) for p in start]
    first = make(whole, 0.1, **options)
    for given in every[:5]:
        first.step(given)
    half, file = [anywhere.place(np.array(anywhere.host(p))) for p in whole], io.BytesIO()
    first.save(file)
    second = make(half, 0.1, **options)
    second.step([None, every[0][1], None, None])  # which is forgotten
    half[1][...] = whole[1]
    file.seek(0)
    second.load(file)
    for given in every[5:]:
        first.step(given)
        second.step(given)
    for p, q in zip(whole, half, strict=True):
        assert_same([np.array(anywhere.host(q))], [np.array(anywhere.host(p))])
    assert second.state_dict()["step"] == first.state_dict()["step"]


def test_one_count_is_that_of_all_parameters(anywhere) -> None:
    """As files had it before."""
    p = [anywhere.place(np.ones(3, np.float32)) for _ in range(2)]
    optimizer, g = cto.Adam(p, 0.1), anywhere.place(np.ones(3, np.float32))
    optimizer.step([g, None])
    state = optimizer.state_dict()
    optimizer.load_state_dict(state | {"step": 7})
    assert optimizer.state_dict()["step"] == 7
    optimizer.load_state_dict(state | {"step": {"0": 2, "1": 9}})
    optimizer.step([None, anywhere.place(np.full(3, 0.5, np.float32))])
    assert optimizer.state_dict()["step"] == {"0": 2, "1": 10}
    for wrong in ({"0": 2}, {"0": 2, "1": -1}, {"0": 2, "1": 1.0}, {"0": 2, "b": 1}, [2, 1]):
        with pytest.raises(ArgumentError, match=r"^Adam: state step"):
            optimizer.load_state_dict(state | {"step": wrong})
    assert optimizer.state_dict()["step"] == {"0": 2, "1": 10}


@pytest.mark.parametrize("turn", [parts.MIN_TURN, 1])
def test_ranks_count_the_same(turn, monkeypatch, seed) -> None:
    """Also of parameters of which a rank has no part; shares have the counts of all."""
    monkeypatch.setattr(parts, "MIN_TURN", turn)
    late = (1, 3)

    def trained(group):
        training = RankTraining(group, seed)
        training.steps(2, without=late, n=2)
        training.steps(1, n=2)
        if group is not None:
            share = training.optimizer.state_dict(sharded=True)
            assert share["step"] == {str(i): 1 if i in late else 3 for i in range(len(MANY))}
            optimizer = cto.AdamW(
                training.parameters, 0.1, low_precision=training.copies, group=group
            )
            optimizer.load_state_dict(share)
            training.optimizer = optimizer
        training.steps(1, n=2)
        return training.results()

    expected = trained(None)
    for own in results(in_threads(2, trained)):
        assert_same(own, expected)


def test_a_module_that_is_left_out_of_some_steps(seed) -> None:
    """Through buckets: its parameters are PyTorch's by the means of the ranks' gradients."""
    torch = pytest.importorskip("torch")
    used = [(0, 1, 2, 3, 4, 5), (0, 2, 3, 5), (0, 2, 3, 5), (0, 1, 2, 3, 4, 5), (1, 3, 4)]

    def trained(group):
        training = RankTraining(group, seed, (np.float32, np.float32, None, None))
        buckets = cto.GradientBuckets(
            training.parameters, group, megabytes=0.003, optimizer=training.optimizer
        )
        for i, places in enumerate(used):
            gradients = training.gradients(i)
            for place in places:
                buckets.ready(place, gradients[place])
            training.optimizer.step(buckets.wait())
        return [p.copy() for p in training.parameters]

    one = RankTraining(None, seed, (np.float32, np.float32, None, None))
    others = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in one.parameters]
    reference = torch.optim.AdamW(others, lr=0.1)
    for i, places in enumerate(used):
        for place, g in enumerate(one.means(i, 2)):
            others[place].grad = torch.from_numpy(np.array(g)) if place in places else None
        reference.step()
    for own in results(in_threads(2, trained)):
        for p, q in zip(own, others, strict=True):
            np.testing.assert_allclose(p, q.detach().numpy(), rtol=1e-5, atol=1e-5)

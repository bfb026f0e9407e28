# SPDX-License-Identifier: MIT
"""What can be pickled and copied goes on as the original does; what cannot says so."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.registry import REGISTRY
from cupy_training_ops.testing.compare import assert_matches

COPIES = {"pickled": lambda x: pickle.loads(pickle.dumps(x)), "copied": copy.deepcopy}
each_way = pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
OPTIMIZERS = (cto.SGD, cto.Adam, cto.AdamW, cto.Lamb)
RELU = cto.get_op("ReluGrad")


@each_way
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_an_optimizer_goes_on_from_a_copy(kind, again, anywhere, rng) -> None:
    first, second = ([rng.standard_normal(n, np.float32) for n in (5, 300)] for _ in range(2))
    gradients = [anywhere.place(g) for g in second]
    optimizer = kind([anywhere.place(w) for w in first], low_precision=copies_for(anywhere))
    for _ in range(2):  # the second is known by its arrays
        optimizer.step(gradients)
    other = again(optimizer)
    before = [anywhere.host(w).copy() for w in optimizer.parameters]
    other.step(gradients)
    for left, was, moved in zip(optimizer.parameters, before, other.parameters, strict=True):
        assert_matches(anywhere.host(left), was, 0)
        assert (anywhere.host(moved) != was).any()
    optimizer.step(gradients)
    for own, others in zip(written(optimizer), written(other), strict=True):
        assert_matches(anywhere.host(own), anywhere.host(others), 0)
    assert optimizer.state_dict().get("step") == other.state_dict().get("step")


def test_a_shallow_copy_follows_the_counts_that_it_shares(anywhere, rng) -> None:
    """Steps of either are steps of both, also where the other divided the counts meanwhile."""
    first, second = ([rng.standard_normal(n, np.float32) for n in (5, 300)] for _ in range(2))
    gradients = [anywhere.place(g) for g in second]
    one, alone = (cto.AdamW([anywhere.place(w) for w in first]) for _ in range(2))
    other = copy.copy(one)
    for optimizer, given in (
        (other, gradients), (other, gradients), (one, [gradients[0], None]),
        (other, gradients), (other, gradients), (one, gradients),
    ):  # fmt: skip
        optimizer.step(given)
        alone.step(given)
    assert one.state_dict()["step"] == alone.state_dict()["step"] == {"0": 6, "1": 5}
    for own, expected in zip(one.parameters, alone.parameters, strict=True):
        assert_matches(anywhere.host(own), anywhere.host(expected), 0)


def copies_for(anywhere):
    return [anywhere.place(np.zeros(n, np.float16)) for n in (5, 300)]


def written(optimizer):
    """All that a step writes."""
    return (*optimizer.parameters, *optimizer._copies, *sum(optimizer._moments.values(), ()))


def test_parameters_and_optimizer_are_copied_together(anywhere) -> None:
    """By one deepcopy, as of a model that holds both."""
    parameters = [anywhere.place(np.ones(3, np.float32))]
    optimizer = cto.SGD(parameters, 0.5)
    (parameter,), other = copy.deepcopy((parameters, optimizer))
    other.step([anywhere.place(np.ones(3, np.float32))])
    assert anywhere.host(parameter).tolist() == [0.5] * 3
    assert anywhere.host(parameters[0]).tolist() == [1] * 3


@each_way
def test_a_bound_call_cannot_be_copied(again, anywhere) -> None:
    """Its copy would launch over the original's memory."""
    x = anywhere.place(np.ones(3, np.float32))
    for bound in (RELU().bound(x, x), RELU().bound(..., x)):
        with pytest.raises(TypeError, match=r"^ReluGrad: a bound call holds its arrays where they"):
            again(bound)


@each_way
@pytest.mark.parametrize("cls", REGISTRY.values(), ids=lambda cls: f"{cls.name}-{cls.since}")
def test_classes_are_their_own_copies(cls, again) -> None:
    assert again(cls) is cls


# ---- NumPy's arrays that change while a call holds them ------------------------------------------


def retyped(array):
    array.dtype = np.int32


def reshaped(array):
    array.shape = (3, 4)


def resized(array):
    array.resize(6, refcheck=False)


@pytest.mark.filterwarnings("ignore:Setting the (dtype|shape)")  # by NumPy 2.5
@pytest.mark.parametrize("changed", [retyped, reshaped, resized], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["dY", "X", "out"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_bound_array_that_has_changed_is_refused(changed, name, is_open) -> None:
    arrays = {key: np.ones(12, np.float32) for key in ("dY", "X", "out")}
    keywords = dict(arrays)
    opened = "X" if name == "dY" else "dY"
    if is_open:
        keywords[opened] = ...
    bound = RELU().bound(**keywords)
    named = {opened: arrays[opened]} if is_open else {}
    assert bound(**named) is arrays["out"]
    changed(arrays[name])
    words = rf"{name}.*: expected float32 of shape \(12,\), as it was bound, got (float|int)32 of"
    with pytest.raises(ArgumentError, match=words):
        bound(**named)

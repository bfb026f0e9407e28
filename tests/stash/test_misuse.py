# SPDX-License-Identifier: MIT
"""ActivationStash: what is refused, in words."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ActivationStash, ArgumentError, DtypeError

from .activations import activation


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda s, _: s.get("y"), r"name: expected one that was put \('x'\), got 'y'"),
        (lambda s, _: (s.get("x"), s.get("x")), "name: expected one that was not taken yet, got"),
        (lambda s, x: s.put("x", x), "name: expected one that is not there yet, got 'x'"),
        (lambda s, x: s.put(3, x), "name: expected a text, got 3"),
        (lambda s, x: s.put("y", x, need="sum"), "need: expected one of 'sign', 'mask', 'index'"),
        (lambda s, _: s.put("y", None), "array: expected an array, got None"),
        (lambda s, x: s.put("y", x.T), "contiguous"),
        (lambda s, x: s.get("x", out=x[:1]), r"expected shape \(7, 33\), got shape \(1, 33\)"),
        (lambda s, _: s.__enter__(), "expected one `with` at a time"),
    ],
)
def test_misuse_is_one_error(rng, misuse, message) -> None:
    x = activation(rng)
    with ActivationStash("default") as stash:
        stash.put("x", x)
        with pytest.raises(ArgumentError, match=message):
            misuse(stash, x)


@pytest.mark.parametrize(
    ("policy", "need", "message"),
    [
        (
            lambda *_: "zip",
            "value",
            r"policy: expected the name of a codec \(.*\) or None for 'x', g",
        ),
        (lambda *_: 3, "value", r"or None for 'x', got 3"),
        (lambda *_: "msfp15", "index", "keeps every index of 'x', got 'msfp15', which is lossy"),
        (lambda *_: "pack1", "value", "keeps the values of 'x', got 'pack1', which does not"),
    ],
)
def test_a_policy_that_does_not_fit_is_one_error(rng, policy, need, message) -> None:
    with ActivationStash(policy) as stash, pytest.raises(ArgumentError, match=message):
        stash.put("x", activation(rng), need=need)


@pytest.mark.parametrize("policy", ["tiny", 3, None])
def test_an_unknown_policy_is_one_error(policy) -> None:
    with pytest.raises(
        ArgumentError, match="policy: expected one of 'lossless', 'default', 'wide', 'small'"
    ):
        ActivationStash(policy)


def test_outside_of_with_it_is_refused(rng) -> None:
    stash = ActivationStash()
    for call in (lambda: stash.put("x", activation(rng)), lambda: stash.get("x")):
        with pytest.raises(ArgumentError, match="expected to be called inside of `with`"):
            call()


def test_a_codec_that_does_not_take_the_dtype_says_so() -> None:
    with ActivationStash(lambda *_: "msfp15") as stash, pytest.raises(DtypeError):
        stash.put("x", np.arange(8))


def test_an_error_leaves_the_others(rng) -> None:
    x = activation(rng)
    with ActivationStash("lossless") as stash:
        stash.put("x", x)
        with pytest.raises(ArgumentError):
            stash.put("y", x.T)
        assert (stash.get("x") == x).all()
        stash.put("x", x)  # taken: the name is free
        assert (stash.get("x") == x).all()


def test_checking_finds_arrays_that_were_changed(rng) -> None:
    x, y = activation(rng), np.float32(3)
    with ActivationStash("default", check=True) as stash:
        stash.put("x", x)
        stash.put("y", np.array(y))
        stash.put("kept", np.arange(3))
        x[2, 3] = -0.0 if x[2, 3] == 0 else -x[2, 3]
        with pytest.raises(ArgumentError, match="'x' was changed after put"):
            stash.get("x")
        assert stash.get("y") == 3
        stash.get("kept")


def test_without_pytorch_its_part_is_not_there(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("cupy_training_ops.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(cto, "torch", raising=False)
    with pytest.raises(AttributeError, match="torch needs PyTorch, which is not installed"):
        _ = cto.torch

# SPDX-License-Identifier: MIT
"""Inputs by their declared names, beside positions; functions that can be pickled."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest
from probe.frame_probe import (
    ProbeDecay,
    ProbeEither,
    ProbeFill,
)
from probe.list_probe import (
    ProbeDescend,
    ProbeSpread,
)
from probe.probe import ProbeHalves, ProbeSum

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.call.arguments import CALL
from cupy_training_ops.registry import REGISTRY, get_op
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import all_samples, flat, sampled_operators

SAMPLES = all_samples()
X = np.arange(1, 301, dtype=np.float32)
Y = X / 7


@pytest.mark.parametrize("cls", REGISTRY.values(), ids=lambda cls: f"{cls.name}-{cls.since}")
def test_no_name_means_two_things(cls) -> None:
    """Else a keyword of the function form would be an input and an attribute."""
    results = [item.name for item in (*cls.inputs, *cls.attributes)]
    assert len({*results, *CALL}) == len(results) + len(CALL)


@pytest.mark.parametrize("name", sampled_operators())
def test_every_input_has_its_name(name, rng) -> None:
    """In any order; the signature takes what the call takes."""
    sample = next(s for s in SAMPLES[name] if "ordinary" in s.label)
    op, inputs = get_op(name)(**sample.attributes), sample.make(rng)
    copies = [pickle.loads(pickle.dumps(inputs)) for _ in range(3)]  # some are written in place
    by_name = [dict(reversed([*zip((i.name for i in op.inputs), c, strict=False)])) for c in copies]
    expected = flat(op(*inputs))
    function = getattr(cto, op.function_name)
    results = (
        op(**by_name[0]),
        function(**by_name[1], **sample.attributes),
        op(*copies[2][:1], **{n: v for n, v in by_name[2].items() if n != op.inputs[0].name}),
    )
    for result in results:
        for actual, wanted in zip(flat(result), expected, strict=True):
            if wanted is not None:
                assert_matches(actual, wanted, 0)
    inspect.signature(op).bind(**by_name[0], out=None)
    inspect.signature(function).bind(**by_name[0], **sample.attributes, workspace=None)


def test_a_swap_is_none_where_names_are_given(anywhere) -> None:
    index = anywhere.place(np.array([0, 2]))
    dy = anywhere.place(np.array([[1, 2]], np.float32))
    expected = [[1, 0, 2, 0]]
    assert (
        anywhere.host(cto.GatherGrad(axis=1)(dY=dy, indices=index, shape=(1, 4))).tolist()
        == expected
    )
    assert (
        anywhere.host(cto.gather_grad(dY=dy, axis=1, shape=(1, 4), indices=index)).tolist()
        == expected
    )


def test_a_call_by_names_is_the_call_by_positions(anywhere) -> None:
    op, x, y = cto.GeluGrad(), anywhere.place(X), anywhere.place(Y)
    for call in (lambda: op(x, y), lambda: op(X=y, dY=x), lambda: op(x, X=y)):
        assert_matches(anywhere.host(call()), anywhere.host(op(x, y)), 0)
    assert len(op._remembered) == 1


def test_what_is_left_out_between_names(anywhere) -> None:
    x, z = anywhere.place(X), anywhere.place(np.zeros_like(X[:150]))
    _, high, _ = ProbeHalves()(Unused=z, X=x, out=(None, z, None))
    assert high is z
    decayed = ProbeDecay()(rate=0.5, X=x)[0]
    assert_matches(anywhere.host(decayed), anywhere.host(ProbeDecay()(x, 0.5)[0]), 0)
    dx = cto.slice_grad(x, shape=(600,), starts=(0,), ends=(600,), steps=(2,))
    assert_matches(anywhere.host(dx)[::2], X, 0)


def test_lists_by_name(anywhere) -> None:
    op = ProbeDescend()
    xs, gs = ([anywhere.place(X[:n].copy()) for n in (3, 5)] for _ in range(2))
    for _ in range(2):
        op(rate=0.25, Gs=gs, Xs=xs)
    assert_matches(anywhere.host(xs[1]), X[:5] / 2)
    joined, lengths = cto.concat_training(inputs=gs, axis=0)  # the name of Python's own parameter
    assert lengths.tolist() == [3, 5]
    assert_matches(anywhere.host(joined), np.concatenate([X[:3], X[:5]]), 0)


def test_bound_calls_by_name(anywhere) -> None:
    x, y = anywhere.place(X), anywhere.place(Y)
    expected = anywhere.host(cto.gelu_grad(y, x))
    assert_matches(anywhere.host(cto.GeluGrad().bound(X=x, dY=y)()), expected, 0)
    assert_matches(anywhere.host(cto.GeluGrad().bound(X=x, dY=...)(dY=y)), expected, 0)
    assert_matches(anywhere.host(cto.GeluGrad().bound(..., X=x)(dY=y)), expected, 0)
    bound = ProbeEither().bound(state=(0, 0), X=x, rate=0.5, step=1)
    assert_matches(anywhere.host(bound(rate=1.0)[0]), X * np.float32(0.1))


def test_scratch_memory_by_name(run) -> None:
    x = run.place(X)
    assert ProbeSum().workspace_nbytes(X=x) == ProbeSum().workspace_nbytes(x) > 0
    assert ProbeHalves().workspace_nbytes(X=x, outputs=("Low",)) == 0


REFUSED = [
    (lambda: cto.gelu_grad(Y, Y, foo=1), r"GeluGrad: foo: expected an attribute among \[\] or an "
     r"input among \['dY', 'X'\], got an unknown one"),
    (lambda: cto.GeluGrad()(Y, Y, foo=1), "GeluGrad: foo: .* got an unknown one"),
    (lambda: cto.GeluGrad(foo=1), "GeluGrad: foo: .* got an unknown one"),
    (lambda: cto.GeluGrad(X=Y), "GeluGrad: X: .* got an input, which the call takes"),
    (lambda: cto.GatherGrad()((3,), np.zeros(3, int), Y[:3], axis=0),
     r"GatherGrad: axis: expected an attribute among \['axis', 'deterministic', 'check'\] or an "
     "input among .* got an attribute, which the constructor takes"),
    (lambda: cto.gelu_grad(X=Y), "GeluGrad: dY: expected an argument, got none"),
    (lambda: cto.gelu_grad(Y, dY=Y, X=Y), "dY: expected one value, got one by position and one by"),
    (lambda: cto.gelu_grad(Y, Y, Y, X=Y), r"inputs: expected \(dY, X\), got 3 arguments"),
    (lambda: cto.gelu_grad(dY=None, X=Y), "GeluGrad: dY: expected an array, got None"),
    (lambda: cto.GeluGrad().bound(X=Y), "GeluGrad: dY: expected an argument, got none"),
    (lambda: cto.GeluGrad().bound(Y, Z=Y), "GeluGrad: Z: .* got an unknown one"),
    (lambda: cto.GeluGrad().bound(X=..., dY=Y)(X=Y, dY=Y), "GeluGrad: dY: expected a name among"),
    (lambda: cto.GeluGrad().workspace_nbytes(Y, Y, axis=1), "GeluGrad: axis: .* an unknown one"),
    (lambda: ProbeFill(n=3)(n=3), "ProbeFill: n: .* got an attribute, which the constructor takes"),
    (lambda: cto.concat_training(Y, axis=0), r"inputs: expected a list, got one ndarray: write \["),
    (lambda: cto.view(Y, shapes=Y), r"View: shapes: expected a list, got one ndarray: write \[x\]"),
    (lambda: ProbeSpread()(Xs=(x for x in [Y]), Ws=[None]), "Xs: expected a list, got generator$"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_names_that_do_not_fit(call, message) -> None:
    for _ in range(2):  # also where the refusal could be remembered
        with pytest.raises(ArgumentError, match=message):
            call()


def test_signatures_are_those_of_the_calls() -> None:
    assert str(inspect.signature(cto.gather_grad)) == (
        "(shape, indices, dY, *, axis=0, deterministic=True, check=False, "
        "out=None, outputs=None, workspace=None)"
    )
    assert str(inspect.signature(cto.GatherGrad)) == "(*, axis=0, deterministic=True, check=False)"
    assert str(inspect.signature(cto.FastGelu())) == (
        "(X, bias=None, *, out=None, outputs=None, workspace=None)"
    )


# ---- pickling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampled_operators())
def test_functions_classes_and_operators_can_be_pickled(name) -> None:
    cls = get_op(name)
    function = getattr(cto, cls.function_name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(cls)) is cls
    if any(item.name == "group" for item in cls.attributes):
        return  # a group belongs to its process
    sample = SAMPLES[name][0]
    op = cls(**sample.attributes)
    again = pickle.loads(pickle.dumps(op))
    assert type(again) is cls
    assert again.attribute_values == op.attribute_values


def test_a_pickled_operator_leaves_its_memory_behind(run) -> None:
    op, x = ProbeSum(), run.place(X)
    op(x)
    assert op._remembered
    assert op.workspaces._stores
    again = pickle.loads(pickle.dumps(op))
    assert not again._remembered
    assert not again.workspaces._stores
    assert len(pickle.dumps(op)) < 200


def test_another_process_finds_the_function() -> None:
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(cto.gelu), capture_output=True, check=True
    )
    assert ran.stdout.split() == [b"gelu"]

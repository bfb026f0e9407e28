# SPDX-License-Identifier: MIT
"""What optimizers for training loops refuse, in the same words everywhere, changing nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from ranks import in_threads, results
from training import (
    OPTIMIZERS,
    assert_same,
)

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, OpError
from cupy_training_ops.testing.compare import assert_matches

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


class Failing(list):
    """Gradients whose class fails as they are read for the n-th time."""

    reads = 0

    def __init__(self, gradients, n: int) -> None:
        super().__init__(gradients)
        self.n = n

    def __iter__(self):
        self.reads += 1
        if self.reads == self.n:
            raise ZeroDivisionError("of its own")
        return super().__iter__()


def assert_a_failing_list_writes_nothing(optimizer, parameters, gradients) -> None:
    """An exception that the list raises passes as it is, whenever it is read; it is read once."""
    optimizer.step(gradients)
    before = [np.array(p) for p in parameters]
    state = optimizer.state_dict()
    with pytest.raises(ZeroDivisionError, match="of its own"):
        optimizer.step(Failing(gradients, 1))
    assert_same([np.array(p) for p in parameters], before)
    assert optimizer.state_dict()["step"] == state["step"]
    for n in range(2, 12):
        optimizer.step(Failing(gradients, n))
    assert optimizer.state_dict()["step"] == state["step"] + 10


def test_what_a_list_raises_as_it_is_read_passes_as_it_is() -> None:
    parameters = [np.ones(3, np.float32), np.ones(4, np.float32)]
    gradients = [np.ones_like(p) for p in parameters]
    assert_a_failing_list_writes_nothing(cto.AdamW(parameters), parameters, gradients)
    with pytest.raises(ArgumentError, match="AdamW: gradients: expected 2 entries"):
        cto.AdamW(parameters).step(Failing(gradients[:1], 1))


def test_so_does_what_one_of_tensors_raises() -> None:
    """Whose versions are raised after a step."""
    torch = pytest.importorskip("torch")
    parameters = [torch.ones(3), torch.ones(4)]
    gradients = [torch.ones_like(p) for p in parameters]
    arrays = [p.numpy() for p in parameters]
    assert_a_failing_list_writes_nothing(cto.AdamW(parameters), arrays, gradients)
    with pytest.raises(ZeroDivisionError, match="of its own"):
        cto.torch.AdamW(Failing(parameters, 1))


def test_so_does_what_one_over_ranks_raises() -> None:
    def trained(group):
        parameters = [np.ones(3, np.float32), np.ones(4, np.float32)]
        optimizer = cto.AdamW(parameters, group=group)
        assert_a_failing_list_writes_nothing(
            optimizer, parameters, [np.ones_like(p) for p in parameters]
        )

    results(in_threads(2, trained))


@pytest.mark.parametrize("name", ["parameters", "names"])
def test_neither_parameters_nor_names_can_be_replaced(name) -> None:
    """Steps would go on with those of the constructor, and states lose one of equal names."""

    def replaced(group=None) -> list[str]:
        over = {} if group is None else {"group": group}
        optimizers = [cto.AdamW([P.copy()], **over)]
        optimizers += [] if over else [cto.SGD([P.copy()]), cto.Adam([P.copy()])]
        for optimizer in optimizers:
            with pytest.raises(AttributeError, match=f"property '{name}' of .* has no setter"):
                setattr(optimizer, name, ["w"])
            optimizer.step([G])
        return [list(optimizer.names) for optimizer in optimizers]

    assert replaced() == [["0"]] * 3
    assert list(results(in_threads(1, replaced))) == [[["0"]]]

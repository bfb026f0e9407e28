# SPDX-License-Identifier: MIT
"""Values that are no arrays: what converters refuse, how short they say it, what is kept apart."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, OpError
from cupy_training_ops.declare.schema import one_of
from cupy_training_ops.errors import shown

X = np.ones(3, np.float32)
CODES = np.zeros(1, np.uint8)
IMAGE = np.ones((1, 1, 1, 1), np.float32)
INDEX = np.zeros(1, np.int64)
MANY = list(range(100_000))


class Failing:
    """A value whose own class fails."""

    def __index__(self):
        raise ZeroDivisionError("of its own")

    __float__ = __repr__ = __index__


class Typed:
    """Something with a dtype that is none."""

    dtype = property(Failing.__index__)


@pytest.mark.parametrize(
    "to",
    [
        [("a", "f4", -1)],
        {"names": 3},
        np.float32(2.0),
        X,
        Typed(),
        Typed,
        Failing(),
        np.ndarray,
        "f4,f4",
        2**100,
        10**5000,
        True,
        None,
        (),
    ],
    ids=lambda value: shown(value).partition(" at 0x")[0],  # each process has addresses of its own
)
def test_what_is_no_dtype(to) -> None:
    with pytest.raises(DtypeError, match="GistPack8Decoder: to: expected a dtype, its name or its"):
        cto.gist_pack8_decoder(CODES, to=to)


REFUSED = [
    (lambda v: cto.resize_grad(IMAGE, IMAGE, mode=v), "ResizeGrad: mode: expected one of"),
    (lambda v: cto.gather_grad(v, INDEX, X[:1]), "GatherGrad: shape: "),
    (lambda v: cto.gather_grad((v,), INDEX, X[:1]), "GatherGrad: shape: "),
    (lambda v: cto.gather_grad((3,), INDEX, X[:1], axis=v), "GatherGrad: axis: "),
    (lambda v: cto.GistPack8Decoder(to="float16", shape=v), "GistPack8Decoder: shape: "),
    (lambda v: cto.scale(X, v), "Scale: scale: "),
    (lambda v: cto.fake_quant(X, v, 0), "FakeQuant: scale: "),
    (lambda v: cto.leaky_relu_grad(X, X, alpha=v), "LeakyReluGrad: alpha: expected a number"),
    (lambda v: cto.reduce_sum_training(X, (0,), keepdims=v), "keepdims: expected a bool"),
    (lambda v: cto.in_place_accumulator(X, X, v), "InPlaceAccumulator: update_signal: "),
    (lambda v: cto.div_grad(X, X, X, outputs=v), "DivGrad: outputs: expected a tuple of names"),
    (lambda v: cto.div_grad(X, X, X, outputs=(v,)), "DivGrad: outputs: expected a tuple of na"),
    (lambda v: cto.get_op("Scale", v), "Scale: version: expected an integer"),
    (lambda v: cto.get_op(v), "no operator "),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
@pytest.mark.parametrize(
    "value",
    [np.float32, X, np.zeros((300, 300)), np.zeros(100_000, bool), MANY, "x" * 100_000, Failing()],
    ids=lambda value: type(value).__name__,
)
def test_refused_in_few_words(call, message, value) -> None:
    with pytest.raises(OpError, match=message) as caught:
        call(value)
    if message != "no operator ":  # which lists all that there are
        assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_integers_that_cannot_be_written_out() -> None:
    with pytest.raises(ArgumentError, match="axis: expected at most 1024 bits, got an integer of"):
        cto.GatherGrad(axis=10**5000)
    with pytest.raises(ArgumentError, match="shape: expected at most 1024 bits, got an integer of"):
        cto.gather_grad((10**5000,), INDEX, X[:1])
    assert shown((10**5000, 1)) == "(an integer of 16610 bits, 1)"


def test_what_a_value_raises_is_the_cause() -> None:
    with pytest.raises(
        ArgumentError, match="axis: cannot be read: ZeroDivisionError: of"
    ) as caught:
        cto.GatherGrad(axis=Failing())
    assert isinstance(caught.value.__context__, ZeroDivisionError)  # for debuggers, not shown


def test_memory_that_is_short_is_no_fault_of_the_value() -> None:
    short = type("Short", (), {"__index__": lambda _: np.zeros(2**62, np.uint8)})()
    with pytest.raises(MemoryError):
        cto.GatherGrad(axis=short)


def test_a_choice_is_given_back_as_declared() -> None:
    choose = one_of("linear", 0)
    assert type(choose(np.str_("linear"))) is str
    for wrong in (0.0, np.array(["linear"]), np.array(0), ["linear"], None):
        with pytest.raises(ArgumentError, match="expected one of"):
            choose(wrong)


@pytest.mark.parametrize("kind", [float, np.float64, np.float32, np.float16])
def test_numbers_that_compare_equal_are_other_attributes(kind) -> None:
    shared = cto.QuickGelu.shared
    assert shared(alpha=kind(0.0)) is not shared(alpha=kind(-0.0))
    assert shared(alpha=kind(0.5)) is shared(alpha=kind(0.5))
    assert shared(alpha=kind(-0.0)).alpha.hex() == "-0x0.0p+0"


def test_attributes_cannot_be_deleted() -> None:
    op = cto.GatherGrad(axis=1)
    with pytest.raises(AttributeError, match="GatherGrad: cannot delete axis: attributes are fro"):
        del op.axis
    assert op.axis == 1


NO_NUMBERS = {
    "layer norm": (lambda v: cto.LayerNormalization(epsilon=v), "epsilon", (-1, np.nan, np.inf)),
    "RMSNorm": (
        lambda v: cto.SimplifiedLayerNormalization(epsilon=v), "epsilon", (-1e-9, np.nan),
    ),
    "batch norm": (lambda v: cto.BatchNormInternal(epsilon=v), "epsilon", (-1, np.nan, np.inf)),
    "AdamW": (lambda v: cto.AdamWOptimizer(epsilon=v), "epsilon", (-1, np.nan)),
    "decay": (lambda v: cto.AdamWOptimizer(weight_decay=v), "weight_decay", (np.nan, np.inf)),
    "LAMB": (lambda v: cto.LambOptimizer(epsilon=[1e-6, v]), "epsilon", (-1, np.nan)),
    "a limit": (lambda v: cto.LambOptimizer(ratio_min=v), "ratio_min", (np.nan,)),
    "a loss's scale": (
        lambda v: cto.cross_entropy_loss_and_grad(IMAGE[0, 0], INDEX[:1], None, None, v),
        "loss_scale", (np.nan, np.inf),
    ),
    "a rate": (lambda v: cto.sgd_optimizer(v, X.copy(), X.copy()), "ETA", (np.nan, -np.inf)),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_numbers_that_nothing_can_be_computed_with(case) -> None:
    call, argument, values = NO_NUMBERS[case]
    for value in values:
        with pytest.raises(ArgumentError, match=f"{argument}: expected a "):
            call(value)


# ---- lists of the caller's own classes -----------------------------------------------------------


class Endless(list):
    def __len__(self):
        return 2**62


class EndlessTuple(tuple):
    def __len__(self):
        return 2**62


class Unreadable(list):
    def __iter__(self):
        raise RuntimeError("of its own")


class UnreadableTuple(tuple):
    def __iter__(self):
        raise RuntimeError("of its own")


class Unmeasured(list):
    def __len__(self):
        raise RuntimeError("of its own")


class Short(list):
    def __iter__(self):
        raise MemoryError


OWN = [Endless, EndlessTuple, Unreadable, UnreadableTuple, Unmeasured, Short]


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda arrays: cto.concat_training(arrays, axis=0), "ConcatTraining: inputs: "),
        (lambda arrays: cto.sgd_optimizer_v2(0.1, arrays, [X]), "SGDOptimizerV2: weights: "),
        (lambda arrays: cto.ConcatTraining(axis=0).bound(arrays), "ConcatTraining: inputs: "),
    ],
    ids=["list", "one of two", "bound"],
)
def test_a_list_whose_class_fails_is_refused_by_its_name(call, words, own) -> None:
    with pytest.raises(ArgumentError, match=f"^{words}(expected|cannot be read)"):
        call(own([X]))


@pytest.mark.parametrize("own", OWN)
def test_names_of_outputs_whose_class_fails_are_refused(own) -> None:
    with pytest.raises(ArgumentError, match=r"^DivGrad: outputs: (expected|cannot be read)"):
        cto.div_grad(X, X, X, outputs=own(["dA"]))


@pytest.mark.parametrize("endless", [range(2**62), [range(2**62)], Endless([1]), EndlessTuple([1])])
def test_numbers_without_end_are_refused_before_they_are_copied(endless) -> None:
    for call, words in (
        (lambda: cto.split_training(X, endless, axis=0), "SplitTraining: split: "),
        (lambda: cto.conv_grad(X, X, X, pads=endless), "ConvGrad: pads: "),
    ):
        with pytest.raises(ArgumentError, match=f"^{words}expected"):
            call()


def test_a_list_of_another_class_is_one(rng) -> None:
    own = type("Own", (list,), {})
    arrays = rng.standard_normal((2, 3)).astype(np.float32)
    result = cto.concat_training(own(arrays), axis=0)
    assert (result[0] == arrays.ravel()).all()

# SPDX-License-Identifier: MIT
"""Dense arrays whose dimensions lie in another order: taken where the order of elements is free."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.backend import ArrayInfo
from cupy_training_ops.call import layout
from cupy_training_ops.call.backends import CPU
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.families.activation.samples import HALVES
from cupy_training_ops.registry import names
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import all_samples, as_tuple

SHAPE = (2, 3, 4, 5)
CHANNELS_LAST, REVERSED = (0, 2, 3, 1), (3, 2, 1, 0)
ORDERS = {"channels last": CHANNELS_LAST, "reversed": REVERSED}
ANY_LAYOUT = [name for name in names() if get_op(name).tiles == {}]
ELEMENT_CODECS = ("binarize", "pack8", "pack16")
orders = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


def laid_out(array, order, place=np.asarray):
    """The same array, its dimensions in memory in this order."""
    return place(np.ascontiguousarray(array.transpose(order))).transpose(np.argsort(order))


def lies_in(array, order) -> bool:
    return not array.flags.c_contiguous and array.transpose(order).flags.c_contiguous


def inputs_of(name: str, rng) -> tuple[dict, list]:
    """Attributes and inputs of a sample, its arrays in SHAPE; none of them a row."""
    cls = get_op(name)
    sample = next(s for s in all_samples()[name] if "ordinary" in s.label)
    inputs = []
    for item, value in zip(cls.inputs, sample.make(rng), strict=False):
        if item.memory == "device" and value is not None:
            value = None if item.name == getattr(cls, "row", "") else np.resize(value, SHAPE)
        inputs.append(value)
    return {k: v for k, v in sample.attributes.items() if k != "shape"}, inputs


def test_who_takes_any_layout() -> None:
    elementwise = {"FakeQuant", "FakeQuantGrad", "IsFinite", "Scale", "ScaledSum", "BatchScale"}
    elementwise |= {"InPlaceAccumulator", "InPlaceAccumulatorV2", "ZeroGradient", "DropoutGrad"}
    codecs = {c for c in names() if c.startswith(("GistBin", "GistPack8", "GistPack16"))}
    assert len(codecs) == 6
    activations = {name for name in names() if get_op(name).family == "activation"} - {*HALVES}
    assert set(ANY_LAYOUT) == elementwise | codecs | activations


@orders
@pytest.mark.parametrize("name", ANY_LAYOUT)
def test_results_are_those_of_contiguous_arrays(name, order, anywhere, rng) -> None:
    cls = get_op(name)
    attributes, values = inputs_of(name, rng)
    if any(v is None and not i.optional for i, v in zip(cls.inputs, values, strict=False)):
        pytest.skip("its row cannot be left out")
    expected = as_tuple(cls(**attributes)(*[v.copy() if hasattr(v, "copy") else v for v in values]))
    op = cls(**attributes)
    inputs = [laid_out(v, order, anywhere.place) if np.shape(v) == SHAPE else v for v in values]
    for actual, wanted in zip(as_tuple(op(*inputs)), expected, strict=True):
        if wanted is not None and wanted.shape == SHAPE:
            assert lies_in(actual, order)
            assert_matches(anywhere.host(actual), wanted, 0 if op.bitwise_exact else None)


@orders
def test_codecs_give_the_layout_back(order, rng) -> None:
    x = laid_out(rng.standard_normal(SHAPE, FLOAT32), order)
    for codec in ELEMENT_CODECS:
        packed = cto.compress(x, codec)
        expected = cto.compress(np.ascontiguousarray(x), codec).decompress()
        assert lies_in(packed.code, order)
        assert lies_in(packed.decompress(), order)
        assert_matches(packed.decompress(), expected, 0)
        out = laid_out(np.zeros(SHAPE, FLOAT32), order)
        assert packed.decompress(out=out) is out
        assert_matches(out, expected, 0)
        with pytest.raises(ArgumentError, match=r"out \(Y\): expected the layout of X, whose dim"):
            packed.decompress(out=np.zeros(SHAPE, FLOAT32))


@pytest.mark.parametrize("codec", ["pack1", "msfp15"])
def test_codecs_that_pack_neighbours_refuse(codec, rng) -> None:
    x = laid_out(rng.standard_normal(SHAPE, FLOAT32), CHANNELS_LAST)
    with pytest.raises(ArgumentError, match="X: expected a C-contiguous array, got a strided one"):
        cto.compress(x, codec)


def test_layouts_do_not_mix(rng) -> None:
    x = rng.standard_normal(SHAPE, FLOAT32)
    last, other = (laid_out(x, order) for order in (CHANNELS_LAST, REVERSED))
    message = r"X: expected the layout of dY, whose dimensions lie in the order \(0, 2, 3, 1\), got"
    for unlike in (x, other):
        with pytest.raises(ArgumentError, match=message):
            cto.gelu_grad(last, unlike)
        with pytest.raises(ArgumentError, match=r"out \(dX\): expected the layout of dY"):
            cto.gelu_grad(last, last, out=unlike.copy(order="K"))
    with pytest.raises(ArgumentError, match="X: expected a C-contiguous array"):
        cto.fast_gelu(last, np.ones(5, FLOAT32))
    with pytest.raises(ArgumentError, match="X: expected a C-contiguous array"):
        cto.gist_pack8_decoder(last.astype(np.uint8), to="float32", shape=(6, 20))


def test_a_layout_is_part_of_a_calls_key(rng) -> None:
    op, x = get_op("Gelu")(), rng.standard_normal((4, 4, 4), FLOAT32)
    expected = op(x)
    for order in ((2, 1, 0), (0, 2, 1), (1, 0, 2)):
        for _ in range(2):
            assert lies_in(op(laid_out(x, order)), order)
            assert_matches(op(laid_out(x, order)), expected, 0)
    with pytest.raises(ArgumentError, match="X: expected a dense array"):
        op(np.zeros((4, 4, 8), FLOAT32)[..., ::2])


def test_in_place_and_bound_calls(rng) -> None:
    x = laid_out(rng.standard_normal(SHAPE, FLOAT32), CHANNELS_LAST)
    total = laid_out(np.zeros(SHAPE, FLOAT32), CHANNELS_LAST)
    assert cto.in_place_accumulator(total, x) is total
    assert_matches(total, x, 0)
    bound = get_op("GeluGrad")().bound(total, x)
    assert bound() is bound()
    assert lies_in(bound(), CHANNELS_LAST)
    assert_matches(bound(), cto.gelu_grad(total.copy("C"), x.copy("C")), 0)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros(SHAPE), (0, 1, 2, 3)),
        (np.zeros(SHAPE).T, (3, 2, 1, 0)),
        (np.zeros(SHAPE).transpose(0, 3, 1, 2), (0, 2, 3, 1)),
        (np.zeros((2, 5, 1, 3)).transpose(0, 3, 1, 2), (0, 2, 3, 1)),
        (np.zeros((4, 6))[:, ::2], None),
        (np.zeros((4, 6))[::-1], None),
        (np.zeros((4, 6))[:, :5].T, None),
        (np.broadcast_to(np.zeros(4), (3, 4)), None),
        (np.broadcast_to(np.zeros((4, 1)), (4, 3)), None),
        (np.lib.stride_tricks.as_strided(np.zeros(9), (3, 3), (16, 8)), None),  # overlapping rows
    ],
)
def test_the_order_of_dimensions(array, expected) -> None:
    assert layout.order(ArrayInfo(*CPU.info(array))) == expected


def test_dimensions_of_one_element_fit_every_layout(rng) -> None:
    """Of (2, 1, 3) NumPy calls many strides contiguous; of two such arrays neither is refused."""
    x = rng.standard_normal((2, 3, 1, 5), FLOAT32)
    a = laid_out(x, (0, 3, 2, 1))
    b = laid_out(x, (0, 2, 3, 1))
    assert a.strides != b.strides
    assert_matches(cto.gelu_grad(a, b), cto.gelu_grad(x, x), 0)


# ---- channels last ------------------------------------------------------------------------------

BATCH_NORMS = ["BatchNormInternal", "BatchNormalizationGrad"]


def batch_norm_call(name: str, rng, shape=(3, 5, 6, 7)) -> tuple:
    """The operator and its inputs."""
    op = get_op(name)(**({} if name == "BatchNormInternal" else {"epsilon": 1e-5}))
    x, row = rng.standard_normal(shape, FLOAT32), np.ones(shape[1], FLOAT32)
    if name == "BatchNormInternal":
        return op, [x, 2 * row, row, 0 * row, row.copy()]
    return op, [rng.standard_normal(shape, FLOAT32), x, 2 * row, 0 * row, row.copy()]


def in_order(values, order, place=np.asarray) -> list:
    return [laid_out(v, order, place) if v.ndim == len(order) else place(v.copy()) for v in values]


@pytest.mark.parametrize(
    "shape", [(3, 5, 6, 7), (4, 3, 9), (2, 3, 1, 4), (2, 40, 2, 3, 2)], ids=str
)
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_channels_last_as_they_are(name, shape, anywhere, rng) -> None:
    op, values = batch_norm_call(name, rng, shape)
    order = (0, *range(2, len(shape)), 1)
    expected = op(*[v.copy() for v in values])
    out = laid_out(np.zeros(shape, FLOAT32), order, anywhere.place)
    for keywords in ({}, {"out": (out, *[None] * (len(expected) - 1))}):
        results = op(*in_order(values, order, anywhere.place), **keywords)
        assert lies_in(results[0], order)
        assert (results[0] is out) == bool(keywords)
        for actual, wanted in zip(results, expected, strict=True):
            assert_matches(anywhere.host(actual), wanted, slack=1e-4)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_channels_elsewhere_are_refused(name, anywhere, rng) -> None:
    op, values = batch_norm_call(name, rng)
    message = "expected a C-contiguous array, or one with its channels last, got a strided one"
    with pytest.raises(ArgumentError, match=message):
        op(*in_order(values, REVERSED, anywhere.place))
    line = [anywhere.place(np.ones(10, FLOAT32))[::2]] * len(values)
    with pytest.raises(ArgumentError, match=message):
        op(*line)
    last = in_order(values, CHANNELS_LAST, anywhere.place)
    if name == "BatchNormInternal":
        with pytest.raises(ArgumentError, match=r"out \(Y\): expected the layout of"):
            op(*last, out=(anywhere.place(values[0].copy()), *[None] * (len(op.outputs) - 1)))
    last[-3 if name == "BatchNormalizationGrad" else 1] = anywhere.place(np.ones(10, FLOAT32))[::2]
    with pytest.raises(ArgumentError, match="scale: expected a C-contiguous array"):
        op(*last)


@pytest.mark.parametrize("shape", [(3, 5, 6, 7), (2, 40, 33), (2, 3, 1, 4)], ids=str)
@pytest.mark.parametrize("is_last", list(itertools.product((False, True), repeat=2)), ids=str)
def test_gradients_of_batch_norm_take_images_of_two_layouts(shape, is_last, anywhere, rng) -> None:
    """The results are those of C-contiguous images; a new X_grad lies as X, one that is given in
    any of the two layouts, dY's own array among them."""
    op, values = batch_norm_call("BatchNormalizationGrad", rng, shape)
    last = (0, *range(2, len(shape)), 1)
    expected = op(*[v.copy() for v in values])

    def placed(value: np.ndarray, lies_last: bool):
        return laid_out(value, last, anywhere.place) if lies_last else anywhere.place(value.copy())

    def arrays() -> list:
        images = [placed(v, lies) for v, lies in zip(values, is_last, strict=False)]
        return [*images, *[anywhere.place(v.copy()) for v in values[2:]]]

    for case in ("new", False, True, "dY"):
        arguments = arrays()
        out = arguments[0] if case == "dY" else placed(np.zeros(shape, FLOAT32), case is True)
        results = op(*arguments, out=None if case == "new" else (out, None, None))
        lies_last = {"new": is_last[1], "dY": is_last[0]}.get(case, case)
        assert lies_in(results[0], last) == lies_last
        assert case == "new" or results[0] is out
        for actual, wanted in zip(results, expected, strict=True):
            assert_matches(anywhere.host(actual), wanted, slack=1e-4)

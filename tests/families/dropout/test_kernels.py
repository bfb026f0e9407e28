# SPDX-License-Identifier: MIT
"""Dropout kernels: one mask on every device, of every type and form; plans; in place; any size."""

from __future__ import annotations

import numpy as np
import pytest
import runs
from references import computed
from runs import Run

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Changing, Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.dropout import philox
from cupy_training_ops.families.dropout.operators import OPS
from cupy_training_ops.families.dropout.samples import NEAR_1, SAMPLES
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.idle import IdleBackend, launches

H200 = Device(132, (9, 0), 227 * 1024)
STATE = (2**63 + 3, 2**40 + 1)
STATE_AT = 3  # of Dropout's inputs

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


def mask_of(n: int, ratio: float, state=STATE) -> np.ndarray:
    return philox.words(state, 0, n) <= philox.keep_threshold(ratio)


def bits_of(mask: np.ndarray) -> np.ndarray:
    padded = np.pad(mask, (0, -mask.size % 32)).reshape(-1, 32)
    return (padded << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)


# ---- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiprocessors", [1, 80, 132])
def test_a_mask_is_the_same_on_every_device(monkeypatch, multiprocessors) -> None:
    monkeypatch.setattr(runs, "DEVICE", Device(multiprocessors, (9, 0), 227 * 1024))
    with Run("emulated-forward", 0) as run:
        x = run.place(np.ones(5000, FLOAT16))
        assert (run.host(get_op("Dropout")()(x, 0.4, True, STATE)[1]) == mask_of(5000, 0.4)).all()


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", ["BitmaskDropout", "BiasDropout", "BitmaskBiasDropout"])
def test_blocks_that_take_several_tiles(monkeypatch, rng, name, offset) -> None:
    """The last tile and the last block have less to do."""
    monkeypatch.setattr(runs, "DEVICE", Device(1, (9, 0), 227 * 1024))
    shape, op = (67, 2000), get_op(name)()
    x = rng.standard_normal(shape).astype(FLOAT16)
    inputs = (x, *((x[0], None) if "Bias" in name else ()), 0.4, True, STATE)
    with Run("emulated-forward", 0) as run:
        placed = (run.place(i, offset) if isinstance(i, np.ndarray) else i for i in inputs)
        output, mask = map(run.host, op(*placed))
    kept = mask_of(x.size, 0.4)
    assert mask.tolist() == (bits_of(kept) if "Bitmask" in name else kept.reshape(shape)).tolist()
    assert_matches(output, computed(op, *inputs)[0])


@pytest.mark.parametrize(
    ("name", "dtype", "n", "tiles"),
    [
        ("BitmaskDropout", FLOAT16, 2**26, (8192, 4)),
        ("BitmaskDropout", FLOAT16, 2**23, (4096, 1)),
        ("BitmaskDropout", FLOAT32, 2**26, (65_536, 1)),
        ("Dropout", FLOAT16, 2**26, (32_768, None)),
    ],
)
def test_blocks_take_several_tiles_of_short_elements(name, dtype, n, tiles) -> None:
    op, arguments = get_op(name)(), (Spec((n,), dtype), 0.4, True, Changing(STATE_AT))
    (launch,) = op.plan(H200, *arguments, *op.infer(*arguments)).steps
    (blocks,), has = launch.config.grid, op.has_tiles
    assert (blocks, launch.args[5] if has else None) == tiles


@floats
@pytest.mark.parametrize("offset", [0, 1])
def test_a_mask_is_the_same_for_every_type_and_form(run, dtype, offset) -> None:
    """Sizes of every remainder by 4 and 32: whole tiles, and what is left of one."""
    for n in (1, 3, 34, 66, 127, 2049):
        x, mask = run.place(np.ones(n, dtype), offset), mask_of(n, 0.4)
        for bias in ((), (x, None)):
            prefix = "Bias" if bias else ""
            result = get_op(f"{prefix}Dropout")()(x, *bias, 0.4, True, STATE)[1]
            assert (run.host(result) == mask).all()
            bits = get_op(f"Bitmask{prefix}Dropout")()(x, *bias, 0.4, True, STATE)[1]
            assert run.host(bits).tolist() == bits_of(mask).tolist()


@floats
def test_the_mask_of_a_softmax_is_the_same(run, dtype) -> None:
    """Short rows, rows with edges, and what has no vectors."""
    op = get_op("BiasSoftmaxDropout")(is_inner_broadcast=True)
    for shape, bias in (((7, 64), (7, 64)), ((3, 1025), (3, 1025)), ((5, 67), (1, 67))):
        x, b = run.place(np.ones(shape, dtype)), run.place(np.ones(bias, dtype))
        result = run.host(op(x, b, 0.4, STATE)[1])
        assert (result.ravel() == mask_of(result.size, 0.4)).all()


def test_a_ratio_next_to_one(run) -> None:
    """1 - 2^-24 keeps one in 16 million, and multiplies it with 2^24."""
    x = run.place(np.ones(4096, FLOAT32))
    assert not run.host(get_op("Dropout")()(x, NEAR_1, True, STATE)[0]).any()
    dx = get_op("DropoutGrad")()(x, run.place(np.ones(4096, np.bool_)), NEAR_1)
    assert (run.host(dx) == 2**24).all()


# ---- gradients -----------------------------------------------------------------------------------


@floats
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_nothing_comes_through_a_false_mask(run, dtype, value) -> None:
    for n in (33, 35, 2050):
        mask = mask_of(n, 0.5)
        dy = run.place(np.where(mask, 3, value).astype(dtype))
        expected = np.where(mask, 4, 0).astype(dtype)
        for name, arguments in (("DropoutGrad", mask), ("BitmaskDropoutGrad", bits_of(mask))):
            actual = run.host(get_op(name)()(dy, run.place(arguments), 0.25))
            assert_matches(actual, expected, 0)
            assert not np.signbit(actual[~mask].astype(FLOAT32)).any()
        row, y = np.where(mask, 3, value).reshape(1, n), np.full((1, n), 1 / n)
        arrays = [run.place(a.astype(t)) for a, t in ((row, dtype), (mask[None], bool), (y, dtype))]
        through = get_op("SoftmaxDropoutGrad")(axis=1)(*arrays, 0.25)
        assert np.isfinite(run.host(through).astype(FLOAT32)).all()


@floats
def test_bits_past_the_end_are_ignored(run, dtype) -> None:
    dy = run.place(np.ones(35, dtype))
    for last in (0b101, 0xFFFFFFFD):
        mask = run.place(np.array([1, last], np.uint32))
        result = run.host(get_op("BitmaskDropoutGrad")()(dy, mask, 0.5))
        assert np.flatnonzero(result.astype(FLOAT32)).tolist() == [0, 32, 34]


def calls() -> list:
    """Operator, inputs, and which of them `out=` may be."""
    x, y, mask = (np.random.default_rng(i).standard_normal((5, 1025)) for i in range(3))
    drawn = (0.3, True, STATE)
    keep = mask > 0
    return [
        ("Dropout", {}, (x, *drawn), 0),
        ("BitmaskDropout", {}, (x, *drawn), 0),
        ("BiasDropout", {}, (x, y[0], y, *drawn), 0),
        ("BiasDropout", {}, (x, y, y, *drawn), 2),
        ("BitmaskBiasDropout", {}, (x, y[0], y, *drawn), 2),
        ("DropoutGrad", {}, (x, keep, 0.3), 0),
        ("BitmaskDropoutGrad", {}, (x, bits_of(keep.ravel()), 0.3), 0),
        ("BiasSoftmaxDropout", {"is_inner_broadcast": True}, (x, y, 0.3, STATE), 0),
        ("SoftmaxDropoutGrad", {"axis": 1}, (x, keep, y, 0.3), 0),
        ("SoftmaxDropoutGrad", {"axis": 1}, (x, keep, y, 0.3), 2),
    ]


def as_float16(value):
    is_float = isinstance(value, np.ndarray) and value.dtype == FLOAT64
    return value.astype(FLOAT16) if is_float else value


@pytest.mark.parametrize(("name", "attributes", "inputs", "place"), calls())
def test_an_input_may_be_the_output(anywhere, name, attributes, inputs, place) -> None:
    op, arguments = get_op(name)(**attributes), [as_float16(value) for value in inputs]
    expected = computed(op, *arguments)
    placed = anywhere.place_inputs(op, arguments)
    target = placed[place]
    if len(op.outputs) > 1:
        assert op(*placed, out=(target, *(None,) * (len(op.outputs) - 1)))[0] is target
        expected = expected[0]
    else:
        assert op(*placed, out=target) is target
    assert_matches(anywhere.host(target), expected)


def test_outputs_that_are_not_asked_for(anywhere) -> None:
    x = anywhere.place(np.ones((3, 67), FLOAT32))
    op = get_op("BiasSoftmaxDropout")(is_inner_broadcast=True)
    all_of = [anywhere.host(array) for array in op(x, x, 0.5, STATE)]
    for i, name in enumerate(("dropout_output", "mask", "softmax_output")):
        result = op(x, x, 0.5, STATE, outputs=(name,))
        assert [array is None for array in result] == [j != i for j in range(3)]
        assert_matches(anywhere.host(result[i]), all_of[i], 0)
    for kind in ("Dropout", "BitmaskDropout", "BiasDropout", "BitmaskBiasDropout"):
        arguments = (x, *((x, None) if "Bias" in kind else ()), 0.5, True, STATE)
        output, mask = get_op(kind)()(*arguments)
        alone, other = (
            get_op(kind)()(*arguments, outputs=(n,))[i] for i, n in enumerate(("output", "mask"))
        )
        assert_matches(anywhere.host(alone), anywhere.host(output), 0)
        assert_matches(anywhere.host(other), anywhere.host(mask), 0)


def test_the_order_of_threads_changes_no_bit(in_every_order) -> None:
    def results(run) -> list[bytes]:
        x = run.place(np.random.default_rng(3).standard_normal((5, 1025)).astype(FLOAT32))
        op = get_op("BiasSoftmaxDropout")(is_inner_broadcast=True)
        dropped, mask, y = op(x, x, 0.3, STATE)
        dx = get_op("SoftmaxDropoutGrad")(axis=1)(x, mask, y, 0.3)
        return [run.host(array).tobytes() for array in (dropped, mask, y, dx)]

    first, *others = in_every_order(results)
    assert all(other == first for other in others)


# ---- plans ---------------------------------------------------------------------------------------


def planned(name: str, shape, dtype=FLOAT32, *, bias=None, aligned: bool = True, axis: int = 1):
    """The kernel of an operator over rows on an H200, its blocks and the threads of one."""
    drawing = name == "BiasSoftmaxDropout"
    attributes = {"axis": axis, **({"is_inner_broadcast": True} if drawing else {})}
    x = Spec(shape, dtype, aligned)
    own = (x, Spec(bias or shape, dtype), None, Changing(STATE_AT), x, x, x)
    specs = own if drawing else (x, x, x, None, x)
    (launch,) = get_op(name)(**attributes).plan(H200, *specs).steps
    return launch.symbol.rpartition("__")[2], launch.config.grid, launch.config.block


@pytest.mark.parametrize("name", ["BiasSoftmaxDropout", "SoftmaxDropoutGrad"])
@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((65_536, 1024), FLOAT32, ("rows", (65_536,), (64,))),
        ((65_536, 1024), FLOAT16, ("rows", (16_384,), (128,))),
        ((65_536, 64), FLOAT32, ("short_rows", (8192,), (128,))),
        ((64, 32_768), FLOAT16, ("rows", (64,), (512,))),
        ((64, 1025), FLOAT32, ("rows", (64,), (64,))),
        ((1000, 3), FLOAT32, ("columns", (8,), (1, 1, 128))),
    ],
)
def test_the_plan_suits_the_rows(name, shape, dtype, expected) -> None:
    assert planned(name, shape, dtype)[:1] == expected[:1]
    if expected[0] != "columns":
        assert planned(name, shape, dtype) == expected


def test_what_has_no_vectors_goes_by_columns() -> None:
    """Rows of a bias that others share begin elsewhere where they are no multiple of 16 bytes."""
    name = "BiasSoftmaxDropout"
    assert planned(name, (8, 1025), bias=(1, 1025))[0] == "columns"
    assert planned(name, (8, 1024), bias=(1, 1024))[0] == "rows"
    assert planned(name, (8, 1025))[0] == "rows"
    assert planned(name, (8, 1024), aligned=False)[0] == "columns"


def test_a_state_in_memory_goes_on_behind_all_threads() -> None:
    x, state = Spec((64,), FLOAT32), Spec((2,), np.dtype(np.uint64), place=1)
    steps = get_op("Dropout")().plan(H200, x, None, True, state, x, x).steps
    assert [step.symbol for step in steps] == ["dropout", "dropout__advance"]
    steps = get_op("Dropout")().plan(H200, x, None, True, Changing(STATE_AT), x, x).steps
    assert [step.symbol for step in steps] == ["dropout"]


@pytest.mark.parametrize("capability", [(7, 0), (9, 0)])
def test_one_compilation_a_type(capability) -> None:
    """Of all operators together, whatever shape, ratio and state."""
    backend = IdleBackend(Device(132, capability))
    results = {
        tuple(sorted(step.slots.items()))
        for samples in SAMPLES.values()
        for sample in samples
        for step in launches(sample, backend)
    }
    assert len(results) == len(FLOATS)


@pytest.mark.parametrize("name", OPS)
def test_nothing_is_launched_for_nothing(run, name) -> None:
    sample = next(s for s in SAMPLES[name] if s.label.endswith("empty"))
    op = get_op(name)(**sample.attributes)
    with launch_log() as log:
        op(*run.place_inputs(op, sample.make(np.random.default_rng(0))))
    assert not log

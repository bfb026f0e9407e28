# SPDX-License-Identifier: MIT
"""Where seeds and offsets of dropout come from, and what is refused."""

from __future__ import annotations

import functools
import itertools
import os
import pickle

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.testing.compare import poison

from .masks import NAN, STATE, mask_of

# ---- where seed and offset come from -------------------------------------------------------------


def drawn(op, n: int = 200, *state) -> list[bool]:
    return op(np.ones(n, FLOAT32), 0.5, True, *state)[1].tolist()


def test_an_instance_counts_its_draws() -> None:
    op = get_op("Dropout")(seed=9)
    for offset in range(3):
        assert drawn(op) == mask_of(200, (9, offset), 0.5).tolist()
        op(np.ones(5, FLOAT32))  # no training
        op(np.ones(5, FLOAT32), 0.0, True)
        op(np.ones(0, FLOAT32), 0.5, True)
        drawn(op, 200, (1, 2))
    same = get_op("Dropout")(seed=9)
    assert drawn(same) == mask_of(200, (9, 0), 0.5).tolist()


def test_a_function_with_a_seed_always_draws_the_same() -> None:
    x = np.ones(200, FLOAT32)
    for _ in range(3):
        assert cto.dropout(x, 0.5, True, seed=9)[1].tolist() == mask_of(200, (9, 0), 0.5).tolist()
    bias = cto.bias_softmax_dropout(x[None], x, 0.5, seed=9, axis=1, is_inner_broadcast=True)
    assert bias[1][0].tolist() == mask_of(200, (9, 0), 0.5).tolist()


def test_without_a_seed_all_draws_differ() -> None:
    op, other = get_op("Dropout")(), get_op("Dropout")()
    x = np.ones(200, FLOAT32)
    functions = [cto.dropout(x, 0.5, True)[1].tolist() for _ in range(2)]
    results = [drawn(op), drawn(op), drawn(other), *functions]
    assert all(a != b for a, b in itertools.combinations(results, 2))


def test_a_copy_starts_anew() -> None:
    op = get_op("Dropout")(seed=9)
    first = drawn(op)
    assert drawn(pickle.loads(pickle.dumps(op))) == first
    assert drawn(op) != first


@pytest.mark.parametrize(
    ("seed", "key"), [(-1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (-(2**63), 2**63)]
)
def test_a_seed_is_64_bits(seed, key) -> None:
    assert drawn(get_op("Dropout")(seed=seed)) == mask_of(200, (key, 0), 0.5).tolist()


def test_a_state_in_memory_goes_on(anywhere) -> None:
    x = anywhere.place(np.ones(77, FLOAT32))
    b = anywhere.place(np.ones((7, 11), FLOAT32))
    state = anywhere.place(np.array([5, 2**64 - 2], np.uint64))
    calls = [
        lambda: get_op("Dropout")()(x, 0.5, True, state),
        lambda: get_op("BiasDropout")()(x, x, None, 0.5, True, state),
        lambda: get_op("BiasSoftmaxDropout")(is_inner_broadcast=True)(b, b, 0.5, state),
    ]
    for i, call in enumerate(calls):
        offset = (2**64 - 2 + i) % 2**64
        mask = anywhere.host(call()[1]).ravel()
        assert mask.tolist() == mask_of(77, (5, offset), 0.5).tolist()
    assert anywhere.host(state).tolist() == [5, 1]
    get_op("Dropout")()(x, 0.0, True, state)
    get_op("Dropout")()(x, 0.5, False, state)
    get_op("Dropout")()(x[:0], 0.5, True, state)
    assert anywhere.host(state).tolist() == [5, 1]


def test_changing_numbers_prepare_nothing_anew(anywhere) -> None:
    op, x = get_op("Dropout")(seed=3), anywhere.place(np.ones(64, FLOAT32))
    for i in range(40):
        op(x, i / 41, True)
    assert len(op._remembered) == 1
    for i in range(40):
        op(x, i / 41, True, (i, i))
    assert len(op._remembered) == 2
    bound = op.bound(x, 0.5, True)
    masks = [anywhere.host(bound(ratio=0.5)[1]).tolist() for _ in range(2)]
    assert masks == [mask_of(64, (3, offset), 0.5).tolist() for offset in (39, 40)]
    assert anywhere.host(bound(state=(1, 2))[1]).tolist() == mask_of(64, (1, 2), 0.5).tolist()


# ---- refusals ------------------------------------------------------------------------------------

F = np.ones((2, 35), FLOAT32)
MASK = np.ones((2, 35), np.bool_)
BAD = [
    *(
        (name, {}, (F, *more, ratio), rf"{name}: ratio: expected a number from 0 on, below 1, got ")
        for name, more in (
            ("Dropout", ()),
            ("BitmaskDropout", ()),
            ("BiasDropout", (F, None)),
            ("BitmaskBiasDropout", (F, None)),
            ("DropoutGrad", (MASK,)),
            ("BitmaskDropoutGrad", (np.ones(3, np.uint32),)),
        )
        for ratio in (1, -0.1, NAN)
    ),
    ("SoftmaxDropoutGrad", {"axis": 1}, (F, MASK, F, 1.0), r"ratio: expected a number from 0 on"),
    ("Dropout", {}, (F, "much"), r"Dropout: ratio: expected a number, got 'much'"),
    ("Dropout", {}, (F, 0.5, 2), r"Dropout: training_mode: expected a bool, got 2"),
    ("Dropout", {}, (F, 0.5, True, (1, 2, 3)), r"Dropout: state: expected two integers, got"),
    ("Dropout", {}, (F, 0.5, True, (1, -2)), r"Dropout: state: expected a number that uint64 hold"),
    (
        "Dropout",
        {},
        (F, 0.5, True, np.ones(3, np.uint64)),
        r"Dropout: state: expected a number or an array of 2 elements, got shape \(3,\)",
    ),
    (
        "Dropout",
        {},
        (F, 0.5, True, np.ones(2, np.int64)),
        r"Dropout: state: expected dtype uint64, got int64",
    ),
    ("DropoutGrad", {}, (F, MASK[:, 1:]), r"DropoutGrad: mask: expected 70 elements, .* got 68"),
    ("DropoutGrad", {}, (F, F), r"DropoutGrad: mask: expected dtype bool, got float32"),
    (
        "BitmaskDropoutGrad",
        {},
        (F, np.ones(2, np.uint32)),
        r"BitmaskDropoutGrad: mask: expected 3 words, a bit for each of 70 elements, got 2, of",
    ),
    ("BitmaskDropoutGrad", {}, (F, MASK), r"mask: expected dtype uint32, got bool"),
    (
        "SoftmaxDropoutGrad",
        {"axis": 1},
        (F, MASK.reshape(35, 2), F),
        r"SoftmaxDropoutGrad: mask: expected shape \(2, 35\), as dy, got shape \(35, 2\)",
    ),
    (
        "BiasDropout",
        {},
        (F, F[0, :-1]),
        r"BiasDropout: bias: expected shape \(35,\) or \(2, 35\), data's .* got shape \(34,\)",
    ),
    (
        "BiasDropout",
        {},
        (F, F, F[0]),
        r"BiasDropout: residual: expected shape \(2, 35\), as data, got shape \(35,\)",
    ),
    *(
        (
            "BiasSoftmaxDropout",
            {"axis": 2, "is_inner_broadcast": inner},
            (np.ones((2, 3, 5), FLOAT32), np.ones(bias, FLOAT32)),
            rf"BiasSoftmaxDropout: bias: expected shape \(2, 3, 5\), or 1 for the {which} of the e",
        )
        for inner, which, bias in (
            (True, "last", (3, 5)),
            (False, "first", (2, 1, 5)),
            (True, "last", (2, 3, 1)),
            (True, "last", (2, 3, 4)),
            (False, "first", (1, 2, 3, 5)),
            (False, "first", (5, 3, 2)),
        )
    ),
    ("BiasSoftmaxDropout", {"axis": 2, "is_inner_broadcast": 1}, (F, F), r"axis: expected an axis"),
]


@pytest.mark.parametrize(("name", "attributes", "inputs", "message"), BAD)
def test_bad_input_is_named(anywhere, name, attributes, inputs, message) -> None:
    """Before anything is launched or written."""
    op = get_op(name)(**attributes)
    out = anywhere.place(poison(np.empty(inputs[0].shape, FLOAT32)))
    before = anywhere.host(out).tobytes()
    argument = out if len(op.outputs) == 1 else (out, *(None,) * (len(op.outputs) - 1))
    with launch_log() as log, pytest.raises((ArgumentError, DtypeError), match=message):
        op(*anywhere.place_inputs(op, inputs), out=argument)
    assert not log
    assert anywhere.host(out).tobytes() == before


def test_bad_attributes_are_named() -> None:
    for name in ("BiasSoftmaxDropout", "SoftmaxDropoutGrad"):
        missing = "is_inner_broadcast" if name[0] == "B" else "axis"
        with pytest.raises(ArgumentError, match=f"{name}: {missing}: expected a value: it is requ"):
            get_op(name)()
    for seed in (2**64, -(2**63) - 1, 1.5, True):
        with pytest.raises(ArgumentError, match="Dropout: seed: expected an integer"):
            get_op("Dropout")(seed=seed)
    with pytest.raises(ArgumentError, match="is_inner_broadcast: expected a bool, got 2"):
        get_op("BiasSoftmaxDropout")(is_inner_broadcast=2)


def test_a_state_is_no_other_argument(anywhere) -> None:
    state = anywhere.place(np.array([5, 7], np.uint64))
    with pytest.raises(ArgumentError, match="Dropout: state: expected memory of its own"):
        get_op("Dropout")()(state.view(FLOAT32), 0.5, True, state)
    assert anywhere.host(state).tolist() == [5, 7]


def test_a_ratio_of_any_type_and_form() -> None:
    x = np.ones(67, FLOAT16)
    for ratio in (np.float16(0.25), np.array([0.25]), np.array(0.25, FLOAT32), [0.25]):
        assert cto.dropout(x, ratio, True, STATE)[1].tolist() == mask_of(67, ratio=0.25).tolist()


def word_of_child(draw) -> bytes:
    """What a forked child draws."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, draw())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore:.*fork")  # of Python and JAX, because of threads
@pytest.mark.parametrize("is_instance", [False, True], ids=["function", "instance"])
def test_a_forked_child_draws_its_own_unless_there_is_a_seed(is_instance) -> None:
    x = np.ones(4096, np.float32)

    def drawing(**seed):
        op = get_op("Dropout")(**seed) if is_instance else functools.partial(cto.dropout, **seed)
        return lambda: op(x, np.float32(0.5), np.True_)[1].tobytes()

    unseeded, seeded = drawing(), drawing(seed=5)
    unseeded()  # so that children have what draws
    drawn = {word_of_child(unseeded), word_of_child(unseeded), unseeded()}
    assert len(drawn) == 3
    assert word_of_child(seeded) == seeded()

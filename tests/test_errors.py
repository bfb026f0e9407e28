# SPDX-License-Identifier: MIT
"""Refusals show one traceback: not what was being handled as they were raised."""

from __future__ import annotations

import io
import pickle
import traceback

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import errors
from cupy_training_ops.errors import OpError

X = np.ones(3, np.float32)
KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OpError)
]


class Failing:
    """A value, and an array, whose own class fails."""

    def __index__(self):
        raise ZeroDivisionError("of its own")

    __float__ = __dlpack_device__ = __dlpack__ = __index__


def adam(state):
    optimizer = cto.Adam([X.copy()])
    optimizer.load_state_dict(state(optimizer.state_dict()))


REFUSED = {
    "a new kind of call": lambda: cto.relu_grad(X, X[:2]),
    "lists": lambda: cto.sgd_optimizer_v2(0.1, [X], [X[:2]]),
    "a class": lambda: cto.get_op("ReluGrad")()(X, X[:2]),
    "a bound call": lambda: cto.get_op("ReluGrad")().bound(X, X[:2]),
    "a list as attribute": lambda: cto.conv_grad(X, X, X, pads=[1, "a"]),
    "a group's attribute": lambda: cto.megatron_f(X, group=cto.ProcessGroup(0, 1), group_type=[9]),
    "no array": lambda: cto.relu_grad(Failing(), X),
    "no number": lambda: cto.gist_pack1_decoder(X.view(np.uint8), shape=Failing()),
    "a number without room": lambda: cto.scale(X, 10**400),
    "a step without room": lambda: cto.adam_optimizer(0.1, 2**63, X, X, X, X),
    "names of outputs": lambda: cto.div_grad(X, X, X, outputs=("dC",)),
    "a name of an input": lambda: cto.relu_grad(X, Z=X),
    "a name of an operator": lambda: cto.get_op("ReluGard"),
    "a damaged file": lambda: cto.Packed.load(io.BytesIO(b"\x93NUMPY damaged")),
    "a state": lambda: adam(lambda state: state | {"moment_1": {0: 1}}),
    "a type": lambda: cto.lookup("ReluGrad", dY="float23"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_being_handled_is_not_shown(kind) -> None:
    with pytest.raises(kind) as caught:
        refuse_in_a_handler(kind)
    assert shown(caught.value).count("Traceback") == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (kind, "refused")


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_refusal_shows_one_traceback(refused) -> None:
    with pytest.raises(OpError) as caught:
        refused()
    assert shown(caught.value).count("Traceback") == 1, shown(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_shows_what_a_message_quotes_and_does_not_obey_it(kind) -> None:
    quoted = f"\x1b[31m\u202e\udc80{'x' * 1_000_000}"
    message = str(kind(f"{quoted}: expected this,\n  got that"))
    assert message.startswith("\\x1b[31m\\u202e\\udc80xxx")
    assert message.endswith("xxx: expected this,\n  got that")
    assert len(message) < 1.1 * errors.MAX_MESSAGE
    assert "\n" not in errors.cut(f"one\nanother{quoted}")
    assert len(errors.cut(quoted)) == errors.MAX_TEXT


def refuse_in_a_handler(kind) -> None:
    """As a call does that looks a key up first."""
    try:
        {}["a key"]
    except KeyError:
        raise kind("refused")  # noqa: B904 - what no error of the package needs


def shown(error: BaseException) -> str:
    """What Python prints of an error that ends a program."""
    return "".join(traceback.format_exception(error))

# SPDX-License-Identifier: MIT
"""1, 1.0 and True are equal, and other arguments: a call is not taken for one with another kind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, tensors_on  # noqa: E402

from cupy_training_ops.call.keys import exact_key, is_plain  # noqa: E402
from cupy_training_ops.errors import OpError  # noqa: E402
from cupy_training_ops.families.activation.operators import QuickGelu  # noqa: E402
from cupy_training_ops.torch import functional, ops  # noqa: E402
from cupy_training_ops.torch.ops import dispatch, launching  # noqa: E402

ALIKE = [1, 1.0, True, np.float64(1), np.int64(1), [1], (1,), (1.0,), (True,), [1.0]]
OTHERS = ["1", ("1",), None, (None,), 0.0, -0.0, 0, False, (), [], ((1,),), (1, 1), "", 2**70]
CALLS = {
    "softmax": (lambda x, v: functional.softmax(x, v), (1, 1.0, True)),
    "log_softmax": (lambda x, v: functional.log_softmax(x, v), (0, 0.0, False, -0.0)),
    "shape": (lambda x, v: functional.rms_norm(x, v), ((1,), (1.0,), (True,), [1], [1.0])),
    "shape of layer_norm": (
        lambda x, v: functional.layer_norm(x, v),
        ((1,), (1.0,), torch.Size((1,)), (True,)),
    ),
    "eps": (lambda x, v: functional.rms_norm(x, (1,), None, v), (1.0, 1, True)),
    "alpha": (lambda x, v: ops.quick_gelu(x, v), (1.0, 1, True)),
    "mask": (
        lambda x, v: ops.DOORS["rms_norm_backward"].masked(x, x, (1,), None, x[:, :1] + 2, v),
        ((True, True), (1, 1), (1.0, 1.0)),
    ),
}


def outcome(call, x, value):
    """What comes, or what is said."""
    try:
        actual = call(x, value)
    except (OpError, TypeError, ValueError) as error:
        return type(error), str(error)
    actual = actual if isinstance(actual, tuple | list) else (actual,)
    return [y if y is None else (y.dtype, y.shape, y.requires_grad) for y in actual]


@pytest.fixture
def afresh(monkeypatch):
    """What forgets all calls."""

    def forget():
        dispatch.forget()
        monkeypatch.setattr(launching, "_ready", {})
        monkeypatch.setattr(launching, "_instances", {})

    return forget


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_what_it_is_after_equal_ones(made, afresh, gradients, case) -> None:
    call, values = CALLS[case]
    x = made(4, 1).requires_grad_(gradients and case != "mask")
    with tensors_on(HollowTensors()):
        for first, second in itertools.permutations(values, 2):
            afresh()
            expected = outcome(call, x, second)
            afresh()
            for _ in range(3):
                outcome(call, x, first)
            assert outcome(call, x, second) == expected, (first, second)
    afresh()


def test_instances_are_those_of_the_same_attributes(monkeypatch) -> None:
    monkeypatch.setattr(launching, "_MANY", 3)
    monkeypatch.setattr(launching, "_instances", {})
    for alpha in (1.0, 0.0, -0.0, 2.5, 1.0, 3.0, 0.5):
        op = launching.instance(QuickGelu, alpha=alpha)
        assert repr(op.alpha) == repr(alpha)
        assert launching.instance(QuickGelu, alpha=alpha) is op
        assert len(launching._instances) <= 3
    for alpha in (True, "1", (1.0,), [1.0], None):
        with pytest.raises(OpError):
            launching.instance(QuickGelu, alpha=alpha)
    launching.instance(QuickGelu, alpha=np.float64(1))
    assert len(launching._instances) <= 3


def test_keys_are_equal_where_values_are_the_same_in_kind_and_bits() -> None:
    values = [value for value in ALIKE + OTHERS if is_plain(value)]
    for a, b in itertools.product(values, values):
        assert (exact_key((a,)) == exact_key((b,))) == (a is b), (a, b)
    strange = [value for value in ALIKE if not is_plain(value)] + [(np.float64(1),), b"1", x_size()]
    for value, plain in itertools.product(strange, values):
        try:
            key = exact_key((value,))
        except ValueError:
            continue
        assert key != exact_key((plain,)), (value, plain)


def x_size():
    return torch.Size((1,))


def test_types_of_pytorchs_have_keys_by_their_places() -> None:
    some = [(torch.float32, None), (None, torch.float32), ("torch.float32", None), (None, None)]
    some += [(torch.float16, None), (torch.float32, torch.float32), (torch.float32, 0)]
    keys = [launching.exact(each) for each in some]
    assert len(set(keys)) == len(some)
    assert launching.exact((torch.Size((2, 3)),)) == launching.exact(((2, 3),))
    assert launching.exact(((np.int64(2),),)) is None
    assert launching.exact((torch.ones(1),)) is None

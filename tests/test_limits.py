# SPDX-License-Identifier: MIT
"""Arrays that cannot exist are refused before anything is made, in the same words everywhere."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from probe.probe import Probe, ProbeJoin

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, limits
from cupy_training_ops.call.backends import numpy_runs_on
from cupy_training_ops.declare.schema import Input, Output, Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.plan import Device, Plan
from cupy_training_ops.testing.idle import IdleBackend

IDLE = IdleBackend(Device(132, (9, 0)))
PROVIDERS = {"cpu": contextlib.nullcontext, "idle": lambda: numpy_runs_on(IDLE)}
ONES = (1,) * 64
NOTHING = np.zeros(0, np.float32)
CODES = np.zeros(0, np.uint8)


def f4(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def i8(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


SHAPES = [
    ((2**63 - 1, 3), r"fewer than 2\^59 elements, got \(9223372036854775807, 3\)"),
    ((0, 2**62, 2**62), r"fewer than 2\^59 elements, got \(0, "),
    ((2**63,), r"extents of at least 0 and below 2\^63, got"),
    ((-(2**40), -(2**40)), "extents of at least 0"),
    ((1,) * 65, "at most 64 dimensions, got 65"),
]
# Operators that take a shape, and where that shape stands.
TAKE_SHAPES = {
    "GatherGrad: shape": lambda s: cto.gather_grad(s, i8(0), f4(0, 3)),
    "GatherNDGrad: shape": lambda s: cto.gather_nd_grad(s, i8(0, 1), f4(0, 3)),
    "GatherElementsGrad: shape": lambda s: cto.gather_elements_grad(f4(0, 3), s, i8(0, 3)),
    "SliceGrad: shape": lambda s: cto.slice_grad(NOTHING, s, (0,), (0,)),
    "View: shapes": lambda s: cto.view(NOTHING, [s]),
    "GistPack8Decoder: shape": lambda s: cto.gist_pack8_decoder(CODES, to="float32", shape=s),
    "PadAndUnflatten: unflatten_dims": lambda s: cto.pad_and_unflatten(f4(0, 3), i8(0), s),
}


def refused(provider: str, call, message: str) -> None:
    with PROVIDERS[provider](), launch_log() as log, pytest.raises(ArgumentError, match=message):
        call()
    assert not log


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("argument", TAKE_SHAPES)
def test_a_shape_that_no_array_has(provider, argument) -> None:
    for shape, message in SHAPES:
        call = TAKE_SHAPES[argument]
        refused(provider, lambda call=call, s=shape: call(s), f"{argument}: expected {message}")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cto.gather_grad((2**61,), i8(0), f4(0)),
            r"GatherGrad: shape: expected fewer than 2\^59 elements, got \(2305843009213693952,\)",
        ),
        (
            lambda: cto.slice_grad(NOTHING, (2**31, 2**31), (0,), (0,)),
            "SliceGrad: shape: expected fewer",
        ),
        (
            lambda: cto.pad_and_unflatten(f4(*ONES), i8(1), (1, 1)),
            "PadAndUnflatten: output: expected at most 64 dimensions, got 65",
        ),
        (
            lambda: cto.concat_training([np.zeros((2**58, 0), bool)] * 2, axis=0),
            r"ConcatTraining: concat_result: expected fewer than 2\^59 elements, got \(576460752",
        ),
        (lambda: cto.split_training(NOTHING, (2**63, 0)), "SplitTraining: split: expected extents"),
        (
            lambda: ProbeJoin()((2**61, 0), []),
            r"ProbeJoin: shape: expected fewer than 2\^59 elements",
        ),
    ],
)
def test_a_result_that_cannot_exist(provider, call, message) -> None:
    refused(provider, call, message)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cto.split_training(NOTHING, num_outputs=10**6),
            "SplitTraining: num_outputs: expected at most 65536 entries, got 1000000",
        ),
        (lambda: cto.SplitTraining(num_outputs=2**62), "num_outputs: expected at most"),
        (lambda: cto.SplitTraining(num_outputs=0), "num_outputs: expected at least 1, got 0"),
        (
            lambda: cto.split_training(NOTHING, (0,) * 65537),
            "SplitTraining: split: expected at most 65536 entries, got 65537",
        ),
        (lambda: cto.view(NOTHING, [(0,)] * 65537), "View: shapes: expected at most 65536"),
        (
            lambda: cto.concat_training([NOTHING] * 65537, axis=0),
            "ConcatTraining: inputs: expected at most 65536 entries, got 65537",
        ),
    ],
)
def test_more_arrays_than_a_call_takes(provider, call, message) -> None:
    refused(provider, call, message)


class Parts(Probe):
    """As many outputs as nobody wants."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Ys", "float32", variadic=True),)

    def infer(self, x):
        return ((x,) * 65537,)


class Thirsty(Probe):
    """Y = X, with all the scratch memory there can be, and one byte."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Y", "float32"),)

    def infer(self, x):
        return (x,)

    def plan(self, device, x, y):
        return Plan((), 2**63)


def test_whatever_an_operator_infers_and_plans() -> None:
    refused("cpu", lambda: Parts()(f4(1)), "Parts: Ys: expected at most 65536 entries, got 65537")
    refused(
        "idle",
        lambda: Thirsty()(f4(1)),
        r"Thirsty: workspace: expected fewer than 2\^63 bytes, got 9223372036854775808",
    )


def test_an_input_that_cannot_exist() -> None:
    """CuPy's views need not fit: an operator that reads no elements takes any strides."""

    class Lending(IdleBackend):
        def info(self, array):
            self_, _, _, *rest = super().info(array)
            return (self_, FLOAT32, (2**40, 2**40), *rest)

    message = r"Gelu: X: expected fewer than 2\^59 elements, got"
    with numpy_runs_on(Lending(IDLE.device(0))), pytest.raises(ArgumentError, match=message):
        cto.gelu(f4(1))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_as_many_dimensions_as_arrays_have(provider) -> None:
    with PROVIDERS[provider]():
        for rank in (33, 64):
            ones = f4(*(1,) * (rank - 1), 2)
            da, db = cto.div_grad(ones, ones, f4(2))
            assert (da.shape, db.shape) == (ones.shape, (2,))
            assert cto.gather_grad(ones.shape, i8(1), ones).shape == ones.shape


@pytest.mark.parametrize("provider", PROVIDERS)
def test_operands_that_take_turns_too_often(provider) -> None:
    a, b = (0, *(1, 2) * 16), (2, *(2, 1) * 16)
    dy = f4(0, *(2,) * 32)
    refused(
        provider,
        lambda: cto.div_grad(dy, f4(*a), f4(1, *b[1:])),
        "DivGrad: B: expected at most 32 changes between the operands, got 33",
    )


def test_the_largest_that_there_are() -> None:
    assert limits.of_shape((2**59 - 1,)) is None
    assert limits.of_shape((0, 2**59 - 1)) is None
    assert limits.of_shape(ONES) is None
    assert limits.of_list(65536) is None
    assert limits.of_scratch(2**63 - 1) is None
    assert Spec((0, 2**59 - 1), FLOAT32).nbytes == 0
    assert limits.of_shape((0, 2**59)) is not None

# SPDX-License-Identifier: MIT
"""Plans as data: configurations no GPU takes are refused, structs lie in memory as C lays them."""

from __future__ import annotations

import ctypes
import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupy_training_ops import ArgumentError
from cupy_training_ops.plan import Config, Launch, Plan, Scratch, ScratchMemory, by_value, ceil_div


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1,), (1,)),
        ((2**31 - 1,), (1024,)),
        ((2**31 - 1, 65_535, 65_535), (32, 32)),
        ((1, 1, 1), (4, 4, 64)),
        ((1,), (1, 1024, 1)),
    ],
)
def test_what_a_gpu_takes_is_taken(grid, block) -> None:
    assert (Config(grid, block).grid, Config(grid, block).block) == (grid, block)


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0,), (1,), 0),
        ((1, 0), (1,), 0),
        ((-1,), (1,), 0),
        ((2**31,), (1,), 0),
        ((1, 65_536), (1,), 0),
        ((1, 1, 65_536), (1,), 0),
        ((1,), (0,), 0),
        ((1,), (1025,), 0),
        ((1,), (32, 33), 0),
        ((1,), (1, 1, 65), 0),
        ((1,), (-16, -16), 0),
        ((1,), (), 0),
        ((), (1,), 0),
        ((1, 1, 1, 1), (1,), 0),
        ((1,), (1, 1, 1, 1), 0),
        ((1,), (1,), -1),
    ],
)
def test_what_no_gpu_takes_is_refused(grid, block, shared) -> None:
    with pytest.raises(ArgumentError, match="grid"):
        Config(grid, block, shared)


def test_plans_are_frozen() -> None:
    launch = Launch("k", Config((1,), (1,)), ("X",))
    for value, field in (
        (launch, "symbol"),
        (launch.config, "grid"),
        (Plan((launch,)), "steps"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, None)


@given(st.integers(0, 2**63), st.integers(1, 2**40))
def test_ceil_div_is_exact_beyond_float(a, b) -> None:
    assert ceil_div(a, b) * b >= a > (ceil_div(a, b) - 1) * b


def test_pieces_of_scratch_memory_lie_behind_each_other_at_multiples_of_256_bytes() -> None:
    scratch = ScratchMemory()
    assert scratch.plan().workspace_nbytes == 0
    pieces = [
        scratch.take(n, t) for n, t in ((1, "u4"), (32, "f8"), (0, "f4"), (65, "f4"), (1, "u1"))
    ]
    assert pieces == [Scratch(offset) for offset in (0, 256, 512, 512, 1024)]
    assert scratch.plan() == Plan((), scratch_nbytes=1280)


def test_zeros_share_no_place_with_other_scratch_memory() -> None:
    scratch = ScratchMemory()
    pieces = [scratch.zeros(1, "u4"), scratch.take(3, "f4"), scratch.zeros(5, "u4")]
    assert pieces == [Scratch(0, zeros=True), Scratch(0), Scratch(16, zeros=True)]
    plan = scratch.plan()
    assert (plan.zeros_nbytes, plan.scratch_nbytes) == (48, 256)
    assert (plan.scratch_start, plan.workspace_nbytes) == (256, 512)


C_TYPES = {
    np.bool_: ctypes.c_bool,
    np.int8: ctypes.c_int8,
    np.uint16: ctypes.c_uint16,
    np.int32: ctypes.c_int32,
    np.int64: ctypes.c_int64,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
    np.float16: ctypes.c_uint16,  # C has neither; both are two bytes at an even address
    ml_dtypes.bfloat16: ctypes.c_uint16,
}
FIELDS = st.lists(st.tuples(st.sampled_from(list(C_TYPES)), st.integers(0, 5)), min_size=1)


def c_struct(fields) -> type[ctypes.Structure]:
    """The struct a C compiler makes: 0 elements stand for a scalar."""
    members = [
        (f"f{i}", C_TYPES[scalar] * n if n else C_TYPES[scalar])
        for i, (scalar, n) in enumerate(fields)
    ]
    return type("CStruct", (ctypes.Structure,), {"_fields_": members})


@given(FIELDS)
def test_a_struct_is_laid_out_as_c_does(fields) -> None:
    values = {f"f{i}": np.ones(n or (), scalar) for i, (scalar, n) in enumerate(fields)}
    made, expected = by_value(**values), c_struct(fields)
    assert made.nbytes == ctypes.sizeof(expected)
    for name in values:
        assert made.dtype.fields[name][1] == getattr(expected, name).offset


def test_a_struct_holds_its_values(rng) -> None:
    extents, scale = rng.integers(1, 2**60, 5), np.float16(rng.standard_normal())
    made = by_value(flag=np.bool_(True), extents=extents, scale=scale, half=np.ones(3, np.float16))
    assert isinstance(made, np.void)
    assert made["flag"]
    assert made["extents"].tolist() == extents.tolist()
    assert made["scale"] == scale
    assert made["half"].tolist() == [1, 1, 1]


def test_a_struct_does_not_follow_its_arrays(rng) -> None:
    extents = rng.integers(1, 100, 4)
    made = by_value(extents=extents)
    extents[:] = 0
    assert made["extents"].all()


def test_padding_between_fields_is_zero() -> None:
    made = by_value(flag=np.bool_(True), n=np.int64(-1))
    assert bytes(made.tobytes()[1:8]) == bytes(7)


def test_launch_parameters_have_room_for_4000_bytes() -> None:
    assert by_value(at=np.ones(500, np.int64)).nbytes == 4000
    with pytest.raises(ArgumentError, match="4008 bytes by value, at most 4000"):
        by_value(at=np.ones(500, np.int64), count=np.int32(1))

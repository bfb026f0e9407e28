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

from cupy_training_ops import ArgumentError, CompileError
from cupy_training_ops.declare.facts import CType, Struct, i32
from cupy_training_ops.dtypes import FLOAT32, FLOAT64
from cupy_training_ops.facts import Divisor, Partials, TensorStarts
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


def declared(**fields) -> Struct:
    """A struct with fields of these dtypes, in tables of so many elements where there are some."""
    types = {name: CType("", np.dtype(scalar)) for name, (scalar, _) in fields.items()}
    return Struct("Own", **{k: types[k][n] if n else types[k] for k, (_, n) in fields.items()})


@given(FIELDS)
def test_a_struct_is_laid_out_as_c_does(fields) -> None:
    values = {f"f{i}": np.ones(n or (), scalar) for i, (scalar, n) in enumerate(fields)}
    struct = declared(**{f"f{i}": field for i, field in enumerate(fields)})
    made, expected = by_value(struct, **values), c_struct(fields)
    assert made.nbytes == ctypes.sizeof(expected)
    for name in values:
        assert made.dtype.fields[name][1] == getattr(expected, name).offset


Two = Struct("Two", at=Divisor[2])
OWN = declared(flag=("?", 0), extents=("i8", 5), scale=("f2", 0), half=("f2", 3))


def test_a_struct_holds_its_values(rng) -> None:
    extents, scale = rng.integers(1, 2**60, 5), np.float16(rng.standard_normal())
    made = by_value(OWN, flag=True, extents=extents, scale=scale, half=(1, 1.0, np.float16(1)))
    assert isinstance(made, np.void)
    assert made["flag"]
    assert made["extents"].tolist() == extents.tolist()
    assert made["scale"] == scale
    assert made["half"].tolist() == [1, 1, 1]


def test_a_struct_does_not_follow_its_arrays(rng) -> None:
    extents = rng.integers(1, 100, 4)
    made = by_value(declared(extents=("i8", 4)), extents=extents)
    extents[:] = 0
    assert made["extents"].all()


def test_padding_between_fields_is_zero() -> None:
    made = by_value(declared(flag=("?", 0), n=("i8", 0)), flag=True, n=-1)
    assert bytes(made.tobytes()[1:8]) == bytes(7)


def test_launch_parameters_have_room_for_4000_bytes() -> None:
    assert by_value(TensorStarts.of(500), at=np.ones(500, np.int64)).nbytes == 4000
    with pytest.raises(ArgumentError, match="4008 bytes by value, at most 4000"):
        by_value(TensorStarts.of(501), at=np.ones(501, np.int64))


DIVISOR = {"value": 3, "multiplier": 2**63, "shift": 1}


@pytest.mark.parametrize(
    ("struct", "changed", "why"),
    [
        (Divisor, {"shift": None}, "Divisor: fields differ from those declared: shift"),
        (Divisor, {"rest": 0}, "Divisor: fields differ from those declared: rest"),
        (Divisor, {"multiplier": -1}, "field multiplier is uint64, the plan gives int64"),
        (Divisor, {"value": 2**63}, "field value is int64, the plan gives uint64"),
        (Divisor, {"value": 2.0}, "field value is int64, the plan gives float64"),
        (Divisor, {"value": [1, 2]}, r"field value is int64, the plan gives int64\[2\]"),
        (Partials, {"first": 2**32, "n_in_all": 0}, "field first is uint32, the plan gives int64"),
        (TensorStarts.of(3), {"at": (1, 2)}, r"field at is int64\[3\], the plan gives int64\[2\]"),
        (TensorStarts.of(3), {"at": 1}, r"TensorStarts<3>: field at is .*, the plan gives int64"),
        (Two, {"at": [by_value(Divisor, **DIVISOR)]}, r"at is Divisor\[2\], .* Divisor\[1\]"),
        (Two, {"at": np.zeros(2, int)}, r"at is Divisor\[2\], the plan gives int64\[2\]"),
        (declared(flag=("?", 0)), {"flag": 1}, "field flag is bool, the plan gives int64"),
    ],
)
def test_a_struct_of_other_values_is_refused(struct, changed, why) -> None:
    fields = (DIVISOR if struct is Divisor else {}) | changed
    with pytest.raises(CompileError, match=why):
        by_value(struct, **{k: v for k, v in fields.items() if v is not None})


def test_structs_in_a_struct() -> None:
    divisors = [by_value(Divisor, **DIVISOR | {"value": n}) for n in (5, 7)]
    made = by_value(Two, at=divisors)
    assert made["at"]["value"].tolist() == [5, 7]
    assert made.nbytes == 48


@pytest.mark.parametrize(("dtype", "name"), [(FLOAT32, "float"), (FLOAT64, "double")])
def test_a_struct_of_a_type_that_varies(dtype, name) -> None:
    struct = Struct("Axis", CType("A"), n=i32, ratio=CType("A"), steps=CType("A")[2])
    layout = struct.of(dtype)
    assert layout.name == f"Axis<{name}>"
    made = by_value(layout, n=1, ratio=0.1, steps=(1, 2))
    assert made["ratio"] == dtype.type(0.1)
    assert made.nbytes == 4 * dtype.itemsize

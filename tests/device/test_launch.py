# SPDX-License-Identifier: MIT
"""Launches: every argument is checked against the kernel's own signature and cast to its type."""

from __future__ import annotations

import contextlib
import functools
import threading

import ml_dtypes
import numpy as np
import pytest

from cupy_training_ops import ArgumentError, CompileError
from cupy_training_ops.call.backends import NumpyBackend
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Changing, Input, Spec
from cupy_training_ops.device.arguments import NULL, cast, either
from cupy_training_ops.device.launch import ReadyPlan, launch_log
from cupy_training_ops.device.source import Parameter, Source, signatures
from cupy_training_ops.device.workspace import Store
from cupy_training_ops.dtypes import ELEMENT_TYPES, FLOAT32
from cupy_training_ops.facts import Either, Partials, TensorStarts
from cupy_training_ops.plan import Config, Device, Launch, Plan, Pointers, Scratch, by_value

CONFIG = Config((3,), (64,), 16)
INTEGERS = [row for row in ELEMENT_TYPES if row.dtype.kind in "iu"]
FLOATS = [row for row in ELEMENT_TYPES if row.dtype.kind not in "iubc"]
LARGEST = {row.name: float(ml_dtypes.finfo(row.dtype).max) for row in FLOATS}


def by_name(row) -> str:
    return row.name


def launch(*args, symbol="k", **slots) -> Launch:
    return Launch(symbol, CONFIG, args, slots)


def scalar(c_type: str, value, **slots):
    """The value as a kernel's parameter of this type receives it."""
    return cast(launch(**slots), Parameter("a", c_type, False), value)


def refused(c_type: str, value, pointer=False, why="") -> None:
    with pytest.raises(CompileError, match=rf"k: parameter a \(.*{why}"):
        cast(launch(), Parameter("a", c_type, pointer), value)


@pytest.mark.parametrize("row", INTEGERS, ids=by_name)
def test_an_integer_keeps_its_value_or_is_refused(row) -> None:
    limits = np.iinfo(row.dtype)
    for value in (int(limits.min), 0, 1, int(limits.max)):
        result = scalar(row.c_type, value)
        assert (result, result.dtype) == (value, row.dtype)
    for value in (int(limits.min) - 1, int(limits.max) + 1, 1.5, np.nan, np.inf, None, "1"):
        refused(row.c_type, value)


@pytest.mark.parametrize("row", FLOATS, ids=by_name)
def test_a_float_is_rounded_once_and_never_overflows(row) -> None:
    for value in (0.1, 3, -2.5e-3, np.float64(1 / 3), LARGEST[row.name], np.inf, -np.inf):
        result = scalar(row.c_type, value)
        assert (result, result.dtype) == (
            np.asarray(value, np.float64).astype(row.dtype),
            row.dtype,
        )
    assert np.isnan(scalar(row.c_type, np.nan))
    for value in (10**400, None, "X"):
        refused(row.c_type, value)
    if row.name != "float64":
        refused(row.c_type, 2 * LARGEST[row.name])


def test_a_negative_zero_stays_one() -> None:
    assert np.signbit(scalar("float", -0.0))


@pytest.mark.parametrize("value", [True, False, np.bool_(True), 0, 1])
def test_a_bool_is_one_byte(value) -> None:
    result = scalar("bool", value)
    assert (result, result.dtype, result.nbytes) == (bool(value), np.bool_, 1)


@pytest.mark.parametrize("value", [2, -1, None, "yes"])
def test_what_is_no_bool_is_refused(value) -> None:
    refused("bool", value)


def test_a_slot_stands_for_its_type() -> None:
    assert scalar("ACC", 0.1, ACC="double") == 0.1
    assert scalar("ACC", 0.1, ACC="float").dtype == np.float32


@pytest.mark.parametrize("c_type", ["size_t", "unsigned int", "double2", "T"])
def test_an_unknown_type_is_refused(c_type) -> None:
    refused(c_type, 1)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("number", [0.5, -0.0, 3, -7, 2**64 - 1, np.float32(2.5), 1e300])
def test_a_number_or_an_array_is_the_declared_struct(n, number) -> None:
    """Each field by its name, whatever their order in memory is."""
    layout = Either.of(n).dtype
    actual = either(layout, (number,) * n)
    assert (actual["array"], actual["type"], actual.dtype) == (0, 0, layout)
    real, whole = np.atleast_1d(actual["real"]), np.atleast_1d(actual["whole"])
    assert real.tolist() == [float(number)] * n
    assert np.signbit(real).tolist() == [bool(np.signbit(np.float64(number)))] * n
    is_whole = isinstance(number, int) or (float(number).is_integer() and abs(number) < 2**63)
    expected = np.uint64(int(number) % 2**64).astype(np.int64) if is_whole else 0
    assert whole.tolist() == [expected] * n
    at = either(layout, address=4096, dtype=FLOAT32)
    assert (at["array"], at["type"]) == (4096, 1)
    assert not np.any(at["real"])
    assert not np.any(at["whole"])


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_an_integer_beyond_64_bits_is_refused(number) -> None:
    with pytest.raises(OverflowError):
        either(Either.of(1).dtype, number)


def test_pointers_take_none_and_scratch_only() -> None:
    pointer = Parameter("a", "float", True)
    assert cast(launch(), pointer, None) is NULL
    assert NULL.nbytes == 8
    assert cast(launch(), pointer, Scratch(16)) == Scratch(16)
    for value in (0, 1.5, "Xx", by_value(Partials, first=1, n_in_all=2)):
        refused("float", value, pointer=True)


STRUCT = by_value(Partials, first=1, n_in_all=2)
ADDRESSES = Pointers((Spec((4,), FLOAT32, place=0),), 2)
STARTS = by_value(TensorStarts.of(2), at=(0, 4))


def test_structs_go_by_value_and_not_as_scalars() -> None:
    assert scalar("Partials", STRUCT) is STRUCT
    assert scalar("facts::Partials", STRUCT) is STRUCT
    assert scalar("Pointers<2>", ADDRESSES) == ADDRESSES
    for c_type in ("float", "i64"):
        refused(c_type, STRUCT)
        refused(c_type, ADDRESSES)


@pytest.mark.parametrize(
    ("c_type", "slots"), [("TensorStarts<2>", {}), ("TensorStarts<N>", {"N": "2"})]
)
def test_a_slot_stands_for_how_many_a_struct_has(c_type, slots) -> None:
    assert scalar(c_type, STARTS, **slots) is STARTS


@pytest.mark.parametrize(
    ("c_type", "value", "name"),
    [
        ("Divisor", STRUCT, "Partials"),
        ("Partials<2>", STRUCT, "Partials"),
        ("TensorStarts<4>", STARTS, "TensorStarts<2>"),
        ("TensorStarts<N>", STARTS, "TensorStarts<2>"),
        ("TensorSizes<2>", STARTS, "TensorStarts<2>"),
        ("Pointers<4>", ADDRESSES, "Pointers<2>"),
        ("Partials", ADDRESSES, "Pointers<2>"),
        ("Partials", np.zeros((), "u4, u4")[()], r"\[\('f0', '<u4'\), \('f1', '<u4'\)\]"),
    ],
)
def test_another_struct_than_the_kernels_is_refused(c_type, value, name) -> None:
    refused(c_type, value, why=f".*: the plan gives {name}$")


class RecordingBackend(NumpyBackend):
    """Kernels that write down how they were launched; memory is NumPy's."""

    name = "recording"

    def __init__(self) -> None:
        self.launched: list[tuple] = []
        self.entered: list[int] = []

    def load(self, source, options):
        return self

    def get_function(self, name):
        return lambda *launched: self.launched.append((name, *launched))

    def allow_shared(self, function, nbytes):
        """Each has what it asks for."""

    def device(self, index):
        return Device(1, (9, 0))

    @contextlib.contextmanager
    def on(self, device):
        self.entered.append(device)
        yield

    def offset(self, array, nbytes):
        return np.uint64(array.ctypes.data + nbytes)


class Planned(Op):
    name = "Op"
    inputs = (Input("X", "float32"), Input("n", "int64", memory="host", static=False))


def ready(signature: str, *steps: Launch, n_arrays: int = 1):
    """A plan made ready for kernels of this text, on device 5, and what they record."""
    code = f'extern "C" __global__ void {signature} {{ }}'
    backend, plan = RecordingBackend(), Plan(steps, scratch_nbytes=32, zeros_nbytes=48)
    source = functools.partial(Source, "fake", code, signatures(code))
    return ReadyPlan(Planned.declaration, source, backend, 5, plan, n_arrays), backend


def run(plan: ReadyPlan, arrays, scratch=(), values=None) -> None:
    addresses = [0 if array is None else array.ctypes.data for array in arrays]
    plan.run(arrays, addresses, scratch, plan.tables_at(addresses), plan.values(values or {}))


X = Spec((4,), np.dtype(np.float32), place=0)
Y = Spec((4,), np.dtype(np.float32), place=1)


def test_arguments_arrive_in_the_kernels_order(rng) -> None:
    step = launch(Y, 7, X, 0.5, T="float")
    plan, backend = ready("k(T* y, i64 n, const T* x, float a)", step, n_arrays=2)
    x, y = rng.standard_normal((2, 4)).astype(np.float32)
    run(plan, (x, y))
    ((name, grid, block, args, shared),) = backend.launched
    assert (name, grid, block, shared) == ("k", (3,), (64,), 16)
    assert args[0] is y
    assert args[2] is x
    assert [(a.item(), a.dtype) for a in (args[1], args[3])] == [(7, np.int64), (0.5, np.float32)]
    assert backend.entered == [5]


def test_a_single_argument_arrives(rng) -> None:
    plan, backend = ready("k(float* x)", launch(X))
    x = rng.standard_normal(4).astype(np.float32)
    run(plan, (x,))
    assert backend.launched[0][3][0] is x


def test_a_void_pointer_takes_an_array_of_any_type() -> None:
    plan, backend = ready("k(void* x)", launch(X))
    x = np.ones(4, np.float32)
    run(plan, (x,))
    assert backend.launched[0][3][0] is x


def test_an_absent_array_is_the_null_pointer() -> None:
    plan, backend = ready("k(float* x, float* y)", launch(X, None), n_arrays=2)
    run(plan, (np.ones(4, np.float32), None))
    assert backend.launched[0][3][1] == 0


def test_scratch_and_tables_hold_this_calls_addresses(rng) -> None:
    step = launch(Scratch(16), Scratch(4, zeros=True), Pointers((Y, X), 4))
    signature = "k(u32* sums, Zeroed<u32>* ticket, Pointers<4> table)"
    plan, backend = ready(signature, step, n_arrays=2)
    for _ in range(2):
        x, y = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
        store = Store(np.zeros(32, np.uint8), np.zeros(16, np.uint8))
        run(plan, (x, y), plan.scratch(store))
        sums, ticket, table = backend.launched[-1][3]
        assert sums == store.plain.ctypes.data + 16
        assert ticket == store.zeros.ctypes.data + 4
        assert table["at"].tolist() == [y.ctypes.data, x.ctypes.data, 0, 0]
        assert table.nbytes == 32


@pytest.mark.parametrize("kind", ["plain", "zeros"])
def test_a_buffer_that_grew_alone_is_the_one_that_is_used(kind) -> None:
    """The other, which is kept, is not cleared after an exception."""
    plan, _ = ready("k(u32* sums, Zeroed<u32>* ticket)", launch(Scratch(0), Scratch(0, zeros=True)))
    store = Store(np.zeros(32, np.uint8), np.zeros(48, np.uint8))
    plan.scratch(store)
    setattr(store, kind, np.zeros(96, np.uint8))
    assert plan.scratch(store) == [store.plain.ctypes.data, store.zeros.ctypes.data]


def test_a_callers_workspace_begins_with_zeros() -> None:
    """The call clears them, and nothing else, whatever was there."""
    step = launch(Scratch(16), Scratch(4, zeros=True))
    plan, backend = ready("k(u32* sums, Zeroed<u32>* ticket)", step)
    assert plan.workspace_nbytes == 256 + 32
    workspace = np.full(288, 7, np.uint8)
    run(plan, (np.ones(4, np.float32),), plan.scratch_in(workspace))
    start = workspace.ctypes.data
    assert backend.launched[-1][3] == (start + 256 + 16, start + 4)
    assert not workspace[:48].any()
    assert (workspace[48:] == 7).all()


@pytest.mark.parametrize(
    ("signature", "args", "message"),
    [
        (
            "k(u32* ticket)",
            (Scratch(0, zeros=True),),
            r"k: parameter ticket is u32\*, the plan gives zeros",
        ),
        (
            "k(Zeroed<u32>* ticket)",
            (Scratch(0),),
            r"ticket is Zeroed<u32>\*, the plan gives memory that may hold anything",
        ),
        ("k(Zeroed<float>* x)", (X,), r"x is Zeroed<float>\*, the plan gives an array"),
        ("k(float* x, i64 n)", (X,), "k: takes 2 arguments, the plan gives 1"),
        ("k(float* x)", (X, 4), "k: takes 1 arguments, the plan gives 2"),
        ("k(double* x)", (X,), r"parameter x is double\*, the plan gives an array of float32"),
        ("k(float x)", (X,), "parameter x is float, the plan gives an array of float32"),
        ("k(T* x)", (X,), r"parameter x is __half\*, the plan gives an array of float32$"),
        ("k(Acc<T>* x)", (X,), r"x is Acc<T>\*, .* of float32; the launch's slots are T$"),
        ("k(float* x)", ("Z",), "does not take 'Z'"),
        ("k(i64 n)", (1.5,), "cannot hold 1.5"),
    ],
)
def test_a_plan_that_does_not_fit_the_kernel_is_refused(signature, args, message) -> None:
    with pytest.raises(CompileError, match=message):
        ready(signature, launch(*args, T="__half"))


def test_a_plan_for_a_kernel_that_is_not_there_is_refused() -> None:
    with pytest.raises(CompileError, match=r"fake\.cu defines no kernel gone"):
        ready("k(float* x)", launch(X, symbol="gone"))


def test_modules_of_a_plan_are_loaded_at_the_same_time(monkeypatch) -> None:
    together, loads = threading.Barrier(2), []

    def load(backend, *asked):
        loads.append(asked)
        together.wait(timeout=5)
        return backend

    monkeypatch.setattr(RecordingBackend, "load", load)
    monkeypatch.setattr(RecordingBackend, "loads_at_once", True)
    steps = [launch(X, T=t) for t in ("float", "float", "double")]
    plan, backend = ready("k(void* x)", *steps)
    assert len(loads) == 2
    run(plan, (np.ones(4, np.float32),))
    assert len(backend.launched) == 3


def test_the_log_holds_what_ran_inside_it() -> None:
    step = launch(X)
    plan, _ = ready("k(float* x)", step, step)
    x = np.ones(4, np.float32)
    with launch_log() as outer:
        run(plan, (x,))
        with launch_log() as inner:
            run(plan, (x,))
        assert outer == inner == [step, step]
        run(plan, (x,))
    run(plan, (x,))
    assert len(outer) == 4
    assert len(inner) == 2


def test_a_value_that_changes_is_cast_at_each_call() -> None:
    """Also a function of it; what the kernel's type does not hold is refused before a launch."""
    n = Changing(1)
    step = launch(X, n, n.then(lambda value: value / 2))
    plan, backend = ready("k(float* x, i32 n, float half)", step)
    x = np.ones(4, np.float32)
    for value in (3, 4):
        run(plan, (x,), values={1: value})
        given = backend.launched[-1][3][1:]
        assert [a.item() for a in given] == [value, value / 2]
        assert [a.dtype for a in given] == [np.int32, np.float32]
    with pytest.raises(ArgumentError, match="Op: n: expected a number that i32 holds, got 2147"):
        run(plan, (x,), values={1: 2**31})
    assert len(backend.launched) == 2

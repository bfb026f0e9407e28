# SPDX-License-Identifier: MIT
"""An optimizer's step: what all of them declare, check and launch; numbers are in math/step.cuh.

In declarations `variable` is the type variable of the input or output, `doc` its words in the help
text. `op`: the operator's name in messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..declare.schema import (
    Changing,
    Convert,
    Inferred,
    Input,
    Output,
    Spec,
    finite,
    flag,
    integer,
    real,
)
from ..dtypes import BFLOAT16, BOOL, FLOAT16, FLOATS, Dtype, dtype_name
from ..errors import ArgumentError, refuse, shown
from ..plan import Config, Launch, Plan, Work, slots
from .multi_tensor import Columns, Listed, MakeLaunch, batches

HALVES = (FLOAT16, BFLOAT16)
# Dtypes of learning rates, scales and norms in arrays: read at run time, no kernel is compiled for
# one.
NUMBERS: tuple[Dtype, ...] = FLOATS

MAX_STEP = 2**63 - 1  # int64 does not hold the next one


def first_step(value: object) -> int:
    """A step, counted from 1, that int64 has room for, and the one after it.

    Return it as an int; ArgumentError for other values.
    """
    step = integer(value)
    if step < 1:
        raise ArgumentError(f"expected a step of at least 1, got {shown(step)}")
    if step >= MAX_STEP:
        raise ArgumentError(f"expected a step below 2^63 - 1, got {shown(step)}")
    return step


def not_negative(value: object) -> float:
    """A number of at least 0.

    Return it as a float; ArgumentError for other values.
    """
    number = real(value)
    if not number >= 0:
        raise ArgumentError(f"expected a number of at least 0, got {number}")
    return number


def above_zero(value: object) -> float:
    """A number above 0.

    Return it as a float; ArgumentError for other values.
    """
    number = real(value)
    if not number > 0:
        raise ArgumentError(f"expected a number above 0, got {number}")
    return number


def scale(value: object) -> float:
    """A loss scale: finite, and above 0.

    Return it as a float; ArgumentError for other values.
    """
    return above_zero(finite(value))


def limit(value: object) -> float:
    """A lower or upper limit, not NaN.

    Return it as a float; ArgumentError for other values.
    """
    number = real(value)
    if math.isnan(number):
        raise ArgumentError("expected a number, got nan")
    return number


def decay(value: object) -> float:
    """A finite number of at least 0, below 1 where biases are corrected.

    Return it as a float; ArgumentError for other values. Below 1 is checked elsewhere.
    """
    number = real(value)
    if not 0 <= number < math.inf:
        raise ArgumentError(f"expected a finite number of at least 0, got {number}")
    return number


def seed(value: object) -> int:
    """An integer from 0 on, below 2^64.

    Return it as an int; ArgumentError for other values.
    """
    number = integer(value)
    if not 0 <= number < 2**64:
        raise ArgumentError(f"expected a seed from 0 on, below 2^64, got {shown(number)}")
    return number


def refuse_rounding(op: str, dtype: Dtype) -> None:
    """Refuse a seed for weights that are not rounded at random."""
    if dtype != BFLOAT16:
        got = f"a seed, with weights in {dtype_name(dtype)}"
        refuse(op, "rounding_seed", "None, unless weights are bfloat16", got)


def refuse_uncorrectable(op: str, **decays: object) -> None:
    """Refuse decays, or lists of them, of which 1 - decay^step is no correction."""
    for name, value in decays.items():
        if not all(x < 1 for x in (value if isinstance(value, tuple) else (value,))):
            refuse(op, name, "a number below 1, as biases are corrected", shown(value))


def number(
    name: str, variable: str, doc: str = "", optional: bool = False, convert: Convert = finite
) -> Input:
    """Return the declaration of a real number, such as a learning rate: on the host or in an array.

    optional: a call may leave it out. convert: checks a number on the host.
    """
    return Input(
        name, variable, memory="either", optional=optional, convert=convert,
        shape="one element", doc=doc,
    )  # fmt: skip


def step_input(name: str, variable: str, optional: bool = False) -> Input:
    """Return the declaration of the input that counts steps from 1; variable: its type variable."""
    doc = "of an array, one below 1 corrects no bias"
    return Input(
        name, variable, memory="either", optional=optional, convert=first_step,
        shape="one element", doc=doc,
    )  # fmt: skip


UPDATE_SIGNAL = Input(
    "update_signal",
    "bool",
    memory="either",
    optional=True,
    convert=flag,
    shape="one element",
    doc="False: nothing changes; True where it is left out",
)

ABSENT_NORM = math.nan  # in place of a norm that was left out: clips nothing


def scales(loss_scale: str, norm: str, name: str) -> tuple[Input, Input]:
    """Return the declarations of two optional inputs: loss_scale, and `name`, the gradients' norm.

    loss_scale, norm: their type variables.
    """
    doc = "of the gradients; 1 where it is left out"
    return (
        number("loss_scale", loss_scale, doc, optional=True, convert=scale),
        number(name, norm, "of the gradients with their loss scale", optional=True, convert=real),
    )


def signal_output(name: str) -> Output:
    """Return the declaration of an output `name` that is the input update_signal, in its place."""
    return Output(
        name, "bool", memory="either", aliases="update_signal",
        shape="one element", doc="the update signal; of shape () where that is no array",
    )  # fmt: skip


def step_output(name: str, step: str, variable: str) -> Output:
    """Return the declaration of an output `name`: the next step, in place of the input `step`."""
    return Output(
        name, variable, memory="either", aliases=step, shape="one element",
        doc=f"{step} + 1, or {step} where the step is skipped",
    )  # fmt: skip


def max_norm(doc: str) -> Input:
    """Return the declaration of the input max_norm, the limit of the gradients' norm."""
    return number("max_norm", "T_MAX_NORM", doc, optional=True, convert=above_zero)


def lists(variable: str, *names: str) -> tuple[Input, ...]:
    """Return declarations of inputs that are lists of arrays with the shapes of the weights."""
    shape = "shapes of weights"
    return tuple(Input(name, variable, variadic=True, shape=shape) for name in names)


def weights(variable: str) -> Input:
    """Return the declaration of the list of weights, whose shapes all other lists have."""
    doc = "at least one array"
    return Input("weights", variable, variadic=True, shape="any shapes", doc=doc)


def low_precision(variable: str) -> Input:
    """Return the declaration of the list of low-precision copies of weights; some may be None."""
    return Input(
        "mixed_precision_weights", variable, optional=True, variadic=True, holes=True,
        shape="shapes of weights",
    )  # fmt: skip


def list_output(
    name: str, alias: str, variable: str, like: str = "weights", on_request: bool = False
) -> Output:
    """Return the declaration of an output `name`, a list of arrays, written into those of the
    input `alias`.

    like: for help, the input whose shapes it has. on_request: only if `outputs=` names it.
    """
    return Output(
        name, variable, variadic=True, aliases=alias, on_request=on_request,
        shape=f"shapes of {like}",
    )  # fmt: skip


def value_or(value: object, absent: object) -> object:
    """Return an optional number, or `absent` for None."""
    return absent if value is None else value


def refuse_other_shapes(op: str, name: str, got: Any, like: str, expected: Any) -> None:
    """Refuse an array, or a list of them, that has not the shape or shapes of `expected`.

    name, like: of the two in messages. None, an optional input that was left out, is accepted.
    """
    if got is None:  # where the declaration lets it be absent
        return
    if isinstance(expected, Spec):
        if got.shape != expected.shape:
            refuse(op, name, f"shape {expected.shape} like {like}", f"shape {got.shape}")
        return
    if len(got) != len(expected):
        refuse(op, name, f"{len(expected)} arrays like {like}", str(len(got)))
    for i, pair in enumerate(zip(got, expected, strict=True)):
        refuse_other_shapes(op, f"{name}[{i}]", pair[0], f"{like}[{i}]", pair[1])


def refuse_none(op: str, name: str, arrays: Sequence[Spec]) -> None:
    """Refuse an empty list."""
    if not arrays:
        refuse(op, name, "at least one array", "an empty list")


def new_step(op: str, name: str, step: Spec | Changing, update: object) -> Inferred:
    """Return the counter after this step, for infer: step + 1, or step if it is skipped.

    name: of the input, for messages. step: an array, for which `count_step` launches a kernel, or a
    number on the host, counted here. update: the update signal, None if left out; an array only
    beside an array `step`, as the host cannot read it.
    """
    if isinstance(step, Spec):
        return step
    if isinstance(update, Spec):
        expected = "an array, as update_signal is one, which the host cannot read to count the step"
        refuse(op, name, expected, "a number")
    if isinstance(update, Changing):
        return step.then(lambda t, on: t + on, update)
    return step.then(lambda t: t + 1)


def signal(update: Spec | Changing | None) -> Inferred:
    """Return the update signal as an output, for infer: the input, or True if it is left out."""
    return np.ones((), BOOL) if update is None else update


# ---- launches of kernels with algorithm/parameter_update.cuh -------------------------------------


def launch(
    symbol: str,
    grid: int,
    threads: int,
    args: tuple[object, ...],
    chunk_nbytes: int,
    capacity: int,
    lists: int,
    types: Mapping[str, Dtype],
) -> Launch:
    """Return a launch of a kernel of optimizer steps, whose slots are those of its family.

    symbol, args: its name and arguments. grid, threads: blocks, and threads of each. chunk_nbytes:
    bytes that a block takes. capacity: tensors of a launch at most; lists: lists of tensors, whose
    addresses are in one table. types: dtypes of the slots for types.
    """
    sizes = {"CHUNK_NBYTES": chunk_nbytes, "CAPACITY": capacity, "POINTERS": lists * capacity}
    return Launch(symbol, Config((grid,), (threads,)), args, slots(**types, **sizes))


def low_precision_lists(mixed: Listed | None, copied: Listed | None) -> tuple[Listed, Listed, bool]:
    """Return (low-precision weights before, after, True if they are bfloat16).

    mixed, copied: specs of the input and the output, or None. Both results are () if the output is
    not asked for.
    """
    present = [spec for spec in mixed or () if spec is not None]
    if mixed is None or copied is None or not present or not any(copied):
        return (), (), False
    return mixed, copied, present[0].dtype == BFLOAT16


def over_lists(
    columns: Columns,
    sizes: Sequence[int],
    chunk: int,
    capacity: int,
    launch: MakeLaunch,
    *args: object,
) -> Plan:
    """Divide a step among launches, each of as many tensors as its tables have room for.

    columns: the lists of arrays, whose addresses are in one table; without a written one nothing is
    launched. sizes: elements of each tensor. chunk: elements of a block. capacity: tensors that
    the table of sizes has room for; that of addresses may have room for fewer, `columns.most`.
    launch: makes a launch of a grid and arguments, which are addresses, Columns, sizes and `args`.
    """
    if not columns.are_written:
        return Plan()
    launches = (
        launch(batch.n_chunks, (*batch.addresses(columns), batch.sizes, *args))
        for batch in batches(sizes, chunk, capacity, min(capacity, columns.most))
    )
    return Plan(tuple(launches))


def count_step(
    launch: MakeLaunch,
    rate: object,
    step: object,
    scale: object,
    update: object,
    stepped: Spec | None,
) -> Plan:
    """Return a plan of one launch, of one thread, that writes the next step to the array `stepped`.

    None if that is not asked for: an empty plan. The others are numbers or arrays: the kernel
    counts on unless `update` is False or rate or loss scale allow no step.
    """
    if stepped is None:
        return Plan()
    count = launch(1, (rate, step, scale, value_or(update, True), stepped))
    return Plan((replace(count, config=Config((1,), (1,))),))


def pass_signal(update: object, signalled: Spec | None) -> Plan:
    """Return a plan that copies the update signal to the array `signalled`, if that is another."""
    if not isinstance(update, Spec) or signalled is None or signalled.in_place:
        return Plan()
    return Plan((Work("copy", (update, signalled)),))

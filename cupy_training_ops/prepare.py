# SPDX-License-Identifier: MIT
"""BIND, CHECK and INFER: from the arguments of a call to a Call that only allocates and runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import arrays, checks
from .arrays import Described
from .call import Call, CpuCall, EmptyCall, KernelCall
from .contract import REQUIRED, Spec
from .errors import ArgumentError, DtypeError, OpError
from .runtime.launch import ReadyPlan

if TYPE_CHECKING:
    from .op import Op

Placed = Sequence[Described | None]


def prepare(op: Op, inputs: Placed, given: Placed, outputs: Sequence[str] | None) -> Call:
    """All checks of one call, in the same order and with the same words on every provider."""
    checks.count(op.name, op.inputs, len(inputs))
    inputs = [*inputs, *[None] * (len(op.inputs) - len(inputs))]
    _check_inputs(op, inputs)
    specs = [None if item is None else item.spec for item in inputs]
    expected = _expected(op, specs, wanted(op, outputs))
    targets = _check_given(op, expected, given)
    home = _home(op, [*inputs, *targets])
    return _route(op, home, specs, expected, targets)


def wanted(op: Op, outputs: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the outputs to compute."""
    declared = tuple(output.name for output in op.outputs)
    if outputs is None:
        return declared
    if isinstance(outputs, str) or any(name not in declared for name in outputs):
        checks.refuse(op.name, "outputs", f"a tuple of names among {declared}", repr(outputs))
    return tuple(outputs)


def frozen_attributes(cls: type[Op], given: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute values in their checked, frozen form; every error names the attribute."""
    known = {attribute.name for attribute in cls.attributes}
    for name in given:
        if name not in known:
            checks.refuse(cls.name, name, f"an attribute among {sorted(known)}", "an unknown one")
    values: dict[str, Any] = {}
    for attribute in cls.attributes:
        value = given.get(attribute.name, attribute.default)
        if value is REQUIRED:
            checks.refuse(cls.name, attribute.name, "a value: it is required", "none")
        values[attribute.name] = _converted(cls, attribute, value)
    return values


def _converted(cls: type[Op], attribute: Any, value: Any) -> Any:
    try:
        converted = attribute.convert(value)
    except OpError as error:
        raise type(error)(f"{cls.name}: {attribute.name}: {error}") from None
    allowed = cls.types.get(attribute.type)
    if allowed and converted not in allowed:
        raise DtypeError(
            f"{cls.name}: {attribute.name}: expected {checks.names(allowed)}, "
            f"got {checks.names([converted])}"
        )
    return converted


def _check_inputs(op: Op, inputs: Placed) -> None:
    bound: checks.Bindings = {
        attribute.type: getattr(op, attribute.name) for attribute in op.attributes if attribute.type
    }
    for declared, item in zip(op.inputs, inputs, strict=True):
        if item is not None:
            checks.bind(op.name, declared, item.dtype, op.types, bound)
            checks.contiguous(op.name, declared.name, item.contiguous or declared.strided)
        elif not declared.optional:
            checks.refuse(op.name, declared.name, "an array", "None")


def _expected(op: Op, specs: Sequence[Any], names: tuple[str, ...]) -> tuple[Spec | None, ...]:
    """Inferred specs of the outputs asked for."""
    pairs = zip(op.outputs, op.infer(*specs), strict=True)
    return tuple(spec if output.name in names else None for output, spec in pairs)


def _check_given(op: Op, expected: Sequence[Spec | None], given: Placed) -> Placed:
    """The caller's outputs, one for each declared output."""
    if list(given) == [None]:
        return [None] * len(expected)
    if len(given) != len(expected):
        checks.refuse(op.name, "out", f"{len(expected)} arrays or None", str(len(given)))
    for declared, spec, target in zip(op.outputs, expected, given, strict=True):
        if target is None:
            continue
        name = f"out ({declared.name})"
        if spec is None:
            checks.refuse(op.name, name, "None: this output is not asked for", "an array")
        checks.output(op.name, name, spec, target.spec)
        checks.contiguous(op.name, name, target.contiguous)
    return given


def _home(op: Op, placed: Placed) -> Described:
    """The one place all arrays are in."""
    names = [i.name for i in op.inputs] + [f"out ({o.name})" for o in op.outputs]
    present = {n: item for n, item in zip(names, placed, strict=True) if item is not None}
    if not present:
        raise ArgumentError(f"{op.name}: expected at least one array")
    checks.one_place(op.name, {name: item.place for name, item in present.items()})
    return next(iter(present.values()))


def _route(
    op: Op,
    home: Described,
    specs: Sequence[Any],
    expected: tuple[Spec | None, ...],
    targets: Placed,
) -> Call:
    """The provider the arrays chose, ready to run."""
    names = (*(i.name for i in op.inputs), *(o.name for o in op.outputs))
    if not any(spec is not None and spec.size for spec in expected):
        return EmptyCall(op.name, names, home, expected, targets)
    if home.backend is arrays.CPU:
        function = functools.partial(op.cpu_function(), **op.attribute_values)
        return CpuCall(op.name, names, home, expected, targets, function=function)
    results = [t.spec if t else spec for t, spec in zip(targets, expected, strict=True)]
    plan = op.plan(home.backend.device(home.device), *specs, *results)
    every = dict(zip(names, [*specs, *results], strict=True))
    ready = ReadyPlan(home.backend, home.device, op.source(), plan, every)
    return KernelCall(op.name, names, home, expected, targets, ready=ready, stores=op.workspaces)

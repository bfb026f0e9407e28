# SPDX-License-Identifier: MIT
"""BIND, CHECK and INFER: from the arguments of a call to a Call that only allocates and runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..backend import ArrayInfo
from ..errors import ArgumentError, DtypeError, OpError, refuse
from ..plan import LaunchError
from ..runtime.launch import ReadyPlan
from ..schema import REQUIRED, Attribute, Input, Output, Spec
from . import backends, checks
from .call import Call, CpuCall, EmptyCall, KernelCall, Result, Signature, ViewCall
from .keys import unmarked

if TYPE_CHECKING:
    from .op import Op

Named = list[tuple[str, ArrayInfo | None]]


def prepare(
    op: Op, inputs: Sequence[Any], given: Sequence[Any], outputs: Sequence[str] | None
) -> Call:
    """All checks of one call, in the same order and with the same words on every provider.

    `inputs` and `given` hold what `describe` said of the arrays, and `host_key` of host inputs.
    """
    checks.count(op.name, op.inputs, len(inputs))
    every = [*inputs, *[None] * (len(op.inputs) - len(inputs))]
    hosts = tuple(_host_value(op, i, v) for i, v in zip(op.inputs, every, strict=True))
    named = _device_arrays(op, every)
    _check_inputs(op, named)
    specs = tuple(_spec(i, d, h) for i, d, h in zip(op.inputs, every, hosts, strict=True))
    results = tuple(_results(op, op.infer(*specs), wanted(op, outputs)))
    targets = _check_given(op, results, given)
    home = _home(op, [*named, *((f"out ({r.name})", t) for r, t in _device(results, targets))])
    names = tuple(name for name, _ in named)
    bare = len(op.outputs) == 1 and not op.outputs[0].variadic
    signature = Signature(op.name, op.inputs, hosts, names, results, targets, home, bare)
    return _route(op, signature, specs, dict(named))


def wanted(op: Op, outputs: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the outputs to compute."""
    declared = tuple(output.name for output in op.outputs)
    if outputs is None:
        return declared
    if not isinstance(outputs, list | tuple) or any(name not in declared for name in outputs):
        refuse(op.name, "outputs", f"a tuple of names among {declared}", repr(outputs))
    return tuple(outputs)


def frozen_attributes(cls: type[Op], given: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute values in their checked, frozen form; every error names the attribute."""
    known = {attribute.name for attribute in cls.attributes}
    for name in given:
        if name not in known:
            refuse(cls.name, name, f"an attribute among {sorted(known)}", "an unknown one")
    values: dict[str, Any] = {}
    for attribute in cls.attributes:
        value = given.get(attribute.name, attribute.default)
        if value is REQUIRED:
            refuse(cls.name, attribute.name, "a value: it is required", "none")
        values[attribute.name] = converted(cls, attribute, value)
    return values


def converted(cls: type[Op], declared: Attribute | Input, value: Any) -> Any:
    """A value in its frozen form, or an error that names operator and argument."""
    try:
        frozen = declared.convert(value) if declared.convert else value
    except OpError as error:
        raise type(error)(f"{cls.name}: {declared.name}: {error}") from None
    allowed = cls.types.get(declared.type) if isinstance(declared, Attribute) else None
    if allowed and frozen is not None and frozen not in allowed:
        raise DtypeError(
            f"{cls.name}: {declared.name}: expected {checks.names(allowed)}, "
            f"got {checks.names([frozen])}"
        )
    return frozen


def _host_value(op: Op, declared: Input, value: Any) -> Any:
    if declared.memory != "host":
        return None
    if value is None:
        if not declared.optional:
            refuse(op.name, declared.name, "a value", "None")
        return None
    if declared.variadic:
        return tuple(converted(type(op), declared, unmarked(item)) for item in value)
    return converted(type(op), declared, unmarked(value))


def _device_arrays(op: Op, described: Sequence[Any]) -> Named:
    """Every device array under its own name: the second of a variadic X is X[1]."""
    named: Named = []
    for declared, item in zip(op.inputs, described, strict=True):
        if declared.memory == "host":
            continue
        if declared.variadic and item is not None:
            named += [(f"{declared.name}[{i}]", _described(d)) for i, d in enumerate(item)]
        else:
            named.append((declared.name, _described(item)))
    return named


def _described(item: Any) -> ArrayInfo | None:
    return None if item is None else ArrayInfo(*item)


def _check_inputs(op: Op, named: Named) -> None:
    by_name = {item.name: item for item in op.inputs}
    bound: checks.Bindings = {a.type: getattr(op, a.name) for a in op.attributes if a.type}
    for name, item in named:
        declared = by_name[name.partition("[")[0]]
        if item is not None:
            checks.bind(op.name, declared, name, item.dtype, op.types, bound)
            checks.contiguous(op.name, name, item.contiguous or declared.strided)
        elif not declared.optional:
            refuse(op.name, name, "an array", "None")


def _spec(declared: Input, described: Any, host: Any) -> Any:
    """What `infer` and `plan` see of an input: a spec, a tuple of specs, or the host value."""
    if declared.memory == "host" or described is None:
        return host
    if declared.variadic:
        return tuple(ArrayInfo(*item).spec for item in described)
    return ArrayInfo(*described).spec


def _results(op: Op, inferred: Sequence[Any], names: tuple[str, ...]) -> Iterator[Result]:
    """Inferred outputs, variadic ones taken apart; no spec for one that is not asked for."""
    for output, item in zip(op.outputs, inferred, strict=True):
        if output.variadic:
            for i, spec in enumerate(item):
                yield _result(output, f"{output.name}[{i}]", spec, f"[{i}]", output.name in names)
        else:
            yield _result(output, output.name, item, "", output.name in names)


def _result(output: Output, name: str, item: Any, index: str, asked_for: bool) -> Result:
    value = item if output.memory == "host" else None
    spec = Spec(item.shape, item.dtype) if asked_for and item is not None else None
    alias = output.aliases and output.aliases + index
    may = (*output.may_alias, *((output.aliases,) if output.aliases else ()))
    return Result(name, spec, value, alias, tuple(other + index for other in may))


def _check_given(
    op: Op, results: Sequence[Result], given: Sequence[Any]
) -> tuple[ArrayInfo | None, ...]:
    """The caller's outputs, one for each result."""
    if list(given) == [None]:
        return (None,) * len(results)
    if len(given) != len(results):
        refuse(op.name, "out", f"{len(results)} arrays or None", str(len(given)))
    targets = tuple(map(_described, given))
    for result, target in zip(results, targets, strict=True):
        name = f"out ({result.name})"
        if target is not None and result.spec is None:
            refuse(op.name, name, "None: this output is not asked for", "an array")
        if target is not None and result.value is not None:
            refuse(op.name, name, "None: it comes back as a new NumPy array", "an array")
        if target is not None and result.spec is not None:
            checks.output(op.name, name, result.spec, target.spec)
            checks.contiguous(op.name, name, target.contiguous)
    return targets


def _device(
    results: Sequence[Result], targets: Sequence[ArrayInfo | None]
) -> Iterator[tuple[Result, ArrayInfo | None]]:
    """The results in device memory with their targets."""
    return ((r, t) for r, t in zip(results, targets, strict=True) if r.value is None)


def _home(op: Op, named: Named) -> ArrayInfo:
    """The one place all arrays are in."""
    present = {name: item for name, item in named if item is not None}
    if not present:
        raise ArgumentError(f"{op.name}: expected at least one array, got none")
    checks.one_place(op.name, {name: item.place for name, item in present.items()})
    return next(iter(present.values()))


def _route(
    op: Op, signature: Signature, specs: Sequence[Any], named: Mapping[str, ArrayInfo | None]
) -> Call:
    """The provider the arrays chose, ready to run."""
    if op.views:
        return ViewCall(signature)
    device = tuple(r for r in signature.results if r.value is None)
    if not any(result.spec is not None and result.spec.size for result in device):
        return EmptyCall(signature)
    home = signature.home
    if home.backend is backends.CPU:
        return CpuCall(signature, functools.partial(op.cpu_function(), **op.attribute_values))
    pairs = zip(signature.results, signature.targets, strict=True)
    outputs = [_planned(result, target, named) for result, target in pairs]
    by_name = {name: item and item.spec for name, item in named.items()}
    by_name |= {r.name: s for r, s in zip(signature.results, outputs, strict=True)}
    try:
        plan = op.plan(home.backend.device(home.device), *specs, *_regrouped(op, outputs))
    except LaunchError as error:
        refuse(op.name, "inputs", "sizes that a GPU can launch", str(error))
    ready = ReadyPlan(home.backend, home.device, op.source(), plan, by_name)
    return KernelCall(signature, ready, op.workspaces)


def _planned(
    result: Result, target: ArrayInfo | None, named: Mapping[str, ArrayInfo | None]
) -> Spec | None:
    """The spec of the array that a result is written into, with its true alignment."""
    if result.spec is None:
        return None
    if target is None and result.alias is not None and (aliased := named[result.alias]):
        return replace(aliased.spec, in_place=True)
    return target.spec if target is not None else result.spec


def _regrouped(op: Op, outputs: Sequence[Spec | None]) -> list[Any]:
    """Outputs as declared: the variadic one, of which there is one at most, as a tuple."""
    rest = len(outputs) - len(op.outputs) + 1
    flat = list(outputs)
    return [
        tuple(flat.pop(0) for _ in range(rest)) if output.variadic else flat.pop(0)
        for output in op.outputs
    ]

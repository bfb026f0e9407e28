# SPDX-License-Identifier: MIT
"""BIND, CHECK and INFER: from the key of a call to a checked `Call`.

In all functions `op` is the operator or its declaration, `declared` or `item` the declaration of an
input, `arrays` are the input arrays and `results` the output arrays of the call, lists flattened,
and `prepared` is all that is known of the call. An `info` is an array's dtype, shape, strides and
device. `specs` are the arguments of `infer`: for each declared input a Spec, a tuple of Specs for a
list, a host value, a Changing number or None.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import limits
from ..backend import ArrayInfo, Info
from ..declare.declaration import Declaration
from ..declare.schema import Changing, Inferred, Input, Open, Output, Single, Spec
from ..device import launch
from ..device.launch import RangedPlan, ReadyPlan
from ..dtypes import HostArray, dtype_name, to_dtype
from ..errors import ArgumentError, refuse, shown
from ..log import LOG
from ..plan import Launch, LaunchError
from . import arguments, checks, layout
from .checks import convert_value
from .keys import CHANGES, unmark
from .operator import Operator
from .prepared import Named, Prepared, Result, flatten, group
from .run import Call, CpuCall, EmptyCall, KernelCall
from .tiling import PIECE, Pieces

Outputs = Sequence[str] | None
Keys = Sequence[Any]  # of each argument: Info, `host_key`, CHANGES, None, or a tuple for a list

_MAX_SHOWN = 8  # arrays of a call in the log and in ranges


def prepare(op: Operator, inputs: Keys, out: Keys, outputs: Outputs) -> Call:
    """Check a call and return it prepared, with the same checks and messages on every provider.

    inputs, out: the key of each argument, a tuple for a list. outputs: names to return; None: all.
    """
    declared = op.declaration
    keys, supplied = _every_key(declared, inputs)
    fixed = tuple(_freeze(declared, item, key) for item, key in zip(op.inputs, keys, strict=True))
    arrays = tuple(_arrays(declared, keys))
    free = declared.tiles is not None and not declared.tiles and _have_one_shape(arrays)
    loose = {item.name for item in op.inputs} if free else set[str]()
    _check_inputs(declared, op.attribute_values, arrays, loose)
    specs = _specs(declared, keys, fixed)
    names = select_outputs(declared, outputs)
    results, counts = _results(declared, op.infer(*specs), names, arrays)
    own_out = _check_out(declared, results, counts, out, free)
    infos = {a.name: a.info for a in arrays}
    orders = layout.of_results(declared, [r.name for r in results], infos)
    results = tuple(replace(r, order=o) for r, o in zip(results, orders, strict=True))
    order = _order(declared, arrays, results, own_out) if free else None
    if declared.lies_as.alike:
        alike = _infos(arrays, results, own_out, declared.lies_as.inputs)
        layout.check_alike(declared.name, alike)
    prepared = Prepared(
        op=op.name,
        inputs=op.inputs,
        fixed=fixed,
        changing=tuple(place for place, key in enumerate(keys) if key is CHANGES),
        arrays=arrays,
        results=results,
        out=own_out,
        counts=counts,
        placement=_placement(op, arrays, results, own_out),
        order=order,
        checks=op.checks(),
        check_numbers=_number_check(op, specs),
        detaches=declared.detaches,
        supplied=supplied,
        supply=None if supplied is None else op.supply,
        always=None if supplied is None else op.supply_always(),
    )
    return _route(op, prepared, specs)


def _number_check(
    op: Operator, specs: Sequence[object]
) -> Callable[[Mapping[int, object]], None] | None:
    """Return a function that checks a call's changing numbers, by index of the input; None: no
    check. specs: the arguments of `infer`."""

    def check(values: Mapping[int, object]) -> None:
        op.check_numbers(*(values.get(place, spec) for place, spec in enumerate(specs)))

    return check if op.checks_numbers else None


def select_outputs(op: Declaration, outputs: Outputs) -> tuple[str, ...]:
    """Return the declared names of the outputs that `outputs=` asks for; None: all."""
    declared = tuple(output.name for output in op.outputs)
    if outputs is None:
        return declared
    if isinstance(outputs, list | tuple):
        outputs = tuple(checks.entries(op.name, "outputs", outputs))
    known = {*declared, *op.other_outputs}
    if type(outputs) is not tuple or not all(isinstance(n, str) and n in known for n in outputs):
        refuse(op.name, "outputs", f"a tuple of names among {declared}", shown(outputs))
    return tuple(arguments.declared_name(op.name, op.other_outputs, name) for name in outputs)


def _every_key(op: Declaration, inputs: Keys) -> tuple[list[Any], int | None]:
    """Return (a key for each declared input, index of one that the operator supplies or None)."""
    checks.count(op.name, op.inputs, len(inputs))
    keys = [*inputs, *[None] * (len(op.inputs) - len(inputs))]
    places = (i for i, item in enumerate(op.inputs) if item.supplied and keys[i] is None)
    supplied = next(places, None)
    if supplied is not None:
        keys[supplied] = CHANGES
    return keys, supplied


def _freeze(op: Declaration, declared: Input, key: Any) -> object:
    """Return the converted value of a host input that is `static`: each value has its own plan;
    None for other inputs.

    key: `host_key` of the value, which holds it, or CHANGES or None.
    """
    if key is None and declared.memory != "device" and not declared.optional:
        refuse(op.name, declared.name, "a value", "None")
    if declared.memory != "host" or key is None or key is CHANGES:
        return None
    if declared.variadic:
        return tuple(convert_value(op.name, declared, unmark(item)) for item in key)
    return convert_value(op.name, declared, unmark(key))


def _arrays(op: Declaration, keys: Keys) -> Iterator[Named]:
    """Yield every array with its name: the second of a variadic X is X[1]."""
    for declared, key in zip(op.inputs, keys, strict=True):
        if declared.memory == "host" or key is CHANGES:
            continue
        if declared.variadic and key is not None:
            for i, item in enumerate(key):
                yield Named(f"{declared.name}[{i}]", _info(item), declared)
        else:
            yield Named(declared.name, _info(key), declared)


def _info(key: Info | None) -> ArrayInfo | None:
    return None if key is None else ArrayInfo.of(key)


def _have_one_shape(arrays: Sequence[Named]) -> bool:
    """Return True if all arrays have one shape, so that none is broadcast."""
    return len({a.info.shape for a in arrays if a.info and not a.declared.not_accessed}) == 1


def _check_inputs(
    op: Declaration, values: Mapping[str, object], arrays: Sequence[Named], loose: Container[str]
) -> None:
    """Refuse arrays by dtype, layout and shape, and required ones that are absent.

    values: of attributes, by name. loose: names of inputs that need not be C-contiguous.
    """
    bound: checks.Bindings = {}
    for attribute in op.attributes:
        value = values[attribute.name]
        if attribute.type and isinstance(value, np.dtype):
            bound[attribute.type] = value
    for array in arrays:
        declared = array.declared
        if array.info is not None:
            checks.exists(op.name, array.name, array.info.spec)
            checks.bind(op, declared, array.name, array.info.dtype, bound)
            if not declared.not_accessed:
                layout.check(op, array.name, array.info, declared.name, declared.name in loose)
            checks.elements(op.name, declared, array.name, array.info.shape)
        elif not (declared.holes if declared.variadic else declared.optional):
            refuse(op.name, array.name, "an array", "None")
    checks.row(op, bound)


def _specs(op: Declaration, keys: Keys, fixed: Sequence[object]) -> tuple[object, ...]:
    """Return for each declared input the argument of `infer` and `plan`: Spec, a tuple of Specs,
    Changing, a host value or None.

    keys, fixed: the key of each input, and its value if that is on the host.
    """
    specs: list[object] = []
    n_arrays = 0
    for place, (declared, key) in enumerate(zip(op.inputs, keys, strict=True)):
        if key is CHANGES:
            specs.append(Changing(place))
        elif declared.memory == "host":
            specs.append(fixed[place])
        elif declared.variadic and key is not None:
            specs.append(tuple(_place(item, n_arrays + i) for i, item in enumerate(key)))
            n_arrays += len(key)
        else:
            specs.append(_place(key, n_arrays, declared.name in op.lies_as.inputs))
            n_arrays += 1
    return tuple(specs)


def _place(key: Info | None, place: int, may_lie: bool = False) -> Spec | None:
    """Return the Spec of an input array with index `place` among all arrays.

    may_lie: its channels may be last, as they are if it is not C-contiguous.
    """
    if key is None:
        return None
    info = ArrayInfo.of(key)
    return replace(info.spec, place=place, channels_last=may_lie and info.strides is not None)


def _results(
    op: Declaration, inferred: Sequence[Inferred], names: tuple[str, ...], arrays: Sequence[Named]
) -> tuple[tuple[Result, ...], tuple[int | None, ...]]:
    """Return (a Result for each output array; for each output the length of its list, or None).

    inferred: from `infer`, for each output. names: of the outputs to return. arrays: the inputs.
    """
    places = {a.name: place for place, a in enumerate(arrays) if a.info is not None}
    results: list[Result] = []
    counts: list[int | None] = []
    for output, item in zip(op.outputs, inferred, strict=True):
        asked_for = output.name in names
        if isinstance(item, tuple):  # of a variadic output
            checks.within(op.name, output.name, limits.of_list(len(item)))
            counts.append(len(item))
            results += [
                _result(op, output, spec, f"[{i}]", asked_for, places)
                for i, spec in enumerate(item)
            ]
        else:
            counts.append(None)
            results.append(_result(op, output, item, "", asked_for, places))
    for result in results:
        if result.spec is not None:
            checks.exists(op.name, result.name, result.spec)
    return tuple(results), tuple(counts)


def _result(
    op: Declaration,
    output: Output,
    item: Single,
    index: str,
    asked_for: bool,
    places: Mapping[str, int],
) -> Result:
    """Describe one output array of a call: whether it is computed and returned, and from what.

    item: what `infer` returned for it. places: index of each input array by name. index: "[1]" for
    the second array of a list, whose alias is the second of a variadic input; "" for a single
    output. An updated input is written even if its output is not asked for, unless that is
    `on_request`.
    """
    may = (*output.may_alias, *((output.aliases,) if output.aliases else ()))
    alias = None if output.aliases is None else places.get(output.aliases + index)
    updates = alias is not None and not output.on_request
    return Result(
        name=output.name + index,
        spec=None if item is None or not (asked_for or updates) else _wanted_spec(op, output, item),
        returned=asked_for,
        value=item if isinstance(item, Changing | np.ndarray) else None,
        alias=alias,
        shareable=tuple(places[name + index] for name in may if name + index in places),
        computed=output.memory != "host",
        open=item if isinstance(item, Open) else None,
    )


def _wanted_spec(op: Declaration, output: Output, item: Spec | Changing | Open | HostArray) -> Spec:
    """Return the spec of an output that is computed; item: what `infer` returned for it.

    For Open its shape is a placeholder. A Changing is a number, of the one dtype of the output's
    type.
    """
    if isinstance(item, Open):
        return Spec((), item.dtype or np.dtype(np.uint8))
    if isinstance(item, Changing):
        (dtype,) = op.types.get(output.type) or (to_dtype(output.type),)
        return Spec((), dtype)
    return Spec(item.shape, item.dtype)


def _check_out(
    op: Declaration,
    results: Sequence[Result],
    counts: Sequence[int | None],
    out: Keys,
    any_layout: bool,
) -> tuple[ArrayInfo | None, ...]:
    """Check the caller's `out`; return for each result the info of its array there, or None.

    counts: for each output the length of its list, or None. out: keys, [None] if there is none.
    any_layout: arrays need not be C-contiguous, only dense.
    """
    if list(out) == [None]:
        return (None,) * len(results)
    if op.no_out:
        raise ArgumentError(f"{op.name}: out: {op.no_out}")
    keys = _keys_of_results(op, results, counts, out)
    for result, key in zip(results, keys, strict=True):
        if key is not None:
            _check_output(op, result, key, any_layout)
    return tuple(map(_info, keys))


def _keys_of_results(
    op: Declaration, results: Sequence[Result], counts: Sequence[int | None], out: Keys
) -> Keys:
    """Flatten the keys of `out`: out=(a, (b, c)) has three.

    counts: for each output the length of its list; None for a single array.
    """
    if len(counts) > 1 and any(count is not None for count in counts):
        if len(out) != len(counts):
            refuse(op.name, "out", f"{len(counts)} outputs or None", str(len(out)))
        for output, count, key in zip(op.outputs, counts, out, strict=True):
            if count is not None and key is not None and not _is_group(key, count):
                refuse(op.name, f"out ({output.name})", f"a tuple of {count} arrays", "another")
        return flatten(out, counts)
    if len(out) != len(results):
        refuse(op.name, "out", f"{len(results)} arrays or None", str(len(out)))
    return out


def _is_group(key: Any, count: int) -> bool:
    return len(key) == count and all(item is None or isinstance(item, tuple) for item in key)


def _check_output(op: Declaration, result: Result, key: Any, any_layout: bool) -> None:
    """Refuse an array in `out=` that does not fit the output. any_layout: it may be any dense one.

    key: the fields of its ArrayInfo, the backend first; if the caller passed a tuple for an array,
    a tuple of such keys and None.
    """
    name = f"out ({result.name})"
    if not key or key[0] is None or isinstance(key[0], tuple):
        refuse(op.name, name, "an array", "a tuple")
    info = ArrayInfo.of(key)
    if result.spec is None or not result.returned:
        refuse(op.name, name, "None: this output is not asked for", "an array")
    if result.value is not None:
        refuse(op.name, name, "None: it comes back as a new NumPy array", "an array")
    checks.output(op.name, name, result.spec, info.spec)
    layout.check(op, name, info, result.name, any_layout)


def _placement(
    op: Operator,
    arrays: Sequence[Named],
    results: Sequence[Result],
    out: Sequence[ArrayInfo | None],
) -> ArrayInfo:
    """Return the info of one array, whose device all share; without arrays the operator's. out: for
    each result the caller's array or None."""
    pairs = zip(results, out, strict=True)
    outputs = ((f"out ({r.name})", info) for r, info in pairs if r.value is None)
    named = [*((a.name, a.info) for a in arrays), *outputs]
    present = {name: info for name, info in named if info is not None}
    if not present:
        backend, device = op.placement()
        return ArrayInfo(backend, np.dtype(np.uint8), (0,), True, None, device)
    checks.one_place(op.name, {name: info.place for name, info in present.items()})
    return next(iter(present.values()))


def _order(
    op: Declaration,
    arrays: Sequence[Named],
    results: Sequence[Result],
    out: Sequence[ArrayInfo | None],
) -> layout.Order | None:
    """Return the order in memory of the dimensions of all arrays, refusing unlike ones; None:
    C-contiguous. out: for each result the caller's array or None."""
    specs = [r.spec for r in results if r.spec is not None and r.value is None]
    return layout.common(op.name, _infos(arrays, results, out), specs)


def _infos(
    arrays: Sequence[Named],
    results: Sequence[Result],
    out: Sequence[ArrayInfo | None],
    names: Container[str] | None = None,
) -> list[tuple[str, ArrayInfo]]:
    """List the caller's arrays as (name in messages, info).

    names: of declared inputs and of results; None for all.
    """
    read = [(a.declared.name, a.name, a.info) for a in arrays if not a.declared.not_accessed]
    pairs = zip(results, out, strict=True)
    named = [*read, *((r.name, f"out ({r.name})", info) for r, info in pairs)]
    return [
        (name, info)
        for declared, name, info in named
        if info is not None and (names is None or declared in names)
    ]


def _route(op: Operator, prepared: Prepared, specs: Sequence[object]) -> Call:
    """Return the call: empty, by a NumPy function, by kernels, or the operator's own."""
    own = op.own_call(prepared)
    if own is not None:
        return own
    device = [r for r in prepared.results if r.value is None]
    lists = any(count is not None for count in prepared.counts)  # which may be empty
    is_empty = not any(r.spec is not None and r.spec.size for r in device)
    if (device or lists) and is_empty and not op.declaration.runs_empty:
        return EmptyCall(prepared)
    placement = prepared.placement
    if not placement.backend.runs_kernels:
        function = functools.partial(op.cpu_function(), **op.cpu_attributes())
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("plan: %s: NumPy's %s", _call_in_words(prepared), op.function_name)
        return CpuCall(prepared, function, _pieces(op.declaration, prepared))
    return KernelCall(prepared, _ready(op, prepared, specs), op.workspaces)


def _pieces(op: Declaration, prepared: Prepared) -> Pieces | None:
    """Return how the CPU provider splits large arrays; None: it computes them whole."""
    sizes = [a.info.spec.size for a in prepared.arrays if a.info is not None]
    if op.tiles is None or max(sizes, default=0) <= PIECE:  # one piece is enough
        return None
    return Pieces(prepared.inputs, prepared.results, op.tiles, op.row, prepared.order)


def _ready(op: Operator, prepared: Prepared, specs: Sequence[object]) -> ReadyPlan:
    """Plan and compile a call; return its plan, ready to run.

    specs: of the inputs. Arrays are numbered: inputs first, then results.
    """
    backend, device = prepared.placement.backend, prepared.placement.device
    n_inputs = len(prepared.arrays)
    pairs = zip(prepared.results, prepared.out, strict=True)
    own = op.declaration.lies_as.inputs
    outputs = [
        _plan_spec(prepared, result, info, n_inputs + i, result.name in own)
        for i, (result, info) in enumerate(pairs)
    ]
    n_arrays = n_inputs + len(outputs)
    try:
        plan = op.plan(backend.device(device), *specs, *group(outputs, prepared.counts))
        checks.within(op.name, "workspace", limits.of_scratch(plan.workspace_nbytes))
        kind = RangedPlan if launch.HAS_RANGES else ReadyPlan
        ready = kind(op.declaration, op.source, backend, device, plan, n_arrays)
    except LaunchError as error:
        refuse(op.name, "inputs", "sizes that a GPU can launch", str(error))
    if isinstance(ready, RangedPlan):
        ready.label = _call_in_words(prepared)
    if LOG.isEnabledFor(logging.DEBUG):
        steps = ", ".join(s.symbol if isinstance(s, Launch) else s.name for s in plan.steps)
        about = f"{steps or 'nothing'}; {plan.workspace_nbytes} bytes of scratch memory"
        LOG.debug("plan: %s: %s", _call_in_words(prepared), about)
    return ready


def _call_in_words(prepared: Prepared) -> str:
    """Return operator, types and shapes: "GeluGrad dY=float32(3, 4) X=float32(3, 4)"."""
    named = [(a.name, a.info) for a in prepared.arrays[:_MAX_SHOWN]]
    words = [f"{n}={dtype_name(i.dtype)}{i.shape}" for n, i in named if i is not None]
    more = ["..."] if len(prepared.arrays) > _MAX_SHOWN else []
    return " ".join([prepared.op, *words, *more])


def _plan_spec(
    prepared: Prepared, result: Result, info: ArrayInfo | None, place: int, may_lie: bool
) -> Spec | Changing | None:
    """Return the spec of the array that a kernel writes a result to; None: it writes none.

    info: of the caller's array in `out`, or None. place: index of the result among inputs' arrays
    and results. may_lie: its channels may be last in memory.
    """
    if result.spec is None or isinstance(result.value, Changing):
        return None
    if info is not None:
        is_last = may_lie and info.strides is not None
        return replace(info.spec, place=place, channels_last=is_last)
    aliased = None if result.alias is None else prepared.arrays[result.alias].info
    if aliased is not None:
        return replace(aliased.spec, in_place=True, place=place)
    return replace(result.spec, place=place, channels_last=result.order is not None)

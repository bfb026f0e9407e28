# SPDX-License-Identifier: MIT
"""The base of optimizers for training loops: parameters, steps that skip themselves, states."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from .. import typing
from ..backend import Backend
from ..call.arguments import adopt
from ..call.backends import are_known, info, to_host
from ..call.bound import CheckedCall, OpenCall, opened
from ..call.checks import is_number
from ..call.interop import (
    ForeignArrays,
    are_native,
    is_tensor,
    refuse_mixed,
    refuse_unwritable,
)
from ..call.keys import SameArrays, reader
from ..call.op import Op
from ..codecs.numpy_file import BinaryFile, StrPath
from ..declare.schema import Input, positive_or_zero
from ..device.marks import Whole
from ..device.tensor_guards import Watched, raise_versions
from ..dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT64,
    FLOATS,
    Dtype,
    HostArray,
    dtype_name,
    dtype_names,
    to_dtype,
)
from ..errors import ArgumentError, DtypeError, refuse, shown
from ..planning.step import number, refuse_rounding
from ..rules.widening import computed_in
from . import state as states
from .state import Codes, Counts, Layout, Numbers, Part, Places, State, on_host, overwrite, zeros
from .steps import NormUpdate, uncoded

Arrays = tuple[Any, ...]
Names = Sequence[str]  # one for each parameter

_MAX_BOUND = 64  # cached calls of an optimizer: they differ in which gradients are None
_WHOLE = Part((), None)  # all parameters of an optimizer that counts no steps
_ARGUMENTS = ("gradients", "lr", "loss_scale", "max_norm")  # arguments of a step, in this order
_AT = {name: i for i, name in enumerate(_ARGUMENTS)}
_DECLARED = (  # the arguments of a step, as an operator declares its inputs
    Input("gradients", "T", variadic=True, holes=True),
    *(number(name, "L") for name in _ARGUMENTS[1:]),
)
# The constructor's lists of arrays; EVERY: the parameters, then the arguments of a step.
CLOSED = tuple(replace(_DECLARED[0], name=name) for name in ("parameters", "low_precision"))
EVERY = (CLOSED[0], *_DECLARED)
# Functions that make keys of a step's arguments, by which it is compared with the next.
_READERS = tuple(map(reader, _DECLARED))


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number; any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value


class Step(NamedTuple):
    """The prepared calls of a step, which a later step with the same gradients launches again."""

    known: SameArrays | None  # record of the arguments; None if a step can never be repeated
    variant: object  # `_variant` of the operator
    parts: object  # `Counts.parts`, whose counts the updates have; None if steps are not counted
    norm: CheckedCall | None  # measures the norm of all gradients, if there are several updates
    updates: Sequence[CheckedCall]  # each of parameters with one count of steps

    def has(self, variant: object, parts: object, arguments: Arrays) -> bool:
        """Return True if these calls can make a step with other arguments.

        variant: `_variant` for its max_norm. parts: as they are now, also after a step of a copy
        that shares them. arguments: its (gradients, lr, loss_scale, max_norm).
        """
        is_same = parts is self.parts and variant == self.variant
        return is_same and self.known is not None and self.known.has(arguments)

    @property
    def over_tensors(self) -> bool:
        """Return True if arrays are PyTorch tensors: calls run on PyTorch's current stream."""
        return all(call.over_tensors for call in self.updates)

    def launch(self, arguments: Arrays, whole: Whole) -> None:
        """Launch the norm, then all updates, with the numbers in `arguments`.

        arguments: (gradients, lr, loss_scale, max_norm). whole: is marked as torn while only some
        of the updates are launched.
        """
        if self.norm is not None:
            self.norm()
        writes = []
        for call in self.updates:  # a comprehension would be a call
            writes.append(call.computed(**numbers_of(call, arguments)))
        whole.write(writes)


def numbers_of(call: CheckedCall, arguments: Arrays) -> dict[str, Any]:
    """Return {"lr": ..., ...}: the numbers of a step that a call replaces.

    arguments: (gradients, lr, loss_scale, max_norm).
    """
    return {name: arguments[_AT[name]] for name in call.changing}


def known_of(backend: Backend, gradients: Arrays) -> SameArrays | None:
    """Return a record of a step's arguments, to compare with the next step's.

    gradients: (gradients, lr, loss_scale, max_norm) of the step. Arrays are the same if they are
    the same objects; numbers may differ. None if arguments of this kind cannot be compared.
    """
    return SameArrays.of(backend, _DECLARED, _READERS, gradients, by_memory=True)


_MADE_ANEW = (  # attributes that are not pickled: `__setstate__` and `_place` make them
    "_weights", "_copies", "_lists", "_own", "_open_inputs", "_outputs", "_every", "_backend",
    "_bound", "_last", "_natively", "_watched", "_streams",
)  # fmt: skip


class Optimizer:
    """Base of SGD, Adam, AdamW and Lamb: parameters, moments, counts of steps, and the step.

    gradient_norm, is_finite: arrays of shape () on the device, which each step writes: the norm of
    all gradients, and True if it is finite.

    _weights, _copies: parameters and low_precision as arrays that operators take. _moments:
    {moment: an array for each parameter}, stored as `_form` says. _whole: the lock of all these,
    torn from the first write of a step to the last.
    """

    moments: tuple[str, ...] = ("moment_1", "moment_2")  # names, each of an array a parameter
    counts: bool = True  # steps are counted, for each parameter
    _counts: Counts | None

    def __init__(
        self,
        op: Op,
        parameters: Sequence[Any],
        lr: Any,
        names: Names | None,
        low_precision: Sequence[Any] | None,
        moment_dtype: object = None,
        codes: Codes | None = None,
    ) -> None:
        """Check arguments; allocate the moments, which are 0, and the counts of steps.

        op: the operator of a step. parameters: list of arrays, updated in place. lr: a number, or
        an array of one element, which each step reads. names: of the parameters in a state, or None
        for "0", "1", ... low_precision: for each parameter a copy of 16 bits to write too, or None.
        codes: storage of moments as codes of few bits; None: as numbers of moment_dtype, by default
        float32 (float64 for float64 parameters).
        """
        self._op = op
        refuse_mixed(type(self).__name__, CLOSED, (parameters, low_precision), ())
        # True if all are PyTorch tensors on a GPU, which operators take as they are.
        self._natively = are_native(CLOSED, (parameters, low_precision), ())
        self._weights = self._adopt("parameters", parameters)
        vars(self).update(parameters=tuple(parameters))
        self.lr = self._checked_rate(lr)
        wide = computed_in(self._dtype())
        vars(self).update(names=self._checked_names(names))
        callers_copies = low_precision
        if low_precision is not None:
            self._check_length("low_precision", low_precision)
            low_precision = self._adopt("low_precision", low_precision)
        self._callers_copies, self._copies = callers_copies, low_precision
        self._form = codes or Numbers(self._moment_dtype(moment_dtype, wide))
        begun = [self._form.first(weight, self.moments) for weight in self._weights]
        self._moments = {m: tuple(own[m] for own in begun) for m in self.moments}
        first = self._weights[0]
        self.gradient_norm, self.is_finite = zeros(first, (), wide), zeros(first, (), BOOL)
        self._counts = Counts(self.gradient_norm, len(self._weights)) if self.counts else None
        self._whole = Whole(type(self).__name__)
        self._place()

    @property
    def parameters(self) -> Arrays:
        """The caller's own arrays, which steps update; they cannot be replaced by others."""
        arrays: Arrays = vars(self)["parameters"]
        return arrays

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names in a state."""
        texts: tuple[str, ...] = vars(self)["names"]
        return texts

    def _place(self) -> None:
        """Sort the operator's inputs by who has them, and forget all prepared calls.

        _lists: by input, one array for each parameter, or None. _own: by input, one array of this
        optimizer. _open_inputs: names of inputs that are arguments of `step`. _outputs: names of
        outputs that an update writes.
        """
        declared = [item.name for item in self._op.inputs]
        own = {"gradient_norm": self.gradient_norm, "is_finite": self.is_finite}
        self._lists: dict[str, Arrays | None] = {
            "weights": self._weights,
            "mixed_precision_weights": self._copies,
            **self._moments,
        }
        self._own = {name: array for name, array in own.items() if name in declared}
        self._open_inputs = [name for name in _ARGUMENTS if name in declared]
        unwritten = {"is_finite", "gradients"}  # the gradients stay as they are
        self._outputs = [o.name for o in self._op.outputs if o.aliases not in unwritten]
        self._every = tuple(range(len(self._weights)))
        self._backend = info(self._weights[0])[0]
        self._bound: dict[object, OpenCall] = {}
        self._last: Step | None = None
        callers = (*self.parameters, *(self._callers_copies or ()))
        self._watched = Watched(tuple(filter(is_tensor, callers)))  # notices moved tensors

    def __getstate__(self) -> dict[str, object]:
        """Return attributes to pickle: no calls, as they store addresses, no views of arrays."""
        return {k: v for k, v in vars(self).items() if k not in _MADE_ANEW}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore pickled attributes, also an older version's, and make the others anew."""
        vars(self).update(state)
        if "_whole" not in state:
            self._take_old()
        self._adopt_again()
        if isinstance(self._form, Codes):
            self._take_old_codes(self._form)

    def _take_old(self) -> None:
        """Convert an old pickle: `_step`, the number of the next step for all parameters, becomes
        counts by parameter, and `_whole`, which it lacks, is made."""
        step, n = vars(self).pop("_step"), len(self.parameters)
        self._counts = Counts(step, n) if self.counts else None
        if self._counts is not None:
            self._counts.load([int(to_host(step)) - 1] * n)
        self._whole = Whole(type(self).__name__)

    def _take_old_codes(self, form: Codes) -> None:
        """Convert moments from an older version's 8-bit codes to this version's."""
        pairs = enumerate(self._weights)
        renewed = [form.renewed(self._moments_of(i), weight) for i, weight in pairs]
        self._moments = {m: tuple(own[m] for own in renewed) for m in self.moments}
        self._place()

    def _adopt_again(self) -> None:
        """Take the caller's arrays anew, as a tensor may have got other memory; forget calls."""
        copies = self._callers_copies
        self._natively = are_native(CLOSED, (self.parameters, copies), ())
        self._weights = self._adopt("parameters", self.parameters)
        self._copies = None if copies is None else self._adopt("low_precision", copies)
        self._place()

    def __repr__(self) -> str:
        n = sum(math.prod(p.shape) for p in self._weights)
        state = f", state={self._form.name!r}" if self._form.name else ""
        return f"{type(self).__name__}({len(self.parameters)} parameters, {n} elements{state})"

    def step(
        self,
        gradients: typing.ArraysOrNone,
        lr: typing.Number | typing.Array | None = None,
        loss_scale: typing.Number | typing.Array | None = None,
        max_norm: typing.Number | typing.Array | None = None,
    ) -> None:
        """Update the parameters by their gradients, unless one of these is NaN or infinite.

        gradients: an array or None for each parameter, of its shape, all of one dtype; they are
        read only. Where one is None, the parameter stays as it is, and so do its moments; where all
        are, nothing happens. lr: in place of the optimizer's own, in this step. loss_scale: what
        the gradients are divided by. max_norm: unscaled gradients beyond it are scaled down to this
        norm. Each of the three is a number, or one element in an array on the parameters' device.

        One pass over the gradients finds `gradient_norm`, of the gradients as they are, and
        `is_finite`, both arrays (or tensors) on the device; another unscales, clips, updates and
        writes the copies in low precision. A step whose norm is not finite changes nothing, not
        even the count; nor does one whose lr or loss_scale in an array is not finite, or the latter
        not above 0, though `is_finite` speaks of the gradients alone. As numbers they are refused,
        as is an lr below 0. Nothing waits: work is queued on the current stream. Under
        graph capture a step with gradients of the same type must have been made on that stream
        before: it compiled the kernels and took scratch memory. Deterministic. Raises
        ArgumentError, DtypeError and ProviderError before anything is launched or written.
        """
        numbers = map(plain, (self.lr if lr is None else lr, loss_scale, max_norm))
        if type(gradients) not in (list, tuple):
            gradients = self._as_tuple(gradients)
        with self._whole.lock:
            if self._whole.is_torn:
                self._whole.refuse_torn()
            self._make_step((gradients, *numbers))
        if self._watched.tensors:
            self._raise_versions(gradients)

    def state_dict(self) -> State:
        """The state, all that steps change beside parameters and copies, as NumPy copies; waits.

        `optimizer` is the class, `shapes` those of the parameters by name, `step` how many steps
        were made, or where parameters differ in it a dictionary by name; under the name of each
        moment is a dictionary of arrays by parameter. SGD has neither steps nor moments. A step
        that another thread makes meanwhile waits. Raises ProviderError after a step that was
        interrupted while it wrote.
        """
        state: State = {"optimizer": type(self).__name__, "shapes": dict(self._layout.shapes)}
        with self._whole.lock:
            self._whole.refuse_torn()
            if self._counts is not None:
                state["step"] = states.step(self.names, self._counts.steps())
            pairs = enumerate(self._weights)
            saved = [self._form.save(self._moments_of(i), weight) for i, weight in pairs]
            for moment in self.moments:
                own = (arrays[moment] for arrays in saved)
                state[moment] = dict(zip(self.names, own, strict=True))
        return state

    def _moments_of(self, place: int) -> dict[str, Any]:
        """Return {moment's name: its array} of parameters[place]."""
        return {moment: arrays[place] for moment, arrays in self._moments.items()}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state, of the same class and of parameters of the same names and shapes.

        Its arrays, NumPy's or CuPy's, are copied into the optimizer's own, which stay where they
        are: a captured graph goes on with them. Raises ArgumentError where something does not
        fit, and then nothing has changed.
        """
        self._layout.check(state)
        self._load(state, {m: [on_host(state[m][n]) for n in self.names] for m in self.moments})

    def _load(self, state: State, moments: Mapping[str, Sequence[HostArray]]) -> None:
        """Write a checked state into the optimizer's arrays.

        state: of which only "step" is read. moments: {moment: an array for each parameter}.
        """
        with self._whole.lock:
            self._whole.is_torn = True
            if self._counts is not None:
                self._counts.load(states.steps(self.names, state["step"]))
            for i, arrays in enumerate(zip(*moments.values(), strict=True)):
                named = dict(zip(moments, arrays, strict=True))
                for moment, array in self._form.restore(named).items():
                    overwrite(self._moments[moment][i], array)
            self._whole.is_torn = False

    def save(self, file: StrPath | BinaryFile, *, sync: bool = True) -> None:
        """Write `state_dict()` as a .npz file, or to an open binary file.

        The same file from every provider. A path is replaced by a whole file or not at all, also
        where the machine stops, but with sync=False, which waits for no disk. Raises OSError.
        """
        states.save(file, self.state_dict(), self._layout, sync)

    def load(self, file: StrPath | BinaryFile) -> None:
        """Go on from a file that `save` wrote, on whichever provider; as `load_state_dict`.

        Nothing in the file is executed. Raises ArgumentError where it is damaged or no state of
        such an optimizer, OSError where it cannot be read; then nothing has changed.
        """
        self.load_state_dict(states.load(file, self._layout))

    # ---- what a class of optimizers may override -------------------------------------------------

    def _operator(self, max_norm: Any) -> Op:
        """Return the operator for an update of some parameters; max_norm: of the step.

        Lamb makes a new one for each such list, as it has scratch memory of that list's size.
        """
        return self._op

    def _variant(self, max_norm: Any) -> object:
        """Return the cache key of `_operator(max_norm)`; None if the operator never differs."""
        return None

    def _outputs_of(self, places: Places) -> list[str]:
        """Return names of the outputs that the update of parameters with these indices writes."""
        return self._outputs

    # ---- steps -----------------------------------------------------------------------------------

    def _as_tuple(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Read a list of the caller's own class once: its reading may differ or fail later."""
        self._check_length("gradients", gradients)
        return tuple(gradients)

    def _make_step(self, arguments: Arrays) -> None:
        """Launch the previous step's calls again if its gradients were the same; else new ones.

        arguments: (gradients, lr, loss_scale, max_norm); gradients: one or None for each parameter.
        """
        last = self._last
        if not self._watched.are_same():
            self._adopt_again()
        elif last is not None and last.has(self._variant(arguments[-1]), self._parts(), arguments):
            last.launch(arguments, self._whole)
            return
        step = self._new_step(arguments) if self._natively else None
        if step is not None and step.over_tensors:
            step.launch(arguments, self._whole)
            return
        every = (self.parameters, *arguments)
        with ForeignArrays(EVERY, every, (), op=type(self).__name__).stream():
            step = self._new_step(arguments)
            if step is not None:
                step.launch(arguments, self._whole)

    def _parts(self) -> object:
        """Return the parts of parameters that are counted together; None without counts."""
        return None if self._counts is None else self._counts.parts

    def _raise_versions(self, gradients: Sequence[Any]) -> None:
        """Raise autograd's version counters of the tensors that a step wrote."""
        every = *self.parameters, *(self._callers_copies or ())  # copies: one a parameter, or none
        pairs = zip(every, itertools.cycle(gradients), strict=False)
        raise_versions([x for x, g in pairs if g is not None and is_tensor(x)])

    def _new_step(self, arguments: Arrays) -> Step | None:
        """Check the arguments of a step, prepare its calls; return None if all gradients are None.

        arguments: (gradients, lr, loss_scale, max_norm). One call updates all parameters if they
        have one count of steps and store moments alike; else one call measures the norm, and one
        updates each part (`_by_parts`).
        """
        places, gradients = self._with_gradients(arguments[0])
        if not gradients:
            return None
        parts = [_WHOLE] if self._counts is None else self._alike(self._counts.of(places))
        norm, updates = None, list[CheckedCall]()
        if len({self._form.is_coded(self._weights[i]) for i in places}) == 1:  # all or none
            updates = [self._update_call(Part(places, parts[0].count), gradients, arguments)]
        if len(parts) > 1:  # that call, which checked the gradients of all parts, is not made
            by_place = dict(zip(places, gradients, strict=True))
            norm, updates = self._by_parts(parts, by_place, arguments)
        tensors = self._backend.has_tensors  # a tensor's memory may become another
        known = None if tensors else known_of(self._backend, arguments)
        step = Step(known, self._variant(arguments[-1]), self._parts(), norm, updates)
        self._last = None if known is None else step
        return step

    def _alike(self, parts: Sequence[Part]) -> list[Part]:
        """Divide each part in two if only some of its parameters store their moments as codes.

        The update of the second, those with codes, adds 1 to the count that both share.
        """
        alike = list[Part]()
        for part in parts:
            coded = tuple(i for i in part.places if self._form.is_coded(self._weights[i]))
            others = tuple(i for i in part.places if i not in set(coded))
            if coded and others:
                alike += [Part(others, part.count, counts=False), Part(coded, part.count)]
            else:
                alike.append(part)
        return alike

    def _by_parts(
        self, parts: Sequence[Part], gradients: dict[int, Any], arguments: Arrays
    ) -> tuple[CheckedCall, list[CheckedCall]]:
        """Return (the call that measures the norm of all gradients, an update for each part).

        gradients: by the index of their parameter. arguments: those of the step.
        """
        norm = self._norm().checked(gradients=list(gradients.values()))
        return norm, [
            self._update_call(part, [gradients[i] for i in part.places], arguments, is_told=True)
            for part in parts
        ]

    def _update_call(
        self, part: Part, gradients: Sequence[Any], arguments: Arrays, *, is_told: bool = False
    ) -> CheckedCall:
        """Return the update of a part's parameters, after all checks.

        gradients: one for each of these parameters, none of them None. arguments: (unread, lr,
        loss_scale, max_norm). is_told: the update reads gradient_norm, which another call wrote,
        and does not measure it itself.
        """
        named = dict(zip(_ARGUMENTS, (gradients, *arguments[1:]), strict=True))
        call = self._open(part, arguments[-1], is_told)
        try:
            return call.checked(**{name: named[name] for name in self._open_inputs})
        except (ArgumentError, DtypeError) as error:
            if part.places == self._every:
                raise
            if is_told:  # "gradients[k]" counts within the part: name the parameter's place
                places = re.compile(r"gradients\[(\d+)\]")
                own = places.sub(lambda m: f"gradients[{part.places[int(m[1])]}]", str(error))
                raise type(error)(own) from None
            raise type(error)(f"{error} (counted without those whose gradient is None)") from None

    def _open(self, part: Part, max_norm: Any, is_told: bool) -> OpenCall:
        """Return the cached call that updates a part's parameters, or make it.

        Gradients and numbers of a step are left open: they are passed to `checked`. is_told:
        another call writes gradient_norm, which the update reads. max_norm: of the step.
        """
        key = part.places, id(part.count), part.counts, is_told, self._variant(max_norm)
        call = self._bound.get(key)
        if call is None:
            inputs: dict[str, Any] = dict(self._own)
            for name, arrays in self._lists.items():
                inputs[name] = None if arrays is None else [arrays[i] for i in part.places]
            if part.count is not None:
                inputs["step"] = part.count
            op, left = self._operator(max_norm), dict.fromkeys(self._open_inputs, ...)
            if self._form.name and not self._form.is_coded(self._weights[part.places[0]]):
                op = uncoded(op)
            # Without the norm: AdamWUpdate in place of AdamWStep.
            op = type(op).update(**op.attribute_values) if is_told else op  # type: ignore[attr-defined]
            outputs = self._outputs_of(part.places)
            outputs = outputs if part.counts else [name for name in outputs if name != "new_T"]
            bound = op.bound(**inputs, **left, outputs=outputs)
            call = self._keep(key, opened(bound))
        return call

    def _norm(self) -> OpenCall:
        """Return the call that writes gradient_norm and is_finite; its gradients are left open."""
        call = self._bound.get("norm")
        if call is None:
            out = self.gradient_norm, self.is_finite
            call = self._keep("norm", opened(NormUpdate().bound(gradients=..., out=out)))
        return call

    def _keep(self, key: object, call: OpenCall) -> OpenCall:
        """Put a call into the cache, which is emptied first if it is full; return it."""
        if self._natively:
            call = call.trusting()  # `_watched` looks for changed tensors
        if len(self._bound) >= _MAX_BOUND:
            self._bound.clear()
        self._bound[key] = call
        return call

    def _with_gradients(self, gradients: Sequence[Any]) -> tuple[Places, Sequence[Any]]:
        """Return (indices of the gradients that are not None, these gradients as arrays).

        gradients: one or None for each parameter; a list of another length is refused.
        """
        self._check_length("gradients", gradients)
        places, present = self._every, gradients
        if any(map(is_, gradients, itertools.repeat(None))):
            places = tuple(i for i, g in enumerate(gradients) if g is not None)
            present = [gradients[i] for i in places]
        if not self._natively and not are_known(present):
            pairs = zip(places, present, strict=True)
            present = [adopt(type(self).__name__, f"gradients[{i}]", g) for i, g in pairs]
        return places, present

    # ---- checks ----------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        """The layout that a state of this optimizer has."""
        shapes = {n: tuple(p.shape) for n, p in zip(self.names, self._weights, strict=True)}
        moments = dict.fromkeys(self.moments, self._form.dtype)
        return Layout(type(self).__name__, shapes, moments, self.counts)

    def _adopt(self, argument: str, arrays: Sequence[Any]) -> Arrays:
        """Return the caller's arrays as ones that operators accept, such as CuPy's for DLPack's.

        Raises ArgumentError if it is no list, or an array is read-only. argument: its name there.
        """
        if not isinstance(arrays, list | tuple):
            refuse(type(self).__name__, argument, "a list", type(arrays).__name__)
        name = type(self).__name__
        for i, array in enumerate(arrays):
            refuse_unwritable(name, f"{argument}[{i}]", array)
        if self._natively:
            return tuple(arrays)
        return tuple(adopt(name, f"{argument}[{i}]", array) for i, array in enumerate(arrays))

    def _dtype(self) -> Dtype:
        """The dtype of the parameters, which all have the same; refuses others."""
        name, parameters = type(self).__name__, self._weights
        if not parameters:
            refuse(name, "parameters", "at least one array", "an empty list")
        for i, parameter in enumerate(parameters):
            if parameter is None:
                refuse(name, f"parameters[{i}]", "an array", "None")
            own_dtype, dtype = (info(array)[1] for array in (parameter, parameters[0]))
            expected = f"{dtype_name(dtype)} like parameters[0]" if i else dtype_names(FLOATS)
            if own_dtype not in FLOATS or own_dtype != dtype:
                got = dtype_name(own_dtype)
                raise DtypeError(f"{name}: parameters[{i}]: expected {expected}, got {got}")
        return dtype

    def _refuse_rounding(self, seed: int | None) -> None:
        """Refuse a rounding_seed for parameters that are not bfloat16."""
        if seed is not None:
            refuse_rounding(type(self).__name__, self._dtype())

    def _moment_dtype(self, dtype: object, wide: Dtype) -> Dtype:
        """Return the dtype of moments: `dtype`, or `wide` for None.

        wide: float32, or float64 for float64 parameters. Allowed are `wide`, and bfloat16 beside
        float32; in float16 the square of a gradient below 2e-4 would be 0.
        """
        result = wide if dtype is None else to_dtype(dtype)
        allowed = (wide,) if wide == FLOAT64 else (wide, BFLOAT16)
        if result not in allowed:
            names = " or ".join(map(dtype_name, allowed))
            expected = f"{names}, which hold the squares of small gradients"
            refuse(type(self).__name__, "moment_dtype", expected, dtype_name(result))
        return result

    def _checked_rate(self, lr: Any) -> Any:
        """Return lr, a number of at least 0 or an array, which each step reads; refuse others."""
        if lr is None:
            refuse(type(self).__name__, "lr", "a number or an array of 1 element", "None")
        if not is_number(lr):
            if not self._natively or not is_tensor(lr):
                adopt(type(self).__name__, "lr", lr, "a number or ")
            return lr
        try:
            positive_or_zero(lr)
        except ArgumentError as error:
            raise ArgumentError(f"{type(self).__name__}: lr: {error}") from None
        return lr

    def _checked_names(self, names: Names | None) -> tuple[str, ...]:
        """Return a name for each parameter: the caller's, which must differ, or numbers."""
        n = len(self.parameters)
        if names is None:
            return tuple(map(str, range(n)))
        self._check_length("names", names)
        if len(set(names)) != n or not all(isinstance(name, str) for name in names):
            refuse(type(self).__name__, "names", "texts that differ", shown(names))
        return tuple(names)

    def _check_length(self, argument: str, values: Any) -> None:
        """Refuse values that are no list with one for each parameter; argument: their name."""
        n = len(self.parameters)
        if not isinstance(values, list | tuple):
            refuse(type(self).__name__, argument, "a list", type(values).__name__)
        if len(values) != n:
            refuse(type(self).__name__, argument, f"{n} entries like parameters", str(len(values)))

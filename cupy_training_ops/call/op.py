# SPDX-License-Identifier: MIT
"""The operator base: BIND, CHECK, INFER, ALLOC, EMPTY, RUN; see docs/architecture.md.

The first call with some dtypes, shapes and alignments goes through all six stages and is cached;
later ones go from the look-up straight to the launch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..declare.declaration import Declaration
from ..device.workspace import Workspaces
from ..errors import raise_if_from_handler
from . import checks, keys
from .arguments import Signatures, adopt_input, adopt_out, by_declared_names, in_order
from .backends import BACKENDS, TENSORS, ForeignError, info
from .bound import BoundCall, OpenCall, bind
from .checks import frozen_attributes
from .help import Help
from .interop import ForeignArrays
from .operator import Operator
from .prepare import prepare, select_outputs
from .prepared import Arguments
from .run import Call, Placed

# (keys of inputs, keys of `out`, names of outputs, placement if the operator defines it or False)
Key = tuple[tuple[object, ...], tuple[object, ...], Sequence[str] | None, object]

_MAX_REMEMBERED = 1024  # cached calls of an instance
_NO_OUT = (None,)
_MAX_SHARED = 256  # instances of an operator


@dataclass(frozen=True)
class LastCall:
    """The last call over lists, and the guard that recognises its arrays."""

    call: Call
    arrays: keys.SameArrays
    outputs: Sequence[str] | None  # names that it returns; None: all
    placed: Placed | None  # its addresses

    def has(self, inputs: Arguments, out: Arguments, outputs: Sequence[str] | None) -> bool:
        """Return True if the arguments are those of this call."""
        missing = len(self.arrays.declared) - len(inputs)
        try:
            if missing < 0 or outputs != self.outputs:
                return False
        except (TypeError, ValueError):  # an array, which is refused later
            return False
        return self.arrays.has(inputs + (None,) * missing, out)

    def again(self, inputs: Arguments, out: Arguments) -> object:
        """Run the call again, without a check for overlap."""
        inputs, out, arrays = self.call.unpack(inputs, out)
        return self.call.finish(inputs, arrays, out, None, self.placed)


class Op(Operator):
    """An operator: a declaration, an output rule (`infer`) and a plan (`plan`)."""

    # In private methods `out` is a tuple of an array, a tuple of arrays or None for each output,
    # (None,) without any; `outputs` are the names to return, None: all.

    __signature__ = Signatures()

    _remembered: dict[object, Call]  # by Key
    _last: list[LastCall]  # none or one
    _readers: ClassVar[tuple[keys.Reader, ...]]  # for each input the function from value to key
    _has_lists: ClassVar[bool]
    _says_where: ClassVar[bool]  # overrides `placement`
    _shared: ClassVar[dict[object, Op]]  # by attributes

    def __init_subclass__(cls) -> None:
        """Set what follows from the class body: declaration, names, readers of arguments."""
        cls.declaration = declared = Declaration.of(cls)
        cls.name, cls.attributes = declared.name, declared.attributes
        cls.family, cls.function_name = declared.family, declared.function_name
        cls._has_lists = declared.has_lists
        cls._readers = tuple(map(keys.reader, cls.inputs))
        cls._says_where = cls.placement is not Op.placement
        cls._shared = {}
        if hasattr(cls, "outputs"):  # not a base class
            cls.__doc__ = Help(cls.__doc__)  # type: ignore[assignment]

    def __init__(self, **attributes: object) -> None:
        """Check attributes, by name, and set all of them, defaults included."""
        declared = self.declaration
        if declared.other_attributes:
            attributes = by_declared_names(self.name, declared.other_attributes, attributes)
        vars(self).update(frozen_attributes(declared, attributes))
        vars(self).update(workspaces=Workspaces(self.name), _remembered={}, _last=[])

    @classmethod
    def shared(cls, **attributes: object) -> Self:
        """Return one instance for equal attributes, which functions and codecs share."""
        try:
            key = tuple([(name, keys.attribute_key(value)) for name, value in attributes.items()])
            op = cls._shared.get(key)
        except (KeyError, TypeError) as error:  # not hashable
            raise_if_from_handler(error)
            return cls.to_share(**attributes)
        if op is None:
            op = cls.to_share(**attributes)
            if len(cls._shared) >= _MAX_SHARED:
                cls._shared.clear()
            cls._shared[key] = op
        return op  # type: ignore[return-value]

    @classmethod
    def to_share(cls, **attributes: object) -> Self:
        """Make the instance that `shared` returns; subclasses may override it."""
        return cls(**attributes)

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), **self.attribute_values), ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.name}: cannot set {name}: attributes are frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.name}: cannot delete {name}: attributes are frozen")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.attribute_values.items())
        return f"{self.name}({values})"

    def __call__(
        self,
        /,
        *inputs: object,
        out: object = None,
        outputs: Sequence[str] | None = None,
        workspace: object = None,
        **by_name: object,
    ) -> Any:
        """Run the operator: on CuPy arrays its kernels, on NumPy arrays the CPU provider.

        inputs: in the declared order or by their declared names, each where it is declared to live;
        optional ones may be left out. A list stands for a variadic one. Arrays are NumPy's, CuPy's
        or anything with `__dlpack__`, C-contiguous and on one device; none is copied or converted.
        Operators that work element by element take any dense layout that all arrays share; arrays
        of batch normalisation and of convolutions may have their channels last. Where an array
        is PyTorch's, all have to be, and the results are; arrays in `out` are returned themselves.
        While autograd records, tensors that require gradients are data to encoders and optimizers,
        and refused by others.

        out: an array, or a tuple with one (or None) for each output: exactly the inferred shape and
        dtype, of its own memory or of an input that the operator may replace; a tuple of arrays for
        a list beside other outputs. Without it outputs are allocated on the current device's pool.
        outputs: names of the outputs to return, all by default; the others are None, and computed
        only where the operator always updates an input with them. workspace: a uint8 array of rank
        1 with `workspace_nbytes` bytes or more, 16-byte aligned, that may hold anything and serve
        any operators in turn; without it the instance keeps one for each stream.

        Returns the output, or a tuple of all where there are several or a variadic one. Work is
        queued on CuPy's current stream; nothing waits for it. Raises ArgumentError, DtypeError and
        ProviderError before anything is launched or written.
        """
        if by_name:
            inputs = in_order(self.declaration, inputs, by_name)
        arrays = _NO_OUT if out is None else out if type(out) is tuple else (out,)
        if self._has_lists and workspace is None:
            last = next(iter(self._last), None)  # read once: another thread may replace it
            if last and last.has(inputs, arrays, outputs):
                return last.again(inputs, arrays)
        key: Key | None
        try:
            key = self._call_key(inputs, arrays, outputs)
            call = self._remembered.get(key)
        except ForeignError:
            key = call = None
        except (KeyError, TypeError) as error:  # an unusual array, or a value without a key
            raise_if_from_handler(error)
            key = call = None
        if call is None:
            return self._prepare_and_call(key, inputs, arrays, outputs, workspace)
        if self._has_lists:
            return self._run_lists(call, inputs, arrays, outputs, workspace)
        return call(inputs, arrays, workspace)

    def _run_lists(
        self,
        call: Call,
        inputs: Arguments,
        out: Arguments,
        outputs: Sequence[str] | None,
        workspace: object,
    ) -> object:
        """Run a call over lists; note its arrays, so that one that repeats them needs no key."""
        inputs, flat, arrays = call.unpack(inputs, out)
        placed = call.place(arrays, flat)
        same = keys.SameArrays.of(call.backend, self.inputs, self._readers, inputs, out)
        names = None if outputs is None else tuple(outputs)  # a list might change
        self._last[:] = [] if same is None else [LastCall(call, same, names, placed)]
        return call.finish(inputs, arrays, flat, workspace, placed)

    def _prepare_and_call(
        self,
        key: object,
        inputs: Arguments,
        out: Arguments,
        outputs: Sequence[str] | None,
        workspace: object,
    ) -> object:
        """Run a call that is not cached, or with arrays of other libraries to be converted.

        key: of the arguments as they are, by which it is cached too; None if they have none.
        """
        foreign = self.foreign_arrays(inputs, out)
        with foreign.stream():
            call, adopted, out = self.prepared_call(inputs, out, outputs, foreign)
            old = self.declaration.other_outputs  # deprecated names, which warn at each call
            if key is not None and not foreign and old.keys().isdisjoint(outputs or ()):
                self._remember(key, call)
            if self._has_lists and not foreign:
                return self._run_lists(call, adopted, out, outputs, workspace)
            result = call(adopted, out, workspace)
            if foreign and call.writes:
                _, flat, arrays = call.unpack(adopted, out)
                foreign.raise_versions(call.writes, arrays + flat)
            return foreign.give_back(result)

    def bound(
        self,
        /,
        *inputs: object,
        out: object = None,
        outputs: Sequence[str] | None = None,
        workspace: object = None,
        **by_name: object,
    ) -> BoundCall | OpenCall:
        """Return the call with these arguments, checked once, as an object that only launches.

        Arguments are those of a call. An input `...` stays open: each call of the object passes it
        by name, and checks it. The object also takes, by name, values that change from call to call
        (a learning rate, a step); others stay as bound. Arrays, also new outputs, live as long as
        the object. It may be called on any stream, as an ordinary call. Raises what a call would.
        """
        if by_name:
            inputs = in_order(self.declaration, inputs, by_name)
        return bind(self, inputs, out if type(out) is tuple else (out,), outputs, workspace)

    def workspace_nbytes(
        self,
        /,
        *inputs: object,
        out: object = None,
        outputs: Sequence[str] | None = None,
        **by_name: object,
    ) -> int:
        """Bytes of scratch memory a call with these arguments needs; 0 on the CPU provider.

        Arguments as in a call, nothing is launched. Raises what the call would.
        """
        if by_name:
            inputs = in_order(self.declaration, inputs, by_name)
        arrays = out if type(out) is tuple else (out,)
        call, *_ = self.prepared_call(inputs, arrays, outputs, self.foreign_arrays(inputs, arrays))
        return call.workspace_nbytes

    def prepared_call(
        self,
        inputs: Arguments,
        out: Arguments,
        outputs: Sequence[str] | None,
        foreign: ForeignArrays,
    ) -> tuple[Call, Arguments, Arguments]:
        """Return (the cached or new call, inputs, `out`), these as arrays of the call's backend.

        foreign: notes, to which arrays of other libraries are added.
        """
        inputs, out, key = self._adopt(inputs, out, outputs, foreign)
        call = self._remembered.get(key)
        if call is None:
            call = prepare(self._without_cache(), *key[:3])
            self._remember(key, call)
        if foreign.has_unwritable:
            _, flat, arrays = call.unpack(inputs, out)
            foreign.refuse_unwritable(call.prepared, (*arrays, *flat))
        return call, inputs, out

    def _remember(self, key: object, call: Call) -> None:
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = call

    def _without_cache(self) -> Self:
        """Return a copy without cached calls, for checks and plans to reference.

        If a cached call referenced the operator itself, that cycle would leave scratch memory to
        the garbage collector.
        """
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), _remembered={}, _last=[])
        return twin

    def _adopt(
        self,
        inputs: Arguments,
        out: Arguments,
        outputs: Sequence[str] | None,
        foreign: ForeignArrays,
    ) -> tuple[Arguments, Arguments, Key]:
        """Return (inputs, `out`, key of the call), other libraries' arrays as NumPy's or CuPy's.

        foreign: gets notes of these.
        """
        checks.count(self.name, self.inputs, len(inputs))
        pairs = zip(self.inputs, inputs, strict=False)
        inputs = tuple([adopt_input(self.name, item, value, foreign) for item, value in pairs])
        out = tuple([adopt_out(self.name, value, foreign) for value in out])
        names = None if outputs is None else select_outputs(self.declaration, outputs)
        return inputs, out, self._call_key(inputs, out, names)

    def _call_key(self, inputs: Arguments, out: Arguments, outputs: Sequence[str] | None) -> Key:
        """Return what identifies the cached call: dtypes, shapes, alignments, host values, ...

        (for each input its key, for each item of `out`, names of outputs, backend and device or
        False). KeyError or TypeError if an argument has to be converted first.
        """
        if len(inputs) > len(self._readers):
            checks.count(self.name, self.inputs, len(inputs))
        known: list[object] = []
        for read, value in zip(self._readers, inputs, strict=False):  # a comprehension is a call
            if value is None:
                known.append(None)
            elif read is info:  # `info`, inlined
                kind = type(value)
                known.append((BACKENDS.get(kind) or TENSORS[kind]).info(value))
            else:
                known.append(read(value))
        out = out if out is _NO_OUT else keys.out_key(out)
        names = tuple(outputs) if type(outputs) is list else outputs
        return tuple(known), out, names, self._says_where and self.placement()


Op.declaration = Declaration.of(Op)

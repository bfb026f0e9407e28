# SPDX-License-Identifier: MIT
"""The operator base: BIND, CHECK, INFER, ALLOC, EMPTY, RUN; see docs/architecture.md.

The first call with a given set of dtypes, shapes and alignments goes through all six stages and is
remembered; later ones go from the look-up straight to the launch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ..dtypes import element_type
from ..errors import refuse
from ..plan import Device, Plan
from ..runtime.source import Source, load
from ..runtime.workspace import Workspaces
from ..schema import REQUIRED, Attribute, Input, Output, Spec, Types
from . import arrays, backends, checks, keys
from .call import Call
from .help import Help
from .prepare import converted, frozen_attributes, prepare, wanted

_MAX_REMEMBERED = 1024  # calls an instance remembers before it starts afresh
_MAX_SHARED = 256  # instances of an operator
_WORD = re.compile(r"(?<=[a-z0-9])(?<!_[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    """GatherNDGrad is gather_nd_grad; BiasGeluGrad_dX is bias_gelu_grad_dx."""
    return _WORD.sub("_", name).lower()


def slots(**dtypes: Any) -> dict[str, str]:
    """Kernel type slots of dtypes: slots(T=float16) is {"T": "__half"}."""
    return {name: element_type(dtype).c_type for name, dtype in dtypes.items()}


class Op:
    """One operator: a declaration, an output rule (`infer`) and a launch plan (`plan`)."""

    domain: ClassVar[str] = "com.microsoft"
    since: ClassVar[int] = 1
    until: ClassVar[int | None] = None
    inputs: ClassVar[tuple[Input, ...]] = ()
    outputs: ClassVar[tuple[Output, ...]]
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    types: ClassVar[Types] = {}
    bitwise_exact: ClassVar[bool] = False  # compared without tolerance: copies, bit patterns
    source_folder: ClassVar[Path | None] = None  # None: the package's own cuda_src
    views: ClassVar[bool] = False  # nothing is computed: the one list is pieces of input 0
    name: ClassVar[str]
    family: ClassVar[str]
    function_name: ClassVar[str]

    workspaces: Workspaces
    _remembered: dict[Any, Call]
    _readers: ClassVar[tuple[Callable[[Any], Any], ...]]
    _shared: ClassVar[dict[Any, Op]]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__
        cls._readers = tuple(_reader(item) for item in cls.inputs)
        cls._shared = {}
        cls.family = cls.__module__.rpartition(".")[2]
        cls.function_name = snake_case(cls.__name__)
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            attribute_parameters(cls)
        )
        if hasattr(cls, "outputs"):  # a base class has no text of its own
            cls.__doc__ = Help(cls.__doc__)  # type: ignore[assignment]

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(frozen_attributes(type(self), attributes))
        vars(self).update(workspaces=Workspaces(self.name), _remembered={})

    @classmethod
    def shared(cls, **attributes: Any) -> Self:
        """The instance with these attributes that functions and codecs share; errors as `cls`."""
        try:
            key = tuple([(name, _exact(value)) for name, value in attributes.items()])
            op = cls._shared.get(key)
        except (KeyError, TypeError):  # a list as attribute
            return cls(**attributes)
        if op is None:
            op = cls(**attributes)
            if len(cls._shared) >= _MAX_SHARED:
                cls._shared.clear()
            cls._shared[key] = op
        return op  # type: ignore[return-value]

    def __reduce__(self) -> Any:
        return functools.partial(type(self), **self.attribute_values), ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.name}: cannot set {name}: attributes are frozen")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.attribute_values.items())
        return f"{self.name}({values})"

    @property
    def attribute_values(self) -> dict[str, Any]:
        """The frozen attributes by name."""
        return {attribute.name: getattr(self, attribute.name) for attribute in self.attributes}

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        """Output specs from input specs; refuses shapes that do not fit together."""
        raise NotImplementedError

    def plan(self, device: Device, *specs: Any) -> Plan:
        """The launches for these inputs and outputs: a pure function of what it is given."""
        raise NotImplementedError

    def __call__(
        self,
        *inputs: Any,
        out: Any = None,
        outputs: Sequence[str] | None = None,
        workspace: Any = None,
    ) -> Any:
        """Run the operator: on CuPy arrays its kernels, on NumPy arrays the CPU provider.

        inputs: in the declared order, each where it is declared to live; trailing optional ones may
        be left out. A list stands for a variadic one. Arrays are NumPy's, CuPy's or anything with
        `__dlpack__`, C-contiguous and on one device; none is copied or converted.

        out: an array, or a tuple with one (or None) for each output: exactly the inferred shape and
        dtype, of its own memory or of an input that the operator may replace. Without it outputs
        are allocated on the current device's pool. outputs: names of the outputs to compute, all by
        default; the others are None. workspace: a uint8 array of rank 1 with `workspace_nbytes`
        bytes, 16-byte aligned, zero before its first use and then only this operator's; without it
        the instance keeps one for each stream.

        Returns the output, or a tuple of all where there are several or a variadic one. Work is
        queued on CuPy's current stream; nothing waits for it. Raises ArgumentError, DtypeError and
        ProviderError before anything is launched or written.
        """
        given = out if type(out) is tuple else (out,)
        try:
            key = (self._describe(inputs), _described(given), outputs)
            call = self._remembered.get(key)
        except (KeyError, TypeError):  # a foreign array, or a list where a tuple is hashed
            key = None
        if key is None:
            inputs, given, key = self._adopted(inputs, given, outputs)
            call = self._remembered.get(key)
        if call is None:
            call = self._prepare(key)
        return call(inputs, given, workspace)

    def workspace_nbytes(self, *inputs: Any, outputs: Sequence[str] | None = None) -> int:
        """Bytes of scratch memory a call with these inputs needs; 0 on the CPU provider.

        Inputs and outputs as in a call, nothing is launched. Raises what the call would.
        """
        names = None if outputs is None else wanted(self, outputs)
        key = (self._describe(self._adopt_inputs(inputs)), (None,), names)
        call = self._remembered.get(key) or self._prepare(key)
        return call.workspace_nbytes

    @classmethod
    def source(cls) -> Source:
        """The family's CUDA source."""
        return load(cls.family, cls.source_folder)

    @classmethod
    def cpu_function(cls) -> Callable[..., Any]:
        """The NumPy function: the same family under `cpu/`, the operator's name in snake case."""
        module = importlib.import_module(cls.__module__.replace(".ops.", ".cpu."))
        return getattr(module, cls.function_name)  # type: ignore[no-any-return]

    def _prepare(self, key: tuple[Any, Any, Any]) -> Call:
        call = prepare(self, *key)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = call
        return call

    def _adopted(
        self, inputs: Sequence[Any], given: Sequence[Any], outputs: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        """Inputs and outputs in forms that have a backend, and the key of the call."""
        taken = self._adopt_inputs(inputs)
        targets = tuple(map(self._adopt_target, given))
        names = None if outputs is None else wanted(self, outputs)
        return taken, targets, (self._describe(taken), _described(targets), names)

    def _adopt_target(self, value: Any) -> Any:
        if isinstance(value, np.generic):  # it would be a copy that is written
            refuse(self.name, "out", "an array", f"a scalar ({type(value).__name__})")
        return arrays.adopt(self.name, "out", value)

    def _adopt_inputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        checks.count(self.name, self.inputs, len(inputs))
        pairs = zip(self.inputs, inputs, strict=False)
        return tuple(self._adopt_input(item, value) for item, value in pairs)

    def _adopt_input(self, item: Input, value: Any) -> Any:
        """One input in a form that `_describe` reads."""
        if value is None:
            return None
        if item.variadic and not isinstance(value, list | tuple):
            refuse(self.name, item.name, "a list", type(value).__name__)
        if item.memory == "host":
            freeze = functools.partial(self._frozen, item)
            return tuple(map(freeze, value)) if item.variadic else freeze(value)
        if item.variadic:
            names = (f"{item.name}[{i}]" for i in range(len(value)))
            return tuple(map(functools.partial(arrays.adopt, self.name), names, value))
        return arrays.adopt(self.name, item.name, value)

    def _frozen(self, item: Input, value: Any) -> Any:
        checks.host(self.name, item.name, value)
        return converted(type(self), item, value)

    def _describe(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What a call depends on: descriptions of arrays, values of host inputs.

        KeyError or TypeError where an input is not in a form with a description.
        """
        if len(inputs) > len(self._readers):
            checks.count(self.name, self.inputs, len(inputs))
        return tuple(
            [None if v is None else read(v) for read, v in zip(self._readers, inputs, strict=False)]
        )


def attribute_parameters(cls: type[Op]) -> list[inspect.Parameter]:
    """The attributes as keyword parameters, for signatures and help."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            a.name, kind, default=inspect.Parameter.empty if a.default is REQUIRED else a.default
        )
        for a in cls.attributes
    ]


def _reader(item: Input) -> Callable[[Any], Any]:
    """How one declared input enters the key of a call."""
    if item.memory == "host":
        return keys.host_keys if item.variadic else keys.host_key
    if item.variadic:
        return functools.partial(keys.read_list, backends.info)
    return backends.info


def _exact(value: Any) -> Any:
    """An attribute as part of a key; KeyError or TypeError where it cannot be one."""
    return keys.host_key(value) if type(value) in (float, tuple) else (type(value), value)


def _described(given: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([None if array is None else backends.info(array) for array in given])

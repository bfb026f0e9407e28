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
from typing import Any, ClassVar

from . import arrays, checks
from .call import Call
from .contract import REQUIRED, Attribute, Input, Output, Spec
from .dtypes import element_type
from .prepare import converted, frozen_attributes, prepare, wanted
from .runtime.plan import Device, Plan
from .runtime.source import Source, load
from .runtime.workspace import Workspaces

_MOST_REMEMBERED = 1024  # calls an instance remembers before it starts afresh
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
    types: ClassVar[checks.Types] = {}
    exact: ClassVar[bool] = False  # results are copies or bit patterns: compared without tolerance
    source_folder: ClassVar[Path | None] = None  # None: the package's own cuda_src
    views: Callable[..., tuple[Any, ...]] | None = None  # a method, where nothing is computed
    name: ClassVar[str]
    stem: ClassVar[str]
    function_name: ClassVar[str]

    workspaces: Workspaces
    _remembered: dict[Any, Call]
    _readers: ClassVar[tuple[Callable[[Any], Any], ...]]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__
        cls._readers = tuple(_reader(item) for item in cls.inputs)
        cls.stem = cls.__module__.rpartition(".")[2]
        cls.function_name = snake_case(cls.__name__)
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            attribute_parameters(cls)
        )

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(frozen_attributes(type(self), attributes))
        vars(self).update(workspaces=Workspaces(self.name), _remembered={})

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
        """Bytes of scratch memory a call with these inputs needs."""
        adopted = self._describe(self._adopt_inputs(inputs))
        return self._prepare((adopted, (None,), outputs)).workspace_nbytes

    @classmethod
    def source(cls) -> Source:
        """The family's CUDA source."""
        return load(cls.stem, cls.source_folder)

    @classmethod
    def cpu_function(cls) -> Callable[..., Any]:
        """The NumPy function: the same stem under `cpu/`, the operator's name in snake case."""
        module = importlib.import_module(cls.__module__.replace(".ops.", ".cpu."))
        return getattr(module, cls.function_name)  # type: ignore[no-any-return]

    def _prepare(self, key: tuple[Any, Any, Any]) -> Call:
        call = prepare(self, *key)
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = call
        return call

    def _adopted(
        self, inputs: Sequence[Any], given: Sequence[Any], outputs: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        """Inputs and outputs in forms that have a backend, and the key of the call."""
        taken = self._adopt_inputs(inputs)
        targets = tuple(arrays.adopt(self.name, "out", value) for value in given)
        names = None if outputs is None else wanted(self, outputs)
        return taken, targets, (self._describe(taken), _described(targets), names)

    def _adopt_inputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        checks.count(self.name, self.inputs, len(inputs))
        pairs = zip(self.inputs, inputs, strict=False)
        return tuple(self._adopt_input(item, value) for item, value in pairs)

    def _adopt_input(self, item: Input, value: Any) -> Any:
        """One input in a form that `_describe` reads."""
        if value is None:
            return None
        if item.variadic and not isinstance(value, list | tuple):
            checks.refuse(self.name, item.name, "a list", type(value).__name__)
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
    read = arrays.host_key if item.memory == "host" else arrays.describe
    return functools.partial(_read_list, read) if item.variadic else read


def _read_list(read: Callable[[Any], Any], values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError  # an array would take itself apart
    return tuple([None if v is None else read(v) for v in values])


def _described(given: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([None if array is None else arrays.describe(array) for array in given])

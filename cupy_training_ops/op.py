# SPDX-License-Identifier: MIT
"""The operator base: BIND, CHECK, INFER, ALLOC, EMPTY, RUN; see docs/architecture.md.

The first call with a given set of dtypes, shapes and alignments goes through all six stages and is
remembered; later ones go from the look-up straight to the launch.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from . import arrays, checks
from .arrays import Described
from .call import Call
from .contract import REQUIRED, Attribute, Input, Output, Spec
from .dtypes import element_type
from .prepare import frozen_attributes, prepare, wanted
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
    inputs: ClassVar[tuple[Input, ...]]
    outputs: ClassVar[tuple[Output, ...]]
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    types: ClassVar[checks.Types] = {}
    source_folder: ClassVar[Path | None] = None  # None: the package's own cuda_src
    name: ClassVar[str]
    stem: ClassVar[str]
    function_name: ClassVar[str]

    workspaces: Workspaces
    _remembered: dict[Any, Call]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__
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
            key = (_describe(inputs), _describe(given), outputs)
            call = self._remembered.get(key)
        except (KeyError, TypeError):  # a foreign array, or `outputs` as a list
            return self._adopted(inputs, given, outputs, workspace)
        if call is None:
            call = self._prepare(key)
        return call(inputs, given, workspace)

    def workspace_nbytes(self, *inputs: Any, outputs: Sequence[str] | None = None) -> int:
        """Bytes of scratch memory a call with these inputs needs."""
        adopted = self._adopt_inputs(inputs)
        return self._prepare((_describe(adopted), (None,), outputs)).workspace_nbytes

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
        inputs, given, outputs = key
        placed = [None if item is None else Described(*item) for item in inputs]
        targets = [None if item is None else Described(*item) for item in given]
        call = prepare(self, placed, targets, outputs)
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = call
        return call

    def _adopted(
        self, inputs: Sequence[Any], given: Sequence[Any], outputs: Any, workspace: Any
    ) -> Any:
        """The call again, with every array in a form that has a backend."""
        targets = tuple(arrays.adopt(self.name, "out", value) for value in given)
        names = wanted(self, outputs)
        return self(*self._adopt_inputs(inputs), out=targets, outputs=names, workspace=workspace)

    def _adopt_inputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        checks.count(self.name, self.inputs, len(inputs))
        pairs = zip(self.inputs, inputs, strict=False)
        return tuple(arrays.adopt(self.name, item.name, value) for item, value in pairs)


def attribute_parameters(cls: type[Op]) -> list[inspect.Parameter]:
    """The attributes as keyword parameters, for signatures and help."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            a.name, kind, default=inspect.Parameter.empty if a.default is REQUIRED else a.default
        )
        for a in cls.attributes
    ]


def _describe(values: Sequence[Any]) -> tuple[Any, ...]:
    """The part of the arrays that decides what runs; KeyError on a foreign array."""
    backends = arrays.BACKENDS
    return tuple([None if v is None else backends[type(v)].describe(v) for v in values])

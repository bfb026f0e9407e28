# SPDX-License-Identifier: MIT
"""An operator's declaration, made once when its class is: what the class says and what follows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .schema import Attribute, Input, LiesAs, Output, Tiles
from .type_rows import Types

_WORD = re.compile(r"(?<=[a-z0-9])(?<!_[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Other(NamedTuple):
    """The declared name that another one stands for; `is_old` if that is on its way out."""

    name: str
    is_old: bool


Others = Mapping[str, Other]


class Declares:
    """Class variables by which an operator declares itself; attributes are in its body, too."""

    domain: ClassVar[str] = "com.microsoft"
    since: ClassVar[int] = 1
    until: ClassVar[int | None] = None
    inputs: ClassVar[tuple[Input, ...]] = ()
    outputs: ClassVar[tuple[Output, ...]]
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    types: ClassVar[Types] = {}
    tiles: ClassVar[Tiles] = None  # how the arrays come apart for the NumPy function
    lies_as: ClassVar[LiesAs] = LiesAs()  # arrays that may have their channels last in memory
    row: ClassVar[str] = ""  # the input of rank 1 that repeats along the others' last dimension
    bitwise_exact: ClassVar[bool] = False  # compared without tolerance: copies, bit patterns
    no_out: ClassVar[str] = ""  # why there is no `out=`: results are arrays that are there already
    needs: ClassVar[str] = ""  # what has to be there for a call, which cannot be made alone
    runs_functions: ClassVar[bool] = False  # of the caller's, who answers for what they do
    takes_keywords: ClassVar[bool] = False  # that are not declared, beside the attributes
    takes_tensors: ClassVar[bool] = True  # as they are; else as arrays of CuPy's over their memory
    detaches: ClassVar[bool] = False  # takes as data what requires gradients
    runs_empty: ClassVar[bool] = False  # also where no output has an element: others wait for it
    provider: ClassVar[str] = (  # what runs a call, for help
        "NumPy arrays are computed by NumPy, CuPy arrays by CUDA kernels on their device."
    )
    source_folder: ClassVar[Path | None] = None  # None: the package's own cuda_src
    name: ClassVar[str]  # the class's own, unless a version of an operator says another
    family: ClassVar[str]
    function_name: ClassVar[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Declaration:
    """An operator class's declaration as one object: what it wrote, and what follows.

    `other_inputs` and the like are upstream's names, and those of releases before.
    """

    class_name: str
    module: str
    name: str
    family: str
    function_name: str
    attributes: tuple[Attribute, ...]
    outputs: tuple[Output, ...]
    domain: str
    since: int
    until: int | None
    inputs: tuple[Input, ...]
    types: Types
    tiles: Tiles
    lies_as: LiesAs
    row: str
    bitwise_exact: bool
    no_out: str
    needs: str
    runs_functions: bool
    takes_keywords: bool
    takes_tensors: bool
    detaches: bool
    runs_empty: bool
    provider: str
    source_folder: Path | None
    has_lists: bool = field(init=False)  # of arrays, among the inputs
    other_inputs: Others = field(init=False)
    other_outputs: Others = field(init=False)
    other_attributes: Others = field(init=False)

    def __post_init__(self) -> None:
        """Derive what calls ask for often: lists among the inputs, names from other libraries."""
        has_lists = any(item.variadic and item.memory == "device" for item in self.inputs)
        vars(self).update(
            has_lists=has_lists,
            other_inputs=_others(self.inputs),
            other_outputs=_others(self.outputs),
            other_attributes=_others(self.attributes),
        )

    @classmethod
    def of(cls, op: type[Declares]) -> Declaration:
        """The declaration of a class; removes the attributes from the class."""
        name = vars(op).get("name", op.__name__)
        derived: dict[str, Any] = {
            "class_name": op.__name__,
            "module": op.__module__,
            "name": name,
            "family": home(op.__module__)[0],
            "function_name": snake_case(name),
            "attributes": _take_attributes(op),
            "outputs": getattr(op, "outputs", ()),  # a base class has none
        }
        written = [f.name for f in fields(cls) if f.init and f.name not in derived]
        return cls(**derived, **{name: getattr(op, name) for name in written})


def home(module: str) -> tuple[str, str]:
    """The family of a class's module, and the module of its NumPy functions.

    A family is a folder with `operators.py` and `reference.py`, or one module with both.
    """
    package, _, name = module.rpartition(".")
    if name != "operators":
        return name, module
    return package.rpartition(".")[2], f"{package}.reference"


def snake_case(name: str) -> str:
    """GatherNDGrad is gather_nd_grad; BiasGeluGrad_dX is bias_gelu_grad_dx."""
    return _WORD.sub("_", name).lower()


def _take_attributes(op: type) -> tuple[Attribute, ...]:
    """The attributes of a class: those of its bases, then those in its body, in their order.

    One that the body states again stands where the body has it. They are taken off the class: what
    an instance has under the name is a value, which no attribute of the class is to slow down.
    """
    own = {n: replace(item, name=n) for n, item in vars(op).items() if isinstance(item, Attribute)}
    for name in own:
        delattr(op, name)
    inherited: dict[str, Attribute] = {}
    for base in op.__mro__[1:]:  # the nearest one counts
        for item in vars(base).get("attributes", ()):
            inherited.setdefault(item.name, item)
    return (*(item for name, item in inherited.items() if name not in own), *own.values())


def _others(declared: Iterable[Input | Output | Attribute]) -> Others:
    """Other names of declared items: upstream's, and those of earlier releases."""
    others: dict[str, Other] = {}
    for item in declared:
        others |= {name: Other(item.name, True) for name in item.formerly}
        if item.upstream:
            others[item.upstream] = Other(item.name, False)
    return others

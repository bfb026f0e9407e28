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
    """The declared name that another one stands for."""

    name: str
    is_old: bool  # the other is of an earlier release, and deprecated


Others = Mapping[str, Other]  # by the other name


class Declares:
    """Class variables by which an operator declares itself; attributes are in its body, too."""

    domain: ClassVar[str] = "com.microsoft"  # of ONNX
    since: ClassVar[int] = 1  # first opset version with this form of the operator
    until: ClassVar[int | None] = None  # the last one; None: newest
    inputs: ClassVar[tuple[Input, ...]] = ()
    outputs: ClassVar[tuple[Output, ...]]
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    types: ClassVar[Types] = {}  # dtypes of each type variable
    tiles: ClassVar[Tiles] = None  # elements by array that the NumPy function computes apart
    lies_as: ClassVar[LiesAs] = LiesAs()  # arrays that may have their channels last in memory
    row: ClassVar[str] = ""  # the input of rank 1 that repeats along the others' last dimension
    bitwise_exact: ClassVar[bool] = False  # compared without tolerance: copies, bit patterns
    no_out: ClassVar[str] = ""  # for messages, why there is no `out=`; "": there is
    needs: ClassVar[str] = ""  # for help, what else a call needs: "a Recv on the other rank"
    runs_functions: ClassVar[bool] = False  # calls functions of the caller's
    takes_keywords: ClassVar[bool] = False  # undeclared ones, beside the attributes
    takes_tensors: ClassVar[bool] = True  # of PyTorch as they are; False: as CuPy arrays
    detaches: ClassVar[bool] = False  # takes tensors that require gradients as plain data
    runs_empty: ClassVar[bool] = False  # also if no output has an element, as other processes wait
    provider: ClassVar[str] = (  # what runs a call, for help
        "NumPy arrays are computed by NumPy, CuPy arrays by CUDA kernels on their device."
    )
    source_folder: ClassVar[Path | None] = None  # None: the package's own cuda_src
    name: ClassVar[str]  # of the operator: the class's, if its body states none
    family: ClassVar[str]  # the folder or module of the class
    function_name: ClassVar[str]  # the name in snake case


@dataclass(frozen=True, kw_only=True, eq=False)
class Declaration:
    """An operator class's declaration as one object; fields are as of `Declares`.

    `other_inputs` and the like map ONNX Runtime's names, and those of earlier releases, to ours.
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
        """Return the declaration of a class; the attributes in its body are removed from it."""
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
    """Return (name of the family, module of its NumPy functions) for the module of a class.

    "p.gist.operators" -> ("gist", "p.gist.reference"); "p.mine", one module with both, ->
    ("mine", "p.mine").
    """
    package, _, name = module.rpartition(".")
    if name != "operators":
        return name, module
    return package.rpartition(".")[2], f"{package}.reference"


def snake_case(name: str) -> str:
    """Return a name in snake case: GatherNDGrad -> gather_nd_grad, BiasGeluGrad_dX ->
    bias_gelu_grad_dx."""
    return _WORD.sub("_", name).lower()


def _take_attributes(op: type) -> tuple[Attribute, ...]:
    """Remove attributes from the class `op`; return its bases', then its own, in their order.

    One that the body states again is among its own. An instance has a value under the name, whose
    look-up an attribute of the class would slow down.
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
    """Return declared names by other names: ONNX Runtime's, and those of earlier releases."""
    others: dict[str, Other] = {}
    for item in declared:
        others |= {name: Other(item.name, True) for name in item.formerly}
        if item.upstream:
            others[item.upstream] = Other(item.name, False)
    return others

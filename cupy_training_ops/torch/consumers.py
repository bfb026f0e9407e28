# SPDX-License-Identifier: MIT
"""Who saves a tensor: the torch function under way, and what its gradient takes of the tensor.

A saved-tensor hook sees who made a tensor, not who saves it. A function that is not in the table is
unknown, as all is that C++, scripts, compiled regions and custom functions call.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

# What gives the same numbers in other words: a tensor made so is as its source. Casts are those of
# autocast, and no parameter is the base of one.
SAME_NUMBERS = frozenset(
    f"{name}Backward{i}"
    for i in (0, 1)
    for name in (
        *("Alias", "AsStrided", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("Squeeze", "T", "ToCopy", "Transpose", "Unsqueeze", "UnsafeView", "View", "Clone"),
    )
)
LEAF = "AccumulateGrad"

LINEAR = "linear"  # multiplied by a parameter
NORMALISED = "normalised"  # centred and divided by its deviation
SIGN = "sign"  # its sign alone
SHAPE = "shape"  # nothing but its shape
SMOOTH = "smooth"  # a smooth function of each number
PRODUCT = "product"  # multiplied by another activation
EXACT = "exact"

Given = tuple[Any, ...]
Named = Mapping[str, Any] | None
Call = tuple[Any, Given, Named]


class Use(NamedTuple):
    """What a consumer makes of a tensor that it saves."""

    consumer: str
    need: str
    groups: tuple[int, ...] = ()  # dimensions that tell apart what is centred; () where unknown
    runs: int = 0  # of group norm: groups a sample, each a run of neighbours


UNKNOWN = Use("", EXACT)


class UnderWay(threading.local):
    """The torch function that a thread is in."""

    call: Call | None = None


PLAIN = frozenset(
    itertools.chain.from_iterable(
        itertools.permutations((Tensor, torch.nn.Parameter), n) for n in range(3)
    )
)


class Consumers(TorchFunctionMode):  # type: ignore[misc]
    """Notes which torch function is under way."""

    def __init__(self) -> None:
        self.local = UnderWay()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Given = (),
        kwargs: Named = None,
    ) -> Any:
        local = self.local
        before = local.call
        # A class of tensors does what it likes under the function's name.
        local.call = (func, args, kwargs) if types in PLAIN else None
        try:
            if func in LOOKED_THROUGH and types in PLAIN:
                local.call = None
                with self:
                    return body(func)(*args, **kwargs or {})
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            local.call = before


def is_trusted() -> bool:
    """Whether modes below do what functions say: others may call what they like."""
    modes = torch.overrides._get_current_function_mode_stack()
    return all(isinstance(mode, Consumers | DeviceContext) for mode in modes)


# ---- functions of Python that are looked through -------------------------------------------------

# They call functions that the table has. Others stay closed: what they save is untouched.
LOOKED_THROUGH = frozenset({functional.multi_head_attention_forward})


@functools.cache
def body(function: types.FunctionType) -> types.FunctionType:
    """The function without its question whether a mode wants it."""
    names = {name: _no for name in function.__globals__ if name.startswith("has_torch_function")}
    seen = {**function.__globals__, **names}
    found = types.FunctionType(
        function.__code__, seen, function.__name__, function.__defaults__, function.__closure__
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _no(*_: object) -> bool:
    return False


# ---- operands ------------------------------------------------------------------------------------


def source_of(node: Any) -> Any:
    """The node whose numbers views and casts show."""
    while type(node).__name__ in SAME_NUMBERS:
        node = node.next_functions[0][0]
    return node


def is_parameter(x: Tensor) -> bool:
    """Whether a tensor is a parameter, or one in other words."""
    if x.is_leaf:
        return bool(x.requires_grad)
    return type(source_of(x.grad_fn)).__name__ == LEAF


def operands(args: Given, kwargs: Named) -> Iterator[Tensor]:
    """The tensors of a call, also those of a list."""
    for given in (*args, *(kwargs or {}).values()):
        if isinstance(given, Tensor):
            yield given
        elif isinstance(given, list | tuple):
            yield from (each for each in given if isinstance(each, Tensor))


def is_of(x: Tensor, source: object) -> bool:
    """Whether x is the source, or that in other words."""
    if not isinstance(source, Tensor):
        return False
    if x.data_ptr() == source.data_ptr() and x.numel() == source.numel():
        return True
    return source.grad_fn is not None and source_of(x.grad_fn) is source_of(source.grad_fn)


def argument(args: Given, kwargs: Named, place: int, name: str) -> Any:
    """An argument by position or by name."""
    return args[place] if len(args) > place else (kwargs or {}).get(name)


# ---- the table -----------------------------------------------------------------------------------

Dimensions = tuple[int, ...]
Finder = Callable[[Tensor, Given, Named], Use]


def usual_groups(x: Tensor) -> Dimensions:
    """Channels of images, else features."""
    return (1,) if x.dim() >= 4 else (x.dim() - 1,)


def features_of_heads(x: Tensor) -> Dimensions:
    """Of (samples, heads, rows, features), where heads lie beside their features, else features."""
    is_turned = x.dim() == 4 and x.stride(1) < x.stride(2)
    return (1, 3) if is_turned else (x.dim() - 1,)


def _product(name: str, groups: Callable[[Tensor, Given], Dimensions]) -> Finder:
    """Linear in what is saved, where all other operands are parameters."""

    def use(x: Tensor, args: Given, kwargs: Named) -> Use:
        others = sum(not is_parameter(each) for each in operands(args, kwargs))
        need = LINEAR if others <= 1 else PRODUCT
        return Use(name, need, groups(x, args) if need == LINEAR else features_of_heads(x))

    return use


def _features(x: Tensor, args: Given) -> Dimensions:
    """The last dimension, where the parameter stands on the right."""
    is_left = bool(args) and isinstance(args[0], Tensor) and not is_parameter(args[0])
    return (x.dim() - 1,) if is_left else ()


def _same(*groups: int) -> Callable[[Tensor, Any], Dimensions]:
    return lambda *_: groups


def _relu(name: str) -> Finder:
    """A result, or of leaky ReLU the input."""

    def use(x: Tensor, *_: object) -> Use:
        return Use(name, SIGN, usual_groups(x))

    return use


def _input(name: str, need: str) -> Finder:
    """An operation's input alone, whatever else it saves."""

    def use(x: Tensor, args: Given, kwargs: Named) -> Use:
        if not is_of(x, argument(args, kwargs, 0, "input")):
            return Use(name, EXACT)
        return Use(name, need, usual_groups(x) if need == SHAPE else ())

    return use


def _attention(name: str) -> Finder:
    """Query, key, value and result; not the statistics of rows."""

    def use(x: Tensor, args: Given, kwargs: Named) -> Use:
        parts = enumerate(("query", "key", "value"))
        is_input = any(is_of(x, argument(args, kwargs, i, part)) for i, part in parts)
        is_result = type(x.grad_fn).__name__.startswith("ScaledDotProduct") and not x.output_nr
        if not (is_input or is_result):
            return Use(name, EXACT)
        return Use(name, PRODUCT, features_of_heads(x))

    return use


def _norm(name: str, groups: Callable[[Tensor, Any], Dimensions], extent: str = "") -> Finder:
    """A normalisation's input; what else it saves are statistics."""

    def use(x: Tensor, args: Given, kwargs: Named) -> Use:
        if not is_of(x, argument(args, kwargs, 0, "input")):
            return Use(name, EXACT)
        given = argument(args, kwargs, 1, extent) if extent else None
        return Use(
            name, NORMALISED, groups(x, given), int(given) if given and extent == RUNS else 0
        )

    return use


def _rows(x: Tensor, normalised: Any) -> Dimensions:
    inner = 1 if isinstance(normalised, int) else len(normalised)
    return tuple(range(x.dim() - inner))


def _of(*names: str) -> Iterator[tuple[str, Any]]:
    """Functions of these names, wherever PyTorch has them."""
    homes = (torch, functional, Tensor, torch._C._nn)
    for name in names:
        yield from ((name.strip("_"), getattr(home, name)) for home in homes if hasattr(home, name))


BATCH, INSTANCE = ("batch_norm", "native_batch_norm"), ("instance_norm",)
CONVOLUTIONS = tuple(f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3))
RUNS = "num_groups"


def _table() -> dict[Any, Finder]:
    table: dict[Any, Finder] = {}

    def add(finder: Callable[[str], Finder], *names: str) -> None:
        table.update({function: finder(name) for name, function in _of(*names)})

    def products(groups: Callable[[Tensor, Given], Dimensions], *names: str) -> None:
        add(lambda name: _product(name, groups), *names)

    def norms(groups: Callable[[Tensor, Any], Dimensions], extent: str, *names: str) -> None:
        add(lambda name: _norm(name, groups, extent), *names)

    products(_features, "linear", "matmul", "__matmul__", "mm", "bmm")
    products(_same(1), *CONVOLUTIONS)
    products(_same(), "__rmatmul__", "addmm", "baddbmm", "addbmm", "mv", "addmv", "einsum")
    products(_same(), "tensordot", "bilinear", "chain_matmul")
    add(_relu, "relu", "relu_", "leaky_relu", "leaky_relu_")
    pools = [f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3)]
    indexed = [f"max_pool{n}d_with_indices" for n in (1, 2, 3)]
    add(lambda name: _input(name, SHAPE), *pools, *indexed)
    add(lambda name: _input(name, SMOOTH), "gelu", "silu", "silu_")
    add(_attention, "scaled_dot_product_attention")
    norms(_rows, "normalized_shape", "layer_norm", "rms_norm", "native_layer_norm")
    norms(_same(1), "", *BATCH)
    norms(_same(0, 1), "", *INSTANCE)
    norms(_same(), RUNS, "group_norm")
    return table


TABLE = _table()
# They centre each feature or channel, and so the gradient of the product that they follow.
CENTRING = frozenset(function for _, function in _of(*BATCH, *INSTANCE))


def use_of(x: Tensor, call: Call | None) -> Use:
    """What the torch function under way makes of a tensor that is saved."""
    if call is None:
        return UNKNOWN
    function, args, kwargs = call
    finder = TABLE.get(function)
    if finder is None:
        return Use(getattr(function, "__name__", "") or "", EXACT)
    return finder(x, args, kwargs)

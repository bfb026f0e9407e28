# SPDX-License-Identifier: MIT
"""Who saves a tensor: the torch function under way, and what its gradient takes of the tensor.

A saved-tensor hook sees who made a tensor, not who saves it. A function that is not in the table is
unknown, as all is that C++, scripts, compiled regions and custom functions call. The same mode sees
what gives memory away to those that write without raising a tensor's version.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from ..codecs.kept.guards import LINEAR, NORMALISED, PRODUCT, SMOOTH
from .lending import LENDING, Lent, lend

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

# Needs beside those that the guards know.
SIGN = "sign"  # its sign alone
SHAPE = "shape"  # nothing but its shape
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


PLAIN = frozenset(
    itertools.chain.from_iterable(
        itertools.permutations((Tensor, torch.nn.Parameter), n) for n in range(3)
    )
)


class Consumers(TorchFunctionMode):  # type: ignore[misc]
    """Notes which torch function a thread is in, and memory that may be written unseen.

    lent: for storages that were lent, when that was; AT_ANY_TIME where it does not end.
    """

    def __init__(self, lent: Lent) -> None:
        self.call: Call | None = None
        self.lent = lent  # all threads'
        self.sees_all = False  # whether it is on the stack, and none below it calls what it likes

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: Given = (),
        kwargs: Named = None,
    ) -> Any:
        before = self.call
        # A class of tensors does what it likes under the function's name.
        self.call = (func, args, kwargs) if not types or types in PLAIN else None
        try:
            if func in SPECIAL:
                return self._special(func, args, kwargs)
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.call = before

    def _special(self, func: Any, args: Given, kwargs: Named) -> Any:
        """Call what lends memory, or what is looked through."""
        if func in LENDING:
            for x in args:
                if isinstance(x, Tensor) and x.layout is torch.strided:
                    lend(self.lent, x.untyped_storage(), LENDING[func])
        elif self.call is not None:
            self.call = None
            with self:
                return body(func)(*args, **kwargs or {})
        return func(*args, **kwargs or {})


class InThread(threading.local):
    """The mode of a thread."""

    def __init__(self, lent: Lent) -> None:
        self.mode = Consumers(lent)


def is_trusted() -> bool:
    """Whether modes below do what functions say: others may call what they like."""
    modes = torch.overrides._get_current_function_mode_stack()
    return all(isinstance(mode, Consumers | DeviceContext) for mode in modes)


# ---- functions of Python that are looked through -------------------------------------------------

# They call functions that the table has. Others stay closed: what they save is untouched.
LOOKED_THROUGH = frozenset({functional.multi_head_attention_forward})
SPECIAL = LOOKED_THROUGH | LENDING.keys()


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

# Types of nodes: a look at one takes less than at its name.
SAME_NODES = frozenset(
    getattr(torch._C._functions, name)
    for name in SAME_NUMBERS
    if hasattr(torch._C._functions, name)
)
LEAF_NODE = torch._C._functions.AccumulateGrad


def source_of(node: Any) -> object:
    """The node whose numbers views and casts show."""
    while type(node) in SAME_NODES:
        node = node.next_functions[0][0]
    return node


def is_made(x: Tensor) -> bool:
    """Return True if a tensor is neither a parameter nor one in other words."""
    node = x.grad_fn
    if node is None:
        return not x.requires_grad
    return type(node) not in SAME_NODES or type(source_of(node)) is not LEAF_NODE


def n_made(args: Iterable[object]) -> int:
    """How many tensors among arguments, also in lists, are no parameters."""
    n = 0
    for given in args:
        if given is None:
            continue
        if isinstance(given, Tensor):
            n += not given.requires_grad if given.grad_fn is None else is_made(given)
        elif isinstance(given, list | tuple):
            n += n_made(given)
    return n


def is_of(x: Tensor, source: object) -> bool:
    """Whether x is the source, or that in other words."""
    if x is source:
        return True
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
Answer = Any  # what a rule has to know of a call, hashable
Asked: TypeAlias = (
    "tuple[Rule, Answer] | str | None"  # of a function without a rule its name; None is unknown
)


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """What a function makes of a tensor that it saves: `use` follows from what is asked of a call,
    and from the shape and strides of the tensor."""

    ask: Callable[[Tensor, Given, Named], Answer]
    use: Callable[[Tensor, Answer], Use]


def usual_groups(x: Tensor) -> Dimensions:
    """Channels of images, else features."""
    return (1,) if x.dim() >= 4 else (x.dim() - 1,)


def features_of_heads(x: Tensor) -> Dimensions:
    """Of (samples, heads, rows, features), where heads lie beside their features, else features."""
    is_turned = x.dim() == 4 and x.stride(1) < x.stride(2)
    return (1, 3) if is_turned else (x.dim() - 1,)


def _product(name: str, groups: Callable[[Tensor, bool], Dimensions]) -> Rule:
    """Linear in what is saved, where all other operands are parameters."""

    def ask(_: Tensor, args: Given, kwargs: Named) -> tuple[bool, bool]:
        is_left = bool(args) and isinstance(args[0], Tensor) and is_made(args[0])
        n = is_left + n_made(args[1:] if is_left else args)
        return n <= 1 and (not kwargs or n + n_made(kwargs.values()) <= 1), is_left

    def use(x: Tensor, answer: tuple[bool, bool]) -> Use:
        is_linear, is_left = answer
        if is_linear:
            return Use(name, LINEAR, groups(x, is_left))
        return Use(name, PRODUCT, features_of_heads(x))

    return Rule(ask, use)


def _features(x: Tensor, is_left: bool) -> Dimensions:
    """The last dimension, where the parameter stands on the right."""
    return (x.dim() - 1,) if is_left else ()


def _same(*groups: int) -> Callable[[Tensor, object], Dimensions]:
    return lambda *_: groups


def _relu(name: str) -> Rule:
    """A result, or of leaky ReLU the input."""
    return Rule(lambda *_: None, lambda x, _: Use(name, SIGN, usual_groups(x)))


def _input(name: str, need: str) -> Rule:
    """An operation's input alone, whatever else it saves."""

    def ask(x: Tensor, args: Given, kwargs: Named) -> bool:
        return is_of(x, argument(args, kwargs, 0, "input"))

    def use(x: Tensor, is_input: bool) -> Use:
        if not is_input:
            return Use(name, EXACT)
        return Use(name, need, usual_groups(x) if need == SHAPE else ())

    return Rule(ask, use)


def _attention(name: str) -> Rule:
    """Query, key, value and result; not the statistics of rows."""

    def ask(x: Tensor, args: Given, kwargs: Named) -> bool:
        for given in args[:3]:
            if x is given:
                return True
        if type(x.grad_fn).__name__.startswith("ScaledDotProduct"):
            return not x.output_nr
        parts = enumerate(("query", "key", "value"))
        return any(is_of(x, argument(args, kwargs, i, part)) for i, part in parts)

    def use(x: Tensor, is_operand: bool) -> Use:
        return Use(name, PRODUCT, features_of_heads(x)) if is_operand else Use(name, EXACT)

    return Rule(ask, use)


def _norm(name: str, groups: Callable[[Tensor, int], Dimensions], extent: str) -> Rule:
    """A normalisation's input; what else it saves are statistics."""

    def ask(x: Tensor, args: Given, kwargs: Named) -> int | None:
        if not is_of(x, argument(args, kwargs, 0, "input")):
            return None
        given: Any = argument(args, kwargs, 1, extent) if extent else None
        if extent == INNER:
            return 1 if isinstance(given, int) else len(given)
        return int(given or 0)

    def use(x: Tensor, extents: int | None) -> Use:
        if extents is None:
            return Use(name, EXACT)
        return Use(name, NORMALISED, groups(x, extents), extents if extent == RUNS else 0)

    return Rule(ask, use)


def _rows(x: Tensor, n_inner: int) -> Dimensions:
    return tuple(range(x.dim() - n_inner))


def _of(*names: str) -> Iterator[tuple[str, object]]:
    """Functions of these names, wherever PyTorch has them."""
    homes = (torch, functional, Tensor, torch._C._nn)
    for name in names:
        yield from ((name.strip("_"), getattr(home, name)) for home in homes if hasattr(home, name))


BATCH, INSTANCE = ("batch_norm", "native_batch_norm"), ("instance_norm",)
CONVOLUTIONS = tuple(f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3))
INNER, RUNS = "normalized_shape", "num_groups"


def _table() -> dict[object, Rule]:
    table: dict[object, Rule] = {}

    def add(rule: Callable[[str], Rule], *names: str) -> None:
        table.update({function: rule(name) for name, function in _of(*names)})

    def products(groups: Callable[[Tensor, bool], Dimensions], *names: str) -> None:
        add(lambda name: _product(name, groups), *names)

    def norms(groups: Callable[[Tensor, int], Dimensions], extent: str, *names: str) -> None:
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
    norms(_rows, INNER, "layer_norm", "rms_norm", "native_layer_norm")
    norms(_same(1), "", *BATCH)
    norms(_same(0, 1), "", *INSTANCE)
    norms(_same(), RUNS, "group_norm")
    return table


TABLE = _table()
# Of operators of the namespace `cto`, whose nodes save the same.
OURS = {name: _norm(name, _rows, INNER) for name in ("layer_norm", "rms_norm")} | {
    name: _input(name, SMOOTH) for name in ("gelu", "quick_gelu")
}
# They centre each feature or channel, and so the gradient of the product that they follow.
NORMS = frozenset(function for _, function in _of(*BATCH, *INSTANCE))
DEVIATIONS = ("var", "std", "var_mean", "std_mean")  # of samples, where a norm is written by hand
CENTRING = NORMS | {function for _, function in _of(*DEVIATIONS)}


def centres(x: Tensor, call: tuple[Any, Given, Named]) -> bool:
    """Whether one of CENTRING centres features or channels, and not what a sample has of them."""
    function, args, kwargs = call
    if function in NORMS:
        return True
    given = argument(args, kwargs, 1, "dim")
    dimensions = given if isinstance(given, tuple | list) else (given,)
    is_told = all(type(each) is int for each in dimensions)
    return is_told and usual_groups(x)[0] not in [each % max(x.dim(), 1) for each in dimensions]


CHECKPOINT = "checkpoint"  # the consumer of a checkpointed block's input
BETWEEN = (__name__.rpartition(".")[0], "torch.autograd.function")


def _is_block_input() -> bool:
    """Return True if torch.utils.checkpoint saves what a block is run from again."""
    frame = sys._getframe(1)
    while (name := str(frame.f_globals.get("__name__"))).startswith(BETWEEN) and frame.f_back:
        frame = frame.f_back
    return name == "torch.utils.checkpoint"


def asked_of(x: Tensor, call: Call | None) -> Asked:
    """What of the torch function under way decides on its use of a tensor that is saved."""
    if call is None:
        return CHECKPOINT if _is_block_input() else None
    function, args, kwargs = call
    rule = TABLE.get(function)
    if rule is None:
        return getattr(function, "__name__", "") or ""
    return rule, rule.ask(x, args, kwargs)


def use_of(x: Tensor, asked: Asked) -> Use:
    """What it makes of the tensor."""
    if asked is None:
        return UNKNOWN
    if isinstance(asked, str):
        return Use(asked, EXACT)
    rule, answer = asked
    return rule.use(x, answer)

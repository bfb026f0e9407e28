# SPDX-License-Identifier: MIT
"""Save rules: how exactly a torch function needs a tensor that it saves, and so which codec.

A function without a rule needs all bits; so do calls from C++, scripts, compiled regions and custom
Functions, which nothing shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from ..activations.error_check import LINEAR, NORMALISED, PRODUCT, SMOOTH
from ..activations.policies import (
    POLICIES,
    WIDER_THAN_16_BITS,
    Policy,
    choose_codec,
    get_policy,
    takes_consumer,
)
from .modes import Arguments, Call, Named

# Views, copies and casts: their results are treated as their source. Casts are those of autocast.
SAME_NUMBERS = frozenset(
    f"{name}Backward{i}"
    for i in (0, 1)
    for name in (
        *("Alias", "AsStrided", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("Squeeze", "T", "ToCopy", "Transpose", "Unsqueeze", "UnsafeView", "View", "Clone"),
    )
)

# Needs, beside those in `activations.error_check`.
SIGN = "sign"  # only its sign
SHAPE = "shape"  # only its shape
EXACT = "exact"  # all bits


class Use(NamedTuple):
    """How a consumer, a torch function, needs a tensor that it saves."""

    consumer: str  # its name, "" if unknown
    need: str  # SIGN, SHAPE, EXACT, or one of error_check
    groups: tuple[
        int, ...
    ] = ()  # dimensions whose indices identify a group with its own mean; () if unknown
    runs: int = 0  # of group norm: groups of a sample, contiguous in memory


UNKNOWN = Use("", EXACT)


# ---- operands ------------------------------------------------------------------------------------

# Types of nodes: faster to compare than their names.
SAME_NODES = frozenset(
    getattr(torch._C._functions, name)
    for name in SAME_NUMBERS
    if hasattr(torch._C._functions, name)
)
LEAF_NODE = torch._C._functions.AccumulateGrad


def source_of(node: Any) -> object:
    """Return the autograd node before views, copies and casts: the first that is none of these."""
    while type(node) in SAME_NODES:
        node = node.next_functions[0][0]
    return node


def is_computed(x: Tensor) -> bool:
    """Return True if a tensor is neither a parameter nor a view or cast of one."""
    node = x.grad_fn
    if node is None:
        return not x.requires_grad
    return type(node) not in SAME_NODES or type(source_of(node)) is not LEAF_NODE


def n_computed(args: Iterable[object]) -> int:
    """Count tensors among arguments, also in lists, that are not parameters."""
    n = 0
    for each in args:
        if each is None:
            continue
        if isinstance(each, Tensor):
            n += not each.requires_grad if each.grad_fn is None else is_computed(each)
        elif isinstance(each, list | tuple):
            n += n_computed(each)
    return n


def is_same(x: Tensor, source: object) -> bool:
    """Return True if x is the source, or a view or cast of it."""
    if x is source:
        return True
    if not isinstance(source, Tensor):
        return False
    if x.data_ptr() == source.data_ptr() and x.numel() == source.numel():
        return True
    return source.grad_fn is not None and source_of(x.grad_fn) is source_of(source.grad_fn)


def argument(args: Arguments, kwargs: Named, place: int, name: str) -> Any:
    """Return a call's argument by position or by name; None if it was left out."""
    return args[place] if len(args) > place else (kwargs or {}).get(name)


# ---- the table -----------------------------------------------------------------------------------

Dimensions = tuple[int, ...]
Answer = Any  # what a rule reads from a call, hashable
CallFacts: TypeAlias = (
    "tuple[Rule, Answer] | str | None"  # the name of a function without a rule; None: unknown
)


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """A function's rule: `use(x, ask(x, args, kwargs))` is its Use of a tensor x that it saves.

    `use` depends only on the answer of `ask` and on the shape and strides of x, so that it is
    computed once for tensors alike.
    """

    ask: Callable[[Tensor, Arguments, Named], Answer]
    use: Callable[[Tensor, Answer], Use]


def usual_groups(x: Tensor) -> Dimensions:
    """Return the dimension of channels: 1 for images (N, C, H, W), else the last one, features."""
    return (1,) if x.dim() >= 4 else (x.dim() - 1,)


def features_of_heads(x: Tensor) -> Dimensions:
    """Return (1, 3) of (samples, heads, rows, features) if heads and features are neighbours in
    memory, else the last dimension."""
    is_turned = x.dim() == 4 and x.stride(1) < x.stride(2)
    return (1, 3) if is_turned else (x.dim() - 1,)


def _product(name: str, groups: Callable[[Tensor, bool], Dimensions]) -> Rule:
    """Make the rule of a product: LINEAR if all other operands are parameters, else PRODUCT.

    name: of the function. groups(x, is_left): the dimensions of features; is_left: the left operand
    is an activation, so x.
    """

    def ask(_: Tensor, args: Arguments, kwargs: Named) -> tuple[bool, bool]:
        """Return (at most one operand is an activation, the left one is)."""
        is_left = bool(args) and isinstance(args[0], Tensor) and is_computed(args[0])
        n = is_left + n_computed(args[1:] if is_left else args)
        return n <= 1 and (not kwargs or n + n_computed(kwargs.values()) <= 1), is_left

    def use(x: Tensor, answer: tuple[bool, bool]) -> Use:
        """Return the Use of an operand x; answer: what `ask` returned."""
        is_linear, is_left = answer
        if is_linear:
            return Use(name, LINEAR, groups(x, is_left))
        return Use(name, PRODUCT, features_of_heads(x))

    return Rule(ask, use)


def _features(x: Tensor, is_left: bool) -> Dimensions:
    """Return the last dimension if the parameter is the right operand, else ()."""
    return (x.dim() - 1,) if is_left else ()


def _same(*groups: int) -> Callable[[Tensor, object], Dimensions]:
    """Return a function that returns these dimensions for any tensor."""
    return lambda *_: groups


def _relu(name: str) -> Rule:
    """Make the rule of a ReLU, which reads the sign of its result, or of its input if leaky."""
    return Rule(lambda *_: None, lambda x, _: Use(name, SIGN, usual_groups(x)))


def _input(name: str, need: str) -> Rule:
    """Make the rule of a function that needs its input as `need` says, and all else exactly."""

    def ask(x: Tensor, args: Arguments, kwargs: Named) -> bool:
        return is_same(x, argument(args, kwargs, 0, "input"))

    def use(x: Tensor, is_input: bool) -> Use:
        if not is_input:
            return Use(name, EXACT)
        return Use(name, need, usual_groups(x) if need == SHAPE else ())

    return Rule(ask, use)


def _attention(name: str) -> Rule:
    """Make the rule of attention: query, key, value and result are operands of products.

    Its other results, statistics of rows, are needed exactly.
    """

    def ask(x: Tensor, args: Arguments, kwargs: Named) -> bool:
        """Return True if x is query, key, value or the attention's first result."""
        for operand in args[:3]:  # the usual call, without is_same
            if x is operand:
                return True
        if type(x.grad_fn).__name__.startswith("ScaledDotProduct"):
            return not x.output_nr  # the first result
        parts = enumerate(("query", "key", "value"))
        return any(is_same(x, argument(args, kwargs, i, part)) for i, part in parts)

    def use(x: Tensor, is_operand: bool) -> Use:
        return Use(name, PRODUCT, features_of_heads(x)) if is_operand else Use(name, EXACT)

    return Rule(ask, use)


def _norm(name: str, groups: Callable[[Tensor, int], Dimensions], extent: str) -> Rule:
    """Make the rule of a norm: it subtracts means of its input, and needs its statistics exactly.

    extent: name of its second argument, from which a number is read: INNER: how many dimensions a
    row has; RUNS: how many groups a sample has; "": 0.
    groups(x, that number): the dimensions whose indices identify a mean: (0,) for rows of (N, C).
    """

    def ask(x: Tensor, args: Arguments, kwargs: Named) -> int | None:
        """Return None if x is not the norm's input, else the number that `extent` names."""
        if not is_same(x, argument(args, kwargs, 0, "input")):
            return None
        value: Any = argument(args, kwargs, 1, extent) if extent else None
        if extent == INNER:
            return 1 if isinstance(value, int) else len(value)
        return int(value or 0)

    def use(x: Tensor, extents: int | None) -> Use:
        if extents is None:
            return Use(name, EXACT)
        return Use(name, NORMALISED, groups(x, extents), extents if extent == RUNS else 0)

    return Rule(ask, use)


def _rows(x: Tensor, n_inner: int) -> Dimensions:
    """Return all dimensions but the `n_inner` last: (0, 1) for 3 dimensions and n_inner = 1."""
    return tuple(range(x.dim() - n_inner))


def _functions(*names: str) -> Iterator[tuple[str, object]]:
    """Yield (name, function) for each place where PyTorch has one of these names."""
    homes = (torch, functional, Tensor, torch._C._nn)
    for name in names:
        yield from ((name.strip("_"), getattr(home, name)) for home in homes if hasattr(home, name))


BATCH, INSTANCE = ("batch_norm", "native_batch_norm"), ("instance_norm",)
CONVOLUTIONS = tuple(f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3))
INNER, RUNS = "normalized_shape", "num_groups"  # arguments of norms


def _table() -> dict[object, Rule]:
    """Return the rules by function, as torch.relu, Tensor.relu and others of that name."""
    table: dict[object, Rule] = {}

    def add(rule: Callable[[str], Rule], *names: str) -> None:
        """Add rule(name) for each of these functions."""
        table.update({function: rule(name) for name, function in _functions(*names)})

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
# Rules of operators of the namespace `cto`.
OURS = {name: _norm(name, _rows, INNER) for name in ("layer_norm", "rms_norm")} | {
    name: _input(name, SMOOTH) for name in ("gelu", "quick_gelu")
}
# Norms that subtract the mean of each channel, also from the gradient of the product before them.
NORMS = frozenset(function for _, function in _functions(*BATCH, *INSTANCE))
DEVIATIONS = ("var", "std", "var_mean", "std_mean")  # of hand-written norms
CENTRING = NORMS | {function for _, function in _functions(*DEVIATIONS)}


def centres(x: Tensor, call: Call) -> bool:
    """Return True if a call of a function of CENTRING takes a mean for each channel.

    A batch norm does; var(x, dim=(0, 2, 3)) of images does, var(x, dim=1) does not. Channels of
    other tensors than images are the last dimension.
    """
    function, args, kwargs = call
    if function in NORMS:
        return True
    dim = argument(args, kwargs, 1, "dim")
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    (channels,) = usual_groups(x)
    are_numbers = all(type(d) is int for d in dims)
    return are_numbers and channels not in [d % max(x.dim(), 1) for d in dims]


CHECKPOINT = "checkpoint"  # the consumer of a checkpointed block's input
# Modules of frames between that library's and this one's: this package's, and autograd's.
BETWEEN = (__name__.rpartition(".")[0], "torch.autograd.function")


def _is_block_input() -> bool:
    """Return True if torch.utils.checkpoint is saving the input of a block."""
    frame = sys._getframe(1)
    while (name := str(frame.f_globals.get("__name__"))).startswith(BETWEEN) and frame.f_back:
        frame = frame.f_back
    return name == "torch.utils.checkpoint"


def call_facts(x: Tensor, call: Call | None) -> CallFacts:
    """Return what `use_of` needs to know of the running torch function that saves x, hashable.

    call: (function, arguments, arguments by name); None if it is unknown.
    """
    if call is None:
        return CHECKPOINT if _is_block_input() else None
    function, args, kwargs = call
    rule = TABLE.get(function)
    if rule is None:
        return getattr(function, "__name__", "") or ""
    return rule, rule.ask(x, args, kwargs)


def use_of(x: Tensor, facts: CallFacts) -> Use:
    """Return how a call needs a tensor that it saves."""
    if facts is None:
        return UNKNOWN
    if isinstance(facts, str):
        return Use(facts, EXACT)
    rule, answer = facts
    return rule.use(x, answer)


# ---- policies ------------------------------------------------------------------------------------

NAME = "compressed_activations"
# Nodes whose results have many zeros.
MAKE_ZEROS = frozenset({"ReluBackward0", "ThresholdBackward0", "NativeDropoutBackward0"})


@dataclass(frozen=True, eq=False)
class TorchPolicy:
    """A choice of codecs: by the consumer of a tensor, or by the node that computed it.

    choose(name of that node, dtype's name, shape, "value" or "mask", use): returns a codec's name,
    or None.
    """

    choose: Callable[[str, str, tuple[int, ...], str, Use], str | None]
    by_consumer: bool  # `choose` goes by the use's need; errors of codes are checked
    uses_consumer: bool  # `choose` depends on `use`

    def codec_or_reason(
        self, name: str, dtype: str, shape: tuple[int, ...], need: str, use: Use
    ) -> tuple[str, str]:
        """Return (codec, ""), or ("", the reason why there is none)."""
        codec = self.choose(name, dtype, shape, need, use)
        if codec:
            return codec, ""
        if not self.by_consumer:
            return "", "policy"
        return "", "exact" if use.consumer else "unknown"


def by_consumer(
    smooth: Mapping[str, str], _name: str, dtype: str, _shape: object, need: str, use: Use
) -> str | None:
    """Return a codec by the use's need, or None.

    smooth: codecs for smooth functions and products of activations, by dtype. need: "mask" for
    bools, else "value".
    """
    if need == "mask":
        return "pack1"
    if use.need == EXACT:
        return None
    return smooth.get(dtype) if use.need in (SMOOTH, PRODUCT) else "msfp15_signed"


def small(name: str, dtype: str, shape: tuple[int, ...], need: str) -> str | None:
    """Return sparse codes if the node `name` makes zeros, else MSFP15, which is then shorter."""
    policy = POLICIES["small" if name in MAKE_ZEROS else "plain_msfp15"]
    return policy(name, dtype, shape, need)


def _by_maker(policy: Policy) -> TorchPolicy:
    """Wrap a function of (node's name, dtype, shape, need), or also of the consumer's name."""

    def choose(name: str, dtype: str, shape: tuple[int, ...], need: str, use: Use) -> str | None:
        return choose_codec(NAME, policy, name, dtype, shape, need, use.consumer)

    return TorchPolicy(choose, by_consumer=False, uses_consumer=takes_consumer(policy))


def _by_consumer(smooth: Mapping[str, str]) -> TorchPolicy:
    return TorchPolicy(partial(by_consumer, smooth), by_consumer=True, uses_consumer=True)


FLOATS = ("float32", "float64", "float16", "bfloat16")
NAMED = {
    "lossless": _by_maker(POLICIES["lossless"]),
    "default": _by_consumer(dict.fromkeys(WIDER_THAN_16_BITS, "pack16")),
    "wide": _by_consumer(dict.fromkeys(FLOATS, "msfp15_signed")),
    "small": _by_maker(small),
    "plain_msfp15": _by_maker(POLICIES["plain_msfp15"]),
}


def policy_of(policy: object) -> TorchPolicy:
    """Return a policy by name, or one around the caller's function."""
    named = get_policy(NAME, policy, NAMED)
    return named if isinstance(named, TorchPolicy) else _by_maker(named)

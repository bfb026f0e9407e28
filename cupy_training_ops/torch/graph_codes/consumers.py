# SPDX-License-Identifier: MIT
"""Read off the backward graph how exactly it needs a saved value.

Uses are followed through views, casts and recomputation. A value that gradients are multiplied by
may be encoded: the relative error of the gradient is that of the value. A value has to be exact if
its small error becomes a large one, as after a logarithm, a quotient or a subtraction of a mean.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
prims = torch.ops.prims


class Need(enum.IntEnum):
    """How exactly a value is needed; of several uses the largest counts."""

    NOTHING = 0
    LINEAR = 1  # gradients are multiplied by it
    SMOOTH = 2  # an elementwise smooth function of it is used
    MIXED = 3  # attention's values, or its result
    SCORES = 4  # attention's queries or keys: weights are computed from them by an exponential
    EXACT = 5


@dataclass(frozen=True)
class Uses:
    """The joint need of several uses."""

    need: Need = Need.NOTHING
    signs: bool = False  # a use depends on which elements are above 0
    reason: str = ""  # the operator that needs it most exactly

    def __or__(self, other: Uses) -> Uses:
        most = max(self, other, key=lambda uses: uses.need)
        return Uses(most.need, self.signs or other.signs, most.reason)


class Image(enum.IntEnum):
    """How a node depends on the saved value, and so on its error."""

    VALUE = 0  # a view or cast of the value
    SCALED = 1  # a multiple
    SMOOTHED = 2  # a smooth function, of magnitude about 1


def packets(*names: str) -> frozenset[object]:
    """ATen operators by name; skips those that this PyTorch lacks."""
    return frozenset(getattr(aten, name) for name in names if hasattr(aten, name))


VIEWS = packets(
    *("view", "_unsafe_view", "reshape", "permute", "t", "transpose", "clone", "squeeze", "alias"),
    *("unsqueeze", "expand", "slice", "split", "split_with_sizes", "select", "cat", "stack"),
    *("constant_pad_nd", "_to_copy", "detach", "as_strided", "flip", "unbind", "contiguous"),
) | {prims.convert_element_type, operator.getitem}
# Products in backward graphs, and in forward graphs.
PRODUCTS = packets("mm", "addmm", "bmm", "baddbmm", "convolution_backward", "_grouped_mm")
FORWARD_PRODUCTS = packets("mm", "addmm", "bmm", "baddbmm", "convolution")
SUMS = packets("add", "sub")
MULTIPLIES = packets("mul", "neg")
COMPARES = packets("le", "lt", "gt", "ge", "eq", "ne", "sign")
SMOOTH = packets(
    *("gelu", "gelu_backward", "silu", "silu_backward", "sigmoid", "sigmoid_backward", "tanh"),
    *("tanh_backward", "erf", "softplus", "softplus_backward", "mish", "mish_backward"),
    *("hardswish", "hardswish_backward", "elu", "elu_backward", "log_sigmoid_forward"),
    *("log_sigmoid_backward", "sin", "cos"),
)
EXACT_OPERATORS = packets(
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "exp"),
    *("logsumexp", "log", "log1p", "log2", "log10", "expm1", "exp2", "reciprocal", "rsqrt", "sqrt"),
    *("nll_loss_forward", "nll_loss_backward", "cumprod", "prod", "acos", "asin", "acosh", "atanh"),
    *("erfinv", "lgamma", "digamma", "linalg_vector_norm"),
)
RELU = packets("relu", "threshold_backward", "leaky_relu", "leaky_relu_backward")
# By the name of an operator's argument.
NEEDS_OF_ATTENTION = {
    "query": Need.SCORES,
    "key": Need.SCORES,
    "value": Need.MIXED,
    "out": Need.MIXED,
}


def packet(target: object) -> object:
    """Return an operator without its overload, aten.add of aten.add.Tensor; others unchanged."""
    return getattr(target, "overloadpacket", target)


def origin(node: Node) -> object:
    """Return the operator of a node before decompositions."""
    return packet(node.meta.get("original_aten", node.target))


def name_of(node: Node) -> str:
    """Return the name of a node's operator before decompositions."""
    source = origin(node)
    return getattr(source, "__name__", str(source))


def is_attention(node: Node) -> bool:
    """Return True if a node is a fused attention operator, or its gradient, of any backend."""
    return "attention" in getattr(packet(node.target), "__name__", "")


def tokens_of(node: Node) -> int | None:
    """Return the dimension of tokens of an attention's operand, or of a matrix (tokens, features).

    None if it is not known, as of a view with other dimensions than the operand.
    """
    if any(is_attention(user) for user in node.users):
        return int(node.meta["val"].dim()) - 2
    return 0 if node.meta["val"].dim() == 2 else None


def is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def needs_exact_results(node: Node) -> bool:
    """Return True if small results of a node matter beside large ones, as of an exponential or a
    quotient; codes, whose TILE neighbours share a scale, would round them to 0."""
    source = origin(node)
    if source in SMOOTH:
        return False
    if aten.div in (source, packet(node.target)):
        return node.op == "call_function" and len(node.all_input_nodes) > 1 and _is_full(node)
    return source in EXACT_OPERATORS or packet(node.target) in EXACT_OPERATORS


def _is_full(quotient: Node) -> bool:
    """Return True if the divisor has the quotient's shape."""
    divisor = quotient.args[-1]
    return is_tensor(divisor) and divisor.meta["val"].shape == quotient.meta["val"].shape


def is_blind_to_means(value: Node) -> bool:
    """Return True for the value in value -> product -> batch or instance norm.

    The gradient of that product sums to zero over samples, so only the value's distance from its
    feature means counts, which may be small beside the means.
    """
    read = _readers({value}, VIEWS)
    results = {user for user in read if packet(user.target) in FORWARD_PRODUCTS}
    return any("batch_norm" in name_of(user) for user in _readers(results, VIEWS | SUMS))


def _readers(nodes: set[Node], through: frozenset[object]) -> set[Node]:
    """Return all readers of some nodes, directly or through operators of `through`."""
    readers: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        for user in waiting.pop().users:
            if user not in readers:
                readers.add(user)
                if packet(user.target) in through:
                    waiting.append(user)
    return readers


def gradients_in(graph: Graph) -> set[Node]:
    """Return the nodes of a backward graph that depend on gradients of the results."""
    gradients: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            depends = "tangents" in node.name
        else:
            depends = not gradients.isdisjoint(node.all_input_nodes)
        if depends:
            gradients.add(node)
    return gradients


class Backward:
    """A backward graph: which nodes depend on gradients, and the uses of its values.

    placeholders: by name. order: index of each node. gradients: nodes that depend on gradients.
    In methods `user` is a node that reads `node`, `target` its operator without overload, and
    `image` says how `node` depends on the saved value.
    """

    def __init__(self, graph: Graph, parameters: Collection[str] = ()) -> None:
        """parameters: names of parameters, and of values computed only from them."""
        self._parameters = parameters
        self.placeholders = {n.name: n for n in graph.nodes if n.op == "placeholder"}
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.gradients = gradients_in(graph)
        self._uses: dict[tuple[Node, Image], Uses] = {}
        for node in reversed(list(self.order)):  # users first, so that recursion is never deep
            for image in Image if node not in self.gradients else ():
                self.uses(node, image)

    def points(self, saved: Node) -> list[Node]:
        """Return the chain of values through which all uses of a saved one go, itself first.

        Any of them may be encoded in its place: each but the last is read only by the next.
        """
        points, size = [saved], saved.meta["val"].numel()
        while len(points[-1].users) == 1:
            (user,) = points[-1].users
            if user in self.gradients or not is_tensor(user) or user.is_impure():
                break
            if not _is_at_most(user.meta["val"].numel(), size):
                break
            points.append(user)
        return points

    def uses(self, node: Node, image: Image = Image.VALUE) -> Uses:
        """Return the joint need of all users of a node."""
        key = (node, image)
        if key not in self._uses:
            self._uses[key] = _join(self._use(node, user, image) for user in node.users)
        return self._uses[key]

    def _use(self, node: Node, user: Node, image: Image) -> Uses:
        """Return the need of one user of `node`; if it passes the value on, of its own users."""
        if user.op == "output":
            return Uses(Need.EXACT, reason="gradient")
        source = origin(user)
        if user in self.gradients:
            return self._use_beside_gradients(node, user, source)
        target = packet(user.target)
        if source in SMOOTH or target in SMOOTH:
            return Uses(Need.SMOOTH, reason=name_of(user)) | self.uses(user, Image.SMOOTHED)
        if target in VIEWS:
            return self.uses(user, image)
        if target in COMPARES and image is Image.VALUE and 0 in user.args[1:]:
            return Uses(Need.LINEAR, signs=True, reason=name_of(user))
        if target is aten.relu and image is Image.VALUE:
            return Uses(Need.LINEAR, signs=True, reason="relu") | self.uses(user, Image.SCALED)
        if self._is_scaled(node, user, target) or self._is_summed(node, user, target, image):
            return self.uses(user, max(image, Image.SCALED))
        if target is aten.where and node is user.args[0]:
            return self.uses(user, Image.SMOOTHED)
        if target is aten.where:
            return self.uses(user, image)
        return Uses(Need.EXACT, reason=name_of(user))

    def _use_beside_gradients(self, node: Node, user: Node, source: object) -> Uses:
        """Return the need of a user that depends on gradients.

        source: its operator before decompositions.
        """
        target, name = packet(user.target), name_of(user)
        if is_attention(user):
            return Uses(_need_of_attention(node, user), reason=name)
        if source in EXACT_OPERATORS or target in EXACT_OPERATORS:
            return Uses(Need.EXACT, reason=name)
        if target in PRODUCTS:
            return Uses(Need.LINEAR, reason=name)
        if target in (aten.mul, aten.where):
            smooth = source in SMOOTH
            return Uses(Need.SMOOTH if smooth else Need.LINEAR, reason=name)
        if source in RELU:
            return Uses(Need.LINEAR, signs=True, reason=name)
        return Uses(Need.EXACT, reason=name)

    @staticmethod
    def _is_scaled(node: Node, user: Node, target: object) -> bool:
        """Return True if the relative error of the user's result is about that of `node`."""
        if target in MULTIPLIES:
            return True
        if target is aten.div:
            return user.args[0] is node and user.args[1] is not node
        if target is aten.pow:
            return user.args[0] is node and user.args[1] in (1, 2, 3)
        return False

    def _is_summed(self, node: Node, user: Node, target: object, image: Image) -> bool:
        """Return True if `user` is a sum that does not cancel: x + y, x + bias, 1 + tanh(x). A
        number may be added only to results of magnitude about 1."""
        if target not in SUMS:
            return False
        other = user.args[1] if user.args[0] is node else user.args[0]
        if not isinstance(other, Node):
            return image is Image.SMOOTHED
        if target is aten.sub or user.kwargs or not is_tensor(other):
            return False
        if other.name in self._parameters:
            return True
        return bool(other.meta["val"].shape == node.meta["val"].shape)


def _join(uses: Iterable[Uses]) -> Uses:
    return functools.reduce(operator.or_, uses, Uses())


def _need_of_attention(node: Node, user: Node) -> Need:
    """Return how exactly the attention operator `user` needs its operand `node`; EXACT for
    statistics, masks and seeds."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return Need.EXACT
    return max(
        (
            NEEDS_OF_ATTENTION.get(argument.name, Need.EXACT)
            for argument, operand in zip(schema.arguments, user.args, strict=False)
            if operand is node
        ),
        default=Need.EXACT,
    )


def _is_at_most(a: object, b: object) -> bool:
    """Return True if a size is known, without a new guard, to be at most another; of symbolic
    sizes, only if they are the same expression."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return str(a) == str(b)

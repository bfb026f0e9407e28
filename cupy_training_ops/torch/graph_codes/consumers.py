# SPDX-License-Identifier: MIT
"""Find what the backward graph does with a saved value, read off the graph itself.

Every use is there, through views, casts and what is computed again from saved values. A value
that gradients are multiplied by may wait as codes: their error is as small beside the gradient as
it is beside the value. Where a small error of the value is a large one of what follows, as behind
a logarithm, a quotient or the distance from a mean, it has to stay as it is.
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
    """How exactly a value is needed; where several read it the largest counts."""

    NOTHING = 0
    LINEAR = 1  # gradients are multiplied by it
    SMOOTH = 2  # a smooth function of each number is taken first
    MIXED = 3  # attention mixes it by its weights, or made it so
    SCORES = 4  # attention computes its weights from it again, behind an exponential
    EXACT = 5


@dataclass(frozen=True)
class Uses:
    """The need of all uses together."""

    need: Need = Need.NOTHING
    signs: bool = False  # somebody asks which numbers are above zero
    reason: str = ""  # who needs it most exactly

    def __or__(self, other: Uses) -> Uses:
        most = max(self, other, key=lambda uses: uses.need)
        return Uses(most.need, self.signs or other.signs, most.reason)


class Image(enum.IntEnum):
    """An error of the saved value on the way to a use."""

    VALUE = 0  # the value itself, in another shape or type
    SCALED = 1  # times something
    SMOOTHED = 2  # behind a smooth function, whose results are of the size of 1


def packets(*names: str) -> frozenset[object]:
    """Operators of ATen by name, as far as this PyTorch has them."""
    return frozenset(getattr(aten, name) for name in names if hasattr(aten, name))


VIEWS = packets(
    *("view", "_unsafe_view", "reshape", "permute", "t", "transpose", "clone", "squeeze", "alias"),
    *("unsqueeze", "expand", "slice", "split", "split_with_sizes", "select", "cat", "stack"),
    *("constant_pad_nd", "_to_copy", "detach", "as_strided", "flip", "unbind", "contiguous"),
) | {prims.convert_element_type, operator.getitem}
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
UNEVEN = packets(
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "exp"),
    *("logsumexp", "log", "log1p", "log2", "log10", "expm1", "exp2", "reciprocal", "rsqrt", "sqrt"),
    *("nll_loss_forward", "nll_loss_backward", "cumprod", "prod", "acos", "asin", "acosh", "atanh"),
    *("erfinv", "lgamma", "digamma", "linalg_vector_norm"),
)
RELU = packets("relu", "threshold_backward", "leaky_relu", "leaky_relu_backward")
NEEDS_OF_ATTENTION = {
    "query": Need.SCORES,
    "key": Need.SCORES,
    "value": Need.MIXED,
    "out": Need.MIXED,
}


def packet(target: object) -> object:
    """An operator without its overload."""
    return getattr(target, "overloadpacket", target)


def origin(node: Node) -> object:
    """The operator that a node came from, before decompositions."""
    return packet(node.meta.get("original_aten", node.target))


def name_of(node: Node) -> str:
    """The name of the operator that a node came from, for reports."""
    source = origin(node)
    return getattr(source, "__name__", str(source))


def is_attention(node: Node) -> bool:
    """Return True if a node is attention in one operator, or its gradient, of any backend."""
    return "attention" in getattr(packet(node.target), "__name__", "")


def is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def is_uneven(node: Node) -> bool:
    """Return True if the small ones among its results matter, as those of a quotient: what is
    divided by the large ones later needs them as exactly."""
    made_by = origin(node)
    if made_by in SMOOTH:
        return False
    if aten.div in (made_by, packet(node.target)):
        return node.op == "call_function" and len(node.all_input_nodes) > 1 and _is_full(node)
    return made_by in UNEVEN or packet(node.target) in UNEVEN


def _is_full(quotient: Node) -> bool:
    """Return True if each number is divided by one of its own."""
    divisor = quotient.args[-1]
    return is_tensor(divisor) and divisor.meta["val"].shape == quotient.meta["val"].shape


def is_blind_to_means(value: Node) -> bool:
    """Return True if a product reads a value, and a batch or instance norm its result.

    The gradient of that product sums to zero over samples, so of the value only the distances
    from the means of features count; those are small where something was added to a product.
    """
    read = _readers({value}, VIEWS)
    results = {user for user in read if packet(user.target) in FORWARD_PRODUCTS}
    return any("batch_norm" in name_of(user) for user in _readers(results, VIEWS | SUMS))


def _readers(nodes: set[Node], through: frozenset[object]) -> set[Node]:
    """Find all that read some nodes, directly or through operators of `through`."""
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
    """Nodes of a backward graph that depend on gradients."""
    gradients: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            is_one = "tangents" in node.name
        else:
            is_one = not gradients.isdisjoint(node.all_input_nodes)
        if is_one:
            gradients.add(node)
    return gradients


class Backward:
    """A backward graph: which nodes depend on gradients, and who reads what."""

    def __init__(self, graph: Graph, parameters: Collection[str] = ()) -> None:
        self._parameters = parameters  # by name, and what is computed from them alone
        self.placeholders = {n.name: n for n in graph.nodes if n.op == "placeholder"}
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.gradients = gradients_in(graph)
        self._uses: dict[tuple[Node, Image], Uses] = {}
        for node in reversed(list(self.order)):  # so that no chain is too long for recursion
            for image in Image if node not in self.gradients else ():
                self.uses(node, image)

    def points(self, saved: Node) -> list[Node]:
        """Values through which all uses of a saved one go, the value itself first."""
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
        """The need of all users of a node."""
        key = (node, image)
        if key not in self._uses:
            self._uses[key] = _join(self._use(node, user, image) for user in node.users)
        return self._uses[key]

    def _use(self, node: Node, user: Node, image: Image) -> Uses:
        """The need of one user, or of all that read its result, where that is an image of the
        value."""
        if user.op == "output":
            return Uses(Need.EXACT, reason="gradient")
        made_by = origin(user)
        if user in self.gradients:
            return self._use_beside_gradients(node, user, made_by)
        target = packet(user.target)
        if made_by in SMOOTH or target in SMOOTH:
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

    def _use_beside_gradients(self, node: Node, user: Node, made_by: object) -> Uses:
        """The need of a user that depends on gradients. made_by: its operator before
        decomposition."""
        target, name = packet(user.target), name_of(user)
        if is_attention(user):
            return Uses(_need_of_attention(node, user), reason=name)
        if made_by in UNEVEN or target in UNEVEN:
            return Uses(Need.EXACT, reason=name)
        if target in PRODUCTS:
            return Uses(Need.LINEAR, reason=name)
        if target in (aten.mul, aten.where):
            smooth = made_by in SMOOTH
            return Uses(Need.SMOOTH if smooth else Need.LINEAR, reason=name)
        if made_by in RELU:
            return Uses(Need.LINEAR, signs=True, reason=name)
        return Uses(Need.EXACT, reason=name)

    @staticmethod
    def _is_scaled(node: Node, user: Node, target: object) -> bool:
        """Return True if an error stays as large beside the result as it was beside the value."""
        if target in MULTIPLIES:
            return True
        if target is aten.div:
            return user.args[0] is node and user.args[1] is not node
        if target is aten.pow:
            return user.args[0] is node and user.args[1] in (1, 2, 3)
        return False

    def _is_summed(self, node: Node, user: Node, target: object, image: Image) -> bool:
        """Return True if `user` is a sum that does not cancel: x + y, x + bias, 1 + tanh(x)."""
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
    """Operands are needed for the scores; their statistics, masks and seeds are needed exactly."""
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
    """Return True if a size is at most another, as far as that is known without a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return str(a) == str(b)

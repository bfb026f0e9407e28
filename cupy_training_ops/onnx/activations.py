# SPDX-License-Identifier: MIT
"""Activations between the forward and backward part of a training graph, stored as codes.

Codes are the compressed form in which an ActivationStash stores arrays, of a few bits an element.
Which accuracy a value needs follows from its readers in the backward part: READ says it for each.
The value is stored behind its last reader in the forward part, and read before its first reader in
the backward part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..activations import ActivationStash
from ..activations.policies import POLICIES
from ..errors import refuse, shown
from .graph import Graph, Node
from .passes import PRODUCTS
from .runner import Runner
from .vectors import dense

PUT, GET = "::put", "::get"  # no operator has such a name
LEAST = 64 << 10  # bytes; smaller arrays stay as they are
VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
# What a gradient reads an input for, a `need` of ActivationStash.put: (operator, index of the
# input). "channels" is "normalised" with a row for each channel; others need "exact" numbers.
READ: Mapping[tuple[str, int], str] = {
    ("BatchNormalizationGrad", 1): "channels",
    ("BitmaskDropoutGrad", 1): "exact",
    ("ConvGrad", 1): "product",
    ("ConvTransposeGrad", 1): "product",
    ("DropoutGrad", 1): "mask",
    ("FusedMatMul", 0): "product",
    ("FusedMatMul", 1): "product",
    ("Gemm", 0): "product",
    ("Gemm", 1): "product",
    ("LayerNormalizationGrad", 1): "normalised",
    ("LeakyReluGrad", 1): "sign",
    ("MatMul", 0): "product",
    ("MatMul", 1): "product",
    ("FastGeluGrad", 1): "smooth",
    ("GeluGrad", 1): "smooth",
    ("QuickGeluGrad", 1): "smooth",
    ("ReluGrad", 1): "sign",
    ("SimplifiedLayerNormalizationGrad", 1): "normalised",
}


class Activations:
    """Stores one session's activations in `stash`, an ActivationStash of the policy `policy`."""

    def __init__(self, policy: Any) -> None:
        if not isinstance(policy, str) or policy not in POLICIES:
            refuse("TrainingSession", "activations", f"one of {sorted(POLICIES)}", shown(policy))
        self.stash = ActivationStash(policy)  # type: ignore[arg-type]

    def runner(self, node: Node) -> Runner | None:
        """Return the runner of a node that stores a value, or takes it back; None of others."""
        if node.op_type not in (PUT, GET):
            return None
        run = self._put if node.op_type == PUT else self._get
        name, need = node.attributes["name"], node.attributes["need"]
        return Runner(lambda xp: lambda values: run(xp, name, need, values), keeps=True)

    def _put(self, xp: Any, name: str, need: Any, values: list[Any]) -> list[Any]:
        """Store values[0] as `name`, and return [(None, its shape)]; of a small one [(it, None)].

        need: for what it is read, an item of READ, which decides the codes' accuracy.
        """
        x = values[0]
        if x.nbytes < LEAST:
            return [(x, None)]
        x, shape = dense(xp, x), x.shape
        if need == "channels":  # each channel of each sample is a row that is normalised
            x = x.reshape(shape[0] * shape[1], -1) if len(shape) > 2 else x
            need = "normalised"
        self.stash.put(name, x, need)
        return [(None, shape)]

    def _get(self, xp: Any, name: str, need: str, values: list[Any]) -> list[Any]:
        """Return [the value stored as `name`]; values[0]: _put's (value, None) or (None, shape)."""
        value, shape = values[0]
        return [value if shape is None else self.stash.get(name).reshape(shape)]


def with_codes(graph: Graph) -> Graph:
    """Return the graph with nodes `::put` that store values, and `::get` that take them back.

    x::put = ::put(x); x::get = ::get(x::put), which the backward part reads in place of x.
    """
    backward = _backward(graph)
    needs = _needs(graph, backward)
    before: dict[int, list[Node]] = {}  # new nodes by the index of the node behind them
    after: dict[int, list[Node]] = {}  # and of the node before them
    renamed: dict[str, str] = {}
    for name, need in needs.items():
        readers = [i for i, node in enumerate(graph.nodes) if name in node.inputs]
        last = max(
            i
            for i, n in enumerate(graph.nodes)
            if i not in backward and name in (*n.inputs, *n.outputs)
        )
        first = min(i for i in readers if i in backward)
        if last < first:
            attributes = {"name": name, "need": need}
            token = name + PUT
            after.setdefault(last, []).append(Node(PUT, "", 1, (name,), (token,), attributes))
            before.setdefault(first, []).append(
                Node(GET, "", 1, (token,), (name + GET,), attributes)
            )
            renamed[name] = name + GET
    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        if i in backward:
            inputs = tuple(renamed.get(name, name) for name in node.inputs)
            node = replace(node, inputs=inputs)
        nodes += [*before.get(i, ()), node, *after.get(i, ())]
    return graph.with_nodes(nodes)


def _backward(graph: Graph) -> set[int]:
    """Return the indices of the nodes of the backward part.

    These depend on `<loss>_grad`, a constant, where the loss is the first output; and views of
    forward values that they alone read.
    """
    reached = {f"{item.name}_grad" for item in graph.outputs[:1]}
    backward = set()
    for i, node in enumerate(graph.nodes):
        if reached.intersection(node.inputs):
            reached.update(filter(None, node.outputs))
            backward.add(i)
    forward = Counter(
        n for i, node in enumerate(graph.nodes) if i not in backward for n in node.inputs
    )
    forward.update(item.name for item in graph.outputs)
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        if i not in backward and node.op_type in VIEWS and not any(map(forward.get, node.outputs)):
            backward.add(i)
            forward.subtract(node.inputs)
    return backward


def _needs(graph: Graph, backward: set[int]) -> dict[str, str]:
    """Return {value's name: its need} of those that are stored as codes, as {"relu_out": "sign"}.

    backward: indices of the backward part's nodes. A value of the forward part is stored as codes
    if the backward part reads it, and if it needs neither this value's exact numbers nor those of
    another one in the same memory.
    """
    fixed = _parameters(graph)
    never_coded = fixed | {item.name for item in graph.outputs} | {""}
    forward = [node for i, node in enumerate(graph.nodes) if i not in backward]
    owner = _owners(graph, backward)
    needs: dict[str, str | None] = {}  # None: exact numbers
    for name in (n for node in forward for n in node.outputs if n not in never_coded):
        if any(name in graph.nodes[i].inputs for i in backward):
            read = _reads(graph, backward, name)
            needs[name] = _join(read, _is_linear(graph, backward, fixed, name))
    exact = {owner.get(name, name) for name, need in needs.items() if need is None}
    return {
        name: need for name, need in needs.items() if need and owner.get(name, name) not in exact
    }


def _owners(graph: Graph, backward: set[int]) -> dict[str, str]:
    """Return {view of the forward part: value whose memory it has}, both names.

    backward: indices of the backward part's nodes.
    """
    owner: dict[str, str] = {}
    for i, node in enumerate(graph.nodes):
        if i not in backward and node.op_type in (*VIEWS, "Split", "Slice", "Expand"):
            source = owner.get(node.inputs[0], node.inputs[0])
            owner.update(dict.fromkeys(node.outputs, source))
    return owner


def _parameters(graph: Graph) -> set[str]:
    """Return inputs and constants of the graph, and views of them."""
    names = {item.name for item in graph.inputs} | graph.constants.keys()
    for node in graph.nodes:
        if node.op_type in VIEWS and node.inputs[0] in names:
            names.update(node.outputs)
    return names


def _reads(graph: Graph, backward: Iterable[int], name: str) -> set[str]:
    """Return the needs (of READ, or "exact") of all backward readers of a value or its views."""
    names, needs = {name}, set()
    for i in sorted(backward):
        node = graph.nodes[i]
        for k, each in enumerate(node.inputs):
            if each not in names:
                continue
            if node.op_type in VIEWS and k == 0:
                names.update(node.outputs)
            else:
                needs.add(READ.get((node.op_type, k), "exact"))
    return needs


def _is_linear(graph: Graph, backward: set[int], fixed: set[str], name: str) -> bool:
    """Return True if all forward products of a value, or views of it, are with parameters.

    name: the value's. fixed: names of parameters. backward: indices of the backward part's nodes.
    """
    names = {name}
    for i, node in enumerate(graph.nodes):
        if i in backward or not names.intersection(node.inputs[:1] + node.inputs[1:2]):
            continue
        if node.op_type in VIEWS and node.inputs[0] in names:
            names.update(node.outputs)
        elif node.op_type in PRODUCTS:
            others = [n for n in node.inputs[:2] if n not in names]
            if not others or not fixed.issuperset(others):
                return False
    return True


def _join(read: set[str], is_linear: bool) -> str | None:
    """Return one need for all that a value is `read` for; None where its exact numbers are needed.

    is_linear: True if the value's products have only parameters as their other factors.
    """
    if "exact" in read:
        return None
    if "smooth" in read:
        return "smooth" if read == {"smooth"} else None
    if "product" in read and not is_linear:
        return "product" if read == {"product"} else None
    for need in ("channels", "normalised"):
        if need in read:
            return need if "mask" not in read else None
    if read == {"mask"} or read == {"sign"}:
        return read.pop()
    return "linear" if "mask" not in read else None

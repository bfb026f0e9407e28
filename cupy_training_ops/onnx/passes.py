# SPDX-License-Identifier: MIT
"""Changes of a graph before it is compiled: constants, shapes, random states, fused products,
and the order of nodes.

ONNX Runtime's training graphs add all gradients to their accumulation buffers at the end: until
then each gradient, or what it is computed from, occupies memory. `schedule` moves each forward.

Nodes that a change does not fit are added to `problems`.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..dtypes import HostArray
from ..errors import ArgumentError
from ..registry import REGISTRY
from .graph import Graph, Node, Problems, check_attributes, subgraphs
from .program import SMALL
from .standard.randoms import DRAWN, seed_bits

SHAPED = {"MaxPoolGrad": "MaxPool", "AveragePoolGrad": "AveragePool"}  # gradient: its pool
N_INPUTS = {"MaxPoolGrad": 2, "AveragePoolGrad": 1}  # as ONNX Runtime writes them: without a shape
SUFFIX = "::shape"  # x::shape is the name of the value Shape(x)
ACCUMULATORS = ("InPlaceAccumulator", "InPlaceAccumulatorV2")  # (buffer, gradient): buffer += it
LOOKS = ("Shape", "Size")  # operators that read the shape of their input, not its elements
SHARED = -1  # in place of an accumulator's index: several accumulators, or an output, need a node
STATE = "::random"  # y::random is the name of the generator's state of the node that makes y
DRAWING = frozenset(  # operators that draw random numbers
    name for (_, name, _), cls in REGISTRY.items() if any(i.name == "state" for i in cls.inputs)
).union(DRAWN)
CONSTANTS = {  # attributes of Constant, one of which has its value; and their types
    "value": HostArray,
    "value_float": float,
    "value_floats": Sequence[float],
    "value_int": int,
    "value_ints": Sequence[int],
}


def prepare(graph: Graph, problems: Problems, seed: int | None = None) -> Graph:
    """Return the graph with four changes that compiling it relies on.

    Constant nodes become entries of `graph.constants`, and small integers among these that
    subgraphs capture of theirs; gradients of pools get the pool's input shape as one more input;
    nodes that draw random numbers get a state as one more input, from `seed` (from the operating
    system if None). Nodes that do not allow this are added to `problems`.
    """
    graph = _with_constants_inside(_prepare_part(graph, problems))
    return _with_states(graph, problems, seed)


def _prepare_part(graph: Graph, problems: Problems) -> Graph:
    """Return a graph with `prepare`'s changes but random states, after those of its subgraphs.

    Nodes of subgraphs that draw random numbers are added to `problems`.
    """
    nodes = []
    for node in graph.nodes:
        parts = subgraphs(node)
        for name, part in parts.items():
            parts[name] = _prepare_part(part, problems)
            for inner in filter(_draws, parts[name].nodes):
                problems.add(inner.title, "it draws random numbers inside of a subgraph")
        attributes = {**node.attributes, **parts}
        nodes.append(replace(node, attributes=attributes) if parts else node)
    graph = _with_shapes(without_constants(graph.with_nodes(nodes), problems), problems)
    return _with_early_shapes(graph)


def _with_constants_inside(graph: Graph) -> Graph:
    """Return the graph with small integers and flags that subgraphs capture as their constants.

    So a subgraph's nodes on the host read them there, as a condition that never changes. No node
    updates integers.
    """
    return graph.with_nodes(
        replace(node, attributes={**node.attributes, **_with_captured(node, graph.constants)})
        if subgraphs(node)
        else node
        for node in graph.nodes
    )


def _with_captured(node: Node, constants: Mapping[str, HostArray]) -> dict[str, Graph]:
    """Return a node's subgraphs by attribute; constants: of the graph around, by name there."""
    parts = subgraphs(node)
    for name, part in parts.items():
        pairs = zip(part.inputs[::-1], node.inputs[::-1], strict=False)
        captured = [(item.name, outer) for item, outer in pairs][: part.n_captured]
        known = {own: constants[outer] for own, outer in captured if outer in constants}
        small = {n: a for n, a in known.items() if a.size <= SMALL and a.dtype.kind in "ib"}
        wider = replace(part, constants={**part.constants, **small})
        parts[name] = _with_constants_inside(wider)
    return parts


def _draws(node: Node) -> bool:
    """Return True if a node may draw random numbers.

    A Dropout without its third input, training_mode, is the identity and draws none.
    """
    return _state_place(node) is not None and (node.op_type != "Dropout" or any(node.inputs[2:3]))


def _with_early_shapes(graph: Graph) -> Graph:
    """Return the graph with each Shape and Size directly behind the node that makes its input.

    So no array stays in memory only until its shape is read.
    """
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
    looks = {
        i
        for i, node in enumerate(graph.nodes)
        if node.is_standard and node.op_type in LOOKS and len(node.inputs) == 1
    }
    behind: dict[int, list[Node]] = {}  # by the index of the maker; -1: of inputs and constants
    for i in sorted(looks):
        behind.setdefault(makers.get(graph.nodes[i].inputs[0], -1), []).append(graph.nodes[i])
    nodes = behind.get(-1, [])
    for i, node in enumerate(graph.nodes):
        nodes += [*([] if i in looks else [node]), *behind.get(i, [])]
    return graph.with_nodes(nodes)


def _with_states(graph: Graph, problems: Problems, seed: int | None) -> Graph:
    """Give each node that draws random numbers a state: a constant, as one more input.

    It is a uint64 array [seed, numbers drawn so far], which the node updates in place as it runs.
    The seed is the node's own or the session's, with the node's index in its upper 32 bits.
    """
    key = secrets.randbits(64) if seed is None else seed % 2**64
    nodes, states = [], {}
    for i, node in enumerate(graph.nodes):
        place = _state_place(node)
        try:
            own = _seed_of(node, key)
        except ArgumentError as error:
            problems.add(node.title, error)
            continue
        if place is not None:
            name = f"{node.outputs[0]}{STATE}"
            states[name] = np.array([own ^ (i << 32), 0], np.uint64)
            inputs = (*node.inputs, *[""] * (place - len(node.inputs)), name)
            rest = {n: value for n, value in node.attributes.items() if n != "seed"}
            node = replace(node, inputs=inputs, attributes=rest)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **states})


def _seed_of(node: Node, key: int) -> int:
    """Return the 64 bits of a node's attribute `seed`, or `key`, the session's, without one."""
    if node.op_type not in DRAWING or "seed" not in node.attributes:
        return key
    kind = float if node.op_type in DRAWN else int
    seed = check_attributes({"seed": node.attributes["seed"]}, {"seed": kind})["seed"]
    return seed_bits(seed) if node.op_type in DRAWN else int(seed) % 2**64


def _state_place(node: Node) -> int | None:
    """Return the index at which a node's inputs get the generator's state.

    None: the operator draws nothing, or the node has that input already.
    """
    if node.op_type not in DRAWING or not node.outputs:
        return None
    place = DRAWN.get(node.op_type)
    if place is None:
        if node.is_standard and node.version < 12:
            return None
        cls = next(cls for (_, name, _), cls in REGISTRY.items() if name == node.op_type)
        place = next(i for i, item in enumerate(cls.inputs) if item.name == "state")
    return place if len(node.inputs) <= place else None


def without_constants(graph: Graph, problems: Problems) -> Graph:
    """Return the graph without Constant nodes, their values added to `graph.constants`."""
    constants = {}
    for node in filter(_is_constant, graph.nodes):
        try:
            constants[node.outputs[0]] = constant(node)
        except ArgumentError as error:
            problems.add(node.title, error)
    nodes = tuple(node for node in graph.nodes if not _is_constant(node))
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants})


def _is_constant(node: Node) -> bool:
    return node.op_type == "Constant" and node.is_standard and len(node.outputs) == 1


def constant(node: Node) -> HostArray:
    """Return the value of a Constant node: the array of `value`, or float32 or int64 numbers."""
    types: dict[str, Any] = {"value_float": np.float32, "value_floats": np.float32}
    types |= {"value_int": np.int64, "value_ints": np.int64}
    if len(node.attributes) != 1 or not CONSTANTS.keys() >= node.attributes.keys():
        raise ArgumentError("expected one constant of numbers")
    ((name, value),) = check_attributes(node.attributes, CONSTANTS).items()
    return value if name == "value" else np.array(value, types[name])


def _with_shapes(graph: Graph, problems: Problems) -> Graph:
    """Give each pool's gradient one more input: the shape of the pool's X.

    dX has that shape, which follows from neither dY nor the indices.
    """
    pools = [node for node in graph.nodes if node.op_type in SHAPED.values() and node.inputs]
    forward = {name: node for node in pools for name in node.outputs}
    nodes, wanted = [], set()
    for node in graph.nodes:
        if len(node.inputs) == N_INPUTS.get(node.op_type):
            pool = _pool_of(node, forward)
            if pool is None:
                problems.add(node.title, "the pool that it is the gradient of is not there")
            else:
                name = pool.inputs[0] + SUFFIX
                wanted.add(pool.inputs[0])
                node = replace(node, inputs=(*node.inputs, name))
        nodes.append(node)
    return graph.with_nodes(_with_shape_nodes(nodes, wanted))


def _with_shape_nodes(nodes: list[Node], wanted: set[str]) -> Iterator[Node]:
    """Yield the nodes, with x::shape = Shape(x) before the first pool that reads x.

    This is done for each x in `wanted`, from which x is then removed.
    """
    for node in nodes:
        name = node.inputs[0] if node.inputs else ""
        if node.op_type in SHAPED.values() and name in wanted:
            wanted.discard(name)
            yield Node("Shape", "", node.version, (name,), (name + SUFFIX,), place=node.place)
        yield node


def _pool_of(node: Node, forward: Mapping[str, Node]) -> Node | None:
    """Return the pool that a gradient node belongs to; None without one.

    forward: each output's name: the pool that makes it. MaxPoolGrad reads the pool's indices.
    AveragePoolGrad reads only `y_grad`, where y is the pool's output, or has the node name
    `pool's name_Grad/...`.
    """
    if node.op_type == "MaxPoolGrad":
        return forward.get(node.inputs[1])
    names = [n.removesuffix("_grad") for n in node.inputs]
    pool = next((forward[n] for n in names if n in forward), None)
    if pool is not None:
        return pool
    title = node.name.split("_Grad/")[0]
    return next((pool for pool in forward.values() if pool.name and pool.name == title), None)


# ---- sequences of parts --------------------------------------------------------------------------


def split_sequences(graph: Graph) -> Graph:
    """Return the graph with Split in place of SplitToSequence, where only SequenceAt reads that.

    The extents of the parts and the indices have to be constants:

    s = SplitToSequence(x, 2); a = SequenceAt(s, 0); b = SequenceAt(s, 1)
    a, b = Split(x)
    """
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    ends = {item.name for item in graph.outputs}
    constants, types = dict(graph.constants), dict(graph.types)
    nodes, parts = [], {}  # parts: Split's outputs by sequence
    for node in graph.nodes:
        name = node.outputs[0] if node.outputs else ""
        is_split = node.op_type == "SplitToSequence" and node.is_standard and node.inputs
        if is_split and name not in ends:
            sizes = _sizes_of_parts(graph, node)
            places = [_part_number(graph, reader, sizes) for reader in readers.get(name, ())]
            if sizes and None not in places:
                outputs = tuple(f"{name}::{i}" for i in range(len(sizes)))
                constants[f"{name}::split"] = np.array(sizes, np.int64)
                axis = {"axis": node.attributes.get("axis", 0)}
                node = Node(
                    "Split", "", 13, (node.inputs[0], f"{name}::split"), outputs, axis, name
                )
                parts[name] = outputs
                x = node.inputs[0]
                dtype = constants[x].dtype if x in constants else types.get(x)
                types |= {} if dtype is None else dict.fromkeys(outputs, dtype)
        elif node.op_type == "SequenceAt" and parts.keys() & node.inputs[:1]:
            outputs = parts[node.inputs[0]]
            part = outputs[int(graph.constants[node.inputs[1]])]
            node = Node("Identity", "", 13, (part,), node.outputs, name=node.name)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types)


def _sizes_of_parts(graph: Graph, node: Node) -> list[int]:
    """Return the extents, along the axis, of the parts that a SplitToSequence makes.

    [] where they depend on values, or on an extent that the model does not declare.
    """
    x = graph.constants.get(node.inputs[0])
    extents = graph.shapes.get(node.inputs[0]) if x is None else x.shape
    split = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    axis = node.attributes.get("axis", 0)
    if split is None or extents is None or not -len(extents) <= axis < len(extents):
        return []
    n = extents[axis]
    if split.ndim or not isinstance(n, int) or split <= 0:
        return split.ravel().tolist() if split.ndim else []
    return [min(int(split), n - i) for i in range(0, n, int(split))]  # 7 by 3: [3, 3, 1]


def _part_number(graph: Graph, reader: Node, sizes: Sequence[int]) -> int | None:
    """Return the constant index (it may be negative) with which a SequenceAt takes a part.

    None if `reader` is another node, or its index is no constant, or outside of `sizes`.
    """
    is_part = reader.op_type == "SequenceAt" and len(reader.inputs) == 2
    place = graph.constants.get(reader.inputs[1]) if is_part else None
    return (
        int(place)
        if place is not None and place.size == 1 and -len(sizes) <= place < len(sizes)
        else None
    )


# ---- products that do what is written around them: transpose, scale ------------------------------

PRODUCTS = ("Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul")
TAKE_TF32 = (*PRODUCTS, "ConvGrad", "ConvTransposeGrad")  # with an attribute allow_tf32 here


def fuse_products(graph: Graph) -> Graph:
    """Replace transposes and constant factors around matrix products by the products' attributes.

    Mul(MatMul(Transpose(a), b), 0.5) becomes FusedMatMul(a, b, transA=1, alpha=0.5).
    """
    graph = _without_other_names(graph)
    graph = _fold_readers(graph, _is_product, _transposed_input, _transpose_product)
    graph = _with_transposed_factors(graph)
    graph = _fold_readers(graph, _has_alpha, partial(factor_of, graph.constants), _with_alpha)
    return _with_scaled_factors(graph)


def _fold_readers(
    graph: Graph,
    is_product: Callable[[Node], bool],
    read: Callable[[Node], tuple[str, float] | None],
    fold: Callable[[Node, float], Node],
) -> Graph:
    """Return the graph with Transpose or Mul behind a product removed, and the product changed.

    This is done where nothing else reads the product. read(node): the name of the value that the
    node transposes or multiplies and a number, None of other nodes. fold(product, number): the
    product that computes the node's result itself.
    """
    reads = _reads(graph)
    products = {node.outputs[0] for node in graph.nodes if is_product(node)}
    readers: dict[str, tuple[str, float]] = {}
    for node in graph.nodes:
        work = read(node)
        if work is not None and work[0] in products and reads[work[0]] == 1:
            readers[work[0]] = node.outputs[0], work[1]
    outputs = {output for output, _ in readers.values()}
    nodes = []
    for node in graph.nodes:
        if outputs.intersection(node.outputs):
            continue
        if node.outputs[:1] and node.outputs[0] in readers:
            output, number = readers[node.outputs[0]]
            node = fold(replace(node, outputs=(output,)), number)
        nodes.append(node)
    return graph.with_nodes(nodes)


def _without_other_names(graph: Graph) -> Graph:
    """Return the graph without Identity nodes (but for its outputs): readers read their inputs."""
    outputs = {item.name for item in graph.outputs}
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(names.get(name, name) for name in node.inputs)
        if node.op_type == "Identity" and node.is_standard and node.outputs[0] not in outputs:
            names[node.outputs[0]] = inputs[0]
        else:
            nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return graph.with_nodes(nodes)


def _is_plain_gemm(node: Node) -> bool:
    return node.op_type == "Gemm" and node.is_standard and not any(node.inputs[2:])


def _is_product(node: Node) -> bool:
    """Return True if a node is a Gemm without C, or a FusedMatMul over leading batch dimensions."""
    return _is_plain_gemm(node) or (node.op_type == "FusedMatMul" and not _swaps_batch(node))


def _swaps_batch(node: Node) -> bool:
    """Return True if a FusedMatMul's A or B has its batches behind the rows: (M, batch, K)."""
    return bool(node.attributes.get("transBatchA") or node.attributes.get("transBatchB"))


def _is_transpose(node: Node) -> bool:
    """Return True if a node swaps the last two dimensions alone."""
    perm = list(node.attributes.get("perm") or ())
    rank = len(perm)
    last = [*range(rank - 2), rank - 1, rank - 2]
    return node.op_type == "Transpose" and node.is_standard and rank > 1 and perm == last


def _transposed_input(node: Node) -> tuple[str, float] | None:
    """Return (x, 1) of a Transpose of x, None of other nodes: `read` of _fold_readers.

    The number means nothing here.
    """
    return (node.inputs[0], 1) if _is_transpose(node) else None


def _transpose_product(node: Node, _: float) -> Node:
    """Return the product that computes (A B)^T = B^T A^T.

    A Gemm swaps A and B. A FusedMatMul may have vectors as A or B, which is known only as it runs:
    it gets transY = 1, which transposes its result.
    """
    attributes = node.attributes
    if node.op_type == "FusedMatMul":
        return replace(node, attributes={**attributes, "transY": 1})
    flags = {"transA": not attributes.get("transB"), "transB": not attributes.get("transA")}
    a, b = node.inputs[:2]
    return replace(node, inputs=(b, a), attributes={**attributes, **flags})


def _with_transposed_factors(graph: Graph) -> Graph:
    """Return the graph with products that read x with transA or transB, not Transpose(x)."""
    sources = {node.outputs[0]: node.inputs[0] for node in graph.nodes if _is_transpose(node)}
    changed = graph.with_nodes(
        _of_sources(node, sources) if _has_alpha(node) else node for node in graph.nodes
    )
    reads = _reads(changed)
    return changed.with_nodes(
        node for node in changed.nodes if not _is_transpose(node) or reads[node.outputs[0]]
    )


def _of_sources(node: Node, sources: Mapping[str, str]) -> Node:
    """Return the product with each transposed factor replaced by what it is the transpose of.

    transA or transB is flipped instead: transpose(A) B with transA = 0 is A B with transA = 1.
    """
    flags = [bool(node.attributes.get(f"trans{x}")) for x in "AB"]  # any integer but 0
    are_transposed = [name in sources for name in node.inputs[:2]]
    if _swaps_batch(node) or not any(are_transposed):
        return node
    inputs = tuple(sources.get(name, name) for name in node.inputs[:2])
    new = [flag ^ swaps for flag, swaps in zip(flags, are_transposed, strict=True)]
    product = _with_alpha(replace(node, inputs=(*inputs, *node.inputs[2:])), 1.0)
    attributes = {**product.attributes, "transA": new[0], "transB": new[1]}
    return replace(product, attributes=attributes)


def _with_scaled_factors(graph: Graph) -> Graph:
    """Return the graph with alpha in products, in place of Mul and Div of their factors.

    MatMul(Mul(a, 0.5), b) becomes FusedMatMul(a, b, alpha=0.5), if products alone read the Mul.
    """
    outside = {item.name for item in graph.outputs}
    for node in graph.nodes:
        outside.update(() if _has_alpha(node) else node.inputs)
    reads = _reads(graph)
    scaled: dict[str, tuple[str, float]] = {}
    for node in graph.nodes:
        factor = factor_of(graph.constants, node)
        name = node.outputs[0] if node.outputs else ""
        if factor is not None and name not in outside and reads[name]:
            scaled[name] = factor
    return graph.with_nodes(_without_factors(graph, scaled))


def _without_factors(graph: Graph, scaled: Mapping[str, tuple[str, float]]) -> Iterator[Node]:
    """Yield the nodes but those that make `scaled` values; their readers get the factor as alpha.

    scaled: each value's name: (x, number), of the value x * number.
    """
    for node in graph.nodes:
        if node.outputs[:1] and node.outputs[0] in scaled:
            continue
        scale = math.prod(scaled[n][1] for n in node.inputs if n in scaled)
        inputs = tuple(scaled[n][0] if n in scaled else n for n in node.inputs)
        if inputs != node.inputs:
            node = replace(_with_alpha(node, scale) if scale != 1 else node, inputs=inputs)
        yield node


def _reads(graph: Graph) -> Counter[str]:
    """Return {value's name: how often it is read, by nodes and as an output of the graph}."""
    reads = Counter(name for node in graph.nodes for name in node.inputs)
    reads.update(item.name for item in graph.outputs)
    return reads


def _has_alpha(node: Node) -> bool:
    """Return True if a node is a product that can be multiplied by a number."""
    if node.op_type == "Gemm":
        return _is_plain_gemm(node)
    return node.op_type in ("MatMul", "FusedMatMul") and len(node.outputs) == 1


def _with_alpha(node: Node, scale: float) -> Node:
    """Return the product with its alpha multiplied by `scale`, a MatMul as a FusedMatMul."""
    alpha = node.attributes.get("alpha", 1.0) * scale
    attributes = {**node.attributes, "alpha": alpha}
    if node.op_type == "MatMul":
        return replace(node, op_type="FusedMatMul", domain="com.microsoft", attributes=attributes)
    return replace(node, attributes=attributes)


def factor_of(constants: Mapping[str, HostArray], node: Node) -> tuple[str, float] | None:
    """Return (x, number) of a node that computes x * number, by Mul or Div with a constant.

    None of other nodes, and where the number is 0, not finite, not floating, or an array of rank 1
    or more.
    """
    if not node.is_standard or node.op_type not in ("Div", "Mul") or len(node.inputs) != 2:
        return None
    x, y = node.inputs
    if node.op_type == "Mul" and y not in constants:
        x, y = y, x
    array = constants.get(y)  # not of shape (1,), which would make a vector of a scalar x
    if array is None or array.ndim or array.dtype.kind != "f":
        return None
    number = float(array.reshape(-1)[0])
    scale = number if node.op_type == "Mul" else (1 / number if number else math.nan)
    return (x, scale) if math.isfinite(scale) and scale else None


# ---- the order of gradients ----------------------------------------------------------------------


def schedule(graph: Graph) -> Graph:
    """Return the graph with each gradient computed and accumulated as early as possible.

    Nodes that serve one accumulator alone move behind the last node that makes an input of theirs.
    All other outputs come first: if their nodes raise an error, no buffer has been changed.
    """
    if not any(node.op_type in ACCUMULATORS for node in graph.nodes):
        return graph
    graph, n_first = _results_first(graph)
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    cones = _cones(graph)  # for each accumulator, the indices of the nodes that serve it alone
    read = {name for node in graph.nodes for name in node.inputs}
    inside = {i for cone in cones for i in cone}
    behind: dict[int, list[int]] = {}  # index of a node: indices of those that move behind it
    for cone in cones:
        needed = {makers.get(name, -1) for i in cone for name in graph.nodes[i].inputs}
        is_read = read.intersection(graph.nodes[cone[-1]].outputs)  # of a sum that nodes read
        least = -1 if is_read else n_first - 1  # an unread sum stays behind the other results
        behind.setdefault(max(needed - set(cone) | {least}), []).extend(cone)
    order = list(behind.get(-1, ()))
    for i in range(len(graph.nodes)):
        order += [*([] if i in inside else [i]), *behind.get(i, ())]
    return graph.with_nodes(graph.nodes[i] for i in order)


def _results_first(graph: Graph) -> tuple[Graph, int]:
    """Return the graph with some nodes moved to its front, and the number of these.

    They are the nodes that outputs other than the accumulators' need, and Shape and Size of values
    that these nodes make.
    """
    sums = {o for node in graph.nodes if node.op_type in ACCUMULATORS for o in node.outputs}
    wanted = {item.name for item in graph.outputs} - sums
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(filter(None, node.inputs))
    late: set[str] = set()  # values that nodes of `behind` make
    first: list[Node] = []
    behind: list[Node] = []
    for node in graph.nodes:
        is_first = bool(wanted.intersection(node.outputs))
        is_first |= node.op_type in LOOKS and not late.intersection(node.inputs)
        (first if is_first else behind).append(node)
        late.update(() if is_first else filter(None, node.outputs))
    return graph.with_nodes((*first, *behind)), len(first)


def _cones(graph: Graph) -> list[list[int]]:
    """Return, for each accumulator, the indices of the nodes that serve it alone (its cone).

    They are in order; the accumulator's own is the last.
    """
    # Each name: the accumulators (their indices, or SHARED) that the value is needed for.
    readers: dict[str, set[int]] = {item.name: {SHARED} for item in graph.outputs}
    cones: dict[int, list[int]] = {}
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        served = set().union(*(readers.get(name, set()) for name in node.outputs if name))
        if node.op_type in ACCUMULATORS:
            served = {i}
        serves = served.pop() if len(served) == 1 else SHARED
        if serves != SHARED:
            cones.setdefault(serves, []).append(i)
        for name in node.inputs:
            readers.setdefault(name, set()).add(serves)
    return [cone[::-1] for cone in cones.values()][::-1]

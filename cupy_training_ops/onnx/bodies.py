# SPDX-License-Identifier: MIT
"""Bodies: the graphs of simpler nodes by which ONNX defines some operators (its functions).

y = Swish(x, alpha=2)    becomes    a = Constant(2); b = CastLike(a, x); c = Mul(x, b)
                                    d = Sigmoid(c); y = Mul(x, d)

Attention becomes FlashAttention where that computes the same, without the matrix of scores.

Functions take `types` and `shapes` of values by name, as far as they are known, and `schema`, the
OpSchema that the package onnx has of a node's operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import BOOL, FLOAT32, FLOAT64, FLOATS, Dtype, HostArray
from ..errors import ArgumentError, OpError, cut, raise_if_from_handler
from ..families.attention.operators import FlashAttention, max_width
from .checks import output_types, part_types
from .control import runs_graphs
from .graph import Extent, Graph, Node, Problems, Value, check_attributes, places_of, subgraphs
from .models import MOST_NODES, Proto, onnx_package, read_node, tensor_of
from .passes import constant
from .runner import is_known

_FLOAT, _DOUBLE = 1, 11  # ONNX's numbers of float32 and float64
_FLOATS = ("value_float", "value_floats")
_HEADS = ("q_num_heads", "kv_num_heads")
_PADS_MASK = 24  # opset from which on a mask may be shorter than keys
_KINDS: Mapping[str, Any] = {
    "INT": int,
    "FLOAT": float,
    "STRING": str,
    "TENSOR": HostArray,
    "INTS": tuple[int, ...],
    "FLOATS": tuple[float, ...],
    "STRINGS": tuple[str, ...],
    "GRAPH": Graph,
    "TYPE_PROTO": Value,
}
Wanted = Callable[[Node], bool]


def with_bodies(graph: Graph, problems: Problems) -> Graph:
    """Return the graph with bodies in place of the nodes whose operators nothing here runs."""
    return expand(graph, lambda node: not (is_known(node) or runs_graphs(node)), problems)


def expand(graph: Graph, wanted: Wanted, problems: Problems | None = None) -> Graph:
    """Return the graph with bodies in place of the nodes for which `wanted` is True.

    So it is in subgraphs, and in bodies again. Nodes without a body stay; so do those whose body
    depends on a type that is not known, which are added to `problems`.
    """
    if not any(wanted(node) or subgraphs(node) for node in graph.nodes):
        return graph
    known = {item.name: item.dtype for item in graph.inputs if item.dtype}
    return _Expansion(wanted, problems or Problems("the model")).graph(graph, known)


class _Expansion:
    """Puts bodies in place of nodes for which `wanted` is True; refuses more than MOST_NODES."""

    def __init__(self, wanted: Wanted, problems: Problems) -> None:
        self._wanted, self._problems = wanted, problems
        self._n_nodes = 0

    def graph(self, graph: Graph, known: Mapping[str, Dtype]) -> Graph:
        """Return the graph with bodies; known: the types of its inputs by name."""
        types = {**known, **{name: array.dtype for name, array in graph.constants.items()}}
        shapes = {**graph.shapes, **{name: a.shape for name, a in graph.constants.items()}}
        names = {"", *graph.constants, *(item.name for item in graph.inputs)}
        names.update(name for node in graph.nodes for name in node.outputs)
        nodes: list[Node] = []
        # A stack of nodes, the next one last, each with the operators whose bodies it is in.
        waiting: list[tuple[Node, tuple[str, ...]]]
        waiting = [(node, ()) for node in reversed(graph.nodes)]
        while waiting:
            node, around = waiting.pop()
            self._count()
            body = None
            if self._wanted(node):
                by_kernels = _by_kernels(node, types, shapes, names)
                if by_kernels:
                    waiting.extend((each, around) for each in reversed(by_kernels))
                    continue
                body = self._body(node, types, shapes)
            if body is None or node.op_type in around:
                node = self._with_parts(_plain_cast(node, types) if around else node, types)
                nodes.append(node)
                types.update(_types(node, types, graph.types))
                continue
            if node.op_type == "Attention":
                body.nodes = _without_nan(body.nodes)
            if _is_double(node, types):
                body.nodes = [_widened(inner) for inner in body.nodes]
            inside = _put_in_place(node, body, names)
            around = (*around, node.op_type)
            waiting.extend((each, around) for each in reversed(inside))
        return graph.with_nodes(nodes)

    def _count(self) -> None:
        self._n_nodes += 1
        if self._n_nodes > MOST_NODES:
            raise ArgumentError(f"the bodies of operators come to more than {MOST_NODES} nodes")

    def _with_parts(self, node: Node, types: Mapping[str, Dtype]) -> Node:
        """Return the node with bodies in its subgraphs, too; types: around it, by name."""
        parts = subgraphs(node)
        wider = {k: self.graph(part, part_types(node, part, types)) for k, part in parts.items()}
        return replace(node, attributes={**node.attributes, **wider}) if parts else node

    def _body(
        self,
        node: Node,
        types: Mapping[str, Dtype],
        shapes: Mapping[str, tuple[Extent, ...]],
    ) -> _Body | None:
        """Return the body of a node; None where ONNX has none, or it is refused as a problem."""
        schema = _schema(node)
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            return None
        captures = any(part.n_captured for part in subgraphs(node).values())
        if captures or not any(node.outputs):
            return None  # it would read more than the node's inputs, or is for nothing
        try:
            _check(node, schema)
            body = _Body(_function(schema, node, types, shapes), schema, node, self._problems)
            body.check_outputs(node)
        except OpError as error:
            self._problems.add(node.title, error)
            return None
        return body


def _types(
    node: Node, types: Mapping[str, Dtype], declared: Mapping[str, Dtype]
) -> Iterator[tuple[str, Dtype]]:
    """Yield (name, type) of a node's outputs whose type is known.

    It follows from the types of the inputs, or is what the model declares (`declared`, by name).
    """
    dtypes: Sequence[Dtype | None] = ()
    try:
        is_constant = node.op_type == "Constant" and node.is_standard
        dtypes = [constant(node).dtype] if is_constant else output_types(node, types)
    except (OpError, TypeError, ValueError) as error:  # which the check of types refuses later
        raise_if_from_handler(error)
    for k, name in enumerate(node.outputs):
        dtype = (dtypes[k] if k < len(dtypes) else None) or declared.get(name)
        if name and dtype is not None:
            yield name, dtype


# ---- a body --------------------------------------------------------------------------------------


class _Body:
    """A node's FunctionProto as `nodes` with the function's own names, `inputs` and `outputs`.

    Attributes that refer to the function's have the node's value, or else the default.
    """

    def __init__(self, function: Proto, schema: Any, node: Node, problems: Problems) -> None:
        """Read `function`; attributes are the node's, else the function's, else the schema's."""
        own = {item.name: item for item in node_proto(node).attribute}
        defaults = {
            name: item.default_value
            for name, item in schema.attributes.items()
            if item.default_value.type
        }
        defaults |= {item.name: item for item in function.attribute_proto}
        versions = {item.domain: int(item.version) for item in function.opset_import}
        self.inputs = tuple(function.input)
        self.outputs = tuple(function.output)
        self.nodes = []
        for item in function.node:
            _fill_in(item, {**defaults, **own})
            inner = read_node(item, node.place, versions, problems)
            self.nodes.append(replace(inner, name=node.name))

    def check_outputs(self, node: Node) -> None:
        """Refuse a node with an output that the body does not make."""
        computed = {name for inner in self.nodes for name in inner.outputs}
        for k, name in enumerate(node.outputs):
            if name and (k >= len(self.outputs) or self.outputs[k] not in computed):
                raise ArgumentError(f"its output {k} is not computed for these inputs")


def _put_in_place(node: Node, body: _Body, names: set[str]) -> list[Node]:
    """Return a body's nodes that read the node's inputs and make its outputs.

    Values between get new names, which are added to `names`, all those in use.
    """
    prefix = next(name for name in node.outputs if name)
    renamed = {"": ""}  # the function's names to the graph's
    for k, name in enumerate(body.inputs):
        renamed[name] = node.inputs[k] if k < len(node.inputs) else ""
    for name, outer in zip(body.outputs, node.outputs, strict=False):
        if outer:
            renamed[name] = outer
    for inner in body.nodes:
        for name in inner.outputs:
            if name not in renamed:
                renamed[name] = _unique(f"{prefix}/{node.op_type}/{name}", names)
    return [
        replace(
            inner,
            inputs=_without_end(tuple(renamed[name] for name in inner.inputs)),
            outputs=tuple(renamed[name] for name in inner.outputs),
        )
        for inner in body.nodes
    ]


def _by_kernels(
    node: Node,
    types: Mapping[str, Dtype],
    shapes: Mapping[str, tuple[Extent, ...]],
    names: set[str],
) -> list[Node]:
    """Return FlashAttention in place of an Attention, where that computes the same; else [].

    Its scores must not be an output. With caches of keys and values, nodes that concatenate them
    with the new ones come first. names: all in use; those of new values are added.
    """
    if node.op_type != "Attention" or not node.is_standard:
        return []
    try:
        _check(node, _schema(node))
    except OpError as error:  # which the body's check refuses
        raise_if_from_handler(error)
        return []
    if not (any(node.inputs[4:6]) or any(node.outputs[1:3])):
        attention = _flash_attention(node, types, shapes)
        return [attention] if attention else []
    if not _has_caches(node, types, shapes):
        return []
    plain = replace(
        node,
        inputs=_without_end(node.inputs[:4]),
        outputs=(node.outputs[0], "", "", *node.outputs[3:]),
    )
    attention = _flash_attention(plain, types, shapes)
    return _with_caches(node, attention, names) if attention else []


def _has_caches(
    node: Node, types: Mapping[str, Dtype], shapes: Mapping[str, tuple[Extent, ...]]
) -> bool:
    """Return True if an Attention has caches of keys and values that FlashAttention can serve.

    Arrays are (N, heads, L, width) of one type. With one query (L = 1) the scores are few, and the
    body serves better.
    """
    q, k, v, _, *caches, lengths = (*node.inputs, *[""] * 7)[:7]
    queries = shapes.get(q, ())
    return (
        all(caches)
        and not lengths
        and len(queries) == 4
        and queries[2] != 1
        and all(types.get(name) == types.get(q) for name in (k, v, *caches))
    )


def _with_caches(node: Node, attention: Node, names: set[str]) -> list[Node]:
    """Return nodes that concatenate caches with new keys and values, and `attention` over these.

    names: all in use; those of new values are added.
    If causal, query i attends to all cached keys and to new ones up to i: FlashAttention gets that
    by the number of keys of each batch element, cached + queries.
    """
    q, k, v, mask, past_k, past_v = (*node.inputs[:6],)
    nodes: list[Node] = []

    def make(op_type: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """Add a node, and return its result's name: `result`, or a new one."""
        result = result or _unique(f"{node.outputs[0]}/{node.op_type}/{op_type}", names)
        nodes.append(
            Node(op_type, "", node.version, inputs, (result,), attributes, node.name, node.place)
        )
        return result

    presents = (*node.outputs[1:3], "", "")
    k = make("Concat", past_k, k, result=presents[0], axis=2)
    v = make("Concat", past_v, v, result=presents[1], axis=2)
    lengths = ""
    if node.attributes.get("is_causal", 0):
        parts = [make("Shape", each, start=2, end=3) for each in (past_k, q)]
        batch = make("Shape", q, start=0, end=1)
        lengths = make("Expand", make("Add", *parts), batch)
    inputs = _without_end((q, k, v, mask, lengths))
    return [*nodes, replace(attention, inputs=inputs)]


def _flash_attention(
    node: Node, types: Mapping[str, Dtype], shapes: Mapping[str, tuple[Extent, ...]]
) -> Node | None:
    """Return FlashAttention with an Attention's inputs; None where it may not compute the same.

    FlashAttention has no caches, windows or scores as a result, and the widths of heads are
    limited, so that the model has to declare them.
    """
    q, k, v, mask, *caches, lengths = (*node.inputs, *[""] * 7)[:7]
    attributes = dict(node.attributes)
    precision = attributes.pop("softmax_precision", _FLOAT)
    attributes.pop("qk_matmul_output_mode", None)
    windows = [attributes.pop(f"{side}_window_size", -1) for side in ("left", "right")]
    dtype, rank = types.get(q), len(shapes.get(q, ()))
    if rank == 4:
        for name in _HEADS:
            attributes.pop(name, None)
    widths = [shapes[name][-1] if shapes.get(name) else None for name in (q, v)]
    counts = [attributes.get(name, 1) for name in _HEADS]
    fits = (
        any(node.outputs[:1])
        and not any((*node.outputs[1:], *caches))
        and dtype in FLOATS
        and types.get(k) == types.get(v) == dtype
        and (not mask or types.get(mask) in (BOOL, dtype))
        and (precision != _DOUBLE or dtype == FLOAT64)
        and windows == [-1, -1]
        and attributes.get("softcap", 0) >= 0
        and attributes.get("scale", 1) >= 0
        and rank == (3 if _HEADS[0] in attributes else 4)
        and all(
            isinstance(width, int) and 1 <= width // max(n, 1) <= max_width(dtype)
            for width, n in zip(widths, counts, strict=True)
        )
    )
    if not fits:
        return None
    inputs = _without_end((q, k, v, mask, lengths))
    attributes["pads_mask"] = int(node.version >= _PADS_MASK)
    op, ends = FlashAttention, (inputs, node.outputs[:1])
    return Node(op.name, op.domain, op.since, *ends, attributes, node.name, node.place)


def _without_nan(nodes: list[Node]) -> list[Node]:
    """Return the nodes of Attention's body with scores of 0 for queries that see no key.

    The body replaces such a query's weights, which Softmax makes NaN, by 0. Their gradient would be
    NaN still, since Softmax's is a product with its result.
    """
    softmax = next(node for node in nodes if node.op_type == "Softmax")
    weights = {softmax.outputs[0]}
    for node in nodes:
        if node.op_type == "Cast" and node.inputs[0] in weights:
            weights.add(node.outputs[0])
    where = [n for n in nodes if n.op_type == "Where" and n.inputs[2] in weights]
    if not where:
        return nodes
    is_blind, scores, version = where[0].inputs[0], softmax.inputs[0], softmax.version
    before = {*places_of(nodes, [is_blind])}
    made = [
        Node("Constant", "", version, (), ("ZeroF",), {"value": np.zeros(1, FLOAT32)}),
        Node("CastLike", "", version, ("ZeroF", scores), ("ZeroScore",)),
        Node("Where", "", version, (is_blind, "ZeroScore", scores), ("SafeScores",)),
        replace(softmax, inputs=("SafeScores",)),
    ]
    rest = [node for i, node in enumerate(nodes) if i not in before]
    place = rest.index(softmax)
    return [*(nodes[i] for i in sorted(before)), *rest[:place], *made, *rest[place + 1 :]]


def _is_double(node: Node, types: Mapping[str, Dtype]) -> bool:
    """Return True if a node reads float64, and no float32."""
    dtypes = {types.get(name) for name in node.inputs}
    return FLOAT64 in dtypes and FLOAT32 not in dtypes


def _widened(node: Node) -> Node:
    """Return a body's node with float64 in place of float32: in Casts, constants and subgraphs.

    ONNX's bodies compute means and scales in float32, which would round an operator of float64.
    """
    attributes = {name: _wide_value(value) for name, value in node.attributes.items()}
    if node.op_type == "Cast" and attributes.get("to") == _FLOAT:
        attributes["to"] = _DOUBLE
    elif node.op_type == "ConstantOfShape":
        attributes.setdefault("value", np.zeros(1))
    elif node.op_type == "Constant" and not attributes.keys().isdisjoint(_FLOATS):
        (value,) = attributes.values()
        attributes = {"value": np.array(value, np.float64)}
    return replace(node, attributes=attributes)


def _wide_value(value: Any) -> Any:
    """Return an attribute's value with float64 in place of float32 in arrays and graphs."""
    if isinstance(value, Graph):
        inner = {name: _wide_value(array) for name, array in value.constants.items()}
        return replace(value, nodes=tuple(map(_widened, value.nodes)), constants=inner)
    return value.astype(FLOAT64) if getattr(value, "dtype", None) == FLOAT32 else value


def _plain_cast(node: Node, types: Mapping[str, Dtype]) -> Node:
    """Return Cast in place of a CastLike whose type is known.

    CastLike reads a second array for its type alone; one on the device would keep a small constant
    from being cast on the host, where the next node may need it.
    """
    dtype = types.get(node.inputs[1]) if node.op_type == "CastLike" else None
    if dtype is None or node.attributes:
        return node
    number = int(onnx_package().helper.np_dtype_to_tensor_dtype(dtype))
    return replace(node, op_type="Cast", inputs=node.inputs[:1], attributes={"to": number})


def _without_end(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without "" at the end, which stands for optional inputs left out."""
    while names and not names[-1]:
        names = names[:-1]
    return names


def _unique(name: str, names: set[str]) -> str:
    """Return `name`, or name_1, name_2, ... if it is in `names`, to which the result is added."""
    result, n = name, 1
    while result in names:
        result, n = f"{name}_{n}", n + 1
    names.add(result)
    return result


def _fill_in(node: Proto, values: Mapping[str, Proto]) -> None:
    """Replace attributes of a NodeProto that refer to one of its function's by that's value.

    values: AttributeProtos by name. An attribute without a value is removed.
    """
    attributes = list(node.attribute)
    del node.attribute[:]
    for item in attributes:
        source = values.get(item.ref_attr_name) if item.ref_attr_name else item
        if source is not None:
            copy = node.attribute.add()
            copy.CopyFrom(source)
            copy.name = item.name
            for inner in copy.g.node:
                _fill_in(inner, values)


@functools.cache
def _get_schema(op_type: str, version: int, domain: str) -> Any:
    try:
        return onnx_package().defs.get_schema(op_type, version, domain)
    except Exception:  # of ONNX's, which has no schema of others' operators
        return None


def _schema(node: Node) -> Any:
    """Return ONNX's schema of a node's operator; None of operators of other domains."""
    return _get_schema(node.op_type, node.version, node.domain)


def _check(node: Node, schema: Any) -> None:
    """Refuse inputs and attributes that the schema does not have, or that are of another type."""
    n = len(node.inputs)
    if not schema.min_input <= n <= schema.max_input:
        expected = f"from {schema.min_input} to {schema.max_input} inputs"
        raise ArgumentError(f"expected {expected}, got {n}")
    for k, item in enumerate(schema.inputs):
        if item.option.name == "Single" and not (k < n and node.inputs[k]):
            raise ArgumentError(f"its input {item.name} is missing")
    unknown = sorted(node.attributes.keys() - schema.attributes.keys())
    if unknown:
        raise ArgumentError(f"unknown attributes {cut(', '.join(unknown))}")
    kinds = {name: _KINDS[item.type.name] for name, item in schema.attributes.items()}
    check_attributes(node.attributes, kinds)
    for name, item in schema.attributes.items():
        if item.required and name not in node.attributes:
            raise ArgumentError(f"its attribute {name} is missing")


def _function(
    schema: Any,
    node: Node,
    types: Mapping[str, Dtype],
    shapes: Mapping[str, tuple[Extent, ...]],
) -> Proto:
    """Return the FunctionProto of a node, of the newest opset up to the node's.

    Some functions depend on the node's inputs, so that ONNX asks for their types and shapes.
    """
    onnx = onnx_package()
    if schema.has_function:
        version = _newest(schema.function_opset_versions, node.version)
        data = schema.get_function_with_opset_version(version)
    else:
        version = _newest(schema.context_dependent_function_opset_versions, node.version)
        kinds = [_type_proto(schema, k, n, types, shapes) for k, n in enumerate(node.inputs)]
        own = node_proto(node).SerializeToString()
        try:
            data = schema.get_context_dependent_function_with_opset_version(version, own, kinds)
        except Exception as error:
            raise_if_from_handler(error)
            raise ArgumentError(f"ONNX gives no body of it: {error}") from None
    if not data:
        raise ArgumentError("ONNX gives no body of it for these inputs and attributes")
    return onnx.FunctionProto.FromString(data)


def _newest(versions: Sequence[int], most: int) -> int:
    return max((n for n in versions if n <= most), default=min(versions))


def _type_proto(
    schema: Any,
    k: int,
    name: str,
    types: Mapping[str, Dtype],
    shapes: Mapping[str, tuple[Extent, ...]],
) -> bytes:
    """Return the serialized TypeProto of input k, `name`; an empty one where it is left out."""
    onnx = onnx_package()
    kind = onnx.TypeProto()
    if not name:
        return bytes(kind.SerializeToString())
    if name not in types:
        item = schema.inputs[min(k, len(schema.inputs) - 1)]
        raise ArgumentError(
            f"its body depends on the type of {item.name}, {cut(name)!r}: expected "
            "one that the model says, got none"
        )
    number = onnx.helper.np_dtype_to_tensor_dtype(types[name])
    return bytes(onnx.helper.make_tensor_type_proto(number, shapes.get(name)).SerializeToString())


def node_proto(node: Node) -> Proto:
    """Return a NodeProto; subgraphs are the protobufs that they were read from."""
    onnx = onnx_package()
    result = onnx.helper.make_node(node.op_type, node.inputs, node.outputs, domain=node.domain)
    schema = _schema(node)
    for name, value in node.attributes.items():
        known = schema.attributes.get(name) if schema is not None else None
        if isinstance(value, Graph):
            value = value.source
        elif isinstance(value, np.ndarray):
            value = tensor_of(name, value)
        kind = int(known.type) if known is not None and value == () else None
        result.attribute.append(onnx.helper.make_attribute(name, value, attr_type=kind))
    return result

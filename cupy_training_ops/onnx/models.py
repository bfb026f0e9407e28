# SPDX-License-Identifier: MIT
"""Models: read as a Graph from a file, bytes or a protobuf.

No code of a model's is run, and what is read is bounded: a file by its size, an array by the bytes
that are there for it. No file is opened outside the model's folder.

`problems` collects the reasons to refuse a model. `versions` is {domain: opset}.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import limits
from ..dtypes import BFLOAT16, Dtype, HostArray, element_type
from ..errors import ArgumentError, DtypeError, OpError, cut, raise_if_from_handler, refuse, shown
from .graph import STANDARD, Extent, Graph, Node, Problems, Value, sort_nodes, subgraphs
from .inferred_shapes import infer_shapes
from .passes import split_sequences, without_constants
from .standard import NEWEST
from .stored import BY_DTYPE, graph_dtype, nbytes_of, unpack

MOST_BYTES = 1 << 31  # of a protobuf, at most
MOST_NODES = 1 << 20
MOST_ELEMENTS = 1 << 10  # of an initializer on which shapes may depend
BY_RANK = ("CausalConvWithState", "RotaryEmbedding")  # operators whose bodies depend on ranks
UNKNOWN = ("", "?", "None")  # names of dimensions that say nothing
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_PARAMETER = re.compile(r": PARAMETER target='([^']+)'")
Proto = Any  # a message of ONNX's
Source = Any  # a path, bytes, a ModelProto, or a Graph that was read


def onnx_package() -> Any:
    """Return the module onnx; ArgumentError with a hint if it is not installed."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise ArgumentError(
            "reading a model needs the package onnx: pip install 'cupy-training-ops[onnx]'"
        ) from None
    return onnx


def read_model(model: Source) -> tuple[Graph, Proto, Problems]:
    """Return a model's graph, its ModelProto (None of a Graph), and problems found in it so far."""
    if isinstance(model, Graph):  # a part of one that was read
        return model, None, Problems("the model")
    proto, folder, name = parse(model)
    problems = Problems(name)
    constants = dict(_initializers(proto.graph, folder, problems))
    return _graph(proto, constants, problems), proto, problems


def read_inferred(model: Source, least_opset: int) -> tuple[Graph, frozenset[str]]:
    """Return a model's graph with inferred types and shapes, and the names of its parameters.

    These are its initializers, without those that PyTorch's exporter says to be none. The graph is
    converted to opset `least_opset` if it is older; Constant nodes are among its constants.
    """
    onnx = onnx_package()
    proto, folder, name = parse(model)
    problems = Problems(name)
    arrays = dict(_initializers(proto.graph, folder, problems))
    problems.refuse()
    version = next((i.version for i in proto.opset_import if i.domain in STANDARD), least_opset)
    light = _inline_functions(_without_elements(proto, arrays))
    try:
        if version < least_opset:
            light = onnx.version_converter.convert_version(light, least_opset)
        light = infer_shapes(light)
    except Exception as error:  # of ONNX's C++ code
        raise_if_from_handler(error)
        raise ArgumentError(f"{name}: its shapes cannot be inferred: {error}") from None
    keep_if(light.graph.initializer, lambda item: _text(item.name) not in arrays)
    added = dict(_initializers(light.graph, folder, problems))  # by the conversion
    graph = _graph(light, {**arrays, **added}, problems)
    whole = split_sequences(without_constants(graph, problems))
    problems.refuse()
    inputs = tuple(item for item in whole.inputs if item.name not in whole.constants)
    # Without such metadata all initializers are parameters.
    return replace(whole, inputs=inputs), _said_parameters(proto) & arrays.keys() or frozenset(
        arrays
    )


def _said_parameters(proto: Proto) -> frozenset[str]:
    """Return the names w of `p_w: PARAMETER target='w'`, as PyTorch's exporter writes metadata."""
    entries = {_text(item.key): _text(item.value) for item in proto.graph.metadata_props}
    return frozenset(_PARAMETER.findall(entries.get(_SIGNATURE, "")))


def _without_elements(proto: Proto, arrays: Mapping[str, HostArray]) -> Proto:
    """Return a copy of a ModelProto whose large initializers have no elements.

    Types and shapes are enough for inference, for which ONNX serializes the model: it cannot do so
    above 2 GiB. arrays: initializers by name; small integers among them, which may be shapes, are
    copied in from other files.
    """
    copy = type(proto)()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        array = arrays.get(_text(tensor.name))
        if math.prod(tensor.dims) > MOST_ELEMENTS:
            bare = type(tensor)(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            tensor.CopyFrom(bare)
        elif tensor.external_data and array is not None and array.dtype.kind == "i":
            tensor.CopyFrom(tensor_of(tensor.name, array))
    return copy


def parse(model: Source) -> tuple[Proto, Path | None, str]:
    """Return a ModelProto, the folder of its file (else None), and the model's name in messages.

    External data may be in that folder.
    """
    onnx = onnx_package()
    if isinstance(model, onnx.ModelProto):
        return model, None, "the model"
    if isinstance(model, bytes | bytearray | memoryview):
        return _from_bytes(onnx, bytes(model), "the model"), None, "the model"
    if not isinstance(model, str | os.PathLike):
        refuse("Session", "model", "a model, its bytes or the path of its file", shown(model))
    path = Path(model)
    return _from_bytes(onnx, read_bounded(path, MOST_BYTES), str(path)), path.parent, str(path)


def read_bounded(path: Path, most: int) -> bytes:
    """Return a file's bytes; one of more than `most` bytes, or no regular file, is refused."""
    if path.is_dir():
        raise ArgumentError(f"{path}: expected a file, got a folder")
    # A pipe is opened without a wait for its writer.
    with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as stream:
        if not path.is_file():
            raise ArgumentError(f"{path}: expected a file")
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise ArgumentError(f"{path}: expected at most {most} bytes, got {size}")
        return stream.read(size)


def _from_bytes(onnx: Any, data: bytes, name: str) -> Proto:
    """Return the ModelProto of a file's bytes; refuse what is none.

    onnx: the module. name: of the model, for messages.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # of protobuf, whose classes are no part of its interface
        raise ArgumentError(f"{name}: no ONNX model, or a damaged one ({error})") from None
    if not proto.HasField("graph"):
        raise ArgumentError(f"{name}: no ONNX model: it has no graph")
    return proto


def _graph(proto: Proto, constants: Mapping[str, HostArray], problems: Problems) -> Graph:
    """Return the Graph of a ModelProto, with its own functions inlined and its nodes sorted.

    constants: its initializers by name. Damages go to `problems`.
    """
    graph = proto.graph
    if len(graph.node) > MOST_NODES:
        raise ArgumentError(f"{problems.model}: {len(graph.node)} nodes, at most {MOST_NODES}")
    if not proto.opset_import:
        problems.add("the model", "it imports no opset, so that its operators are of no version")
    versions = {_domain(item.domain): int(item.version) for item in proto.opset_import}
    protos = list(_inline_functions(proto).graph.node)
    nodes = [read_node(node, i, versions, problems) for i, node in enumerate(protos)]
    inputs = tuple(value_of(item) for item in graph.input)
    for name in _twice(item.name for item in inputs):
        problems.add(f"input {cut(name)!r}", "it is declared twice")
    outputs = tuple(value_of(item) for item in graph.output)
    _check_types((*graph.input, *graph.output), problems)
    known = {item.name for item in inputs} | constants.keys()
    nodes_in_order = sort_nodes(nodes, known, problems)
    available = known.union(*(node.outputs for node in nodes))
    available.discard("")  # of outputs that are left out
    for item in outputs:
        if item.name not in available:
            problems.add(f"output {cut(item.name)!r}", "nothing makes it")
    infos = graph.value_info
    # Inferred declarations come first, so that the model's own replace them.
    if any(node.op_type in BY_RANK and node.is_standard for node in nodes):
        infos = (*_inferred(proto, protos, constants), *infos)
    declared = (*map(value_of, infos), *inputs, *outputs)
    types = {v.name: v.dtype for v in declared if v.dtype and v.is_array}
    shapes = {v.name: v.shape for v in declared if v.shape is not None and v.is_array}
    return Graph(nodes_in_order, inputs, outputs, constants, types, shapes)


def _inferred(
    proto: Proto, nodes: Sequence[Proto], arrays: Mapping[str, HostArray]
) -> Iterable[Proto]:
    """Return ValueInfoProtos of types and shapes that ONNX infers; () if it cannot.

    nodes: NodeProtos in place of the model's. arrays: initializers by name.
    """
    onnx = onnx_package()
    copy = _without_elements(proto, arrays)
    del copy.functions[:], copy.graph.node[:]
    copy.graph.node.extend(nodes)
    try:
        return tuple(onnx.shape_inference.infer_shapes(copy, data_prop=True).graph.value_info)
    except Exception as error:  # of ONNX's; what does not fit is refused elsewhere
        raise_if_from_handler(error)
        return ()


def _inline_functions(proto: Proto) -> Proto:
    """Return the model with the bodies of its own functions in place of their calls."""
    if not proto.functions:
        return proto
    if _n_inlined(proto) > MOST_NODES:
        raise ArgumentError(f"the model's functions come to more than {MOST_NODES} nodes")
    from onnx import inliner

    try:
        return inliner.inline_local_functions(_with_defaults(proto), convert_version=True)
    except Exception as error:
        raise_if_from_handler(error)
        raise ArgumentError(f"the model's functions cannot be put in place: {error}") from None


def _with_defaults(proto: Proto) -> Proto:
    """Return the model with defaults of functions' attributes in their calls.

    ONNX's inliner leaves these out. The model is copied where there are any.
    """
    defaults = {_called(f.name, f): f.attribute_proto for f in proto.functions}
    if not any(defaults.values()):
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    for nodes in (copy.graph.node, *(function.node for function in copy.functions)):
        for node in _all_nodes(nodes):
            own = {item.name for item in node.attribute}
            missing = defaults.get(_called(node.op_type, node), ())
            node.attribute.extend(item for item in missing if item.name not in own)
    return copy


def _called(name: str, proto: Proto) -> tuple[str, ...]:
    """Return what a function has in common with the NodeProtos that call it."""
    return proto.domain, name, getattr(proto, "overload", "")


def _all_nodes(nodes: Iterable[Proto]) -> Iterator[Proto]:
    """Yield NodeProtos, and those in their subgraphs."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for item in node.attribute for inner in item.g.node]


def _n_inlined(proto: Proto) -> int:
    """Return the number of nodes with functions inlined; refuse a function that calls itself.

    Functions are visited depth first, each twice: before those that it calls, and behind them, when
    its nodes can be counted.
    """
    functions = {(f.domain, f.name): f for f in proto.functions}
    counts: dict[tuple[str, str], int] = {}
    waiting = [(key, False) for key in functions]  # a stack; True: for the second time
    opened: set[tuple[str, str]] = set()
    while waiting:
        key, is_counted = waiting.pop()
        called = [(n.domain, n.op_type) for n in functions[key].node]
        if is_counted:
            counts[key] = min(sum(counts.get(k, 1) for k in called), 2 * MOST_NODES)
            continue
        if key in counts:
            continue
        if key in opened:
            raise ArgumentError(f"the model's function {cut(key[1])!r} calls itself")
        opened.add(key)
        waiting.append((key, True))
        waiting.extend((k, False) for k in called if k in functions and k not in counts)
    return sum(counts.get((n.domain, n.op_type), 1) for n in proto.graph.node)


def _initializers(
    graph: Proto, folder: Path | None, problems: Problems
) -> Iterator[tuple[str, HostArray]]:
    """Yield name and array of a GraphProto's initializers; damaged ones go to `problems`.

    folder: of external data, None if there may be none.
    """
    if graph.sparse_initializer:
        problems.add("the graph", "sparse initializers are not read here")
    read: Counter[Path] = Counter()
    for tensor in graph.initializer:
        try:
            yield _text(tensor.name), array_of(tensor, folder, read)
        except OpError as error:
            problems.add(f"initializer {cut(_text(tensor.name))!r}", error)


def read_node(proto: Proto, place: int, versions: Mapping[str, int], problems: Problems) -> Node:
    """Return the Node of a NodeProto; values that its subgraphs capture are its last inputs.

    place: its index in the graph. versions: opset by domain.
    """
    domain = _domain(proto.domain)
    node = Node(
        _text(proto.op_type),
        domain,
        versions.get(domain, NEWEST),
        tuple(map(_text, proto.input)),
        tuple(map(_text, proto.output)),
        name=_text(proto.name),
        place=place,
    )
    attributes: dict[str, Any] = {}
    for name in _twice(_text(item.name) for item in proto.attribute):
        problems.add(node.title, f"attribute {cut(name)!r} is set twice")
    for item in proto.attribute:
        try:
            if item.type == type(item).GRAPH:
                attributes[_text(item.name)] = _subgraph(item.g, versions, problems)
            else:
                attributes[_text(item.name)] = attribute_value(item)
        except OpError as error:
            problems.add(node.title, f"attribute {cut(_text(item.name))!r}: {error}")
    return with_captures(replace(node, attributes=attributes))


def with_captures(node: Node) -> Node:
    """Return the node with the values that its subgraphs capture appended to its and their inputs.

    Captured values are those that a subgraph reads from the graph around it.
    """
    parts = subgraphs(node)
    names = tuple(dict.fromkeys(name for part in parts.values() for name in part.free_names()))
    captures = tuple(Value(name, None, None) for name in names)
    wider = {
        name: replace(part, inputs=(*part.inputs, *captures), n_captured=len(names))
        for name, part in parts.items()
    }
    return replace(node, inputs=(*node.inputs, *names), attributes={**node.attributes, **wider})


def _subgraph(graph: Proto, versions: Mapping[str, int], problems: Problems) -> Graph:
    """Return the Graph of an attribute's GraphProto, without captured values among its inputs."""
    constants = dict(_initializers(graph, None, problems))
    nodes = [read_node(node, i, versions, problems) for i, node in enumerate(graph.node)]
    inputs, outputs = tuple(map(value_of, graph.input)), tuple(map(value_of, graph.output))
    _check_types((*graph.input, *graph.output), problems)
    part = Graph(tuple(nodes), inputs, outputs, constants, source=graph)
    known = {item.name for item in inputs} | constants.keys() | {*part.free_names()}
    declared = (*map(value_of, graph.value_info), *inputs, *outputs)
    return replace(
        part,
        nodes=sort_nodes(nodes, known, problems),
        types={v.name: v.dtype for v in declared if v.dtype and v.is_array},
        shapes={v.name: v.shape for v in declared if v.shape is not None and v.is_array},
    )


def _domain(name: Any) -> str:
    """Return a domain's name, "" for ONNX's own by either name."""
    return "" if name in STANDARD else _text(name)


def _twice(names: Iterable[str]) -> list[str]:
    """Return the names that come more than once."""
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


def attribute_value(item: Proto) -> Any:
    """Return an attribute as a Python value: a number, text, tuple, NumPy array or (type) Value."""
    kinds = type(item)
    if item.type == kinds.TENSOR:
        return array_of(item.t, None)
    single = {kinds.FLOAT: "f", kinds.INT: "i", kinds.STRING: "s"}
    several = {kinds.FLOATS: "floats", kinds.INTS: "ints", kinds.STRINGS: "strings"}
    if item.type == kinds.TYPE_PROTO:
        return _value_of_type("", item.tp)
    if item.type in single:
        return _text(getattr(item, single[item.type]))
    if item.type in several:
        return tuple(map(_text, getattr(item, several[item.type])))
    kind = kinds.AttributeType.Name(item.type) if item.type in range(15) else item.type
    raise ArgumentError(f"attributes that hold {str(kind).lower()} are not read here")


def _text(value: Any) -> Any:
    """Return bytes as text, anything else as it is."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def array_of(tensor: Proto, folder: Path | None, read: Counter[Path] | None = None) -> HostArray:
    """Return a TensorProto's array; refused where there are fewer or more bytes than its shape says

    folder: of external data. read: bytes of each file that tensors before it read; updated.
    """
    dtype, shape = _dtype(tensor.data_type), tuple(tensor.dims)
    limits.refuse(limits.of_shape(shape))
    nbytes = nbytes_of(dtype, math.prod(shape))
    if tensor.data_location == type(tensor).EXTERNAL:
        data = external(tensor, folder, nbytes, Counter() if read is None else read)
    elif tensor.HasField("raw_data"):
        data = tensor.raw_data
    else:
        return _from_fields(tensor, dtype, shape)
    return from_bytes(data, dtype, shape)


def from_bytes(data: bytes, dtype: Dtype, shape: tuple[int, ...]) -> HostArray:
    """Return an array of little-endian elements, in new memory that is aligned to 16 bytes."""
    expected = nbytes_of(dtype, math.prod(shape))
    if len(data) != expected:
        raise ArgumentError(f"expected {expected} bytes for shape {shape}, got {len(data)}")
    if dtype in BY_DTYPE:
        return unpack(np.frombuffer(data, np.uint8), dtype, math.prod(shape)).reshape(shape)
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    return array if np.little_endian or dtype.itemsize == 1 else array.byteswap()


def _dtype(number: int) -> Dtype:
    """Return the dtype of ONNX's number; DtypeError of types that are not computed here."""
    try:
        return graph_dtype(int(number))
    except DtypeError:
        raise DtypeError(f"elements of ONNX type {int(number)} are not computed here") from None


def _from_fields(tensor: Proto, dtype: Dtype, shape: tuple[int, ...]) -> HostArray:
    """Return an array from the protobuf's field of its type: float_data, int32_data, ...

    Half types are there as bits in integers, complex numbers as two elements each.
    """
    if dtype in BY_DTYPE:
        codes = np.array(tensor.int32_data, np.int64)
        if codes.size != nbytes_of(dtype, math.prod(shape)) or np.any(codes >> 8):
            raise ArgumentError(f"expected bytes of {math.prod(shape)} elements in int32_data")
        return from_bytes(codes.astype(np.uint8).tobytes(), dtype, shape)
    names = {"float32": "float_data", "float64": "double_data", "int64": "int64_data"}
    names |= {"uint64": "uint64_data", "uint32": "uint64_data"}
    names |= {"complex64": "float_data", "complex128": "double_data"}
    field = getattr(tensor, names.get(element_type(dtype).name, "int32_data"))
    each = 2 if dtype.kind == "c" else 1  # numbers of an element
    if len(field) != math.prod(shape) * each:
        raise ArgumentError(f"expected {math.prod(shape) * each} elements, got {len(field)}")
    if dtype in (np.dtype(np.float16), BFLOAT16):
        return np.array(field, np.int64).astype(np.uint16).view(dtype).reshape(shape)
    plain = np.array(field)
    return plain.view(dtype).reshape(shape) if each == 2 else plain.astype(dtype).reshape(shape)


def external(tensor: Proto, folder: Path | None, nbytes: int, read: Counter[Path]) -> bytes:
    """Return the `nbytes` bytes of a tensor that are in another file of the model's folder.

    read: bytes by file that tensors have read; updated. More than twice a file's size is refused:
    tensors may share bytes, but a small model is not to claim many.
    """
    entries = {_text(item.key): _text(item.value) for item in tensor.external_data}
    path = inside(folder, entries.get("location", ""))
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", nbytes))
    except ValueError:
        raise ArgumentError(f"external data: offset and length are no numbers: {entries}") from None
    if length != nbytes:
        raise ArgumentError(f"external data: expected {nbytes} bytes, got a length of {length}")
    read[path] += nbytes
    if path.is_file() and read[path] > 2 * path.stat().st_size:
        raise ArgumentError(f"external data: {path.name!r}: tensors say more than it holds")
    return read_part(path, offset, nbytes)


def inside(folder: Path | None, location: str) -> Path:
    """Return the path of a file `location` within a folder; refuse links and `..` that leave it."""
    if folder is None:
        raise ArgumentError("external data: the model came without its folder")
    if not location or "\0" in location:
        raise ArgumentError(f"external data: expected a file's name, got {cut(location)!r}")
    path = (folder / location).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ArgumentError(f"external data: {cut(location)!r} is outside the model's folder")
    return path


def read_part(path: Path, offset: int, nbytes: int) -> bytes:
    """Return `nbytes` bytes of a file from `offset` on; refuse a file without them."""
    try:
        size = path.stat().st_size if path.is_file() else -1
    except OSError as error:
        raise_if_from_handler(error)
        size = -1
    if size < 0:
        raise ArgumentError(f"external data: no file {path.name!r} in the model's folder")
    if not 0 <= offset <= size - nbytes:
        raise ArgumentError(f"external data: {path.name!r} has no {nbytes} bytes at {offset}")
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(nbytes)


def value_of(proto: Proto) -> Value:
    """Return the Value of a ValueInfoProto: name, and type as the model declares it."""
    return _value_of_type(_text(proto.name), proto.type)


def _value_of_type(name: str, kind: Proto) -> Value:
    """Return the Value of a name and a TypeProto: a tensor, a sequence of them, or an optional."""
    form = kind.WhichOneof("value")
    if form == "optional_type":
        return _value_of_type(name, kind.optional_type.elem_type)._replace(is_optional=True)
    if form == "sequence_type":
        inner = kind.sequence_type.elem_type.tensor_type
        return Value(name, dtype_or_none(inner.elem_type), None, is_sequence=True)
    tensor = kind.tensor_type
    shape = tuple(map(_extent, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Value(name, dtype_or_none(tensor.elem_type), shape)


def _extent(dim: Proto) -> Extent:
    """Return a dimension's number or name; None without one, or with one of UNKNOWN."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    name = _text(dim.dim_param)
    return None if name in UNKNOWN else name


def _check_types(items: Iterable[Proto], problems: Problems) -> None:
    """Add to `problems` ValueInfoProtos of types that are not computed here; none is allowed."""
    for item in items:
        is_optional = item.type.WhichOneof("value") == "optional_type"
        kind = item.type.optional_type.elem_type if is_optional else item.type
        form = kind.WhichOneof("value")
        if form not in (None, "tensor_type", "sequence_type"):
            words = f"values of {form.removesuffix('_type')} type are not read here"
            problems.add(f"value {cut(_text(item.name))!r}", words)
        kind = kind.sequence_type.elem_type if form == "sequence_type" else kind
        number = kind.tensor_type.elem_type
        if number and dtype_or_none(number) is None:
            words = f"elements of ONNX type {int(number)} are not computed here"
            problems.add(f"value {cut(_text(item.name))!r}", words)


def dtype_or_none(name: str | int) -> Dtype | None:
    """Return a dtype by its name or ONNX's number; None of types that are not computed here."""
    try:
        return graph_dtype(name)
    except DtypeError:
        return None


def tensor_of(name: str, array: HostArray) -> Proto:
    """Return the TensorProto of an array."""
    helper = onnx_package().helper
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)


def keep_if(items: Any, is_wanted: Callable[[Any], object]) -> None:
    """Keep the items of a protobuf's repeated field for which is_wanted(item) is true."""
    rest = [item for item in items if is_wanted(item)]
    del items[:]
    items.extend(rest)

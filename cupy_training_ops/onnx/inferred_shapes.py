# SPDX-License-Identifier: MIT
"""Types and shapes of a model's values, inferred from those of its inputs.

    x (N, 3) -> MatMul -> a, which the model says to be (1, 3)     a is (N, 3)

Tools that give the batch a name change inputs and outputs, and leave (1, 3) inside; gradients that
count elements by that would be wrong by the batch's extent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

Proto = Any  # a message of ONNX's
POOLS = ("AveragePool", "LpPool", "MaxPool")
HIDDEN = "hidden"  # a domain of which ONNX knows no operator


def infer_shapes(proto: Proto) -> Proto:
    """Return a copy of a ModelProto with types and shapes inferred from its inputs and constants.

    What the model declares of other values counts by rank and names of extents, not by numbers.
    Pools and ConvTransposes that ONNX infers wrongly are changed while it infers.
    """
    from onnx import shape_inference

    copy = type(proto)()
    copy.CopyFrom(proto)
    for item in (*copy.graph.value_info, *copy.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            dim.ClearField("dim_value")
    for dim in _dims_in_sequences(_declared(copy.graph)):
        dim.ClearField("dim_param")
    said = {dim.dim_param for dim in _dims(copy.graph)}
    sizes = {tensor.name: tensor.dims[2:] for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        if node.op_type in POOLS and _is_padded_alike(node):
            _replace(node, ("ceil_mode",))
        elif node.op_type == "ConvTranspose" and _is_padded_alike(node):
            _say_padding(node, sizes.get(node.input[1], ()))
    result = shape_inference.infer_shapes(copy, data_prop=True)
    while _correct_pool(copy, result):
        result = shape_inference.infer_shapes(copy, data_prop=True)
    if _hide_bodies(copy, result):
        result = shape_inference.infer_shapes(copy, data_prop=True)
    # ONNX invents one name for an extent of all arrays of a sequence, which may differ.
    invented = {dim.dim_param for dim in _dims_in_sequences(_declared(result.graph))} - said
    for dim in _dims(result.graph):
        if dim.dim_param in invented:
            dim.ClearField("dim_param")
    del result.graph.node[:], result.opset_import[:]
    result.graph.node.extend(proto.graph.node)
    result.opset_import.extend(proto.opset_import)
    return result


def _hide_bodies(proto: Proto, result: Proto) -> bool:
    """Hide nodes that make sequences by subgraphs, so that of their arrays only ranks are known.

    ONNX takes the names of extents in a body for those around it, and the extents of the arrays
    that a loop begins with for those of all. result: the model with inferred types. Return True if
    there was such a node.
    """
    kinds = {item.name: item for item in (*result.graph.value_info, *result.graph.output)}
    ends = {item.name for item in proto.graph.output}
    rest = {item.name: item for item in proto.graph.value_info}
    for node in proto.graph.node:
        made = [kinds[name] for name in node.output if name in kinds]
        has_body = any(item.HasField("g") for item in node.attribute)
        if has_body and any(item.type.HasField("sequence_type") for item in made):
            node.domain = HIDDEN
            rest |= {item.name: item for item in made if item.name not in ends}
    hides = any(node.domain == HIDDEN for node in proto.graph.node)
    if hides:
        proto.opset_import.add(domain=HIDDEN, version=1)
        infos = [type(item).FromString(item.SerializeToString()) for item in rest.values()]
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(infos)
        for dim in _dims_in_sequences((*proto.graph.value_info, *proto.graph.output)):
            dim.Clear()
    return hides


def _declared(graph: Proto) -> Sequence[Proto]:
    """Return the ValueInfoProtos of a GraphProto."""
    return (*graph.input, *graph.output, *graph.value_info)


def _dims(graph: Proto) -> Iterator[Proto]:
    """Yield the dimensions of a GraphProto's declared arrays."""
    for item in _declared(graph):
        yield from item.type.tensor_type.shape.dim


def _dims_in_sequences(items: Iterable[Proto]) -> Iterator[Proto]:
    """Yield the dimensions of the arrays in sequences that ValueInfoProtos declare."""
    for item in items:
        is_optional = item.type.WhichOneof("value") == "optional_type"
        kind = item.type.optional_type.elem_type if is_optional else item.type
        yield from kind.sequence_type.elem_type.tensor_type.shape.dim


def _is_padded_alike(node: Proto) -> bool:
    """Return True of auto_pad SAME_UPPER or SAME_LOWER.

    A pool has a window for each step then, whatever ceil_mode is; ONNX counts more with it.
    """
    return any(item.name == "auto_pad" and item.s.startswith(b"SAME") for item in node.attribute)


def _replace(node: Proto, names: Collection[str], **attributes: Any) -> None:
    """Remove the attributes `names` of a NodeProto, and set others."""
    from onnx import helper

    rest = [item for item in node.attribute if item.name not in {*names, *attributes}]
    rest += [helper.make_attribute(name, value) for name, value in attributes.items()]
    del node.attribute[:]
    node.attribute.extend(rest)


def _say_padding(node: Proto, kernel: Sequence[int]) -> None:
    """Set output_padding of a ConvTranspose with auto_pad SAME, so that ONNX infers its output.

    That is its input times the strides; ONNX infers less where the kernel is smaller than a stride.
    kernel: the extents of W behind the first two, () if unknown.
    """
    from onnx import helper

    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    kernel = values.get("kernel_shape", kernel)
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    spread, steps = values.get("dilations", ones), values.get("strides", ones)
    more = list(values.get("output_padding", zeros))
    for i, (k, step) in enumerate(zip(kernel, steps, strict=False)):
        more[i] = max(more[i], step - (k - 1) * spread[i] - 1)
    if (
        kernel
        and "output_shape" not in values
        and more != list(values.get("output_padding", zeros))
    ):
        _replace(node, (), output_padding=more)


def end_pad(n: int, window: int, step: int, begin: int, end: int) -> int:
    """Return the pad at the end by which a pool without ceil_mode has the windows of one with it.

    n: elements of the axis. window: elements it spans, with dilation. step: the stride. begin, end:
    the pads. No window begins behind all elements.
    """
    last = -(-(n + begin + end - window) // step)  # index of the last window
    if last * step >= n + begin:
        last -= 1
    return max(last * step + window - n - begin, 0)


def _correct_pool(proto: Proto, result: Proto) -> bool:
    """Replace `ceil_mode` by pads in the first pool of `proto` whose output was inferred wrongly.

    ONNX counts windows that begin behind all elements, which no pool has. result: the model with
    inferred shapes. Return True if there was such a pool.
    """
    shapes = {name: shape for name, shape in _shapes(result.graph)}
    for node in proto.graph.node:
        if node.op_type not in POOLS or not {node.input[0], node.output[0]} <= shapes.keys():
            continue
        pads = _pads_of(node, shapes[node.input[0]][2:], shapes[node.output[0]][2:])
        if pads is not None:
            _replace(node, ("auto_pad", "ceil_mode"), pads=pads)
            return True
    return False


def _pads_of(
    node: Proto, extents: Sequence[int | None], inferred: Sequence[int | None]
) -> list[int] | None:
    """Return pads by which a pool without ceil_mode has its windows; None if inference was right.

    extents, inferred: of input and output, without batch and channels; None where unknown.
    """
    from onnx import helper

    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    rank = len(values["kernel_shape"])
    if not values.get("ceil_mode"):
        return None
    if len(extents) != rank or len(inferred) != rank:
        return None
    steps, spread = (values.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = list(values.get("pads", [0] * 2 * rank))
    is_wrong = False
    for i, (n, m) in enumerate(zip(extents, inferred, strict=True)):
        if n is None:
            continue
        window = (values["kernel_shape"][i] - 1) * spread[i] + 1
        pads[rank + i] = end_pad(n, window, steps[i], pads[i], pads[rank + i])
        count = (n + pads[i] + pads[rank + i] - window) // steps[i] + 1
        is_wrong |= m == count + 1  # ONNX counted one window that no pool has
    return pads if is_wrong else None


def _shapes(graph: Proto) -> Iterator[tuple[str, list[int | None]]]:
    """Yield (name, extents) of a GraphProto's values of known shape; None is an unknown extent."""
    items: Iterable[Proto] = (*graph.input, *graph.output, *graph.value_info)
    for tensor in graph.initializer:
        yield tensor.name, list(tensor.dims)
    for item in items:
        if item.type.tensor_type.HasField("shape"):
            dims = item.type.tensor_type.shape.dim
            yield item.name, [d.dim_value if d.HasField("dim_value") else None for d in dims]

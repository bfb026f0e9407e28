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


def infer_shapes(proto: Proto) -> Proto:
    """The model with the types and shapes that follow from its inputs and constants.

    Of what it says of other values, ranks and names of extents are read, but no numbers.
    """
    from onnx import shape_inference

    copy = type(proto)()
    copy.CopyFrom(proto)
    for item in (*copy.graph.value_info, *copy.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            dim.ClearField("dim_value")
    sizes = {tensor.name: tensor.dims[2:] for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        if node.op_type in POOLS and _is_padded_alike(node):
            _replace(node, ("ceil_mode",))
        elif node.op_type == "ConvTranspose" and _is_padded_alike(node):
            _say_padding(node, sizes.get(node.input[1], ()))
    result = shape_inference.infer_shapes(copy, data_prop=True)
    while _correct_pool(copy, result):
        result = shape_inference.infer_shapes(copy, data_prop=True)
    del result.graph.node[:]
    result.graph.node.extend(proto.graph.node)
    return result


def _is_padded_alike(node: Proto) -> bool:
    """Return True of pads that follow from extents: a pool has a window for each step then, and
    ceil_mode says nothing, with which ONNX counts more."""
    return any(item.name == "auto_pad" and item.s.startswith(b"SAME") for item in node.attribute)


def _replace(node: Proto, names: Collection[str], **attributes: Any) -> None:
    """Remove attributes of a node, and give it others."""
    from onnx import helper

    rest = [item for item in node.attribute if item.name not in {*names, *attributes}]
    rest += [helper.make_attribute(name, value) for name, value in attributes.items()]
    del node.attribute[:]
    node.attribute.extend(rest)


def _say_padding(node: Proto, kernel: Sequence[int]) -> None:
    """Say the pads of a ConvTranspose whose output is as large as its input times the strides: ONNX
    makes it smaller where the kernel is smaller than a stride."""
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
    """The pad at the end by which as many windows fit as with `ceil_mode`, of which none begins
    behind all elements."""
    last = -(-(n + begin + end - window) // step)  # the last one's number
    if last * step >= n + begin:
        last -= 1
    return max(last * step + window - n - begin, 0)


def _correct_pool(proto: Proto, result: Proto) -> bool:
    """Let inference see pads in place of `ceil_mode` at the first pool that it gets wrong.

    It counts windows that begin behind all elements, which no pool has. True if there was one.
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
    """The pads by which as many windows fit as the pool has; None if that was inferred."""
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
        is_wrong |= m == count + 1
    return pads if is_wrong else None


def _shapes(graph: Proto) -> Iterator[tuple[str, list[int | None]]]:
    items: Iterable[Proto] = (*graph.input, *graph.output, *graph.value_info)
    for tensor in graph.initializer:
        yield tensor.name, list(tensor.dims)
    for item in items:
        if item.type.tensor_type.HasField("shape"):
            dims = item.type.tensor_type.shape.dim
            yield item.name, [d.dim_value if d.HasField("dim_value") else None for d in dims]

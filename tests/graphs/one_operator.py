# SPDX-License-Identifier: MIT
"""Models of one operator, and their gradients beside finite differences, in float64.

loss = sum over outputs of sum(weights y)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cupy_training_ops as cto

STEP = 1e-5
NARROW = [TensorProto.FLOAT, TensorProto.FLOAT16]


def model_of(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    *,
    n_outputs: int = 1,
    n_others: int = 0,
    opset: int = 18,
    domain: str = "",
    is_dynamic: bool = False,
    has_ranks: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model whose inputs `in0`, `in1`, ... are initializers, and whose outputs are weighted, but
    for `n_others` behind these.

    is_dynamic: each input of float64 is that initializer behind a Reshape, so that no shape is
    known, but ranks if it `has_ranks`.
    """
    names = ["" if array is None else f"in{i}" for i, array in enumerate(inputs)]
    arrays = {n: np.asarray(a) for n, a in zip(names, inputs, strict=True) if a is not None}
    real = next(a.dtype for a in arrays.values() if a.dtype.kind in "fV")
    dtype = helper.np_dtype_to_tensor_dtype(real)
    nodes, infos = [], []
    for name, array in arrays.items():
        if is_dynamic and array.dtype == np.float64:
            n = array.ndim if has_ranks else None
            infos.append(helper.make_tensor_value_info(f"{name}_shape", TensorProto.INT64, (n,)))
            nodes.append(helper.make_node("Reshape", [name, f"{name}_shape"], [f"{name}_same"]))
    read = [f"{n}_same" if any(n + "_same" in node.output for node in nodes) else n for n in names]
    outputs = [f"y{i}" for i in range(n_outputs)]
    others = [f"other{i}" for i in range(n_others)]
    nodes.append(helper.make_node(op_type, read, outputs + others, domain=domain, **attributes))
    for y in outputs:
        nodes += [
            helper.make_node("Mul", [y, f"{y}_weights"], [f"{y}_weighted"]),
            helper.make_node("ReduceSum", [f"{y}_weighted"], [f"{y}_sum"], keepdims=0),
        ]
        infos.append(helper.make_tensor_value_info(f"{y}_weights", dtype, None))
    nodes.append(helper.make_node("Sum", [f"{y}_sum" for y in outputs], ["loss"]))
    loss = helper.make_tensor_value_info("loss", dtype, ())
    initial = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "one operator", infos, [loss], initial)
    opsets = [helper.make_opsetid(d, 1 if d else opset) for d in {"", domain}]
    return helper.make_model(graph, opset_imports=opsets)


def check_gradients(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    rng: np.random.Generator,
    *,
    trainable: Sequence[int] | None = None,
    tolerance: float = 1e-6,
    step: float = STEP,
    is_dynamic: bool = False,
    n_outputs: int = 1,
    **options: Any,
) -> cto.onnx.TrainingSession:
    """Compare the gradients of real inputs, or those of `trainable`, with central differences.

    Elements are moved one by one where an input has at most 40, else along 40 random directions.
    """
    real = [i for i, a in enumerate(inputs) if a is not None and np.asarray(a).dtype.kind == "f"]
    doubles = [i for i in real if np.asarray(inputs[i]).dtype == np.float64]
    names = [f"in{i}" for i in (real if trainable is None else trainable)]
    model = model_of(op_type, inputs, is_dynamic=is_dynamic, n_outputs=n_outputs, **options)
    session = cto.onnx.TrainingSession.from_model(
        model, loss="loss", trainable=names, optimizer="SGD"
    )
    feeds = {f"in{i}_shape": np.array(np.shape(inputs[i]), np.int64) for i in doubles if is_dynamic}
    plain = cto.onnx.Session(part(model, [f"y{i}" for i in range(n_outputs)]))
    for name, y in plain.run(feeds).items():
        feeds[f"{name}_weights"] = rng.standard_normal(y.shape)
    feeds = {name: feeds[name] for name in session.inputs}
    session.accumulate(**feeds)
    for name in names:
        parameter = session.parameters[name]
        original, gradient = parameter.copy(), session.gradients[name].copy()
        for direction in directions(parameter.shape, rng):
            sides = []
            for sign in (1, -1):
                parameter[...] = original + sign * step * direction
                sides.append(float(session.eval(**feeds)))
            parameter[...] = original
            expected = (sides[0] - sides[1]) / (2 * step)
            actual = float((gradient * direction).sum())
            scale = max(1.0, abs(expected))
            assert abs(actual - expected) <= tolerance * scale, (op_type, name, actual, expected)
    return session


def check_types(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    shape: tuple[int, ...],
    rng: np.random.Generator,
    **options: Any,
) -> None:
    """Compare gradients in float32 and float16 with those in float64; shape: that of the output."""
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 1e-2)):
        rounded = [a.astype(dtype) if is_double(a) else a for a in inputs]
        weights = rng.standard_normal(shape).astype(dtype)
        exact = [
            a.astype(np.float64) if is_double(b) else a
            for a, b in zip(rounded, inputs, strict=True)
        ]
        pairs = []
        for arrays, w in ((rounded, weights), (exact, weights.astype(np.float64))):
            model = model_of(op_type, arrays, **options)
            session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
            session.accumulate(**{name: w for name in session.inputs})
            pairs.append(session.gradients)
        for name, expected in pairs[1].items():
            assert pairs[0][name].dtype == dtype
            distance = np.abs(pairs[0][name] - expected).max()
            assert distance <= tolerance * np.abs(expected).max(), (op_type, name, dtype)


def is_double(array: np.ndarray | None) -> bool:
    return array is not None and array.dtype == np.float64


def part(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model cut at these values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    last = max(i for i, node in enumerate(copy.graph.node) if set(names) & set(node.output))
    del copy.graph.node[last + 1 :]
    read = {name for node in copy.graph.node for name in node.input}
    rest = [item for item in copy.graph.input if item.name in read]
    del copy.graph.input[:]
    copy.graph.input.extend(rest)
    return copy


def directions(shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """Unit vectors of an array's elements, or random directions of length about 1."""
    size = int(np.prod(shape))
    if size <= 40:
        return [row.reshape(shape) for row in np.eye(size)]
    return [rng.standard_normal(shape) / np.sqrt(size) for _ in range(40)]


def gradients(op_type, inputs, dy=1.0, trainable=(0,), **options):
    """The gradients of these inputs for one of the output's; corners stay as they are."""
    model = model_of(op_type, inputs, **options)
    names = [f"in{i}" for i in trainable]
    session = cto.onnx.TrainingSession.from_model(
        model, loss="loss", trainable=names, optimizer="SGD"
    )
    session.accumulate(**{name: np.asarray(dy, np.float64) for name in session.inputs})
    return [session.gradients[name].copy() for name in names]


def by_torch(function, *arrays, dy=1.0):
    """The gradients of these arrays by PyTorch, for one of the result's."""
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    y = function(*tensors)
    y.backward(torch.full_like(y, dy))
    return [tensor.grad.numpy() for tensor in tensors]


def trained_x(nodes, x, trainable=("x",), **constants):
    """A session that has added up the gradients of `x` or others; the loss is a double."""
    loss = helper.make_tensor_value_info("loss", TensorProto.DOUBLE, ())
    initial = [onnx.numpy_helper.from_array(a, n) for n, a in {"x": x, **constants}.items()]
    graph = helper.make_graph(nodes, "g", [], [loss], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    session = cto.onnx.TrainingSession.from_model(
        model, loss="loss", trainable=trainable, optimizer="SGD"
    )
    session.accumulate()
    return session


def check_narrow(op_type, x, others, to, **options):
    """The gradient of a narrow x is near that in float64: constants are of its type, too."""
    constants = {f"c{i}": array for i, array in enumerate(others)}
    narrow = ["x", *(name for name, array in constants.items() if array.dtype == np.float64)]
    nodes = [helper.make_node("Cast", [name], [f"{name}_narrow"], to=to) for name in narrow]
    read = [f"{name}_narrow" if name in narrow else name for name in ("x", *constants)]
    nodes += [
        helper.make_node(op_type, read, ["y"], **options),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["loss"], keepdims=0),
    ]
    expected = gradients(op_type, [x, *others], **options)[0]
    rtol = {TensorProto.FLOAT: 1e-5, TensorProto.FLOAT16: 2e-2}[to]
    actual = trained_x(nodes, x, **constants).gradients["x"]
    np.testing.assert_allclose(actual, expected, rtol, rtol)

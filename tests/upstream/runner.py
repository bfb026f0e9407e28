# SPDX-License-Identifier: MIT
"""Runs models of one node in onnxruntime on the CPU: a script for the Python that has it.

Every line of standard input is a folder with request.npz: the inputs by name, and under "request"
a JSON object with op, domain, attributes, inputs (names; "" for an absent one, a list for a
sequence), outputs (dtypes by name; a list for a sequence, whose tensors get numbers), between
(whether Identity nodes stand before and behind the node) and shapes (of some outputs). The answer
is answer.npz in the same folder and a line of JSON on standard output: null, or what went wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

OPSETS = {"": 15, "com.microsoft": 1}
IR_VERSION = 9


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(attempt(Path(line.rstrip("\n")))) + "\n")
        sys.stdout.flush()


def attempt(folder: Path) -> str | None:
    """Answer a request; what went wrong, or None."""
    try:
        request, inputs = read(folder / "request.npz")
        np.savez(folder / "answer.npz", **run(model_of(request, inputs), inputs))
    except Exception as error:  # onnxruntime raises many kinds; the asking side raises one
        return f"{type(error).__name__}: {error}"
    return None


def read(path: Path) -> tuple[dict, dict]:
    """The request, and the arrays by name."""
    with np.load(path) as stored:
        arrays = dict(stored)
    return json.loads(str(arrays.pop("request"))), arrays


def model_of(request: dict, inputs: dict) -> ModelProto:
    """A model of one node; outputs have a type, and no shape but where it is asked for."""
    made = [name if isinstance(name, str) else sequence(name) for name in request["inputs"]]
    results, end = list(request["outputs"]), "_" * request["between"]
    node = helper.make_node(
        request["op"], [name + end for name in made], [name + end for name in results],
        domain=request["domain"], **request["attributes"],
    )  # fmt: skip
    given = [value(name, array.dtype, array.shape) for name, array in inputs.items()]
    nodes = [*joined(request["inputs"]), node]
    if request["between"]:
        nodes[:0] = [helper.make_node("Identity", [name], [name + end]) for name in made]
        nodes += [helper.make_node("Identity", [name + end], [name]) for name in results]
    asked = []
    for name, dtypes in request["outputs"].items():
        if isinstance(dtypes, str):
            asked.append(value(name, np.dtype(dtypes), request["shapes"].get(name)))
            continue
        for i, dtype in enumerate(dtypes):
            nodes += taken(name, i)
            asked.append(value(f"{name}_{i}", np.dtype(dtype), None))
    graph = helper.make_graph(nodes, "one_node", given, asked)
    opsets = [helper.make_opsetid(*each) for each in OPSETS.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def sequence(names: list) -> str:
    """The name of a sequence of these tensors."""
    return f"[{', '.join(names)}]"


def joined(names: list) -> list[NodeProto]:
    """Nodes that make sequences of tensors."""
    lists = [name for name in names if isinstance(name, list)]
    return [helper.make_node("SequenceConstruct", some, [sequence(some)]) for some in lists]


def taken(name: str, i: int) -> list[NodeProto]:
    """Nodes that take a tensor out of a sequence."""
    at = helper.make_tensor("at", TensorProto.INT64, [], [i])
    place = helper.make_node("Constant", [], [f"{name}_at_{i}"], value=at)
    return [place, helper.make_node("SequenceAt", [name, f"{name}_at_{i}"], [f"{name}_{i}"])]


def value(name: str, dtype: np.dtype, shape: tuple[int, ...] | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def run(model: ModelProto, inputs: dict) -> dict:
    """The outputs by name, of the model as it is."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs)))  # noqa: B905 (may be Python 3.9)


if __name__ == "__main__":
    main()

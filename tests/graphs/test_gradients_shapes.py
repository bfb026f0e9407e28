# SPDX-License-Identifier: MIT
"""Gradients of operators that make, join, split and index arrays."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto

from .one_operator import check_gradients, check_types, model_of

torch = pytest.importorskip("torch")

I64 = np.int64
EMPTY = np.zeros(0, I64)
POSITIONS = np.array([[0, 2], [1, 1], [0, 2], [2, 0]])

# An operator, the shapes of its real inputs or other inputs as arrays, attributes, options.
CASES = {
    "concat": ("Concat", [(2, 3), (2, 1), (2, 2)], {"axis": -1}),
    "concat of one": ("Concat", [(2, 3)], {"axis": 0}),
    "concat of nothing and something": ("Concat", [(0, 3), (2, 3)], {"axis": 0, "trainable": [1]}),
    "split": ("Split", [(5, 4), I64([1, 0, 4])], {"n_outputs": 3}),
    "split into equal parts": ("Split", [(2, 6)], {"n_outputs": 3, "axis": -1, "num_outputs": 3}),
    "slice": ("Slice", [(5, 6), I64([4, 1]), I64([-9, 6]), I64([0, -1]), I64([-2, 2])], {}),
    "slice of int32": ("Slice", [(5,), np.int32([1]), np.int32([-1])], {}),
    "slice of nothing": ("Slice", [(5,), I64([3]), I64([1])], {}),
    "gather": ("Gather", [(4, 3), I64([[0, -1], [0, 2]])], {}),
    "gather one": ("Gather", [(4, 3), I64(1)], {"axis": -1}),
    "gather none": ("Gather", [(4, 3), EMPTY], {"axis": 1}),
    "gather by int32": ("Gather", [(4, 3), np.int32([3, 3])], {}),
    "gather elements": ("GatherElements", [(3, 3), I64([[0, -1, 2], [0, 0, 1]])], {}),
    "gather elements of a row": ("GatherElements", [(2, 3), I64([[0, -1, 2]])], {"axis": -1}),
    "gather nd": ("GatherND", [(3, 3, 2), POSITIONS], {}),
    "gather nd of batches": ("GatherND", [(2, 3, 2), I64([[1], [-1]])], {"batch_dims": 1}),
    "pad": ("Pad", [(2, 3), I64([1, 0, 2, 1]), ()], {}),
    "pad without a number": ("Pad", [(2, 3), I64([1, 0, 2, 1])], {}),
    "pad off": ("Pad", [(3, 4), I64([-1, 1, 0, -2]), ()], {}),
    "pad axes": ("Pad", [(2, 3, 2), I64([1, 2]), (), I64([-2])], {"mode": "constant"}),
    "pad the edge": ("Pad", [(2, 3), I64([1, 0, 2, 4])], {"mode": "edge"}),
    "pad reflecting": ("Pad", [(4, 3), I64([3, 2, 1, 0])], {"mode": "reflect"}),
    "pad reflecting, cut": ("Pad", [(4, 3), I64([2, -1, -1, 0])], {"mode": "reflect"}),
    "pad around": ("Pad", [(3, 2), I64([1, 5]), None, I64([-1])], {"mode": "wrap", "opset": 19}),
    "tile": ("Tile", [(2, 3), I64([2, 1])], {}),
    "tile none": ("Tile", [(2, 3), I64([0, 2])], {}),
    "tile three times": ("Tile", [(3,), I64([3])], {}),
    "transpose": ("Transpose", [(2, 3, 4)], {"perm": [2, 0, 1]}),
    "transpose reversing": ("Transpose", [(2, 3, 4)], {}),
    "reshape": ("Reshape", [(2, 6), I64([0, -1, 3])], {}),
    "squeeze": ("Squeeze", [(1, 3, 1), I64([-1])], {}),
    "squeeze all": ("Squeeze", [(1, 3, 1)], {}),
    "unsqueeze": ("Unsqueeze", [(2, 3), I64([-1, 1])], {}),
    "flatten": ("Flatten", [(2, 3, 4)], {"axis": -1}),
    "flatten to a row": ("Flatten", [(2, 3)], {"axis": 0}),
    "depth to space": ("DepthToSpace", [(2, 8, 2, 3)], {"blocksize": 2}),
    "depth to space, CRD": ("DepthToSpace", [(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    "space to depth": ("SpaceToDepth", [(2, 2, 4, 6)], {"blocksize": 2}),
    "triangle above": ("Trilu", [(3, 4), I64(1)], {}),
    "triangle below": ("Trilu", [(2, 4, 3)], {"upper": 0}),
    "scatter": ("ScatterElements", [(3, 3), I64([[0, 2, 1]]), (1, 3)], {}),
    "scatter rows": ("ScatterElements", [(2, 3), I64([[-1, 0]]), (1, 2)], {"axis": 1}),
    "scatter nd": ("ScatterND", [(3, 3, 2), POSITIONS[1:], (3, 2)], {}),
    "largest": ("TopK", [(3, 5), I64([2])], {"axis": 0, "n_others": 1}),
    "smallest": ("TopK", [(3, 5), I64([3])], {"largest": 0, "sorted": 0, "n_others": 1}),
    "largest of none": ("TopK", [(3, 5), I64([0])], {"axis": 1, "n_others": 1}),
    "range": ("Range", [np.float64(1), np.float64(2.9), np.float64(0.5)], {"trainable": [0, 2]}),
    "cut and padded": ("CenterCropPad", [(3, 4), I64([6, 1])], {}),
    "cut and padded axes": ("CenterCropPad", [(3, 4, 2), I64([3, 7])], {"axes": [-1, 0]}),
    "compress": ("Compress", [(3, 4), np.array([True, False, True])], {"axis": -1}),
    "compress all": ("Compress", [(3, 2), np.array([False, True, True, False, True])], {}),
    "reverse": ("ReverseSequence", [(4, 3, 2), I64([1, 4, 2])], {}),
    "reverse rows": ("ReverseSequence", [(2, 3), I64([3, 2])], {"batch_axis": 0, "time_axis": 1}),
    "one hot": ("OneHot", [I64([[1, 0], [-1, 5]]), I64(3), (2,)], {"axis": 1}),
}  # fmt: skip
CASES |= {
    f"scatter {reduction}": (
        "ScatterElements",
        [(2, 3), I64([[1, 1, 0], [1, 0, 0]]), (2, 3)],
        {"axis": -1, "reduction": reduction},
    )
    for reduction in ("add", "mul", "max", "min")
}
CASES |= {
    f"scatter nd {reduction}": (
        "ScatterND",
        [(3, 3), POSITIONS, (4,)],
        {"reduction": reduction},
    )
    for reduction in ("add", "mul", "max", "min")
}


def inputs_of(case, rng: np.random.Generator) -> list[np.ndarray | None]:
    return [rng.standard_normal(i) if isinstance(i, tuple) else i for i in case[1]]


# What a rule needs to know of shapes:
NEED_RANKS = {name for name in CASES if name.startswith("tile")}
NEED_RANKS |= {"pad the edge", "pad reflecting", "pad reflecting, cut"}


@pytest.mark.parametrize("shapes", ["known", "ranks", "nothing"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name, shapes, rng) -> None:
    """With shapes that are known, ranks that are known, and nothing that is known."""
    op_type, _, options = CASES[name]
    options = {"is_dynamic": shapes != "known", "has_ranks": shapes == "ranks", **options}
    inputs = inputs_of(CASES[name], rng)
    if shapes == "nothing" and name in NEED_RANKS:
        with pytest.raises(cto.ArgumentError, match="needs the rank of 'in0_same'"):
            check_gradients(op_type, inputs, rng, **options)
    else:
        check_gradients(op_type, inputs, rng, **options)


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_a_product_has_the_gradient_of_each_factor_where_some_are_zero(op_type, rng) -> None:
    """y = x u v w at a place: all of one factor's neighbours count, none twice."""
    x, updates = rng.standard_normal(4), rng.standard_normal(6)
    places = np.array([0, 0, 1, 1, 2, 3])
    x[2] = updates[1] = updates[2] = updates[3] = updates[4] = 0
    indices = places if op_type == "ScatterElements" else places[:, None]
    check_gradients(op_type, [x, indices, updates], rng, reduction="mul")


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_equal_extremes_share_a_gradient_as_in_pytorch(reduction, rng) -> None:
    x, updates = rng.integers(0, 3, 4) * 1.0, rng.integers(0, 3, 12) * 1.0
    indices = rng.integers(0, 4, 12)
    model = model_of("ScatterElements", [x, indices, updates], reduction=reduction)
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    weights = rng.standard_normal(4)
    session.accumulate(weights)
    ours = [torch.tensor(array, requires_grad=True) for array in (x, updates)]
    y = ours[0].scatter_reduce(0, torch.tensor(indices), ours[1], f"a{reduction}")
    (y * torch.tensor(weights)).sum().backward()
    for name, tensor in zip(("in0", "in2"), ours, strict=True):
        np.testing.assert_allclose(session.gradients[name], tensor.grad, rtol=0, atol=1e-15)


def test_outputs_that_the_loss_leaves_out_have_zeros_for_gradients(rng) -> None:
    """loss = sum of w of the first part; the model is cut behind it."""
    model = model_of("Split", [rng.standard_normal(5), I64([2, 3])], n_outputs=2)
    del model.graph.node[3:5], model.graph.input[1:]
    model.graph.node[-1].input.pop()
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    weights = rng.standard_normal(2)
    session.accumulate(weights)
    np.testing.assert_array_equal(session.gradients["in0"], [*weights, 0, 0, 0])


def test_parts_without_a_name_have_zeros_for_gradients(rng) -> None:
    """loss = sum of w of the last part of a Split, whose first one has no name."""
    model = model_of("Split", [rng.standard_normal(5), I64([2, 3])], n_outputs=2)
    del model.graph.node[1:3], model.graph.input[:1]
    model.graph.node[0].output[0] = ""
    del model.graph.node[-1].input[0]
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    weights = rng.standard_normal(3)
    session.accumulate(weights)
    np.testing.assert_array_equal(session.gradients["in0"], [0, 0, *weights])


def test_an_operator_without_a_gradient_is_refused_with_the_reason(rng) -> None:
    model = model_of("Unique", [rng.standard_normal(3)])
    with pytest.raises(cto.ArgumentError, match="which elements are equal changes"):
        cto.onnx.TrainingSession.from_model(model, loss="loss")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("concat", (2, 6)),
        ("slice", (3, 3)),
        ("gather", (2, 2, 3)),
        ("gather nd", (4, 2)),
        ("pad", (5, 4)),
        ("pad reflecting", (8, 5)),
        ("tile", (4, 3)),
        ("depth to space, CRD", (2, 2, 4, 6)),
        ("largest", (2, 5)),
        ("scatter mul", (2, 3)),
        ("scatter nd max", (3, 3)),
        ("one hot", (2, 3, 2)),
    ],
)
def test_narrow_types(name, shape, rng) -> None:
    op_type, _, options = CASES[name]
    inputs = [np.asarray(each) for each in inputs_of(CASES[name], rng)]
    check_types(op_type, inputs, shape, rng, **options)

# SPDX-License-Identifier: MIT
"""Calls of random shapes for every operator that has scratch memory, through its function.

A maker draws sizes and values, and gives inputs and attributes. Sequences of any length, on
emulated kernels or a GPU, draw from the same table.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from sequences import assert_zeros

import cupy_training_ops as cto
from cupy_training_ops import get_op
from cupy_training_ops.call import backends
from cupy_training_ops.families.gist_sparse.samples import code_bytes
from cupy_training_ops.testing.compare import assert_matches, tolerance_of
from cupy_training_ops.testing.samples import flat, mapped_inputs

Case = tuple[list[Any], dict[str, Any]]

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)
REDUCTIONS = ("mean", "sum", "none")


class Size:
    """Sizes from a least to a most one, and the dtypes to choose from."""

    def __init__(self, rng: np.random.Generator, dtypes: Sequence[Any] = DTYPES) -> None:
        self._rng = rng
        self.dtypes = dtypes

    def __call__(self, least: int, most: int) -> int:
        return int(self._rng.integers(least, most, endpoint=True))


Maker = Callable[[Size, np.random.Generator], Case]


def numbers(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def one_of(size: Size, choices: Any) -> Any:
    return choices[size(0, len(choices) - 1)]


# ---- losses --------------------------------------------------------------------------------------


def scored(size: Size, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Scores, labels and a reduction."""
    dtype, rows, classes = one_of(size, size.dtypes), size(1, 300), size(1, 70)
    labels = rng.integers(0, classes, rows).astype(one_of(size, (np.int32, np.int64)))
    return numbers(rng, rows, classes, dtype=dtype), labels, {"reduction": one_of(size, REDUCTIONS)}


def weights_of(size: Size, rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray | None:
    return rng.uniform(0.5, 2, n).astype(dtype) if size(0, 1) else None


def labelled_loss(size: Size, rng: np.random.Generator) -> Case:
    scores, labels, attributes = scored(size, rng)
    return [scores, labels, weights_of(size, rng, scores.shape[1], scores.dtype)], attributes


def loss_of_rows(size: Size, rng: np.random.Generator) -> Case:
    scores, labels, attributes = scored(size, rng)
    return [scores, labels, weights_of(size, rng, labels.size, scores.dtype)], attributes


def dense_loss(size: Size, rng: np.random.Generator) -> Case:
    scores, _, attributes = scored(size, rng)
    attributes["reduction"] = one_of(size, ("mean", "sum"))
    target = rng.uniform(0, 1, scores.shape)
    return [scores, (target / target.sum(1, keepdims=True)).astype(scores.dtype)], attributes


def loss_gradient(size: Size, rng: np.random.Generator) -> Case:
    scores, labels, attributes = scored(size, rng)
    shape = labels.shape if attributes["reduction"] == "none" else ()
    weights = weights_of(size, rng, scores.shape[1], scores.dtype)
    dy = rng.uniform(0.5, 1, shape).astype(scores.dtype)
    return [dy, -np.abs(scores), labels, weights], attributes


def gradient_of_rows(size: Size, rng: np.random.Generator) -> Case:
    (dy, log_prob, labels, _), attributes = loss_gradient(size, rng)
    return [dy, log_prob, labels, weights_of(size, rng, labels.size, dy.dtype)], attributes


# ---- sums and norms ------------------------------------------------------------------------------


def reduced(size: Size, rng: np.random.Generator) -> Case:
    shape = tuple(size(1, 40) for _ in range(size(1, 3)))
    if size(0, 3) == 0:
        shape = (size(1, 3), size(2000, 30_000))
    axes = tuple(axis for axis in range(len(shape)) if size(0, 1))
    return [numbers(rng, *shape, dtype=one_of(size, size.dtypes)), axes], {}


def arrays_of(size: Size, rng: np.random.Generator) -> list[np.ndarray]:
    dtype = one_of(size, size.dtypes)
    count, most = (size(200, 400), 9) if size(0, 5) == 0 else (size(1, 9), 5000)
    return [numbers(rng, size(0, most), dtype=dtype) for _ in range(count)]


def listed(size: Size, rng: np.random.Generator) -> Case:
    return [arrays_of(size, rng)], {}


def finite_or_not(size: Size, rng: np.random.Generator) -> Case:
    arrays = arrays_of(size, rng)
    array = one_of(size, arrays)
    if array.size and size(0, 1):
        array[size(0, array.size - 1)] = np.inf
    return [arrays], {}


def bools(size: Size, rng: np.random.Generator) -> Case:
    return [rng.random(size(0, 60_000)) < 1 - 1e-4 * size(0, 1)], {}


def lamb(size: Size, rng: np.random.Generator) -> Case:
    count, most = (size(90, 180), 9) if size(0, 5) == 0 else (size(1, 6), 6000)
    shapes = [size(1, most) for _ in range(count)]
    w, g, m = ([numbers(rng, n) for n in shapes] for _ in range(3))
    v = [np.abs(numbers(rng, n)) for n in shapes]
    rate, step = np.array([0.01], np.float32), np.array([size(1, 9)], np.int64)
    return [None, None, None, rate, step, w, g, m, v], {}


# ---- normalisations, convolutions ----------------------------------------------------------------


def layer_norm_gradient(size: Size, rng: np.random.Generator) -> Case:
    dtype, rows, length = one_of(size, size.dtypes), size(1, 200), size(1, 300)
    if size(0, 7) == 0:  # rows that no block holds
        rows, length = size(1, 3), size(60_000, 70_000)
    wide = np.float64 if dtype == np.float64 else np.float32
    x, dy = (numbers(rng, rows, length, dtype=dtype) for _ in range(2))
    mean = x.astype(wide).mean(1, keepdims=True)
    inverse = 1 / np.sqrt(x.astype(wide).var(1, keepdims=True) + 1e-5)
    return [dy, x, numbers(rng, length, dtype=dtype), mean, inverse], {}


def attention_gradient(size: Size, rng: np.random.Generator) -> Case:
    dtype, kv_heads, group = one_of(size, size.dtypes), size(1, 2), size(1, 2)
    (batch, queries, keys), width = (size(1, n) for n in (2, 150, 150)), size(4, 32)
    q, dy = (numbers(rng, batch, kv_heads * group, queries, width, dtype=dtype) for _ in range(2))
    k, v = (numbers(rng, batch, kv_heads, keys, width, dtype=dtype) for _ in range(2))
    with backends.numpy_runs_on(backends.CPU):
        y, lse = cto.flash_attention(q, k, v)
    return [dy, q, k, v, y, lse], {}


def without_mean(size: Size, rng: np.random.Generator) -> Case:
    (dy, x, scale, _, inverse), attributes = layer_norm_gradient(size, rng)
    return [dy, x, scale, inverse], attributes


def from_output(size: Size, rng: np.random.Generator) -> Case:
    (dy, y, scale, _, inverse), attributes = layer_norm_gradient(size, rng)
    scale = (np.abs(scale) + 0.5).astype(y.dtype)
    return [dy, y, scale, numbers(rng, y.shape[1], dtype=y.dtype), inverse], attributes


def batch(size: Size, rng: np.random.Generator) -> np.ndarray:
    if size(0, 1):
        return numbers(rng, size(600, 1200), size(1, 40))
    return numbers(rng, size(1, 3), size(1, 3), size(1, 9300))


def batch_norm(size: Size, rng: np.random.Generator) -> Case:
    x = batch(size, rng)
    mean, var = numbers(rng, x.shape[1]), rng.uniform(1, 2, x.shape[1]).astype(np.float32)
    return [x, numbers(rng, x.shape[1]), numbers(rng, x.shape[1]), mean, var], {}


def batch_norm_gradient(size: Size, rng: np.random.Generator) -> Case:
    x = batch(size, rng)
    mean, inverse = numbers(rng, x.shape[1]), rng.uniform(0.5, 1, x.shape[1]).astype(np.float32)
    scale = numbers(rng, x.shape[1])
    return [numbers(rng, *x.shape), x, scale, mean, inverse], {"epsilon": 1e-5}


def batch_norm_relu(size: Size, rng: np.random.Generator) -> Case:
    inputs, _ = batch_norm(size, rng)
    residual = [numbers(rng, *inputs[0].shape)] * size(0, 1)
    return [*inputs, *residual], {"unbiased": inputs[0].size > inputs[0].shape[1]}


def batch_norm_relu_gradient(size: Size, rng: np.random.Generator) -> Case:
    (dy, x, *others), _ = batch_norm_gradient(size, rng)
    return [dy, x, np.maximum(numbers(rng, *x.shape), 0), *others], {}


def filtered(size: Size, rng: np.random.Generator) -> list[np.ndarray]:
    """X, W and what their convolution has the shape of."""
    dtype = one_of(size, size.dtypes)
    x = numbers(rng, size(1, 3), size(1, 5), size(3, 9), size(3, 9), dtype=dtype)
    w = numbers(rng, size(1, 6), x.shape[1], size(1, 3), size(1, 3), dtype=dtype)
    height, width = (x.shape[2 + i] - w.shape[2 + i] + 1 for i in range(2))
    return [x, w, numbers(rng, x.shape[0], w.shape[0], height, width, dtype=dtype)]


def convolution(size: Size, rng: np.random.Generator) -> Case:
    x, w, _ = filtered(size, rng)
    return [x, w, numbers(rng, w.shape[0], dtype=x.dtype)], {}


def convolution_gradient(size: Size, rng: np.random.Generator) -> Case:
    x, w, y = filtered(size, rng)
    return [y, x, w], {}


def transposed(size: Size, rng: np.random.Generator) -> Case:
    x, w, y = filtered(size, rng)
    return [y, w, numbers(rng, x.shape[1], dtype=x.dtype)], {}


def transposed_gradient(size: Size, rng: np.random.Generator) -> Case:
    x, w, y = filtered(size, rng)
    return [x, y, w], {}


# ---- gathers, division, codes --------------------------------------------------------------------


def in_order_or_not(size: Size) -> dict[str, Any]:
    """Sums in a fixed order, or by atomics."""
    return {"deterministic": one_of(size, (True, False))}


def gathered(size: Size, rng: np.random.Generator) -> Case:
    rows, width, n = size(1, 50), size(1, 40), size(0, 400)
    dy = numbers(rng, n, width, dtype=one_of(size, size.dtypes))
    return [(rows, width), rng.integers(0, rows, n), dy], in_order_or_not(size)


def gathered_slices(size: Size, rng: np.random.Generator) -> Case:
    shape, n = (size(1, 9), size(1, 9), size(1, 20)), size(0, 200)
    indices = np.stack([rng.integers(0, extent, n) for extent in shape[:2]], 1)
    update = numbers(rng, n, shape[2], dtype=one_of(size, size.dtypes))
    return [shape, indices, update], in_order_or_not(size)


def joined(size: Size, rng: np.random.Generator) -> Case:
    count, dtype = size(2, 4) if size(0, 2) else size(300, 900), one_of(size, size.dtypes)
    return [[numbers(rng, 2, size(1, 5), dtype=dtype) for _ in range(count)]], {"axis": 1}


def taken_apart(size: Size, rng: np.random.Generator) -> Case:
    (parts,), attributes = joined(size, rng)
    widths = tuple(part.shape[1] for part in parts)
    return [np.concatenate(parts, 1), widths], attributes


def gathered_elements(size: Size, rng: np.random.Generator) -> Case:
    rows, width, n = size(1, 50), size(1, 40), size(0, 60)
    dy = numbers(rng, n, width, dtype=one_of(size, size.dtypes))
    return [dy, (rows, width), rng.integers(0, rows, (n, width))], in_order_or_not(size)


def divided(size: Size, rng: np.random.Generator) -> Case:
    rows, columns, dtype = size(1, 90), size(1, 90), one_of(size, size.dtypes)
    if size(0, 2) == 0:
        rows, columns = (size(1, 5), size(1000, 3000))[:: one_of(size, (1, -1))]
    shapes = ((columns,), (rows, 1), (1, columns), (rows, columns), ())
    of_a, of_b = one_of(size, (shapes[3], one_of(size, shapes))), one_of(size, shapes)
    dy = numbers(rng, *np.broadcast_shapes(of_a, of_b), dtype=dtype)
    return [dy, numbers(rng, *of_a, dtype=dtype), rng.uniform(0.5, 2, of_b).astype(dtype)], {}


def sparse(size: Size, rng: np.random.Generator) -> Case:
    return [np.maximum(numbers(rng, size(0, 30_000), dtype=one_of(size, size.dtypes)), 0)], {}


def guarded(size: Size, rng: np.random.Generator) -> Case:
    outer, groups, inner = size(1, 4), size(1, 40), one_of(size, (1, 8, 24, size(1, 60)))
    x = numbers(rng, outer, groups, inner, dtype=one_of(size, size.dtypes))
    return [x], {"grouping": (outer, groups, inner)}


def padded(size: Size, rng: np.random.Generator) -> Case:
    rows, width = (size(1, 20), size(1, 20)), size(1, 9)
    places = rng.permutation(rows[0] * rows[1])[: size(0, rows[0] * rows[1])]
    x = numbers(rng, places.size, width)
    return [x, places.astype(np.int64), np.array(rows, np.int64)], {}


CALLS: Mapping[str, Maker] = {
    "SoftmaxCrossEntropyLoss": labelled_loss,
    "SoftmaxCrossEntropyLossInternal": labelled_loss,
    "SparseSoftmaxCrossEntropy": loss_of_rows,
    "SoftmaxCrossEntropy": dense_loss,
    "CrossEntropyLossAndGrad": labelled_loss,
    "DenseCrossEntropyLossAndGrad": dense_loss,
    "MeasuredCrossEntropyLossAndGrad": labelled_loss,
    "SoftmaxCrossEntropyLossGrad": loss_gradient,
    "SoftmaxCrossEntropyLossInternalGrad": loss_gradient,
    "SparseSoftmaxCrossEntropyGrad": gradient_of_rows,
    "ReduceSumTraining": reduced,
    "ReduceAllL2": listed,
    "IsAllFinite": finite_or_not,
    "All": bools,
    "GradientNorm": listed,
    "InplaceClipGradNorm": listed,
    "LambOptimizer": lamb,
    "LayerNormalizationGrad": layer_norm_gradient,
    "SimplifiedLayerNormalizationGrad": without_mean,
    "InvertibleLayerNormalizationGrad": from_output,
    "FlashAttentionGrad": attention_gradient,
    "BatchNormInternal": batch_norm,
    "BatchNormalizationGrad": batch_norm_gradient,
    "BatchNormRelu": batch_norm_relu,
    "BatchNormReluGrad": batch_norm_relu_gradient,
    "Conv": convolution,
    "ConvGrad": convolution_gradient,
    "ConvTranspose": transposed,
    "ConvTransposeGrad": transposed_gradient,
    "GatherGrad": gathered,
    "GatherElementsGrad": gathered_elements,
    "GatherNDGrad": gathered_slices,
    "ConcatTraining": joined,
    "SplitTraining": taken_apart,
    "DivGrad": divided,
    "GistSparseEncoder": sparse,
    "GistSparseFp10Encoder": sparse,
    "GistSparseMsfp15Encoder": sparse,
    "GistGuardedMsfp15Encoder": guarded,
    "PadAndUnflatten": padded,
}


def compare(
    name: str, inputs: list[Any], actual: Any, host: Callable[[Any], Any], **attributes: Any
) -> None:
    """Results as the CPU provider has them, sums with the tolerance of their longest."""
    cls = get_op(name)
    with backends.numpy_runs_on(backends.CPU):
        expected = cls(**attributes)(*copy.deepcopy(inputs))
    terms = max(array.size for array in flat(tuple(map(as_flat, inputs))))
    for got, wanted in zip(flat(actual), flat(expected), strict=True):
        if wanted is None:
            continue
        pair = host(got), np.asarray(wanted)
        if name.startswith("GistSparse"):
            pair = code_bytes(pair[0]), code_bytes(pair[1])
        exact = cls.bitwise_exact
        assert_matches(*pair, 0.0 if exact else tolerance_of(pair[1].dtype, max(1, terms)))


def as_flat(value: Any) -> Any:
    """Arrays of an input; sizes and None count as empty."""
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, np.ndarray) else np.empty(0)


def drawn_case(name: str, rng: np.random.Generator, dtypes: Sequence[Any] = DTYPES) -> Case:
    """Inputs and attributes of a call."""
    return CALLS[name](Size(rng, dtypes), rng)


def call(
    name: str,
    inputs: list[Any],
    place: Callable[[Any], Any],
    workspace: Any = None,
    **attributes: Any,
) -> Any:
    """The operator's function, its shared instance's scratch memory poisoned before."""
    cls = get_op(name)
    op, placed = cls.shared(**attributes), mapped_inputs(cls, inputs, place)
    op.workspaces.poison()
    if workspace is not None:
        workspace = workspace[: op.workspace_nbytes(*placed)]
    result = getattr(cto, cls.function_name)(*placed, workspace=workspace, **attributes)
    assert_zeros(op)
    return result

# SPDX-License-Identifier: MIT
"""Operators over rows and channels: softmax and its logarithm, norms, embeddings.

The gradient of an embedding is deterministic: its order of addition depends only on the indices.

Bodies compute by run(operator, *inputs): `launch`, or `infer` for results without data. In norms x
has shape (..., *row), weight and bias have `row`; mean and inv_std, of the forward pass, have one
number for each row, of a batch norm one for each channel. mask: which of the gradients of (x,
weight, bias, residual) are computed, without those that a norm lacks. momentum and eps: PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...call.op import Op
from ...errors import refuse
from ...families.batch_norm.operators import BatchNormRelu, BatchNormReluGrad
from ...families.gather.operators import GatherGrad
from ...families.layer_norm.operators import (
    LayerNormalization,
    LayerNormalizationGrad,
    SimplifiedLayerNormalization,
    SimplifiedLayerNormalizationGrad,
)
from ...families.softmax.operators import (
    LogSoftmax,
    LogSoftmaxGrad_13,
    Softmax,
    SoftmaxGrad_13,
)
from .autograd import CustomOp, masked_op
from .dispatch import register
from .launching import Run, infer, instance, of_mask


def _softmaxes(name: str, forward: type[Op], gradient: type[Op]) -> tuple[CustomOp, CustomOp]:
    """Return the operator `name`, whose derivative uses its result, and that of its derivative.

    forward, gradient: the kernels' operators.
    """

    def body(run: Run, x: Tensor, dim: int) -> Tensor:
        return run(instance(forward, axis=dim), x)

    def backward(run: Run, dy: Tensor, y: Tensor, dim: int) -> Tensor:
        op = instance(gradient, axis=dim)
        return run(op, dy, y)

    def save(ctx: Any, arguments: Sequence[Any], y: Tensor) -> None:
        ctx.dim = arguments[1]
        ctx.save_for_backward(y)

    def derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return DOORS[f"{name}_backward"].every(dy, *ctx.saved_tensors, ctx.dim), None

    schema = f"{name}_backward(Tensor grad, Tensor output, int dim) -> Tensor"
    return (
        CustomOp(
            f"{name}(Tensor input, int dim) -> Tensor",
            body,
            save,
            derivative,
        ),
        CustomOp(schema, backward),
    )


def _scale(name: str, x: Tensor, row: Sequence[int], weight: Tensor | None) -> Tensor:
    """Check that `x` has shape (..., *row); return the weight, or ones. name: for an error."""
    if not row or x.shape[-len(row) :] != tuple(row):
        expected = f"a shape that ends in {tuple(row)}"
        refuse(f"cto::{name}", "input", expected, f"shape {tuple(x.shape)}")
    return x.new_ones(row) if weight is None else weight


def _rms_norm(run: Run, x: Tensor, row: Sequence[int], weight: Tensor | None, eps: float) -> Any:
    """Return (result, inv_std), or what `run` computes of these."""
    scale = _scale("rms_norm", x, row, weight)
    op = instance(SimplifiedLayerNormalization, axis=-len(row), epsilon=eps)
    return run(op, x, scale)


def _rms_norm_gradients(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    inv_std: Tensor,
    mask: Sequence[bool],
) -> Any:
    """Return the gradients of x and weight that the mask selects: a tensor, or a tuple of both or
    none."""
    op = instance(SimplifiedLayerNormalizationGrad, axis=-len(row))
    inputs = (dy, x, _scale("rms_norm", x, row, weight), inv_std)
    return of_mask(run, op, inputs, mask)


def _layer_norm(
    run: Run,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    """Return (result, mean, inv_std), or what `run` computes of these."""
    op = instance(LayerNormalization, axis=-len(row), epsilon=eps)
    return run(op, x, _scale("layer_norm", x, row, weight), bias)


def _layer_norm_gradients(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    mask: Sequence[bool],
) -> Any:
    """Return the gradients of x, weight and bias that the mask selects: a tensor, or a tuple of
    several or none."""
    op = instance(LayerNormalizationGrad, axis=-len(row))
    inputs = (dy, x, _scale("layer_norm", x, row, weight), mean, inv_std)
    return of_mask(run, op, inputs, mask)


def _pair_gradients(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    pair: Tensor,
    mask: Sequence[bool],
) -> Any:
    """Return the gradients of x, weight and bias that the mask selects; pair: mean and inv_std as
    one tensor, as a launch returns them that joins results."""
    mean, inv_std = pair.unbind()
    return _layer_norm_gradients(run, dy, x, row, weight, mean, inv_std, mask)


# The operator of the derivative, by the number of tensors that have mean and inv_std.
_OF_STATISTICS = {1: "layer_norm_backward_of_pair", 2: "layer_norm_backward"}


# A `_save...` saves in ctx what the `..._derivative` needs of the operator's arguments and results.
# A derivative returns a gradient for each argument, None where there is none: `needs`, in the order
# of the operator's schema, says which have one.


def _save_rms_norm(ctx: Any, arguments: Sequence[Any], results: Any) -> None:
    """Save x, the weight and inv_std for the derivative."""
    x, row, weight, _ = arguments
    _, inv_std = results
    ctx.row = tuple(row)
    ctx.save_for_backward(x, weight, inv_std)


def _save_layer_norm(ctx: Any, arguments: Sequence[Any], results: Any) -> None:
    """Save x, the weight, and mean and inv_std, two tensors or one of both, for the derivative."""
    x, row, weight, _, _ = arguments
    _, *statistics = results
    ctx.row = tuple(row)
    ctx.save_for_backward(x, weight, *statistics)


def _rms_norm_derivative(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
    """Return the gradients of (x, row, weight, eps), the second and last None."""
    x, weight, inv_std = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = (needs[0], needs[2])
    dx, dweight = DOORS["rms_norm_backward"].masked(dy, x, ctx.row, weight, inv_std, mask)
    return dx, None, dweight, None


def _layer_norm_derivative(ctx: Any, dy: Tensor, *_: None) -> tuple[Any, ...]:
    """Return the gradients of (x, row, weight, bias, eps), the second and last None."""
    x, weight, *statistics = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = (needs[0], needs[2], needs[3])
    door = DOORS[_OF_STATISTICS[len(statistics)]]
    dx, dweight, dbias = door.masked(dy, x, ctx.row, weight, *statistics, mask)
    return dx, None, dweight, dbias, None


def _has_channels_last(x: Tensor) -> bool:
    """Return True for (N, C, ...) that lies in memory as contiguous (N, ..., C)."""
    return x.dim() > 2 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def _rows_of(x: Tensor) -> Tensor:
    """Return (N, C, ...) as (N * ..., C), a row for each pixel: a view if channels are last."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def _images_of(rows: Tensor, like: Tensor) -> Tensor:
    """View a matrix of `_rows_of` in the shape (N, C, ...) of `like`."""
    return rows.view(like.movedim(1, -1).shape).movedim(-1, 1)


def _batch_norm_relu_in_place(
    run: Run,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    """Return (result, mean, inv_std), or the result alone if `run` computes only that; update the
    running statistics in place. x, residual: (N, C, ...); other tensors: (C,)."""
    channels, of_sums = x.shape[1:2], torch.float64 if x.dtype == torch.float64 else torch.float32
    statistics: tuple[Tensor, ...] = ()
    if running_mean is not None and running_var is not None:
        # Their versions stay, as in PyTorch, which saves them for gradients of other calls.
        statistics = running_mean.data, running_var.data
    if (running_mean is None) != (running_var is None) or not all(
        statistic.is_contiguous() for statistic in statistics
    ):
        expected = "contiguous statistics, which are updated in place, or none of both"
        refuse("cto::batch_norm_relu", "running_mean", expected, "others")
    if not statistics:
        statistics = x.new_zeros(channels, dtype=of_sums), x.new_ones(channels, dtype=of_sums)
    kind = of_sums if running_mean is None else running_mean.dtype
    scale = x.new_ones(channels, dtype=kind) if weight is None else weight
    shift = x.new_zeros(channels, dtype=scale.dtype) if bias is None else bias
    op = instance(BatchNormRelu, epsilon=eps, momentum=1 - momentum)  # ONNX's weighs the old
    if not _has_channels_last(x):
        return run(op, x, scale, shift, *statistics, residual)
    if residual is not None:
        if residual.shape != x.shape:
            expected = f"shape {tuple(x.shape)}, as input"
            refuse("cto::batch_norm_relu", "residual", expected, f"shape {tuple(residual.shape)}")
        residual = _rows_of(residual)
    results = run(op, _rows_of(x), scale, shift, *statistics, residual)
    if isinstance(results, Tensor):
        return _images_of(results, x)
    return _images_of(results[0], x), *results[1:]


def _batch_norm_relu(
    run: Run,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    """Return (result, mean, inv_std, new running mean, new running variance), the last two empty
    without running statistics: operators of the dispatcher write no argument."""
    new_mean, new_var = (s if s is None else s.clone() for s in (running_mean, running_var))
    y, mean, inv_std = _batch_norm_relu_in_place(
        run, x, weight, bias, residual, new_mean, new_var, momentum, eps
    )
    return y, mean, inv_std, *[mean.new_empty(0) if s is None else s for s in (new_mean, new_var)]


def _batch_norm_relu_gradients(
    run: Run,
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    mask: Sequence[bool],
) -> Any:
    """Return the gradients of x, weight, bias and residual that the mask selects."""
    scale = torch.ones_like(mean) if weight is None else weight
    op = instance(BatchNormReluGrad)
    if not _has_channels_last(x):
        return of_mask(run, op, (dy, x, y, scale, mean, inv_std), mask)
    images = [_rows_of(each) for each in (dy, x, y)]
    results = of_mask(run, op, (*images, scale, mean, inv_std), mask)
    computed = results if isinstance(results, tuple) else (results,)
    return tuple([each if each.dim() == 1 else _images_of(each, x) for each in computed])


def _save_batch_norm_relu(ctx: Any, arguments: Sequence[Any], results: Any) -> None:
    x, weight, *_ = arguments
    y, *statistics = results  # one tensor, or two
    ctx.save_for_backward(x, weight, y, *statistics[:2])


def _batch_norm_relu_derivative(ctx: Any, dy: Tensor, *_: None) -> tuple[Any, ...]:
    """Return the gradients of x, weight, bias and residual, then None for the four others."""
    x, weight, y, *statistics = ctx.saved_tensors
    mean, inv_std = statistics if len(statistics) == 2 else statistics[0].unbind()
    mask = tuple(ctx.needs_input_grad[:4])
    door = DOORS["batch_norm_relu_backward"]
    return *door.masked(dy, x, y, weight, mean, inv_std, mask), None, None, None, None


def _embedding(_: Run, weight: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    return torch.embedding(weight, indices, padding_idx)


def _embedding_backward(
    run: Run, dy: Tensor, indices: Tensor, num_weights: int, padding_idx: int
) -> Tensor:
    """Return the weight's gradient, (num_weights, features): the sum of the rows of dy with each
    index.

    dy: (*indices.shape, features). padding_idx: the row that stays 0; -1: none.
    """
    op, shape = instance(GatherGrad), (num_weights, dy.shape[-1])
    dweight: Tensor = run(op, shape, indices, dy)
    if padding_idx < 0:
        return dweight
    dweight[padding_idx].zero_()
    # Another tensor than the launch made, so that `trace` repeats the body with its zeros.
    return dweight.detach()


def _save_embedding(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
    weight, indices, ctx.padding_idx = arguments
    ctx.num_weights = weight.shape[0]
    ctx.save_for_backward(indices)


def _embedding_derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    (indices,) = ctx.saved_tensors
    door = DOORS["embedding_backward"]
    return door.every(dy, indices, ctx.num_weights, ctx.padding_idx), None, None


def _fake_embedding_backward(dy: Tensor, indices: Tensor, num_weights: int, _: int) -> Tensor:
    return _embedding_backward(infer, dy, indices, num_weights, -1)


DOORS = register(
    (
        *_softmaxes("softmax", Softmax, SoftmaxGrad_13),
        *_softmaxes("log_softmax", LogSoftmax, LogSoftmaxGrad_13),
        CustomOp(
            "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, "
            "float eps=1e-05) -> (Tensor output, Tensor inv_std)",
            _rms_norm,
            _save_rms_norm,
            _rms_norm_derivative,
        ),
        masked_op(
            "rms_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, "
            "Tensor? weight, Tensor inv_std, bool[2] output_mask) -> (Tensor, Tensor)",
            _rms_norm_gradients,
        ),
        CustomOp(
            "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, "
            "Tensor? bias=None, float eps=1e-05) "
            "-> (Tensor output, Tensor mean, Tensor inv_std)",
            _layer_norm,
            _save_layer_norm,
            _layer_norm_derivative,
        ),
        masked_op(
            "layer_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, "
            "Tensor? weight, Tensor mean, Tensor inv_std, bool[3] output_mask) "
            "-> (Tensor, Tensor, Tensor)",
            _layer_norm_gradients,
        ),
        masked_op(
            "layer_norm_backward_of_pair(Tensor grad, Tensor input, SymInt[] normalized_shape, "
            "Tensor? weight, Tensor mean_and_inv_std, bool[3] output_mask) "
            "-> (Tensor, Tensor, Tensor)",
            _pair_gradients,
        ),
        CustomOp(
            "batch_norm_relu(Tensor input, Tensor? weight, Tensor? bias, Tensor? residual, "
            "Tensor? running_mean, Tensor? running_var, float momentum=0.1, float eps=1e-05) "
            "-> (Tensor output, Tensor mean, Tensor inv_std, "
            "Tensor new_running_mean, Tensor new_running_var)",
            _batch_norm_relu,
            _save_batch_norm_relu,
            _batch_norm_relu_derivative,
            first=_batch_norm_relu_in_place,
        ),
        masked_op(
            "batch_norm_relu_backward(Tensor grad, Tensor input, Tensor output, Tensor? weight, "
            "Tensor mean, Tensor inv_std, bool[4] output_mask) "
            "-> (Tensor, Tensor, Tensor, Tensor)",
            _batch_norm_relu_gradients,
        ),
        CustomOp(
            "embedding(Tensor weight, Tensor indices, int padding_idx=-1) -> Tensor",
            _embedding,
            _save_embedding,
            _embedding_derivative,
        ),
        CustomOp(
            "embedding_backward(Tensor grad, Tensor indices, SymInt num_weights, "
            "int padding_idx=-1) -> Tensor",
            _embedding_backward,
            fake=_fake_embedding_backward,
        ),
    )
)

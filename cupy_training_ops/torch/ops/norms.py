# SPDX-License-Identifier: MIT
"""Layer and RMS normalisation of the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...errors import refuse
from ...families.layer_norm.operators import (
    LayerNormalization,
    LayerNormalizationGrad,
    SimplifiedLayerNormalization,
    SimplifiedLayerNormalizationGrad,
)
from .launching import Run, instance
from .nodes import Operator
from .registration import register
from .shortcuts import Shortcuts


def _scale(name: str, x: Tensor, row: Sequence[int], weight: Tensor | None) -> Tensor:
    """The weight; ones without one."""
    if not row or x.shape[-len(row) :] != tuple(row):
        expected = f"a shape that ends in {tuple(row)}"
        refuse(f"cto::{name}", "input", expected, f"shape {tuple(x.shape)}")
    return x.new_ones(row) if weight is None else weight


def _rms_norm(run: Run, x: Tensor, row: Sequence[int], weight: Tensor | None, eps: float) -> Any:
    scale = _scale("rms_norm", x, row, weight)
    op = instance(SimplifiedLayerNormalization, axis=-len(row), epsilon=eps)
    return run(op, x, scale)


def _rms_norm_backward(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    inv_std: Tensor,
    mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    return _pad(_of_rms_norm(run, dy, x, row, weight, inv_std, mask), mask, dy)


def _of_rms_norm(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    inv_std: Tensor,
    mask: Sequence[bool],
) -> Any:
    op = instance(SimplifiedLayerNormalizationGrad, axis=-len(row))
    inputs = (dy, x, _scale("rms_norm", x, row, weight), inv_std)
    return _of_mask(run, op, inputs, mask)


def _layer_norm(
    run: Run,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    op = instance(LayerNormalization, axis=-len(row), epsilon=eps)
    return run(op, x, _scale("layer_norm", x, row, weight), bias)


def _layer_norm_backward(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    return _pad(_of_layer_norm(run, dy, x, row, weight, mean, inv_std, mask), mask, dy)


def _of_layer_norm(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    mask: Sequence[bool],
) -> Any:
    op = instance(LayerNormalizationGrad, axis=-len(row))
    inputs = (dy, x, _scale("layer_norm", x, row, weight), mean, inv_std)
    return _of_mask(run, op, inputs, mask)


def _layer_norm_backward_of_pair(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    pair: Tensor,
    mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    return _pad(_of_pair(run, dy, x, row, weight, pair, mask), mask, dy)


def _of_pair(
    run: Run,
    dy: Tensor,
    x: Tensor,
    row: Sequence[int],
    weight: Tensor | None,
    pair: Tensor,
    mask: Sequence[bool],
) -> Any:
    """Mean and inv_std are slices of one tensor, as the forward pass makes them for autograd."""
    mean, inv_std = pair.unbind()
    return _of_layer_norm(run, dy, x, row, weight, mean, inv_std, mask)


def _of_mask(run: Run, op: Any, inputs: Sequence[Any], mask: Sequence[bool]) -> Any:
    """The gradients that the mask names: one, or a tuple."""
    outputs = [output.name for output in op.outputs]
    names = tuple([name for name, wanted in zip(outputs, mask, strict=True) if wanted])
    return run(op, *inputs, outputs=names) if names else ()


def _pad(found: Any, mask: Sequence[bool], like: Tensor) -> tuple[Tensor, ...]:
    """With empty tensors in the places of those that the mask leaves out."""
    results = iter(found if isinstance(found, tuple) else (found,))
    return tuple([next(results) if wanted else like.new_empty(0) for wanted in mask])


_OF_STATISTICS = {1: "layer_norm_backward_of_pair", 2: "layer_norm_backward"}


def _keep_rms_norm(ctx: Any, arguments: Sequence[Any], results: Any) -> None:
    x, row, weight, _ = arguments
    _, inv_std = results
    ctx.row = tuple(row)
    ctx.save_for_backward(x, weight, inv_std)


def _keep_layer_norm(ctx: Any, arguments: Sequence[Any], results: Any) -> None:
    x, row, weight, _, _ = arguments
    _, *statistics = results  # one tensor, or two
    ctx.row = tuple(row)
    ctx.save_for_backward(x, weight, *statistics)


def _rms_norm_derivative(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
    x, weight, inv_std = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = (needs[0], needs[2])
    dx, dweight = DOORS["rms_norm_backward"].wanted(dy, x, ctx.row, weight, inv_std, mask)
    return dx, None, dweight, None


def _layer_norm_derivative(ctx: Any, dy: Tensor, *_: None) -> tuple[Any, ...]:
    x, weight, *statistics = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = (needs[0], needs[2], needs[3])
    door = DOORS[_OF_STATISTICS[len(statistics)]]
    dx, dweight, dbias = door.wanted(dy, x, ctx.row, weight, *statistics, mask)
    return dx, None, dweight, dbias, None


DOORS = register(
    (
        Operator(
            "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, "
            "float eps=1e-05) -> (Tensor output, Tensor inv_std)",
            _rms_norm,
            _keep_rms_norm,
            _rms_norm_derivative,
            direct=Shortcuts(_rms_norm),
        ),
        Operator(
            "rms_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, "
            "Tensor? weight, Tensor inv_std, bool[2] output_mask) -> (Tensor, Tensor)",
            _rms_norm_backward,
            wanted=Shortcuts(_of_rms_norm),
        ),
        Operator(
            "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, "
            "Tensor? bias=None, float eps=1e-05) "
            "-> (Tensor output, Tensor mean, Tensor inv_std)",
            _layer_norm,
            _keep_layer_norm,
            _layer_norm_derivative,
            direct=Shortcuts(_layer_norm),
        ),
        Operator(
            "layer_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, "
            "Tensor? weight, Tensor mean, Tensor inv_std, bool[3] output_mask) "
            "-> (Tensor, Tensor, Tensor)",
            _layer_norm_backward,
            wanted=Shortcuts(_of_layer_norm),
        ),
        Operator(
            "layer_norm_backward_of_pair(Tensor grad, Tensor input, SymInt[] normalized_shape, "
            "Tensor? weight, Tensor mean_and_inv_std, bool[3] output_mask) "
            "-> (Tensor, Tensor, Tensor)",
            _layer_norm_backward_of_pair,
            wanted=Shortcuts(_of_pair),
        ),
    )
)

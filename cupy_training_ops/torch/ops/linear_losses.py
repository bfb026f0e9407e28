# SPDX-License-Identifier: MIT
"""Cross-entropy of a linear layer, which never has all scores in memory.

For each chunk of rows it computes scores = hidden @ weight.T + bias, their gradient in the same
memory, and adds to the gradients of the layer. Shapes here: hidden (rows, features), weight
(classes, features), bias (classes,), target (rows,) with classes or (rows, classes) with
probabilities, class_weight (classes,). Where a row's loss has a shape `...`: weight (classes * ...,
features), target (rows, ...) or (rows, classes, ...). ignore_index: class whose rows do not count.
terms: label_smoothing, lse_square_scale, softcap. is_measured: z-losses and predicted classes are
computed too. chunk_rows: rows of a chunk; 0: as many as have about CHUNK_NBYTES. dloss: gradient of
the loss. Bodies ignore their Run: they call operators over chunks themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from ...errors import refuse, shown
from ...families.cross_entropy.operators import (
    CrossEntropyLossAndGrad,
    DenseCrossEntropyLossAndGrad,
    MeasuredCrossEntropyLossAndGrad,
)
from .autograd import CustomOp
from .dispatch import register
from .launching import Run
from .layer_sums import SCALE, LayerSums, chunks
from .losses import MOST, TERMS, loss_operator, scale_gradients


def _linear_cross_entropy(
    _: Run,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
    mask: Sequence[bool],
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float = 0.0,
    chunk_rows: int = 0,
    *,
    is_measured: bool = False,
) -> tuple[Tensor, ...]:
    """Return the loss, the gradients of hidden, weight and bias, and the gradients' scales.

    dtype: of the loss; None: that of hidden. mask: which of the three gradients are computed; the
    others are empty. The scales, of `_result_scale`, multiply them. is_measured: append z-loss,
    reduced as the loss, and predicted classes.
    """
    if reduction not in ("mean", "sum"):
        refuse("cto::linear_cross_entropy", "reduction", "'mean' or 'sum'", shown(reduction))
    wide = _wide(hidden)
    # Loss and gradients are computed divided by `largest`; `divisor` undoes that and is the mean's.
    class_weight, largest = _bounded_classes(class_weight, target, wide)
    terms = label_smoothing, lse_square_scale, softcap
    targets = _targets_of(
        hidden, target, class_weight, ignore_index, "sum", terms, is_measured=is_measured
    )
    if targets.row_weights is not None:
        targets.row_weights.div_(largest)
    scale: Any = 1 / largest
    divisor = scale
    if reduction == "mean":
        n_classes = len(weight) // math.prod(targets.rows_shape[1:])
        if targets.row_weights is None:
            divisor = _count(targets.target, n_classes, class_weight, ignore_index).to(wide)
        else:
            divisor = scale * max(math.prod(targets.rows_shape), 1)
    layer = hidden, weight, bias
    result_scale = _result_scale(layer, mask, targets, divisor)
    divided_by = divisor / result_scale if result_scale.numel() else divisor
    loss, *sums = _sum_chunks(layer, targets, mask, divided_by, chunk_rows)
    loss = (loss / divisor).to(dtype or hidden.dtype)
    if targets.measures is None:
        return loss, *sums, result_scale
    z_loss, predicted = targets.measures
    return loss, *sums, result_scale, (z_loss / divisor).to(loss.dtype), predicted


def _result_scale(
    layer: tuple[Tensor, Tensor, Tensor | None],
    mask: Sequence[bool],
    targets: _Targets,
    divisor: float | Tensor,
) -> Tensor:
    """Return powers of two that gradients are multiplied by, float32 of shape (3,); empty: by 1.

    Small gradients of a mean would be lost in float16, before the scale of a GradScaler multiplies
    them. So each is multiplied by as much as it surely has room for below MOST. divisor: of the
    gradients, a number, or a tensor of shape ().
    """
    hidden, weight, _ = layer
    if hidden.dtype != torch.float16 or not any(mask):
        return hidden.new_empty(0, dtype=torch.float32)
    largest = [hidden.new_ones((), dtype=torch.float32) for _ in range(3)]
    for i, x in enumerate((weight, hidden)):
        if x.numel():
            largest[i] = torch.stack(x.aminmax()).abs().amax().float()
    # A row's scores sum up to 2 for each of its losses, a score's rows to their number.
    of_row = 2 * math.prod(targets.rows_shape[1:])
    bounds = of_row * largest[0], len(hidden) * largest[1], len(hidden) * largest[2]
    return _power_of_two(MOST / targets.headroom * divisor / torch.stack(bounds))


def _power_of_two(x: Tensor) -> Tensor:
    """Return the largest power of two up to |x|, float32; 1 for 0 and for what is not finite."""
    power = x.float().abs().log2().floor().exp2()
    return torch.where(power.isfinite() & (power > 0), power, 1)


def _row_losses(
    _: Run,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    dtype: torch.dtype | None,
    class_weight: Tensor | None,
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float = 0.0,
    chunk_rows: int = 0,
    *,
    is_measured: bool = False,
) -> Any:
    """Return each row's loss, of shape (rows, ...); scores are computed again for gradients.

    is_measured: return (losses, z-losses, predicted classes), all of that shape.
    """
    wide = _wide(hidden)
    class_weight = _as(class_weight, wide)
    terms = label_smoothing, lse_square_scale, softcap
    targets = _targets_of(
        hidden, target, class_weight, ignore_index, "none", terms, is_measured=is_measured
    )
    no_divisor = hidden.new_ones((), dtype=wide)
    layer = hidden, weight, bias
    loss = _sum_chunks(layer, targets, (False,) * 3, no_divisor, chunk_rows)[0]
    loss = loss.to(dtype or hidden.dtype)
    if targets.measures is None:
        return loss
    z_loss, predicted = targets.measures
    return loss, z_loss.to(loss.dtype), predicted


def _row_gradients(
    _: Run,
    dloss: Tensor,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    class_weight: Tensor | None,
    label_smoothing: float,
    lse_square_scale: float,
    softcap: float,
    chunk_rows: int,
    mask: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of hidden, weight and bias, empty where the mask is False.

    dloss: the gradients of the rows' losses, (rows, ...).
    """
    # Gradients are computed divided by `largest * largest_slope`; `divisor` undoes that.
    wide = _wide(hidden)
    class_weight, largest = _bounded_classes(class_weight, target, wide)
    slopes, largest_slope = _bounded(dloss, wide)
    terms = label_smoothing, lse_square_scale, softcap
    targets = _targets_of(hidden, target, class_weight, ignore_index, "none", terms)
    if targets.row_weights is None:
        targets = targets._replace(slopes=slopes)
    else:
        targets = targets._replace(row_weights=slopes / largest)
    divisor = 1 / (largest * largest_slope)
    return _sum_chunks((hidden, weight, bias), targets, mask, divisor, chunk_rows)[1:]


def _bounded_classes(
    class_weight: Tensor | None, target: Tensor, wide: torch.dtype
) -> tuple[Tensor | None, Any]:
    """Return (class weights or None, bound): of losses / bound, gradients of scores are at most 1.

    Against classes the weights are returned divided by the bound, their largest, as they multiply
    all of a row's loss. Against probabilities it is the largest sum of a row's probabilities times
    the largest weight, and the caller divides. wide: dtype of both results.
    """
    if not target.is_floating_point():
        return _bounded(class_weight, wide)
    class_weight = _as(class_weight, wide)
    row_nbytes = math.prod(target.shape[1:]) * target.element_size()
    sums = [target[rows].abs().sum(1, dtype=wide) for rows in chunks(len(target), row_nbytes)]
    bound = torch.stack([each.amax() for each in sums if each.numel()] or [target.new_ones(())])
    bound = bound.to(wide).amax().clamp(min=1)
    if class_weight is not None and class_weight.numel():
        bound = bound * class_weight.abs().amax().clamp(min=1)
    return class_weight, bound


def _wide(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _as(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


def _bounded(x: Tensor | None, wide: torch.dtype) -> tuple[Any, Any]:
    """Return (x / bound, bound), the bound being x's largest finite magnitude, 1 if that is 0, so
    that gradients fit into float16; (None, 1) without x. wide: dtype of both."""
    if x is None:
        return None, 1
    x = x.to(wide)
    # The weight of a class that no row has may be 1 / 0.
    largest = x.abs().nan_to_num_(0, 0).amax() if x.numel() else x.new_ones(())
    largest.masked_fill_(largest == 0, 1)
    return x / largest, largest


class _Targets(NamedTuple):
    """Targets of all rows, with the operator of their losses.

    row_weights: only of probabilities, (rows, ...): factors of losses, 0 where a row is left out.
    slopes: only of classes, (rows, ...): factors of the gradients of scores, or None. measures:
    tensors that `compute` fills, of z-losses and of predicted classes, or None. n_added: see
    `_aligned`.
    """

    op: Any
    target: Tensor
    class_weight: Tensor | None
    ignore_index: int
    row_weights: Tensor | None = None
    slopes: Tensor | None = None
    measures: tuple[Tensor, Tensor] | None = None
    n_added: int = 0

    @property
    def headroom(self) -> int:
        """Return a bound of |d loss / d score|: 1 without a z-loss s lse^2, else 1 + 2 s |lse|,
        which is below 32 for |lse| up to 15 / s."""
        return 32 if self.op.lse_square_scale else 1

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """Return the shape of the rows' losses, (rows, ...)."""
        return tuple((self.target if self.row_weights is None else self.row_weights).shape)

    def without(self, rows: Tensor) -> _Targets:
        """Return targets of which some rows do not count; rows: their indices."""
        if self.row_weights is not None:
            return self._replace(row_weights=self.row_weights.index_fill(0, rows, 0))
        return self._replace(target=self.target.index_fill(0, rows, self.ignore_index))

    def compute(
        self, scores: Tensor, rows: slice | Tensor, scale: Tensor, *, overwrites: bool
    ) -> Tensor:
        """Return the loss of some rows: their sum, or one of each row, as `op.reduction` says.

        scores: of these rows, (rows, classes, ...). overwrites: write their gradient, times
        `scale`, a tensor of shape (1,), over them.
        """
        target, others = self.target[rows], self.ignore_index
        if self.row_weights is not None:
            others = self.row_weights[rows]
        inputs = (scores, target, self.class_weight, others, scale)
        names = [output.name for output in self.op.outputs]
        outputs = [name for name in names if name != "d_target"]
        if overwrites:
            out = [scores if name == "d_scores" else None for name in names]
            results = self.op(*inputs, out=tuple(out), outputs=tuple(outputs))
        else:
            outputs.remove("d_scores")
            results = self.op(*inputs, outputs=tuple(outputs))
        if overwrites and self.slopes is not None:
            scores *= self.slopes[rows].unsqueeze(1)
        if self.measures is not None:
            z_loss, predicted = self.measures
            _add(z_loss, rows, results[2])
            # -1 in a pass in which the row does not count.
            predicted[rows] = torch.maximum(predicted[rows], results[3])
        return results[0]


def _targets_of(
    hidden: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    terms: Sequence[float],
    *,
    is_measured: bool = False,
) -> _Targets:
    """Return targets with the operator of their losses, which are float32, or float64 as hidden.

    reduction: "sum" or "none".
    """
    wide, is_dense = _wide(hidden), target.is_floating_point()
    kind: Any = MeasuredCrossEntropyLossAndGrad if is_measured else CrossEntropyLossAndGrad
    kind = DenseCrossEntropyLossAndGrad if is_dense else kind
    op, target = loss_operator(reduction, wide, *terms, kind=kind), target.contiguous()
    if target.dtype == torch.int32 and not -(2**31) <= ignore_index < 2**31:
        target = target.long()  # else compared with the lowest 32 bits of it
    targets = _Targets(op, target, class_weight, ignore_index)
    if is_dense:
        shape = (len(target), *target.shape[2:])
        return targets._replace(row_weights=hidden.new_ones(shape, dtype=wide))
    if not is_measured:
        return targets
    z_loss = hidden.new_zeros(target.shape if reduction == "none" else (), dtype=wide)
    return targets._replace(measures=(z_loss, torch.full_like(target, -1, dtype=torch.int64)))


def _add(total: Tensor, rows: slice | Tensor, of_rows: Tensor) -> None:
    """Add of_rows, a number for each of `rows` or their sum, to a total: (rows, ...) or ()."""
    if total.dim():
        total[rows] += of_rows
    else:
        total += of_rows


def _sum_chunks(
    layer: tuple[Any, ...],
    targets: _Targets,
    mask: Sequence[bool],
    divisor: Any,
    chunk_rows: int,
) -> tuple[Tensor, ...]:
    """Return the loss, a sum or one of each row, and the gradients of hidden, weight and bias.

    layer: hidden, weight, bias. mask: which gradients are computed; the others are empty. divisor:
    of the gradients only, a number or tensor of shape (), or of (3,), powers of two times one
    number. Chunks are summed without the rows of `sums.apart`, divided, and then those rows are
    added.
    """
    if chunk_rows < 0:
        refuse("cto::linear_cross_entropy", "chunk_rows", "0 or more", f"{chunk_rows}")
    hidden, weight, _ = layer
    wide, is_each = _wide(hidden), targets.op.reduction == "none"
    loss = hidden.new_zeros(targets.rows_shape if is_each else (), dtype=wide)
    if not isinstance(divisor, Tensor):
        divisor = hidden.new_full((), divisor, dtype=wide)
    divisor = divisor.expand(3)
    n_classes = len(weight)
    layer, targets = _aligned(layer, targets)
    _, weight, _ = layer
    pieces = list(chunks(len(hidden), len(weight) * hidden.element_size(), chunk_rows))
    sums = LayerSums(layer, mask, len(pieces), chunk_rows, targets.headroom)
    scale = hidden.new_full((1,), sums.scale, dtype=torch.float32)
    apart, others = sums.apart, targets
    if apart is not None:
        others = targets.without(apart)
    for rows in pieces:
        _add_chunk(others, sums, rows, layer, scale, loss)
    sums.divide(divisor)
    if apart is not None:
        inverses = divisor.reciprocal().float()
        inverse = inverses[1:2]
        factors = 1.0, (inverses / inverse).nan_to_num(nan=1.0)  # both 0 without weights
        if not is_each:  # small gradients of scores would be lost, divided by a number of rows
            room = SCALE / targets.headroom  # these rows have the largest scores
            power = _power_of_two(inverse)
            factors, inverse = (1 / room, factors[1] * power), inverse * room / power
        _add_chunk(targets, sums, apart, layer, inverse, loss, factors)
    of_hidden, of_weight, of_bias = sums.results
    return loss, of_hidden, of_weight[:n_classes], of_bias[:n_classes]


def _aligned(layer: tuple[Any, ...], targets: _Targets) -> tuple[tuple[Any, ...], _Targets]:
    """Return a layer whose rows of scores have whole 16 bytes, and its targets: `n_added` classes
    follow, with weights of 0, whose scores have to become -inf.

    Products over others, as over the 50,257 classes of GPT-2, take up to five times as long. Layers
    stay whose labels are smoothed or scores are capped, as added classes would count, and those
    with probabilities or with dimensions behind the classes.
    """
    hidden, weight, bias = layer
    n_classes, target = len(weight), targets.target
    added = -n_classes % (16 // hidden.element_size())
    counts_all = targets.op.label_smoothing or targets.op.softcap
    if not added or counts_all or targets.row_weights is not None or target.dim() != 1:
        return layer, targets
    ignored, outside = targets.ignore_index, n_classes + added
    outside += outside == ignored
    is_outside = (target >= n_classes) & (target != ignored)
    class_weight = targets.class_weight
    targets = targets._replace(
        target=target.masked_fill(is_outside, outside),
        class_weight=None if class_weight is None else pad(class_weight, (0, added)),
        n_added=added,
    )
    bias = None if bias is None else pad(bias, (0, added))
    return (hidden, pad(weight, (0, 0, 0, added)), bias), targets


def _add_chunk(
    targets: _Targets,
    sums: LayerSums,
    rows: slice | Tensor,
    layer: tuple[Any, ...],
    scale: Tensor,
    loss: Tensor,
    factors: tuple[float, Tensor] | None = None,
) -> None:
    """Add the loss of some rows to `loss`, and their gradients to `sums`.

    rows: a chunk; or indices, those of `sums.apart`. scale: factor of gradients of scores, of shape
    (1,). factors: of `sums.add_apart`, or None with a chunk.
    """
    hidden, weight, bias = layer
    scores = linear(hidden[rows], weight, bias)
    if targets.n_added:
        scores[:, -targets.n_added :] = -math.inf
    extents = targets.rows_shape[1:]
    by_class = scores.view(len(scores), len(weight) // math.prod(extents), *extents)
    _add(loss, rows, targets.compute(by_class, rows, scale, overwrites=sums.are_wanted))
    if not sums.are_wanted:
        return
    if factors is None:
        sums.add(rows, hidden[rows], scores)
    else:
        sums.add_apart(hidden[rows], scores, factors)


def _count(
    target: Tensor, n_classes: int, class_weight: Tensor | None, ignore_index: int
) -> Tensor:
    """Return the divisor of a mean, of shape (): the sum of the class weights of the rows' targets,
    or their number without weights. Where that is 0, so is the mean: 1, or infinity."""
    counts = target != ignore_index
    if class_weight is None:
        return counts.sum().clamp(min=1)
    inside = (target >= 0) & (target < n_classes)
    weights = pad(class_weight, (0, 1), value=1)[target.where(inside, n_classes)]
    total = weights.masked_fill_(~counts, 0).sum()
    return total.masked_fill_(total == 0, math.inf)


# ---- results without values, for torch.compile; arguments: those of the operator's schema --------


def _fake_linear(*arguments: Any) -> tuple[Tensor, ...]:
    hidden, weight, _, bias, _, _, dtype, mask, *_ = arguments
    loss = hidden.new_empty((), dtype=dtype or hidden.dtype)
    has_scale = hidden.dtype == torch.float16 and any(mask)
    scale = hidden.new_empty(3 if has_scale else 0, dtype=torch.float32)
    return loss, *_fake_gradients((hidden, weight, bias), mask), scale


def _fake_gradients(layer: Sequence[Any], mask: Sequence[bool]) -> tuple[Tensor, ...]:
    pairs = zip(layer, mask, strict=True)
    empty = layer[0].new_empty(0)
    return tuple([x.new_empty(x.shape) if wanted else empty.clone() for x, wanted in pairs])


def _fake_measured_linear(*arguments: Any) -> tuple[Tensor, ...]:
    loss, *gradients = _fake_linear(*arguments)
    predicted = arguments[2].new_empty(arguments[2].shape, dtype=torch.int64)
    return loss, *gradients, loss.clone(), predicted


def _fake_row_losses(*arguments: Any) -> Tensor:
    """Return an empty tensor of the shape and dtype of the rows' losses."""
    hidden, _, target, _, _, dtype, *_ = arguments
    shape = target.shape
    if target.is_floating_point():  # probabilities, (rows, classes, ...)
        shape = (*shape[:1], *shape[2:])
    return hidden.new_empty(shape, dtype=dtype or hidden.dtype)


def _fake_measured_rows(*arguments: Any) -> tuple[Tensor, ...]:
    loss = _fake_row_losses(*arguments)
    return loss, loss.clone(), loss.new_empty(loss.shape, dtype=torch.int64)


def _fake_row_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    _, hidden, weight, _, bias, *_ = arguments
    return _fake_gradients((hidden, weight, bias), arguments[-1])


# ---- derivatives ---------------------------------------------------------------------------------


def _save_linear(ctx: Any, arguments: Sequence[Any], results: tuple[Tensor, ...]) -> None:
    """Save the mask of gradients, the three gradients that the forward pass computed, and their
    scales."""
    ctx.mask = tuple(arguments[7])
    ctx.save_for_backward(*results[1:5])


def _linear_derivative(ctx: Any, dloss: Tensor, *_: None) -> tuple[Any, ...]:
    """Return gradients of all arguments: those that were saved, times the loss's, and None."""
    *gradients, scale = ctx.saved_tensors
    scales = scale if scale.numel() else (1.0, 1.0, 1.0)
    hidden, weight, bias = [
        scale_gradients(ctx, "linear_cross_entropy", dloss, [x], each)[0] if wanted else None
        for x, each, wanted in zip(gradients, scales, ctx.mask, strict=True)
    ]
    return hidden, weight, None, bias, *[None] * (len(ctx.needs_input_grad) - 4)


def _save_rows(ctx: Any, arguments: Sequence[Any], _: Any) -> None:
    hidden, weight, target, bias, ctx.ignore_index, _, class_weight, *terms = arguments
    ctx.terms = tuple(terms)
    ctx.save_for_backward(hidden, weight, target, bias, class_weight)


def _rows_derivative(ctx: Any, dloss: Tensor, *_: None) -> tuple[Any, ...]:
    """Return gradients of all arguments from those of the rows' losses, with new scores."""
    hidden, weight, target, bias, class_weight = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = (needs[0], needs[1], needs[3])
    inputs = (dloss, hidden, weight, target, bias, ctx.ignore_index, class_weight, *ctx.terms)
    of_layer = DOORS["linear_cross_entropy_rows_backward"].every(*inputs, mask)
    pairs = zip(of_layer, mask, strict=True)
    of_hidden, of_weight, of_bias = [x if wanted else None for x, wanted in pairs]
    return of_hidden, of_weight, None, of_bias, *[None] * (len(needs) - 4)


_TERMS = f"{TERMS}, int chunk_rows=0"
_LAYER = "Tensor hidden, Tensor weight, Tensor target, Tensor? bias, int ignore_index"
DOORS = register(
    (
        CustomOp(
            f"linear_cross_entropy({_LAYER}, str reduction, ScalarType? dtype, "
            f"bool[3] output_mask, Tensor? class_weight=None, {_TERMS}) "
            "-> (Tensor loss, Tensor, Tensor, Tensor, Tensor scale)",
            _linear_cross_entropy,
            _save_linear,
            _linear_derivative,
            _fake_linear,
        ),
        CustomOp(
            f"linear_cross_entropy_rows({_LAYER}, ScalarType? dtype, Tensor? class_weight, "
            f"{_TERMS}) -> Tensor",
            _row_losses,
            _save_rows,
            _rows_derivative,
            _fake_row_losses,
        ),
        CustomOp(
            f"measured_linear_cross_entropy({_LAYER}, str reduction, ScalarType? dtype, "
            f"bool[3] output_mask, Tensor? class_weight=None, {_TERMS}) "
            "-> (Tensor loss, Tensor, Tensor, Tensor, Tensor scale, Tensor z_loss, "
            "Tensor predicted)",
            functools.partial(_linear_cross_entropy, is_measured=True),
            _save_linear,
            _linear_derivative,
            _fake_measured_linear,
        ),
        CustomOp(
            f"measured_linear_cross_entropy_rows({_LAYER}, ScalarType? dtype, "
            f"Tensor? class_weight, {_TERMS}) "
            "-> (Tensor loss, Tensor z_loss, Tensor predicted)",
            functools.partial(_row_losses, is_measured=True),
            _save_rows,
            _rows_derivative,
            _fake_measured_rows,
        ),
        CustomOp(
            "linear_cross_entropy_rows_backward(Tensor grad, Tensor hidden, Tensor weight, "
            "Tensor target, Tensor? bias, int ignore_index, Tensor? class_weight, "
            "float label_smoothing, float lse_square_scale, float softcap, int chunk_rows, "
            "bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
            _row_gradients,
            fake=_fake_row_gradients,
        ),
    )
)

# SPDX-License-Identifier: MIT
"""Cross-entropy against classes; the forward pass also computes the gradient of the scores.

d loss / d scores is a second result, which the derivative multiplies in place by the loss's
gradient. Cross-entropy of a linear layer never has all scores in memory: for each chunk of rows it
computes scores, their gradient in the same memory, and adds to the gradients of the layer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...errors import refuse, shown
from ...families.cross_entropy.operators import CrossEntropyLossAndGrad
from ...families.elementwise.operators import ScaleInPlace
from ...plan import align_up, ceil_div
from .autograd import CustomOp
from .dispatch import needs_dispatcher, register
from .launching import Run, infer, instance

_ARGUMENTS = (
    "Tensor target, Tensor? weight=None, int ignore_index=-100, str reduction='mean', "
    "ScalarType? dtype=None"
)
_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
# Of a chunk's scores. Large, as each chunk reads and writes the summed gradients.
CHUNK_NBYTES = 512 << 20
SCALE = 1024
MOST = 2**15  # bound of sums, which float16 can represent
_ROWS = 128  # a chunk has whole tiles of a matrix product
MOST_APART = 128  # rows


def _loss_operator(reduction: str, dtype: torch.dtype | None) -> Any:
    output_type = None if dtype is None else str(dtype).removeprefix("torch.")
    return instance(CrossEntropyLossAndGrad, reduction=reduction, output_type=output_type)


def _loss_and_gradient(
    run: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
    outputs: Sequence[str] | None = None,
) -> Any:
    inputs = (scores, target, weight, ignore_index, None)
    return run(_loss_operator(reduction, dtype), *inputs, outputs=outputs)


_loss = functools.partial(_loss_and_gradient, outputs=("output",))


def _in_place(
    _: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
) -> Tensor:
    """Return the loss; the gradient overwrites the scores."""
    whole = scores.resolve_neg().contiguous()
    weight = None if weight is None else weight.contiguous()
    inputs = (whole, target.contiguous(), weight, ignore_index, None)
    loss, _ = _loss_operator(reduction, dtype)(*inputs, out=(None, whole))
    if whole is not scores:
        scores.copy_(whole)
    torch.autograd.graph.increment_version(scores)
    return loss


def _save(ctx: Any, _: Sequence[Any], results: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(results[1])


def _derivative(ctx: Any, dloss: Tensor, _: None) -> tuple[Any, ...]:
    if ctx.needs_input_grad[2]:
        refuse(
            "cto::cross_entropy", "weight", "a tensor that requires no gradient", "one that does"
        )
    return scale_gradients("cross_entropy", dloss, ctx.saved_tensors)[0], *[None] * 5


def scale_gradients(name: str, dloss: Tensor, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Multiply gradients by the loss's, or each row's; in place unless the graph is retained."""
    if torch.is_grad_enabled():
        refuse(f"cto::{name}", "create_graph", "False", "True: its gradient has no derivative")
    slope = dloss.unsqueeze(1) if dloss.dim() else dloss
    if needs_dispatcher((dloss, *gradients)) or _keeps_graph():
        return [gradient * slope.to(gradient.dtype) for gradient in gradients]
    if dloss.dim() or dloss.dtype == torch.float64:
        return [gradient.mul_(slope) for gradient in gradients]
    # ScaleInPlace writes nothing if the factor is 1, as of loss.backward().
    factor = dloss.float()
    return [_scale_in_place(gradient, factor) for gradient in gradients]


def refuse_overwriting(x: Tensor) -> None:
    """Refuse scores that cannot be overwritten: leaves, expanded ones, or with retain_grad()."""
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
        expected = "scores that are no expanded ones, as they are overwritten"
        refuse("cross_entropy", "input", expected, f"strides {tuple(x.stride())}")
    base = x if x._base is None else x._base
    if x.is_leaf or (base.is_leaf and base.requires_grad):
        expected = "the result of an operation, as it is overwritten"
        refuse("cross_entropy", "input", expected, "a leaf, or its view")
    if x.retains_grad or base.retains_grad:
        expected = "scores that do not retain their gradient, as it takes their place"
        refuse("cross_entropy", "input", expected, "some that do (retain_grad())")


def _check_overwriting(_: Run, x: Tensor) -> Tensor:
    """Do nothing: the check is `_fake_check`, on the tensors that torch.compile traces with."""
    return x.new_empty(0)


def _fake_check(x: Tensor) -> Tensor:
    if x.requires_grad:
        refuse_overwriting(x)
    return x.new_empty(0)


def _scale_in_place(gradient: Tensor, factor: Tensor) -> Tensor:
    instance(ScaleInPlace)(gradient, factor.resolve_neg())
    torch.autograd.graph.increment_version(gradient)
    return gradient


def chunks(n_rows: int, row_nbytes: int) -> Iterator[slice]:
    """Yield slices of rows, nearly equal, of about CHUNK_NBYTES, and whole multiples of _ROWS."""
    n_chunks = max(1, ceil_div(n_rows * row_nbytes, CHUNK_NBYTES))
    step = max(_ROWS, align_up(ceil_div(n_rows, n_chunks), _ROWS))
    return (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


class _Sums:
    """Gradients of hidden, weight and bias, summed over chunks; empty if they are not needed.

    The sum for a 16-bit weight is float16, in the memory of its gradient: bfloat16 would round it
    to 8 bits at each chunk. To stay within float16, gradients of scores are multiplied by SCALE (so
    that small ones are normal numbers), columns of `hidden` are divided by their largest element,
    and sums are scaled by the number of rows, which bounds them. The rows with the largest
    elements, beside which others would lose bits, are `apart`: they are added last, unscaled.
    """

    def __init__(
        self, inputs: Sequence[Tensor | None], mask: Sequence[bool], n_chunks: int
    ) -> None:
        hidden, self.weight, bias = inputs
        assert hidden is not None
        gradients = [
            torch.empty_like(x, memory_format=torch.contiguous_format) if wanted else None
            for x, wanted in zip((hidden, self.weight, bias), mask, strict=True)
        ]
        self.are_wanted = any(mask)
        self.of_hidden, self.of_weight, self.of_bias = gradients
        self.results = [hidden.new_empty(0) if sums is None else sums for sums in gradients]
        self.is_half = hidden.dtype == torch.float16 or (
            hidden.dtype == torch.bfloat16 and n_chunks > 1
        )
        self.scale = SCALE if self.is_half else 1
        self.wide_bias = None  # float16 would overflow
        if self.of_bias is not None:
            wide = torch.promote_types(self.of_bias.dtype, torch.float32)
            self.wide_bias = torch.zeros_like(self.of_bias, dtype=wide)
        self.weight_sums, self.unit, self.apart = self.of_weight, 1.0, None
        if self.is_half and self.of_weight is not None:
            self.weight_sums = self.of_weight.view(torch.float16)
            self.unit = MOST / 2 ** max(len(hidden) - 1, 0).bit_length()
            sizes = hidden.abs()
            if n_apart := min(MOST_APART, len(hidden) // 8):
                self.apart = sizes.amax(1).topk(n_apart, sorted=False).indices
                sizes.index_fill_(0, self.apart, 0)
            self.largest = sizes.amax(0).float() if len(hidden) else hidden.new_ones(())
            self.largest.masked_fill_(self.largest == 0, 1)
        if self.weight_sums is not None and not len(hidden):
            self.weight_sums.zero_()

    def add(self, rows: slice, hidden: Tensor, gradient: Tensor) -> None:
        """Add a chunk's gradients; gradient: that of its scores."""
        if self.of_hidden is not None:
            into, weight = self.of_hidden[rows], self.weight
            torch.addmm(into, gradient, weight, beta=0, alpha=1 / self.scale, out=into)
        if self.wide_bias is not None:
            self.wide_bias += gradient.sum(0, dtype=self.wide_bias.dtype)
        if self.weight_sums is not None:
            factors, alpha = (gradient, hidden), self.unit / self.scale
            if self.is_half:
                relative = torch.empty_like(hidden, dtype=self.weight_sums.dtype)
                torch.div(hidden, self.largest, out=relative)
                relative.clamp_(-1, 1)  # rows apart, whose gradient is 0 here, may be infinite
                factors = _to_half(gradient), relative
            self.weight_sums.addmm_(
                factors[0].t(), factors[1], beta=int(rows.start > 0), alpha=alpha
            )

    def divide(self, divisor: Tensor) -> None:
        """Undo the scales, and divide all gradients by the loss's divisor."""
        if self.of_hidden is not None:
            self.of_hidden /= divisor
        if self.of_bias is not None:
            self.wide_bias /= divisor * self.scale
            self.of_bias.copy_(self.wide_bias)
        if self.weight_sums is not None and self.of_weight is not None:
            factor = (self.largest if self.is_half else 1) / (divisor * self.unit)
            for rows in chunks(len(self.weight_sums), 2 * self.weight_sums[0].nbytes):
                torch.mul(self.weight_sums[rows], factor, out=self.of_weight[rows])

    def add_apart(self, hidden: Tensor, gradient: Tensor) -> None:
        """Add the rows `apart`, after `divide`; gradient: that of their scores, divided."""
        assert self.of_weight is not None
        self.of_weight.addmm_(gradient.t(), hidden)
        if self.of_hidden is not None:
            self.of_hidden.index_copy_(0, self.apart, gradient @ self.weight)
        if self.of_bias is not None and self.wide_bias is not None:
            self.wide_bias += gradient.sum(0, dtype=self.wide_bias.dtype)
            self.of_bias.copy_(self.wide_bias)


def _to_half(gradient: Tensor) -> Tensor:
    """Convert a gradient to float16 in its own memory; vectorised, unlike copy_."""
    half = gradient.view(torch.float16)
    torch._foreach_copy_([half], [gradient])
    return half


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
) -> tuple[Tensor, ...]:
    """Return the loss and the gradients of hidden, weight and bias.

    Chunks are summed without the rows of `sums.apart`, divided, and then those rows are added.
    """
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    loss, target = hidden.new_zeros((), dtype=wide), target.contiguous()
    n_counted = _count(target, ignore_index, reduction).to(wide)
    pieces = list(chunks(len(hidden), len(weight) * hidden.element_size()))
    op, sums = _loss_operator("sum", wide), _Sums((hidden, weight, bias), mask, len(pieces))
    scale = target.new_full((1,), sums.scale, dtype=torch.float32)
    apart, others = sums.apart, target
    if apart is not None:
        others = target.index_fill(0, apart, ignore_index)
    for rows in pieces:
        loss += _chunk(op, sums, rows, (hidden, weight, bias), (others, ignore_index, scale))
    sums.divide(n_counted)
    if apart is not None:
        scale = n_counted.reciprocal().float().reshape(1)
        targets = target, ignore_index, scale
        loss += _chunk(op, sums, apart, (hidden, weight, bias), targets)
    return (loss / n_counted).to(dtype or hidden.dtype), *sums.results


def _chunk(
    op: Any, sums: _Sums, rows: slice | Tensor, layer: tuple[Any, ...], targets: tuple[Any, ...]
) -> Tensor:
    """Return the summed loss of some rows, and add their gradients to `sums`."""
    hidden, weight, bias = layer
    target, ignore_index, scale = targets
    scores = linear(hidden[rows], weight, bias)
    inputs = (scores, target[rows], None, ignore_index, scale)
    if not sums.are_wanted:
        loss, _ = op(*inputs, outputs=("output",))
        return loss
    loss, _ = op(*inputs, out=(None, scores))
    if isinstance(rows, slice):
        sums.add(rows, hidden[rows], scores)
    else:
        sums.add_apart(hidden[rows], scores)
    return loss


def _count(target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """Return the divisor of the summed loss: 1, or for "mean" the rows not ignored, at least 1."""
    if reduction == "sum":
        return target.new_ones(())
    if reduction != "mean":
        refuse("cto::linear_cross_entropy", "reduction", "'mean' or 'sum'", shown(reduction))
    return (target != ignore_index).sum().clamp(min=1)


def _fake_linear(*arguments: Any) -> tuple[Tensor, ...]:
    hidden, weight, _, bias, _, _, dtype, mask = arguments
    pairs = zip((hidden, weight, bias), mask, strict=True)
    gradients = [x.new_empty(x.shape) if wanted else hidden.new_empty(0) for x, wanted in pairs]
    return hidden.new_empty((), dtype=dtype or hidden.dtype), *gradients


def _save_linear(ctx: Any, arguments: Sequence[Any], results: tuple[Tensor, ...]) -> None:
    ctx.mask = tuple(arguments[-1])
    ctx.save_for_backward(*results[1:])


def _linear_derivative(ctx: Any, dloss: Tensor, *_: None) -> tuple[Any, ...]:
    pairs = zip(ctx.saved_tensors, ctx.mask, strict=True)
    scaled = iter(
        scale_gradients("linear_cross_entropy", dloss, [sums for sums, wanted in pairs if wanted])
    )
    hidden, weight, bias = [next(scaled) if wanted else None for wanted in ctx.mask]
    return hidden, weight, None, bias, None, None, None, None


DOORS = register(
    (
        CustomOp(
            f"cross_entropy(Tensor input, {_ARGUMENTS}) -> (Tensor loss, Tensor gradient)",
            _loss_and_gradient,
            _save,
            _derivative,
        ),
        CustomOp(
            f"cross_entropy_loss(Tensor input, {_ARGUMENTS}) -> Tensor",
            _loss,
        ),
        CustomOp(
            f"cross_entropy_(Tensor(a!) input, {_ARGUMENTS}) -> Tensor",
            _in_place,
            fake=functools.partial(_loss, infer),
            writes=0,
        ),
        CustomOp("overwritten(Tensor input) -> Tensor", _check_overwriting, fake=_fake_check),
        CustomOp(
            "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor target, Tensor? bias, "
            "int ignore_index, str reduction, ScalarType? dtype, bool[3] output_mask) "
            "-> (Tensor loss, Tensor, Tensor, Tensor)",
            _linear_cross_entropy,
            _save_linear,
            _linear_derivative,
            _fake_linear,
        ),
    )
)

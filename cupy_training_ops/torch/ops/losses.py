# SPDX-License-Identifier: MIT
"""Cross-entropy against classes with the gradient of the scores made in the same pass.

The gradient is a result beside the loss, for the loss as it is: the derivative multiplies it, in
place, with that of the loss. That of a linear layer has its scores never there as a whole: rows go
through in chunks, scores, their gradient in the same memory, and what that adds to the gradients of
the layer.
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
from .autograd import Operator
from .dispatch import is_watched, register
from .launching import Run, infer, instance

_ARGUMENTS = (
    "Tensor target, Tensor? weight=None, int ignore_index=-100, str reduction='mean', "
    "ScalarType? dtype=None"
)
_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
# Of scores, whose gradient takes their memory. Few chunks: each reads and writes the sums.
CHUNK_NBYTES = 512 << 20
SCALE = 1024
MOST = 2**15  # of sums, which float16 has room for
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
    """The loss; the gradient of the scores overwrites them."""
    whole = scores.resolve_neg().contiguous()
    weight = None if weight is None else weight.contiguous()
    inputs = (whole, target.contiguous(), weight, ignore_index, None)
    loss, _ = _loss_operator(reduction, dtype)(*inputs, out=(None, whole))
    if whole is not scores:
        scores.copy_(whole)
    torch.autograd.graph.increment_version(scores)
    return loss


def _keep(ctx: Any, _: Sequence[Any], results: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(results[1])


def _derivative(ctx: Any, dloss: Tensor, _: None) -> tuple[Any, ...]:
    if ctx.needs_input_grad[2]:
        refuse(
            "cto::cross_entropy", "weight", "a tensor that requires no gradient", "one that does"
        )
    return scale_gradients("cross_entropy", dloss, ctx.saved_tensors)[0], *[None] * 5


def scale_gradients(name: str, dloss: Tensor, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Multiply gradients by that of the loss, or of each row's; in place if nobody asks again."""
    if torch.is_grad_enabled():
        refuse(f"cto::{name}", "create_graph", "False", "True: its gradient has no derivative")
    slope = dloss.unsqueeze(1) if dloss.dim() else dloss
    if is_watched((dloss, *gradients)) or _keeps_graph():
        return [gradient * slope.to(gradient.dtype) for gradient in gradients]
    if dloss.dim() or dloss.dtype == torch.float64:
        return [gradient.mul_(slope) for gradient in gradients]
    # Mostly by 1, the gradient of a loss that is the last: then nothing is written.
    factor = dloss.float()
    return [_scale_in_place(gradient, factor) for gradient in gradients]


def refuse_overwriting(x: Tensor) -> None:
    """Refuse to overwrite the memory of a leaf, or of a tensor that is to have a gradient, and
    each element has its own."""
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
    """Return nothing: `_fake_check` looks at torch.compile's own tensors, without data."""
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
    """The gradients that were asked for, before they are divided; the others are empty.

    Sums over chunks for a weight of 16 bits are float16, in the memory of its gradient: bfloat16
    would round them to 8 bits at each chunk. Gradients of scores are made SCALE times as large, so
    that small ones are normal numbers, and become float16 in their own memory; columns of `hidden`
    are taken relative to their largest element, and sums to the number of rows, beyond which they
    cannot grow. The rows with the largest elements, beside which others would have few bits, are
    `apart`: they are added behind all others, without a scale.
    """

    def __init__(
        self, inputs: Sequence[Tensor | None], mask: Sequence[bool], n_chunks: int
    ) -> None:
        hidden, self.weight, bias = inputs
        assert hidden is not None
        made = [
            torch.empty_like(x, memory_format=torch.contiguous_format) if wanted else None
            for x, wanted in zip((hidden, self.weight, bias), mask, strict=True)
        ]
        self.are_wanted = any(mask)
        self.of_hidden, self.of_weight, self.of_bias = made
        self.results = [hidden.new_empty(0) if sums is None else sums for sums in made]
        self.is_half = hidden.dtype == torch.float16 or (
            hidden.dtype == torch.bfloat16 and n_chunks > 1
        )
        self.scale = SCALE if self.is_half else 1
        self.wide_bias = None  # SCALE times 64 is past float16
        if self.of_bias is not None:
            wide = torch.promote_types(self.of_bias.dtype, torch.float32)
            self.wide_bias = torch.zeros_like(self.of_bias, dtype=wide)
        self.kept, self.unit, self.apart = self.of_weight, 1.0, None
        if self.is_half and self.of_weight is not None:
            self.kept = self.of_weight.view(torch.float16)
            self.unit = MOST / 2 ** max(len(hidden) - 1, 0).bit_length()
            sizes = hidden.abs()
            if n_apart := min(MOST_APART, len(hidden) // 8):
                self.apart = sizes.amax(1).topk(n_apart, sorted=False).indices
                sizes.index_fill_(0, self.apart, 0)
            self.largest = sizes.amax(0).float() if len(hidden) else hidden.new_ones(())
            self.largest.masked_fill_(self.largest == 0, 1)
        if self.kept is not None and not len(hidden):
            self.kept.zero_()

    def add(self, rows: slice, hidden: Tensor, gradient: Tensor) -> None:
        """Add the share of these rows, by the gradient of their scores."""
        if self.of_hidden is not None:
            into, weight = self.of_hidden[rows], self.weight
            torch.addmm(into, gradient, weight, beta=0, alpha=1 / self.scale, out=into)
        if self.wide_bias is not None:
            self.wide_bias += gradient.sum(0, dtype=self.wide_bias.dtype)
        if self.kept is not None:
            given, factor = (gradient, hidden), self.unit / self.scale
            if self.is_half:
                relative = torch.empty_like(hidden, dtype=self.kept.dtype)
                torch.div(hidden, self.largest, out=relative)
                relative.clamp_(-1, 1)  # rows apart, whose gradient is 0 here, may be infinite
                given = _to_half(gradient), relative
            self.kept.addmm_(given[0].t(), given[1], beta=int(rows.start > 0), alpha=factor)

    def divide(self, divisor: Tensor) -> None:
        """Divide all gradients, at the end."""
        if self.of_hidden is not None:
            self.of_hidden /= divisor
        if self.of_bias is not None:
            self.wide_bias /= divisor * self.scale
            self.of_bias.copy_(self.wide_bias)
        if self.kept is not None and self.of_weight is not None:
            factor = (self.largest if self.is_half else 1) / (divisor * self.unit)
            for rows in chunks(len(self.kept), 2 * self.kept[0].nbytes):
                torch.mul(self.kept[rows], factor, out=self.of_weight[rows])

    def add_apart(self, hidden: Tensor, gradient: Tensor) -> None:
        """Add the rows apart to the divided gradients, by the divided gradient of their scores."""
        assert self.of_weight is not None
        self.of_weight.addmm_(gradient.t(), hidden)
        if self.of_hidden is not None:
            self.of_hidden.index_copy_(0, self.apart, gradient @ self.weight)
        if self.of_bias is not None and self.wide_bias is not None:
            self.wide_bias += gradient.sum(0, dtype=self.wide_bias.dtype)
            self.of_bias.copy_(self.wide_bias)


def _to_half(gradient: Tensor) -> Tensor:
    """Return a gradient as float16 in its own memory; by vectors, which copy_ does not use here."""
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
    """The loss, and its gradients for hidden, weight and bias. Chunks of rows give undivided
    sums, without the rows of `sums.apart`, which come last, divided by what counts."""
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
    """Return the summed loss of some rows, and add their gradients; scores are gone then."""
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
    """Return the divisor of the sum of losses: 1, or for the mean the rows that count."""
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


def _keep_linear(ctx: Any, arguments: Sequence[Any], results: tuple[Tensor, ...]) -> None:
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
        Operator(
            f"cross_entropy(Tensor input, {_ARGUMENTS}) -> (Tensor loss, Tensor gradient)",
            _loss_and_gradient,
            _keep,
            _derivative,
        ),
        Operator(
            f"cross_entropy_loss(Tensor input, {_ARGUMENTS}) -> Tensor",
            _loss,
        ),
        Operator(
            f"cross_entropy_(Tensor(a!) input, {_ARGUMENTS}) -> Tensor",
            _in_place,
            fake=functools.partial(_loss, infer),
            writes=0,
        ),
        Operator("overwritten(Tensor input) -> Tensor", _check_overwriting, fake=_fake_check),
        Operator(
            "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor target, Tensor? bias, "
            "int ignore_index, str reduction, ScalarType? dtype, bool[3] output_mask) "
            "-> (Tensor loss, Tensor, Tensor, Tensor)",
            _linear_cross_entropy,
            _keep_linear,
            _linear_derivative,
            _fake_linear,
        ),
    )
)

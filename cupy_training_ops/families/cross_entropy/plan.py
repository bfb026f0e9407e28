# SPDX-License-Identifier: MIT
"""Launches of cross-entropy losses and gradients over the rows of their scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import plan as plans
from ...declare.schema import Changing, Spec
from ...dtypes import FLOAT64, INT64, Dtype, element_type
from ...facts import HELD_NBYTES, MAX_THREADS
from ...forks import computed_once
from ...planning.lines import MANY_ROWS, Kernels, Lines, Registers, division, register_nbytes
from ...rules.widening import computed_in
from .facts import (
    N_SUMS,
    NBYTES_BESIDE_WIDER,
    NBYTES_OF_SHARES,
    REGULARIZED_THREADS,
    SUM_THREADS,
    Rule,
)

SUM_BLOCKS = 128  # at most, each with N_SUMS partial sums
# Threads of a row at most where nothing is written: no part of it is needed again, and many blocks
# compute while others load. 0.50 ms in place of 0.60 with 1,024 of 131,072 classes in float16.
ALONE_THREADS = 128
ROWS_A_BLOCK = 2048  # that are worth another block

LOSS = Kernels(
    short_rows="cross_entropy__loss_short_rows",
    rows="cross_entropy__loss_rows",
    columns="cross_entropy__loss_columns",
    bundles="cross_entropy__loss_bundles",
)
GRADIENT = Kernels(
    rows="cross_entropy__gradient_rows",
    columns="cross_entropy__gradient_columns",
)
LOSS_AND_GRADIENT = Kernels(
    rows="cross_entropy__loss_and_gradient_rows",
    columns="cross_entropy__loss_and_gradient_columns",
)
REGULARIZED = Kernels(
    rows="cross_entropy__regularized_rows",
    columns="cross_entropy__regularized_columns",
)
SHARES = Kernels(
    rows="cross_entropy__shares_rows",
    columns="cross_entropy__shares_columns",
)
DENSE_LOSS = Kernels(
    rows="cross_entropy__dense_loss_rows",
    columns="cross_entropy__dense_loss_columns",
)
DENSE_GRADIENT = Kernels(
    rows="cross_entropy__dense_gradient_rows",
    columns="cross_entropy__dense_gradient_columns",
)


@dataclass(frozen=True)
class Targets:
    """Labels with what says how they are read: weights of classes or rows, what is ignored.

    Without labels there are weights of classes alone.
    """

    labels: Spec | None
    n_classes: int
    weights: Spec | None = None
    ignore_index: int | None = None
    row_weights: bool = False

    @property
    def are_equal(self) -> bool:
        """True if every row has weight 1, as those without labels have."""
        return self.labels is None or (self.weights is None and self.ignore_index is None)

    @property
    def args(self) -> tuple[object, ...]:
        """Kernel arguments: labels, weights and the struct Rule."""
        ignore = self.ignore_index
        may_occur = ignore is not None and -(2**63) <= ignore < 2**63
        rule = plans.by_value(
            Rule,
            n_classes=self.n_classes,
            ignore_index=ignore if may_occur else 0,
            weight_type=element_type(self.weights.dtype).onnx if self.weights else 0,
            ignores=may_occur,
            wide_labels=self.labels is not None and self.labels.dtype == INT64,
            row_weights=self.row_weights,
        )
        return self.labels, self.weights, rule


NO_TARGETS = None, None, np.zeros((), Rule.of().dtype)[()]


@dataclass(frozen=True)
class Terms:
    """Label smoothing, z-loss and cap, and the arrays of numbers beside the loss."""

    label_smoothing: float = 0.0
    lse_square_scale: float = 0.0
    softcap: float = 0.0
    z_loss: Spec | None = None
    predicted: Spec | None = None

    @property
    def numbers(self) -> tuple[float, ...]:
        """Arguments of kernels."""
        return self.label_smoothing, self.lse_square_scale, self.softcap

    @property
    def are_plain(self) -> bool:
        """True if the plain kernels compute the loss."""
        return not any(self.numbers) and self.z_loss is None and self.predicted is None


@dataclass(frozen=True)
class Probabilities:
    """Probabilities of the classes, a factor of each row, and the gradient of the first."""

    targets: Spec | None = None
    row_weights: Spec | None = None
    gradient: Spec | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of one call: where its arrays have them, types, how their losses are reduced."""

    device: plans.Device
    lines: Lines
    t: Dtype
    t_out: Dtype
    reduction: str
    t_target: Dtype | None = None  # of probabilities, where it is not that of the scores

    @computed_once
    def scratch(self) -> plans.ScratchMemory:
        """Scratch memory of all launches."""
        return plans.ScratchMemory()

    @computed_once
    def _sums(self) -> tuple[plans.Scratch, plans.Scratch]:
        """Partial sums, and the ticket of the block that comes last."""
        ticket = self.scratch.zeros(1, np.uint32)
        return self.scratch.take(N_SUMS * SUM_BLOCKS, FLOAT64), ticket

    def plan(self, *launches: plans.Launch | None) -> plans.Plan:
        """The launches that are there."""
        present = tuple(launch for launch in launches if launch is not None)
        return self.scratch.plan(*present)

    def differ(self, targets: Targets) -> bool:
        """Return True if the divisor is a sum of weights."""
        return self.reduction == "mean" and not targets.are_equal

    def count(self) -> float:
        """The divisor of losses where it is no sum of weights."""
        return float(self.lines.count) if self.reduction == "mean" else 1.0

    def divisor(self, targets: Targets) -> tuple[plans.Launch | None, tuple[object, object]]:
        """The divisor of losses: in memory, by a launch of its own, or a number."""
        if not self.differ(targets):
            return None, (None, self.count())
        divisor = self.scratch.take(2, computed_in(self.t))
        args = (*targets.args, self.lines.count, *self._sums, divisor)
        return self._over_rows("cross_entropy__divisor", args), (divisor, 0.0)

    def losses(self, output: Spec | None) -> tuple[Spec | None, plans.Scratch | None]:
        """Memory for each row's loss: (output, None), or (None, what `total` sums)."""
        if output is None or self.reduction == "none":
            return output, None
        return None, self.scratch.take(self.lines.count, computed_in(self.t))

    def total(
        self,
        output: Spec | None,
        losses: plans.Scratch | None,
        targets: Targets | None = None,
        *,
        are_weighted: bool = False,
    ) -> plans.Launch | None:
        """The sum of the rows' losses times their targets' weights, divided.

        are_weighted: the losses have been multiplied by them.
        """
        if losses is None:
            return None
        differ = targets is not None and self.differ(targets)
        weights: tuple[object, ...] = NO_TARGETS
        if targets is not None and targets.labels is not None and (differ or targets.weights):
            weights = targets.args
        n = 0.0 if differ else self.count()
        args = (losses, self.lines.count, *weights, are_weighted, n, *self._sums, output)
        return self._over_rows("cross_entropy__total", args)

    def lines_launch(
        self,
        kernels: Kernels,
        args: tuple[object, ...],
        read: tuple[Spec | None, ...],
        written: tuple[Spec | None, ...],
        most_threads: int = MAX_THREADS,
        most_nbytes: int = HELD_NBYTES,
        column_threads: int = MAX_THREADS,
        t_written: Dtype | None = None,
    ) -> plans.Launch | None:
        """The launch of the kernel that suits the lines; None where there is no line.

        read, written: the arrays that have the lines. most_threads, column_threads: of a row, and
        of a block of columns. most_nbytes: that a thread holds of each line in registers.
        t_written: the type of what the kernel writes or adds, by default that of the outputs.
        """
        if not self.lines.count:
            return None
        width = plans.VEC_NBYTES // max(self.t.itemsize, (t_written or self.t_out).itemsize)
        n_read = sum(spec is not None for spec in read)
        nbytes = min(self._register_nbytes, most_nbytes)
        registers = Registers(
            nbytes, len(read), self.t.itemsize, width, n_read, most_threads, column_threads
        )
        aligned = all(spec.aligned for spec in (*read, *written) if spec is not None)
        divided = division(self.lines, registers, aligned, kernels)
        return self._launch(divided.kernel, divided.config, (*args, *divided.args))

    def _over_rows(self, symbol: str, args: tuple[object, ...]) -> plans.Launch:
        blocks = max(1, min(SUM_BLOCKS, plans.ceil_div(self.lines.count, ROWS_A_BLOCK)))
        return self._launch(symbol, plans.Config((blocks,), (SUM_THREADS,)), args)

    def _launch(self, symbol: str, config: plans.Config, args: tuple[object, ...]) -> plans.Launch:
        binding = plans.slots(T=self.t, TOUT=self.t_out, NBYTES=self._register_nbytes)
        if self.t_target not in (None, self.t):
            binding |= plans.slots(TTARGET=self.t_target)
        return plans.Launch(symbol, config, args, binding)

    @property
    def _register_nbytes(self) -> int:
        return min(register_nbytes(self.device, t) for t in (self.t, self.t_out))


def forward(
    rows: Rows, scores: Spec, targets: Targets, output: Spec | None, log_prob: Spec | None
) -> plans.Plan:
    """Loss and log-probabilities."""
    losses = rows.losses(output)
    args = (scores, *targets.args, log_prob, *losses)
    most = ALONE_THREADS if log_prob is None and rows.lines.n_outer >= MANY_ROWS else MAX_THREADS
    launch = rows.lines_launch(LOSS, args, (scores,), (log_prob,), most_threads=most)
    return rows.plan(launch, rows.total(output, losses[1], targets))


def backward(
    rows: Rows, dy: Spec, log_prob: Spec, targets: Targets, bias: Spec | None, gradient: Spec
) -> plans.Plan:
    """Gradient of the scores, from that of the loss."""
    divides, divisor = rows.divisor(targets)
    args = (dy, rows.reduction == "none", log_prob, *targets.args, *divisor, bias, gradient)
    # A thread holds fewer log-probabilities in registers beside a bias of a wider type.
    most = NBYTES_BESIDE_WIDER if rows.t_out.itemsize > rows.t.itemsize else HELD_NBYTES
    launch = rows.lines_launch(GRADIENT, args, (log_prob, bias), (gradient,), most_nbytes=most)
    return rows.plan(divides, launch)


def both(
    rows: Rows,
    scores: Spec,
    targets: Targets,
    scale: Spec | Changing | float,
    output: Spec | None,
    gradient: Spec | None,
    terms: Terms,
    probabilities: Probabilities | None = None,
) -> plans.Plan:
    """Loss and gradient of the scores; without labels, against probabilities."""
    divides, divisor = rows.divisor(targets)
    losses, squares = rows.losses(output), rows.losses(terms.z_loss)
    args = (scores, *targets.args, gradient, *losses, scale, *divisor)
    read: tuple[Spec | None, ...] = (scores,)
    written: tuple[Spec | None, ...] = (gradient,)
    kernels, t_widest = LOSS_AND_GRADIENT, scores.dtype
    smooths_weights = terms.label_smoothing != 0 and targets.weights is not None
    has_shares = probabilities is not None or smooths_weights
    if has_shares or not terms.are_plain:
        kernels = REGULARIZED
        args = (*args, *terms.numbers, *squares, terms.predicted)
    if has_shares:
        others = probabilities or Probabilities()
        kernels, read = SHARES, (scores, others.targets)
        written = (gradient, others.gradient)
        args = (*args, others.targets, others.row_weights, others.gradient)
        t_widest = max(scores.dtype, rows.t_target or scores.dtype, key=lambda t: t.itemsize)
    most_threads = MAX_THREADS if kernels is LOSS_AND_GRADIENT else REGULARIZED_THREADS
    launch = rows.lines_launch(
        kernels,
        args,
        read,
        written,
        most_threads=most_threads,
        column_threads=most_threads,
        most_nbytes=NBYTES_OF_SHARES if has_shares else HELD_NBYTES,
        t_written=t_widest,
    )
    totals = [
        rows.total(of_all, of_rows, targets, are_weighted=has_shares)
        for of_all, of_rows in ((output, losses[1]), (terms.z_loss, squares[1]))
    ]
    return rows.plan(divides, launch, *totals)


def dense_forward(
    rows: Rows, scores: Spec, target: Spec, output: Spec | None, log_prob: Spec | None
) -> plans.Plan:
    """Loss and log-probabilities, where targets are distributions."""
    losses = rows.losses(output)
    args = (scores, target, log_prob, *losses)
    launch = rows.lines_launch(DENSE_LOSS, args, (scores, target), (log_prob,))
    return rows.plan(launch, rows.total(output, losses[1]))


def dense_backward(
    rows: Rows, dy: Spec, log_prob: Spec, target: Spec, gradient: Spec
) -> plans.Plan:
    """Gradient of the scores from that of the loss, where targets are distributions."""
    args = (dy, rows.reduction == "none", log_prob, target, rows.count(), gradient)
    return rows.plan(rows.lines_launch(DENSE_GRADIENT, args, (log_prob, target), (gradient,)))

# SPDX-License-Identifier: MIT
"""Launches of cross-entropy losses and gradients over rows: the scores of all classes for a label.

A kernel writes the loss of each row (and the gradient of the scores); for a mean or sum, a second
launch adds the rows up (`Rows.total`).
"""

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
    NBYTES_OF_TERMS,
    SUM_THREADS,
    TERMS_THREADS,
    UNCAPPED_THREADS,
    Rule,
)

SUM_BLOCKS = 128  # at most, of a launch that sums over rows, each with N_SUMS partial sums
# Threads of a row at most where nothing is written: no part of it is needed again, and many blocks
# compute while others load. 0.50 ms in place of 0.60 with 1,024 of 131,072 classes in float16.
ALONE_THREADS = 128
ROWS_A_BLOCK = 2048  # of such a launch, at least

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
CAPPED = Kernels(
    rows="cross_entropy__capped_rows",
    columns="cross_entropy__regularized_columns",
)
SHARES = Kernels(
    rows="cross_entropy__shares_rows",
    columns="cross_entropy__shares_columns",
)
CAPPED_SHARES = Kernels(
    rows="cross_entropy__capped_shares_rows",
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
    """Labels, one a row, and what they are weighted by; without labels weights of classes alone."""

    labels: Spec | None
    n_classes: int  # labels are from 0 to n_classes - 1
    weights: Spec | None = None  # of each class, or of each row
    ignore_index: int | None = None  # the label of rows that do not count
    row_weights: bool = False  # weights are of rows

    @property
    def are_equal(self) -> bool:
        """Return True if every row has weight 1, as those without labels have."""
        return self.labels is None or (self.weights is None and self.ignore_index is None)

    @property
    def args(self) -> tuple[object, ...]:
        """Return kernel arguments: labels, weights and the struct Rule.

        An ignore_index beyond 64 bits is no label that occurs.
        """
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


# Kernel arguments in place of Targets.args where rows have no labels and weights.
NO_TARGETS = None, None, np.zeros((), Rule.of().dtype)[()]


@dataclass(frozen=True)
class Terms:
    """Terms of the loss beside the plain cross-entropy, and outputs that measure it."""

    label_smoothing: float = 0.0
    lse_square_scale: float = 0.0  # factor of the z-loss, ln(sum of e^scores)^2
    softcap: float = 0.0  # bound of scores; 0: none
    z_loss: Spec | None = None  # output for the z-loss
    predicted: Spec | None = None  # output for the class with the largest score of each row

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the kernel arguments (label_smoothing, lse_square_scale, softcap)."""
        return self.label_smoothing, self.lse_square_scale, self.softcap

    @property
    def are_plain(self) -> bool:
        """Return True if kernels without these terms compute the loss."""
        return not any(self.numbers) and self.z_loss is None and self.predicted is None


@dataclass(frozen=True)
class Probabilities:
    """Targets that are probabilities of classes, not labels."""

    targets: Spec | None = None  # of the shape of the scores
    row_weights: Spec | None = None  # a factor of each row's loss
    gradient: Spec | None = None  # output for the gradient of `targets`


@dataclass(frozen=True)
class Rows:
    """The rows of one call, and its scratch memory; `plan` collects the launches."""

    device: plans.Device
    lines: Lines  # the rows in the array of scores
    t: Dtype  # of the scores
    t_out: Dtype  # of the loss and what else has the output type
    reduction: str  # "mean", "sum" or "none"
    t_target: Dtype | None = None  # of probabilities, where it is not that of the scores

    @computed_once
    def scratch(self) -> plans.ScratchMemory:
        """Return the scratch memory of all launches, the same at each access."""
        return plans.ScratchMemory()

    @computed_once
    def _sums(self) -> tuple[plans.Scratch, plans.Scratch]:
        """Return scratch memory of launches that sum: partial sums, and the counter of blocks."""
        ticket = self.scratch.zeros(1, np.uint32)
        return self.scratch.take(N_SUMS * SUM_BLOCKS, FLOAT64), ticket

    def plan(self, *launches: plans.Launch | None) -> plans.Plan:
        """Return the plan of the launches that are not None, in order."""
        present = tuple(launch for launch in launches if launch is not None)
        return self.scratch.plan(*present)

    def differ(self, targets: Targets) -> bool:
        """Return True if losses are divided by a sum of weights, which a launch has to compute."""
        return self.reduction == "mean" and not targets.are_equal

    def count(self) -> float:
        """Return the divisor of losses where it is no sum of weights: the rows, or 1."""
        return float(self.lines.count) if self.reduction == "mean" else 1.0

    def divisor(self, targets: Targets) -> tuple[plans.Launch | None, tuple[object, object]]:
        """Return (launch, (memory, number)): the divisor of losses as two kernel arguments.

        targets: labels and weights, whose sum it is for a weighted mean. It is in memory, as a
        WeightSum that the launch writes; or memory and launch are None, and it is the number.
        """
        if not self.differ(targets):
            return None, (None, self.count())
        divisor = self.scratch.take(2, computed_in(self.t))
        args = (*targets.args, self.lines.count, *self._sums, divisor)
        return self._over_rows("cross_entropy__divisor", args), (divisor, 0.0)

    def losses(self, output: Spec | None) -> tuple[Spec | None, plans.Scratch | None]:
        """Return where kernels write each row's loss, as two arguments: one is None, or both.

        (output, None) where it is not reduced, else (None, scratch memory that `total` sums).
        """
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
        """Return the launch of output = sum of rows' losses times weights, over the divisor.

        losses: memory with them; None: there is no launch. targets: labels and weights; None: all
        weigh 1. are_weighted: the losses have been multiplied by weights already.
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
        """Return the launch of the kernel that suits the rows; None where there is no row.

        args: all arguments but the last, which say how rows are divided. read, written: the arrays
        with elements of the rows. most_threads, column_threads: of a row, and of a block of
        columns. most_nbytes: bytes of registers that a thread has for what it reads of a row.
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
        """Return the launch of a kernel that sums over rows."""
        blocks = max(1, min(SUM_BLOCKS, plans.ceil_div(self.lines.count, ROWS_A_BLOCK)))
        return self._launch(symbol, plans.Config((blocks,), (SUM_THREADS,)), args)

    def _launch(self, symbol: str, config: plans.Config, args: tuple[object, ...]) -> plans.Launch:
        """Return a launch, with the types that this call's kernels are compiled for."""
        binding = plans.slots(T=self.t, TOUT=self.t_out, NBYTES=self._register_nbytes)
        if self.t_target not in (None, self.t):
            binding |= plans.slots(TTARGET=self.t_target)
        return plans.Launch(symbol, config, args, binding)

    @property
    def _register_nbytes(self) -> int:
        """Return how many bytes of a row a thread has in registers, as both types allow it."""
        return min(register_nbytes(self.device, t) for t in (self.t, self.t_out))


def forward(
    rows: Rows, scores: Spec, targets: Targets, output: Spec | None, log_prob: Spec | None
) -> plans.Plan:
    """Plan the loss (`output`) and log-probabilities of scores, against labels (`targets`).

    output, log_prob: None where not wanted.
    """
    losses = rows.losses(output)
    args = (scores, *targets.args, log_prob, *losses)
    most = ALONE_THREADS if log_prob is None and rows.lines.n_outer >= MANY_ROWS else MAX_THREADS
    launch = rows.lines_launch(LOSS, args, (scores,), (log_prob,), most_threads=most)
    return rows.plan(launch, rows.total(output, losses[1], targets))


def backward(
    rows: Rows, dy: Spec, log_prob: Spec, targets: Targets, bias: Spec | None, gradient: Spec
) -> plans.Plan:
    """Plan `gradient`, that of the scores, from dy, that of the loss; a bias is added to it.

    log_prob: logarithms of softmax. targets: labels and weights. bias: None adds nothing.
    """
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
    """Plan the loss (`output`) and the gradient of scale times it, against labels.

    Without labels in `targets`, against probabilities. The kernels with shares (the probability
    that is wanted of each class) also serve where smoothing goes with weights of classes. scale: in
    an array, a number, or a number of each call. terms: smoothing, z-loss and softcap, and outputs
    for z-loss and predicted classes.
    """
    divides, divisor = rows.divisor(targets)
    losses, squares = rows.losses(output), rows.losses(terms.z_loss)
    args = (scores, *targets.args, gradient, *losses, scale, *divisor)
    read: tuple[Spec | None, ...] = (scores,)
    written: tuple[Spec | None, ...] = (gradient,)
    kernels, t_widest = LOSS_AND_GRADIENT, scores.dtype
    most_threads, column_threads, most_nbytes = MAX_THREADS, MAX_THREADS, HELD_NBYTES
    smooths_weights = terms.label_smoothing != 0 and targets.weights is not None
    has_shares = probabilities is not None or smooths_weights
    if has_shares or not terms.are_plain:
        kernels = CAPPED if terms.softcap else REGULARIZED
        most_threads = TERMS_THREADS if terms.softcap else UNCAPPED_THREADS
        column_threads, most_nbytes = TERMS_THREADS, NBYTES_OF_TERMS
        args = (*args, *terms.numbers, *squares, terms.predicted)
    if has_shares:
        others = probabilities or Probabilities()
        kernels, read = CAPPED_SHARES if terms.softcap else SHARES, (scores, others.targets)
        most_threads, written = TERMS_THREADS, (gradient, others.gradient)
        args = (*args, others.targets, others.row_weights, others.gradient)
        t_widest = max(scores.dtype, rows.t_target or scores.dtype, key=lambda t: t.itemsize)
        most_nbytes = NBYTES_OF_SHARES * scores.dtype.itemsize // t_widest.itemsize
    launch = rows.lines_launch(
        kernels,
        args,
        read,
        written,
        most_threads=most_threads,
        column_threads=column_threads,
        most_nbytes=most_nbytes,
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
    """Plan the loss (`output`) and log_prob of scores against distributions, `target`."""
    losses = rows.losses(output)
    args = (scores, target, log_prob, *losses)
    launch = rows.lines_launch(DENSE_LOSS, args, (scores, target), (log_prob,))
    return rows.plan(launch, rows.total(output, losses[1]))


def dense_backward(
    rows: Rows, dy: Spec, log_prob: Spec, target: Spec, gradient: Spec
) -> plans.Plan:
    """Plan the scores' gradient from dy, that of the loss against distributions, `target`."""
    args = (dy, rows.reduction == "none", log_prob, target, rows.count(), gradient)
    return rows.plan(rows.lines_launch(DENSE_GRADIENT, args, (log_prob, target), (gradient,)))

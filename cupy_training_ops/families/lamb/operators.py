# SPDX-License-Identifier: MIT
"""LAMB over lists of parameters.

A step is computed in float32, in float64 where weights are float64, and rounded once for each array
that is written; sums of squares are added in an order that follows from sizes and addresses modulo
16. Numbers that hold for a whole step, such as 1 - beta^step, are computed in float64.

There are two launches for as many tensors as have the same numbers and find room in a launch's
parameters: 82 in place, and 65 with low-precision weights. Empty tensors are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import (
    Convert,
    Inferred,
    Input,
    Output,
    Spec,
    attribute,
    boolean,
    finite,
    kind,
)
from ...declare.type_rows import TypeRows, Types
from ...dtypes import FLOAT64, INT64, Dtype
from ...errors import refuse
from ...plan import Device, Launch, Plan, ScratchMemory, by_value, ceil_div
from ...planning import step as common
from ...planning.multi_tensor import Batch, Columns, batches
from .facts import CAPACITY, CHUNK_NBYTES, LISTS, THREADS, UPDATE_PARTS, LambRule

Specs = tuple[Spec, ...]
Args = tuple[object, ...]
Rule = tuple[float, ...]  # alpha, beta, lambda_, epsilon, max_norm_clip of one parameter

DIRECTIONS_NBYTES = 64 * 2**20  # of scratch memory, where no tensor needs more


def _launch(symbol: str, grid: int, args: Args, **types: Dtype) -> Launch:
    """Plan a launch of `symbol` in `grid` blocks; types: W, GRAD and MOMENT of the kernels."""
    sizes = CHUNK_NBYTES, CAPACITY, LISTS
    return common.launch(symbol, grid, THREADS, args, *sizes, types)


def for_each(convert: Callable[[object], float]) -> Convert:
    """Return a converter that applies `convert` to a number, or to each of a list."""

    def convert_each(value: object) -> float | tuple[float, ...]:
        if isinstance(value, list | tuple | np.ndarray):
            return tuple(map(convert, value))
        return convert(value)

    convert_each.__doc__ = f"{kind(convert)}, or a list with one for each parameter"
    return convert_each


class LambOptimizer(Op):
    """LAMB over a list: new_weights = weights - R ratio d, ratio = |weights| / |d|.

    d = (m / c1) / (sqrt(v / c2) + epsilon) + lambda_ weights is the direction, m = alpha moment1 +
    (1 - alpha) g and v = beta moment2 + (1 - beta) g^2 the new moments, c1 = 1 - alpha^step and
    c2 = 1 - beta^step, or 1 without step or do_bias_correction. g is the gradient over its loss
    scale s; where the norm n of all is above s max_norm_clip, it is the gradient over
    n / max_norm_clip. The ratio of each parameter's norms is clipped to [ratio_min, ratio_max],
    and is 1 where either norm is 0; squares are added in float64.

    d is rounded to the type of the gradients. Where it is not finite, it counts as 0 and the
    moments stay; a weight that would not be finite stays too. new_gradients is what is added to the
    weights. mixed_precision_weights get the new weights too, rounded once; their former values do
    not matter. Moments and step are updated in any case; weights, gradients and low-precision
    weights only if `outputs=` names their outputs, or is left out. A step that is skipped changes
    nothing, not even step. It is also skipped where R is in an array and not finite, or loss_scale
    in an array and not finite and above 0; a step that is a number counts on then.

    moment2 in float16 loses squares: where (1 - beta) g^2 is below 3e-8 it is 0, and steps
    become far too large; bfloat16 has the range of float32.

    Memory: a workspace, for sums and, without new_gradients, for the directions of 64 MiB of
    gradients or of the largest one.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/lamb.cc, which
    changes the gradients in any case; You et al., Large batch optimization for deep learning.
    """

    detaches = True

    inputs: ClassVar[tuple[Input, ...]] = (
        common.UPDATE_SIGNAL,
        *common.scales("T_LOSS_SCALE", "T_GRAD_NORM", "gradient_norm"),
        common.number("R", "T1", "the learning rate"),
        common.step_input("step", "TSTEP", optional=True),
        common.weights("T2"),
        *common.lists("T3", "gradients"),
        *common.lists("T4", "moment1", "moment2"),
        common.low_precision("T_MIXED_PRECISION_FP"),
    )
    outputs: ClassVar[tuple[Output, ...]] = (
        common.step_output("new_step", "step", "TSTEP"),
        common.list_output("new_weights", "weights", "T2", on_request=True),
        common.list_output("new_gradients", "gradients", "T3", on_request=True),
        common.list_output("new_moment_1", "moment1", "T4"),
        common.list_output("new_moment_2", "moment2", "T4"),
        common.list_output(
            "new_mixed_precision_weights",
            "mixed_precision_weights",
            "T_MIXED_PRECISION_FP",
            on_request=True,
        ),
    )
    alpha = attribute(for_each(common.decay), 0.9, doc="decay of the first moment")
    beta = attribute(for_each(common.decay), 0.999, doc="decay of the second moment")
    lambda_ = attribute(for_each(finite), 0.0, upstream="lambda", doc="weight decay")
    epsilon = attribute(for_each(common.not_negative), 1e-6)
    max_norm_clip = attribute(for_each(common.above_zero), 1.0, doc="of the unscaled gradients")
    ratio_min = attribute(common.limit, -math.inf)
    ratio_max = attribute(common.limit, math.inf)
    do_bias_correction = attribute(boolean, True)
    types: ClassVar[Types] = TypeRows(
        "T1 T2 T3 T4 T_GRAD_NORM T_MIXED_PRECISION_FP T_LOSS_SCALE TSTEP",
        "float32 float32 float32",
        "float64 float64 float64",
        "float32 H float32",
        "float32 H H",
        free=dict.fromkeys(("T1", "T_GRAD_NORM", "T_LOSS_SCALE"), common.NUMBERS)
        | {"T_MIXED_PRECISION_FP": common.HALVES, "TSTEP": (INT64,)},
        H=common.HALVES,
    )

    def infer(self, update: Any, *specs: Any) -> tuple[Inferred, ...]:
        """Check lists and attributes; return the step after this one, and the lists as they are.

        update: the update signal. specs: the other inputs as declared.
        """
        t, w, g, m1, m2, mixed = specs[3:]
        common.refuse_none(self.name, "weights", w)
        named = {"gradients": g, "moment1": m1, "moment2": m2, "mixed_precision_weights": mixed}
        for name, got in named.items():
            common.refuse_other_shapes(self.name, name, got, "weights", w)
        self._rules(len(w))
        if self.do_bias_correction and t is not None:
            common.refuse_uncorrectable(self.name, alpha=self.alpha, beta=self.beta)
        stepped = None if t is None else common.new_step(self.name, "step", t, update)
        return stepped, w, g, m1, m2, mixed

    def _rules(self, n: int) -> list[Rule]:
        """Return the Rule of each of n parameters; refuse an attribute with another number."""
        rules = []
        for name in ("alpha", "beta", "lambda_", "epsilon", "max_norm_clip"):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                value = (value,) * n
            elif len(value) != n:
                refuse(self.name, name, f"a number, or {n} like weights", f"{len(value)}")
            rules.append(value)
        return list(zip(*rules, strict=True))

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan launches that compute directions and norms, then weights, then the new step.

        specs: the ten inputs, then the six outputs, as declared; None where absent.
        """
        update, loss_scale, norm, r, t, w, g, m1, m2, mixed = specs[:10]
        new_t, new_w, new_g, new_m1, new_m2, copied = specs[10:]
        signal = common.value_or(update, True)
        scale = common.value_or(loss_scale, 1.0)
        numbers = (
            r,
            common.value_or(t, 0),
            scale,
            common.value_or(norm, common.ABSENT_NORM),
            signal,
        )
        mixed, copied, is_bfloat16 = common.low_precision_lists(mixed, copied)
        moments = {1: new_g, 2: new_m1, 3: new_m2}
        update_of = Columns.of((w, mixed, new_g), {0: new_w, 1: copied}, LISTS * CAPACITY)
        types = {"W": w[0].dtype, "GRAD": g[0].dtype, "MOMENT": m1[0].dtype}
        step = _Step(
            types=types,
            sizes=[spec.size for spec in w],
            direction=Columns.of((w, g, m1, m2), moments, LISTS * CAPACITY),
            update=update_of,
            numbers=numbers,
            rate=(r, scale, signal),
            is_bfloat16=is_bfloat16,
        )
        limits = self.ratio_min, self.ratio_max
        steps = step.plan(self._rules(len(w)), limits, self.do_bias_correction and t is not None)
        counts = partial(_launch, "lamb__count", **types)
        return steps.then(common.count_step(counts, r, t, scale, update, new_t))


@dataclass(frozen=True)
class _Step:
    """A step over lists: directions (d of LambOptimizer) and updates of weights, batch by batch.

    types: dtypes of weights ("W"), gradients ("GRAD") and moments ("MOMENT"). sizes: elements of
    each tensor. direction, update: the lists that the two kernels read and write. numbers: rate,
    step, loss scale, norm and update signal, for the first kernel; rate: rate, loss scale and
    signal, for the second. is_bfloat16: low-precision weights are, not float16.
    """

    types: dict[str, Dtype]
    sizes: Sequence[int]
    direction: Columns
    update: Columns
    numbers: Args
    rate: Args
    is_bfloat16: bool

    @property
    def has_new_gradients(self) -> bool:
        """Return True if directions are written to the caller's new gradients."""
        return self.update.at[2] >= 0

    @property
    def chunk(self) -> int:
        """Return the elements of a chunk, which a block takes."""
        return CHUNK_NBYTES // self.types["W"].itemsize

    def plan(self, rules: Sequence[Rule], limits: tuple[float, float], correct_bias: bool) -> Plan:
        """Plan two launches for each batch of tensors: directions with their norms, then updates.

        All batches share scratch memory, which has room for the largest of them. Directions are in
        it only where the caller wants no new gradients, in whose arrays they would lie. rules: of
        each tensor. limits: of the ratio of norms, least and most. correct_bias: moments are
        divided by 1 - decay^step.
        """
        if not (self.direction.are_written or self.update.are_written):
            return Plan()
        pairs = list(self._batches(rules))
        scratch = ScratchMemory()
        most_chunks = max((batch.n_chunks for _, batch in pairs), default=0)
        n_directions = 0
        if not self.has_new_gradients:
            n_directions = max((self._length(batch) for _, batch in pairs), default=0)
        tickets, norms = scratch.zeros(CAPACITY, np.uint32), scratch.take(2 * CAPACITY, FLOAT64)
        partials = scratch.take(2 * most_chunks, FLOAT64)
        directions = scratch.take(n_directions, self.types["GRAD"]) if n_directions else None
        launches = []
        for rule, batch in pairs:
            values = (*rule, *limits, correct_bias)
            lamb_rule = by_value(LambRule, **dict(zip(LambRule.fields, values, strict=True)))
            args = (*batch.addresses(self.direction), batch.sizes, lamb_rule, *self.numbers)
            args += (directions, partials, norms, tickets)
            launches.append(_launch("lamb__direction", batch.n_chunks, args, **self.types))
            if self.update.are_written or self.has_new_gradients:
                args = (*batch.addresses(self.update), batch.sizes, lamb_rule, *self.rate)
                args += (directions, norms, self.is_bfloat16)
                grid = UPDATE_PARTS * batch.n_chunks
                launches.append(_launch("lamb__update", grid, args, **self.types))
        return scratch.plan(*launches)

    def _batches(self, rules: Sequence[Rule]) -> Iterator[tuple[Rule, Batch]]:
        """Yield batches of tensors with one Rule, as many as launch and scratch memory hold.

        rules: that of each tensor.
        """
        places: dict[Rule, list[int]] = {}
        for i, rule in enumerate(rules):
            places.setdefault(rule, []).append(i)
        most = min(CAPACITY, self.direction.most, self.update.most)
        # Elements of directions in scratch memory; none is needed with new gradients.
        room = max(DIRECTIONS_NBYTES // self.types["GRAD"].itemsize, *self.sizes, 0)
        most_chunks = None if self.has_new_gradients else max(1, room // self.chunk)
        for rule, members in places.items():
            own = [self.sizes[i] for i in members]
            for batch in batches(own, self.chunk, CAPACITY, most, most_chunks):
                # Its members are places in `own`, and become places in the whole list.
                yield rule, replace(batch, members=tuple(members[i] for i in batch.members))

    def _length(self, batch: Batch) -> int:
        """Return the elements of a batch's directions, where each tensor begins with a chunk."""
        last = self.sizes[batch.members[-1]]
        return (batch.n_chunks - ceil_div(last, self.chunk)) * self.chunk + last


OPS = {"LambOptimizer": LambOptimizer}

# SPDX-License-Identifier: MIT
"""Steps of Adam in NumPy. Formulas: the classes in `operators.py`.

r or lr: the learning rate; t or step: the number of this step. moment_1, moment_2 (momentums_...):
moving means of gradients and of their squares. mixed_precision_weights: low-precision arrays that
get the new weights too. loss_scale: factor of the gradients; global_gradient_norm: their norm, with
it, which is clipped to max_norm, or max_norm_clip. update_signal: False skips the step, which then
changes nothing. None: left out. rule: the operator's attributes. Lists have an array for each
parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from ...dtypes import Dtype, HostArray
from ...rules.step import (
    allows_step,
    bias_correction,
    count_step,
    gradient_divisor,
    number,
    rounded_weights,
)
from ...rules.widening import cast, computed_in, quiet
from .codes import decode, encode

Arrays = Sequence[HostArray]
Some = Sequence[HostArray | None]
Lists = tuple[HostArray, ...]
Results = tuple[Any, ...]  # an array, then lists, or None where there is no such list

_BLOCK = 32_768  # elements that stay in the caches from one operation to the next
Number = Any  # a Python number, or an array of one element


class Rates(TypedDict):
    """Attributes of all operators: decays of first and second moments, and what avoids 0 / 0."""

    alpha: float
    beta: float
    epsilon: float


class Rule(Rates):
    """Attributes of AdamOptimizer; lambda_ is the weight decay."""

    lambda_: float
    max_norm_clip: float
    do_bias_correction: bool
    weight_decay_mode: int


class ListRule(Rule):
    """Attributes of operators over lists."""

    maximize: bool
    rounding_seed: int | None


class RuleW(Rates):
    """Attributes of AdamWOptimizer."""

    weight_decay: float
    correct_bias: bool
    adam_mode: int


@dataclass(frozen=True)
class _Step:
    """Numbers of a step that are the same for all parameters.

    m = alpha m + (1 - alpha) g, v = beta v + (1 - beta) g^2, g = gradient / divisor + penalty w
    u = rate m / (root_scale sqrt(v) + epsilon)
    w = w - u - decay w, or decay (w - u) if decays_updated
    """

    alpha: float
    beta: float
    decay: float
    penalty: float
    epsilon: float
    rate: float
    root_scale: float
    divisor: float  # negative to maximize
    decays_updated: bool

    @classmethod
    def of(cls, rule: ListRule, lr: float, step: int, divisor: float) -> _Step:
        """Make the numbers of a step from the attributes (rule) and the learning rate lr.

        step: its number, or 0 to correct no bias. divisor: of gradients, to unscale and clip them.
        """
        alpha, beta, decays_updated = rule["alpha"], rule["beta"], rule["weight_decay_mode"] == 1
        c1, root = bias_correction(alpha, step), float(np.sqrt(bias_correction(beta, step)))
        rate, scale = (lr * root / c1, 1.0) if decays_updated else (lr / c1, 1.0 / root)
        is_penalty = rule["weight_decay_mode"] == 2
        penalty, decay = (rule["lambda_"], 0.0) if is_penalty else (0.0, lr * rule["lambda_"])
        divisor = -divisor if rule["maximize"] else divisor
        epsilon = rule["epsilon"]
        return cls(alpha, beta, decay, penalty, epsilon, rate, scale, divisor, decays_updated)

    def update(
        self, w: HostArray, g: HostArray, m: HostArray, v: HostArray, largest: HostArray | None
    ) -> tuple[HostArray | None, ...]:
        """Return new (m, v, w, what was added to w, largest v or None), in the computing type.

        largest: AMSGrad's largest second moments; None without.
        """
        kind = computed_in(w.dtype)
        inputs = (w, g, m, v) if largest is None else (w, g, m, v, largest)
        results = tuple(np.empty(w.shape, kind) for _ in range(4 + (largest is not None)))
        for first in range(0, w.size, _BLOCK):
            block = slice(first, first + _BLOCK)
            parts = (x.reshape(-1)[block].astype(kind, copy=False) for x in inputs)
            self._update(kind, *parts, results=[x.reshape(-1)[block] for x in results])
        return results if largest is not None else (*results, None)

    def _update(
        self,
        kind: Dtype,
        w: HostArray,
        g: HostArray,
        m: HostArray,
        v: HostArray,
        *largest: HostArray,
        results: Sequence[HostArray],
    ) -> None:
        """Write a block's new m, v, w, step and largest v into the five or four `results`.

        kind: the dtype of all arrays. w, g: weights and gradients. m, v, largest: first, second and
        AMSGrad's largest second moments, the last of which may be left out.
        """
        new_m, new_v, new_w, delta, *new_largest = results
        g = g / kind.type(self.divisor)
        if self.penalty:
            g = g + kind.type(self.penalty) * w
        np.multiply(m, kind.type(self.alpha), out=new_m)
        new_m += g * kind.type(1 - self.alpha)
        np.multiply(v, kind.type(self.beta), out=new_v)
        new_v += kind.type(1 - self.beta) * g * g  # g g alone may be beyond the range
        for x, before in zip(new_largest, largest, strict=True):
            np.maximum(before, new_v, out=x)
        square = new_largest[0] if new_largest else new_v
        root = np.sqrt(square) * kind.type(self.root_scale)
        u = new_m * kind.type(self.rate) / (root + kind.type(self.epsilon))
        np.subtract(-u, (w - u if self.decays_updated else w) * kind.type(self.decay), out=delta)
        np.add(w, delta, out=new_w)


@quiet
def adam_optimizer(
    r: Number,
    t: Number,
    weights: HostArray,
    gradients: HostArray,
    moment_1: HostArray,
    moment_2: HostArray,
    mixed_precision_weights: HostArray | None = None,
    loss_scale: Number = None,
    global_gradient_norm: Number = None,
    update_signal: Number = None,
    **rule: Unpack[Rule],
) -> tuple[HostArray | None, ...]:
    """Return AdamOptimizer's outputs for one parameter.

    r: learning rate. t: number of this step. global_gradient_norm: of gradients, times loss_scale.
    update_signal: False skips the step. rule: the attributes. mixed_precision_weights: has the
    dtype of a copy of the new weights. Returned: new t, moments 1 and 2, new weights, what was
    added to them, and low-precision weights or None.
    """
    new_t, *stepped = adam_optimizer_list(
        r, t, [weights], [gradients], [moment_1], [moment_2], [mixed_precision_weights],
        loss_scale, global_gradient_norm, update_signal, maximize=False, rounding_seed=None, **rule,
    )  # fmt: skip
    return new_t, *(items[0] for items in stepped)


@quiet
def adam_optimizer_list(
    r: Number,
    t: Number,
    weights: Arrays,
    gradients: Arrays,
    moment_1: Arrays,
    moment_2: Arrays,
    mixed_precision_weights: Some | None = None,
    loss_scale: Number = None,
    global_gradient_norm: Number = None,
    update_signal: Number = None,
    max_norm: Number = None,
    **rule: Unpack[ListRule],
) -> Results:
    """Return AdamOptimizerList's outputs for lists with an array for each parameter.

    r: learning rate. t: number of this step. global_gradient_norm: of gradients, times loss_scale,
    clipped to max_norm, or max_norm_clip without it. update_signal: False skips the step. rule: the
    attributes. mixed_precision_weights: low-precision arrays or None. Returned: new t, then lists:
    moments 1 and 2, new weights, what was added to them, and low-precision weights, or None without
    them.
    """
    *results, _ = adam_largest_list(
        r, t, weights, gradients, moment_1, moment_2, mixed_precision_weights, loss_scale,
        global_gradient_norm, update_signal, max_norm, **rule,
    )  # fmt: skip
    return tuple(results)


@quiet
def adam_largest_list(
    r: Number,
    t: Number,
    weights: Arrays,
    gradients: Arrays,
    moment_1: Arrays,
    moment_2: Arrays,
    mixed_precision_weights: Some | None = None,
    loss_scale: Number = None,
    global_gradient_norm: Number = None,
    update_signal: Number = None,
    max_norm: Number = None,
    largest_moment_2: Arrays | None = None,
    **rule: Unpack[ListRule],
) -> Results:
    """Return AdamLargestList's outputs: those of AdamOptimizerList, and new largest_moment_2.

    Without largest_moment_2 the last is None, and this is Adam, else AMSGrad. A step that is
    skipped returns the inputs unchanged. r: learning rate; t: number of this step; lists have an
    array for each parameter; mixed_precision_weights: low-precision copies or None;
    global_gradient_norm: of gradients times loss_scale, clipped to max_norm, if there is one, else
    max_norm_clip; update_signal: False skips the step. rule: the attributes.
    """
    update = bool(number(update_signal)) and allows_step(r, loss_scale)
    before, new_t = count_step(t, update)
    mixed = mixed_precision_weights or [None] * len(weights)
    largest: Some = largest_moment_2 or [None] * len(weights)
    if not update:
        same = map(tuple, (moment_1, moment_2, weights, gradients))
        return new_t, *same, mixed_precision_weights, largest_moment_2
    clip = number(max_norm, rule["max_norm_clip"])
    divisor = gradient_divisor(loss_scale, global_gradient_norm, clip)
    step = _Step.of(rule, number(r), before if rule["do_bias_correction"] else 0, divisor)
    arrays = zip(weights, gradients, moment_1, moment_2, largest, strict=True)
    m, v, w, delta, x = zip(*(step.update(*own) for own in arrays), strict=True)
    copies = [c if c is None else cast(y, c.dtype) for y, c in zip(w, mixed, strict=True)]
    new_mixed = None if mixed_precision_weights is None else tuple(copies)
    new_w = rounded_weights(w, weights, rule["rounding_seed"], before)
    like = (moment_1, moment_2)
    rounded = (_like(*pair) for pair in zip((m, v), like, strict=True))
    new_largest = None if largest_moment_2 is None else _like(x, largest_moment_2)
    return new_t, *rounded, new_w, _like(delta, gradients), new_mixed, new_largest


@quiet
def adam_coded_list(
    r: Number,
    t: Number,
    weights: Arrays,
    gradients: Arrays,
    moment_1: Arrays,
    moment_2: Arrays,
    mixed_precision_weights: Some | None = None,
    loss_scale: Number = None,
    global_gradient_norm: Number = None,
    update_signal: Number = None,
    max_norm: Number = None,
    *,
    bits: int,
    **rule: Unpack[ListRule],
) -> Results:
    """Return AdamCodedList's outputs: AdamOptimizerList's, with moments as codes of `bits` bits.

    moment_1, moment_2: codes, uint8, of moments with the shapes of weights, which are decoded, and
    the new ones encoded.

    r: learning rate. t: number of this step. global_gradient_norm: of gradients, times loss_scale,
    clipped to max_norm, or max_norm_clip without it. update_signal: False skips the step. rule: the
    attributes. mixed_precision_weights: low-precision arrays or None.
    """
    coded = zip(moment_1, moment_2, weights, strict=True)
    wide = [decode((m, v), w.size, bits) for m, v, w in coded]
    first, second = (
        [x[i].reshape(w.shape) for x, w in zip(wide, weights, strict=True)] for i in range(2)
    )
    new_t, m, v, w, g, mixed = adam_optimizer_list(
        r, t, weights, gradients, first, second, mixed_precision_weights, loss_scale,
        global_gradient_norm, update_signal, max_norm, **rule,
    )  # fmt: skip
    if not (number(update_signal) and allows_step(r, loss_scale)):
        return new_t, tuple(moment_1), tuple(moment_2), w, g, mixed
    step = int(number(t))
    codes = [encode(x, y, bits, step) for x, y in zip(m, v, strict=True)]
    return new_t, *zip(*codes, strict=True), w, g, mixed


@quiet
def adam_w_optimizer(
    lr: Number,
    step: Number,
    weights: Arrays,
    gradients: Arrays,
    momentums_1: Arrays,
    momentums_2: Arrays,
    update_signal: Number = None,
    **rule: Unpack[RuleW],
) -> tuple[HostArray, Lists, Lists, Lists]:
    """Return AdamWOptimizer's outputs: updated_flag, and lists of weights and moments 1 and 2.

    lr: learning rate. step: its number. Lists have an array for each parameter; momentums_1, _2:
    first and second moments. update_signal: False changes nothing. rule: the attributes.
    """
    update = bool(number(update_signal))
    _, m, v, w, *_ = adam_optimizer_list(
        lr, step, weights, gradients, momentums_1, momentums_2, update_signal=update,
        alpha=rule["alpha"], beta=rule["beta"], epsilon=rule["epsilon"],
        lambda_=rule["weight_decay"], max_norm_clip=math.inf,
        do_bias_correction=rule["correct_bias"], weight_decay_mode=rule["adam_mode"],
        maximize=False, rounding_seed=None,
    )  # fmt: skip
    return np.full(np.shape(update_signal), update), w, m, v


def _like(wide: Arrays, arrays: Arrays) -> Lists:
    """Return `wide` arrays, rounded to the dtypes of these."""
    return tuple(cast(x, a.dtype) for x, a in zip(wide, arrays, strict=True))

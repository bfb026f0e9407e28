# SPDX-License-Identifier: MIT
"""Gradient descent over one parameter or over lists, norms of gradients, clipping.

A step is computed in float32, in float64 where weights are float64, and rounded once for each array
that is written. NaN and infinities in gradients get into the weights unless an update signal of
False skips the step, which then changes nothing. So does a learning rate that is not finite, or a
loss scale that is not finite and above 0, where it is in an array; as numbers they are refused.

bfloat16 weights of a list may be rounded at random (rounding_seed): up as often as they are nearer
to what is above, by Philox 4x32-10, of seed, step and place in the array alone.

A launch over a list takes as many tensors as its parameters have room for: 132 in place, 88 with
momentum, fewer with outputs of their own. Empty tensors are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import (
    Changing,
    Inferred,
    Input,
    Output,
    Spec,
    attribute,
    boolean,
    finite,
    one_of,
    optional,
)
from ...declare.type_rows import TypeRows, Types
from ...dtypes import BOOL, FLOAT64, FLOATS, INT64, Dtype
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    Plan,
    ScratchMemory,
    by_value,
    ceil_div,
    slots,
)
from ...planning import step as common
from ...planning.multi_tensor import Columns, l2_norm, one_or_more_batches
from ...rules.widening import computed_in
from .facts import CHUNK_NBYTES, ONE_LIST, POINTERS, STEP_NBYTES, THREADS, TWO_LISTS, VECS, SGDRule

Specs = tuple[Spec, ...]
Args = tuple[object, ...]
Number = Spec | Changing | None  # an array, or a number of each call; None where it is left out

BLOCKS = 16  # of a launch for a norm, for each multiprocessor


def _launch(symbol: str, grid: int, args: Args, w: Dtype, grad: Dtype) -> Launch:
    """Plan a launch of the kernel `symbol` in `grid` blocks, with the arguments `args`.

    w, grad: the dtypes of weights and gradients that it is compiled for.
    """
    counts = {"TWO_LISTS": TWO_LISTS, "POINTERS": POINTERS, "ONE_LIST": ONE_LIST}
    binding = slots(W=w, GRAD=grad, CHUNK_NBYTES=CHUNK_NBYTES, STEP_NBYTES=STEP_NBYTES, **counts)
    return Launch(symbol, Config((grid,), (THREADS,)), args, binding)


class SGDOptimizer(Op):
    """Gradient descent: NW = W + NG with NG = -ETA G, each in place.

    An output that is not asked for leaves its array as it was. An ETA in an array that is not
    finite changes nothing.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/sgd.cc.
    """

    detaches = True

    inputs = (
        common.number("ETA", "L", "the learning rate"),
        Input("W", "T", shape="any shape"),
        Input("G", "T", shape="shape of W"),
    )
    outputs = (
        Output("NW", "T", aliases="W", on_request=True, shape="shape of W"),
        Output("NG", "T", aliases="G", on_request=True, shape="shape of W"),
    )
    types: ClassVar[Types] = {"T": FLOATS, "L": common.NUMBERS}

    def infer(self, eta: object, w: Spec, g: Spec) -> tuple[Inferred, ...]:
        """Return the specs of NW and NG, both that of W; refuse a G of another shape."""
        common.refuse_other_shapes(self.name, "G", g, "W", w)
        return w, w

    def plan(
        self, device: Device, eta: object, w: Spec, g: Spec, nw: Spec | None, ng: Spec | None
    ) -> Plan:
        """Plan one launch over all elements."""
        grid = ceil_div(w.nbytes, THREADS * VECS * VEC_NBYTES)
        args = (w, g, nw, ng, eta, w.size)
        return Plan((_launch("sgd_optimizer", grid, args, w.dtype, g.dtype),))


ROWS = ("float32 float32", "float32 H", "H H", "float64 float64")


def _rule(
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    *,
    nesterov: bool = False,
    maximize: bool = False,
    seed: int | None = None,
) -> np.void:
    """Return the kernels' struct SGDRule.

    momentum, dampening, weight_decay, nesterov, maximize: the attributes of SGDMomentumList. seed:
    rounding_seed: bfloat16 weights are rounded at random by it; None: all to nearest.
    """
    return by_value(
        SGDRule,
        momentum=momentum,
        dampening=dampening,
        weight_decay=weight_decay,
        seed=seed or 0,
        nesterov=nesterov,
        maximize=maximize,
        rounds_at_random=seed is not None,
    )


def _sgd(
    inputs: Sequence[Any], outputs: Sequence[Any], numbers: Args, signalled: Spec | None
) -> Plan:
    """Plan a step of gradient descent over lists.

    inputs: lists of weights, gradients, low-precision weights and momenta. outputs: of weights,
    low-precision weights and momenta. A list is None where it is absent. numbers: struct SGDRule,
    learning rate, step, loss scale, norm, largest norm, update signal. signalled: the output that
    gets a copy of the update signal, or None.
    """
    w, g, mixed, momenta = inputs
    new_w, new_mixed, new_momenta = outputs
    mixed, new_mixed, is_bfloat16 = common.low_precision_lists(mixed, new_mixed)
    # Outputs by the index of the input list that each replaces.
    written = {0: new_w, 2: new_mixed, 3: new_momenta or ()}
    columns = Columns.of((w, g, mixed, momenta or ()), written, POINTERS)
    sizes, chunk = [spec.size for spec in w], STEP_NBYTES // w[0].dtype.itemsize
    symbol = "optimizer__sgd" if momenta is None else "optimizer__sgd_momentum"
    launch = partial(_launch, symbol, w=w[0].dtype, grad=g[0].dtype)
    steps = common.over_lists(columns, sizes, chunk, TWO_LISTS, launch, *numbers, is_bfloat16)
    return steps.then(common.pass_signal(numbers[-1], signalled))


class SGDOptimizerV2(Op):
    """Gradient descent over a list: weights[i] = weights[i] - lr gradients[i], in place.

    An `out=` of its own leaves weights as they are; an `outputs=` without updated_weights does not.
    The signal comes back where it was passed: an array is update_completed too. An lr in an array
    that is not finite skips the step.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/sgd/sgd.cc.
    """

    detaches = True

    inputs = (
        common.number("lr", "T1", "the learning rate"),
        common.weights("S_WEIGHT"),
        *common.lists("S_GRAD", "gradients"),
        common.UPDATE_SIGNAL,
    )
    outputs = (
        common.signal_output("update_completed"),
        common.list_output("updated_weights", "weights", "S_WEIGHT"),
    )
    types: ClassVar[Types] = TypeRows(
        "T1 S_WEIGHT S_GRAD", *ROWS, free={"T1": FLOATS}, H=common.HALVES
    )

    def infer(self, lr: object, w: Specs, g: Specs, update: Number) -> tuple[Inferred, ...]:
        """Return the update signal's spec or value, and the specs of the weights."""
        common.refuse_none(self.name, "weights", w)
        common.refuse_other_shapes(self.name, "gradients", g, "weights", w)
        return common.signal(update), w

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan a step of SGD without scaling, clipping, decay and momentum.

        specs: the four inputs, then the two outputs, as declared.
        """
        lr, w, g, update, updated, new_w = specs
        numbers = (_rule(), lr, 0, 1.0, common.ABSENT_NORM, math.inf, common.value_or(update, True))
        return _sgd((w, g, None, None), (new_w, None, None), numbers, updated)


class SGDOptimizerList(Op):
    """Gradient descent over a list: weights[i] = weights[i] - lr g, in place; g = gradients[i] / d.

    d is the loss scale s; where the norm n of the gradients is passed and above s max_norm, it is
    n / max_norm, so that the unscaled gradients are clipped to max_norm. A norm that is NaN clips
    nothing. With weight_decay, g = gradients[i] / d + weight_decay weights[i]; maximize: the
    gradient's negative is in its place. mixed_precision_weights get the new weights too, rounded
    once; their former values do not matter. Both are updated whatever `outputs=` names. The step is
    also skipped where lr is in an array and not finite, or loss_scale in an array and not finite
    and above 0.

    Source: this package; ONNX Runtime has no gradient descent that scales, clips or rounds.
    """

    detaches = True

    domain = "cupy_training_ops"
    inputs: ClassVar[tuple[Input, ...]] = (
        common.number("lr", "T1", "the learning rate"),
        common.weights("S_WEIGHT"),
        *common.lists("S_GRAD", "gradients"),
        common.low_precision("S_MIXED"),
        *common.scales("T_LOSS_SCALE", "T_GRAD_NORM", "gradient_norm"),
        common.max_norm("above 0; clips nothing where left out"),
        common.UPDATE_SIGNAL,
    )
    outputs: ClassVar[tuple[Output, ...]] = (
        common.signal_output("update_completed"),
        common.list_output("updated_weights", "weights", "S_WEIGHT"),
        common.list_output("updated_mixed_precision_weights", "mixed_precision_weights", "S_MIXED"),
    )
    weight_decay = attribute(finite, 0.0)
    maximize = attribute(boolean, False)
    types: ClassVar[Types] = TypeRows(
        "T1 S_WEIGHT S_GRAD S_MIXED T_LOSS_SCALE T_GRAD_NORM T_MAX_NORM",
        *ROWS,
        free=dict.fromkeys(("T1", "T_LOSS_SCALE", "T_GRAD_NORM", "T_MAX_NORM"), FLOATS)
        | {"S_MIXED": common.HALVES},
        H=common.HALVES,
    )

    def infer(
        self, lr: object, w: Specs, g: Specs, mixed: Any, *numbers: Any
    ) -> tuple[Inferred, ...]:
        """Check the lists; return the specs of signal, weights and low-precision weights.

        lr, w, g, mixed: inputs as declared (mixed: low-precision weights, or None). numbers: loss
        scale, norm, max_norm, update signal, each None if left out; of a subclass more behind.
        """
        common.refuse_none(self.name, "weights", w)
        common.refuse_other_shapes(self.name, "gradients", g, "weights", w)
        common.refuse_other_shapes(self.name, "mixed_precision_weights", mixed, "weights", w)
        return common.signal(numbers[3]), w, mixed

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan the step, and launches that pass the update signal on and count the step.

        specs: the inputs as declared, then the outputs. A subclass has a step and momenta behind
        the inputs, and both after the step behind the outputs.
        """
        lr, w, g, mixed, loss_scale, norm, max_norm, update, *others = specs[: -len(self.outputs)]
        updated, new_w, new_mixed, *new = specs[-len(self.outputs) :]
        step, momenta = others or (0, None)
        new_step, new_momenta = new or (None, None)
        numbers = (
            self.rule(),
            lr,
            step,
            common.value_or(loss_scale, 1.0),
            common.value_or(norm, common.ABSENT_NORM),
            common.value_or(max_norm, math.inf),
            common.value_or(update, True),
        )
        steps = _sgd((w, g, mixed, momenta), (new_w, new_mixed, new_momenta), numbers, updated)
        count = partial(_launch, "optimizer__count", w=w[0].dtype, grad=g[0].dtype)
        counted = new_step if isinstance(step, Spec) else None
        return steps.then(common.count_step(count, lr, step, numbers[3], update, counted))

    def rule(self, *rates: float) -> np.void:
        """Return the kernels' SGDRule; rates: (weight_decay,) in place of the attribute, or ()."""
        (weight_decay,) = rates or (self.weight_decay,)
        return _rule(weight_decay=weight_decay, maximize=self.maximize)


class SGDMomentumList(SGDOptimizerList):
    """Descent with momentum over a list: weights[i] = weights[i] - lr b, in place.

    b = momentum momenta[i] + (1 - dampening) g is the new momentum, in step 1 b = g, with g as in
    SGDOptimizerList. With nesterov weights[i] - lr (g + momentum b). This is PyTorch's SGD. A step
    that is skipped changes nothing, and is not counted. Momenta are float32, those of float64
    weights float64; they and the step are updated whatever `outputs=` names.

    Source: this package; Sutskever et al., On the importance of initialization and momentum in
    deep learning.
    """

    inputs = (
        *SGDOptimizerList.inputs,
        common.step_input("step", "T_STEP"),
        *common.lists("S_MOMENTUM", "momenta"),
    )
    outputs: ClassVar[tuple[Output, ...]] = (
        *SGDOptimizerList.outputs,
        common.step_output("new_step", "step", "T_STEP"),
        common.list_output("updated_momenta", "momenta", "S_MOMENTUM"),
    )
    momentum = attribute(common.not_negative, 0.9)
    dampening = attribute(finite, 0.0)
    nesterov = attribute(boolean, False)
    rounding_seed = attribute(
        optional(common.seed), None, doc="of bfloat16 weights; None: to nearest even"
    )
    types: ClassVar[Types] = TypeRows(
        "T1 S_WEIGHT S_GRAD S_MIXED T_LOSS_SCALE T_GRAD_NORM T_MAX_NORM T_STEP S_MOMENTUM",
        *(f"{row} {'float64' if 'float64' in row else 'float32'}" for row in ROWS),
        free=dict.fromkeys(("T1", "T_LOSS_SCALE", "T_GRAD_NORM", "T_MAX_NORM"), FLOATS)
        | {"S_MIXED": common.HALVES, "T_STEP": (INT64,)},
        H=common.HALVES,
    )

    def infer(
        self, lr: object, w: Specs, g: Specs, mixed: Any, *numbers: Any
    ) -> tuple[Inferred, ...]:
        """Return what the base infers, the step after this one, and momenta.

        numbers: those of the base (loss scale, norm, max_norm, update signal), step and momenta.
        """
        *others, step, momenta = numbers
        inferred = super().infer(lr, w, g, mixed, *others)
        common.refuse_other_shapes(self.name, "momenta", momenta, "weights", w)
        if self.rounding_seed is not None:
            common.refuse_rounding(self.name, w[0].dtype)
        return *inferred, common.new_step(self.name, "step", step, others[3]), momenta

    def rule(self, *rates: float) -> np.void:
        """Return the kernels' SGDRule; rates: (momentum, dampening, weight_decay), or ().

        With () these are the attributes.
        """
        return _rule(
            *(rates or (self.momentum, self.dampening, self.weight_decay)),
            nesterov=self.nesterov,
            maximize=self.maximize,
            seed=self.rounding_seed,
        )


# ---- norms of gradients --------------------------------------------------------------------------


def _norm(device: Device, xs: Specs, scratch: ScratchMemory, *results: object) -> Plan:
    """Plan the norm of the arrays xs, with partial sums in `scratch`.

    results: arrays for the norm and for the bool that it is finite, each None if not wanted.
    """
    dtype, most = xs[0].dtype, BLOCKS * device.multiprocessors
    launch = partial(_launch, "optimizer__norm", w=computed_in(dtype), grad=dtype)
    batches = one_or_more_batches(xs, CHUNK_NBYTES, ONE_LIST)
    return scratch.plan(*l2_norm(batches, xs, most, launch, scratch, *results))


GRADIENTS = Input("gradients", "T", variadic=True, shape="any shapes", doc="at least one array")


class GradientNorm(Op):
    """Norm of a list of gradients: norm = sqrt(sum of g^2), is_finite = norm < infinity.

    One pass that tells a step both how far to clip and whether to skip: a NaN or an infinity among
    the gradients makes the norm one, and so does a norm that float32 does not hold; of float64
    gradients one above 1.3e154, whose square float64 does not hold. The norm is that of the
    gradients as they are, with their loss scale.

    Memory: a workspace, for partial sums.

    Source: this package; ONNX Runtime runs ReduceAllL2 and IsAllFinite.
    """

    domain = "cupy_training_ops"
    inputs = (GRADIENTS,)
    outputs = (
        Output("norm", "T_NORM", shape="shape ()"),
        Output("is_finite", "bool", shape="shape ()", doc="an update signal"),
    )
    types: ClassVar[Types] = TypeRows(
        "T T_NORM", "float32 float32", "H float32", "float64 float64", H=common.HALVES
    )

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        common.refuse_none(self.name, "gradients", xs)
        return Spec((), computed_in(xs[0].dtype)), Spec((), BOOL)

    def plan(self, device: Device, xs: Specs, norm: Spec | None, is_finite: Spec | None) -> Plan:
        return _norm(device, xs, ScratchMemory(), norm, is_finite)


class InplaceClipGradNorm(Op):
    """Clipping by the norm of a list: g = g min(1, max_norm / (norm + 1e-6)), in place.

    The norm is that of all gradients together, sqrt(sum of g^2). With a norm that is NaN nothing is
    clipped, as upstream does it (PyTorch spreads the NaN); with an infinite one finite gradients
    become 0 and infinite ones NaN. GradientNorm tells such norms.

    Memory: a workspace, for the norm and partial sums.

    Source: ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/optimizer/clip_grad_norm/clip_grad_norm.cc.
    """

    detaches = True

    inputs = (GRADIENTS,)
    outputs = (common.list_output("clipped_gradients", "gradients", "T", "gradients"),)
    max_norm = attribute(common.not_negative, 1.0)
    norm_type = attribute(one_of("fro"), "fro")
    types: ClassVar[Types] = {"T": FLOATS}

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        common.refuse_none(self.name, "gradients", xs)
        return (xs,)

    def plan(self, device: Device, xs: Specs, clipped: Specs) -> Plan:
        """Plan the norm, into scratch memory, then launches that scale gradients by it.

        xs: the gradients. clipped: the outputs: the same arrays, or others if the caller gave them.
        """
        scratch = ScratchMemory()
        norm = scratch.take(1, FLOAT64)
        first = _norm(device, xs, scratch, norm, None)  # None: no array for is_finite
        # A launch's table of addresses: of inputs, and of outputs that are other arrays.
        columns = Columns.of((xs,), {0: clipped}, POINTERS)  # output list 0 replaces input list 0
        dtype, sizes = xs[0].dtype, [x.size for x in xs]
        launch = partial(_launch, "inplace_clip_grad_norm", w=computed_in(dtype), grad=dtype)
        second = common.over_lists(
            columns, sizes, CHUNK_NBYTES // dtype.itemsize, TWO_LISTS, launch, norm, self.max_norm
        )
        return scratch.plan(*first.steps, *second.steps)


OPS = {
    "GradientNorm": GradientNorm,
    "InplaceClipGradNorm": InplaceClipGradNorm,
    "SGDMomentumList": SGDMomentumList,
    "SGDOptimizer": SGDOptimizer,
    "SGDOptimizerList": SGDOptimizerList,
    "SGDOptimizerV2": SGDOptimizerV2,
}

# SPDX-License-Identifier: MIT
"""Adam and AdamW, over one parameter or over lists.

A step is computed in float32, in float64 where weights are float64, and rounded once for each array
that is written: moments of 16 bits too are rounded after the weights have had them. Numbers that
hold for a whole step, such as 1 - beta^step, are computed in float64. NaN and infinities in
gradients get into weights and moments unless an update signal of False skips the step, which then
changes nothing. So does a learning rate that is not finite, or a loss scale that is not finite and
above 0, where it is in an array; as numbers they are refused. A step that is a number counts on.

Over lists, bfloat16 weights may be rounded at random (rounding_seed): up as often as they are
nearer to what is above, so that weights that move by less than a rounding follow the mean of their
steps. The choice follows from seed, step and place in the array alone, by Philox 4x32-10.

A launch over a list takes as many tensors as its parameters have room for: 84 in place, 67 with
low-precision weights, fewer with outputs of their own. Empty tensors are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import (
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
from ...dtypes import FLOAT32, INT64, UINT8, Dtype
from ...errors import refuse
from ...plan import Device, Launch, Plan, by_value, ceil_div
from ...planning import step as common
from ...planning.multi_tensor import Columns
from .codes import coded_sizes
from .facts import CAPACITY, CHUNK_NBYTES, CODED_CHUNK, LISTS, ONE_NBYTES, THREADS, AdamRule

Args = tuple[object, ...]
Specs = tuple[Spec, ...]

ROWS = ("float32 float32 float32", "float32 H float32", "float32 float32 H", "float32 H H")
LIST_ROWS = (*ROWS, "float64 float64 float64", "H float32 H", "H H H")  # also of lists
VARIABLES = "T1 T2 T3 T4 T_GRAD T_GRAD_NORM T_MIXED_PRECISION_FP T_LOSS_SCALE"
FREE = dict.fromkeys(("T1", "T_GRAD_NORM", "T_LOSS_SCALE"), common.NUMBERS) | {
    "T2": (INT64,),
    "T_MIXED_PRECISION_FP": common.HALVES,
}


class AdamOptimizer(Op):
    """Adam: new_weights = weights - R ((m / c1) / (sqrt(v / c2) + epsilon) + lambda_ weights).

    m = alpha moment_1 + (1 - alpha) g and v = beta moment_2 + (1 - beta) g^2 are the new moments,
    c1 = 1 - alpha^T and c2 = 1 - beta^T, or 1 without do_bias_correction. g is the gradient over
    its loss scale s; where its norm n is above s max_norm_clip, it is the gradient over
    n / max_norm_clip. A norm that is NaN clips nothing; with an infinite one finite gradients
    become 0. new_gradients is what is added to the weights.

    With weight_decay_mode 1 epsilon is added to sqrt(v) before c2 divides it, and the decay is
    lambda_ R times the weight that is updated already: PyTorch's AdamW is mode 0, that of Hugging
    Face mode 1.

    mixed_precision_weights get the new weights too, rounded once; their former values do not
    matter. Moments and T are updated in any case; weights, gradients and low-precision weights only
    if `outputs=` names their outputs, or is left out. A step that is skipped changes nothing, not
    even T. It is also skipped where R is in an array and not finite, or loss_scale in an array and
    not finite and above 0; a T that is a number counts on then.

    moment_2 in float16 loses squares: where (1 - beta) g^2 is below 3e-8 it is 0, and steps
    become far too large; bfloat16 has the range of float32.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/adam.cc; Kingma and
    Ba, Adam: a method for stochastic optimization; Loshchilov and Hutter, Decoupled weight decay
    regularization.
    """

    detaches = True

    inputs: ClassVar[tuple[Input, ...]] = (
        common.number("R", "T1", "the learning rate"),
        common.step_input("T", "T2"),
        Input("weights", "T3", shape="any shape"),
        Input("gradients", "T_GRAD", shape="shape of weights"),
        Input("moment_1", "T4", shape="shape of weights"),
        Input("moment_2", "T4", shape="shape of weights"),
        Input(
            "mixed_precision_weights",
            "T_MIXED_PRECISION_FP",
            optional=True,
            shape="shape of weights",
        ),
        *common.scales("T_LOSS_SCALE", "T_GRAD_NORM", "global_gradient_norm"),
        common.UPDATE_SIGNAL,
    )
    outputs: ClassVar[tuple[Output, ...]] = (
        common.step_output("new_T", "T", "T2"),
        Output("new_moment_1", "T4", aliases="moment_1", shape="shape of weights"),
        Output("new_moment_2", "T4", aliases="moment_2", shape="shape of weights"),
        Output("new_weights", "T3", aliases="weights", on_request=True, shape="shape of weights"),
        Output(
            "new_gradients",
            "T_GRAD",
            aliases="gradients",
            on_request=True,
            shape="shape of weights",
        ),
        Output(
            "new_mixed_precision_weights",
            "T_MIXED_PRECISION_FP",
            aliases="mixed_precision_weights",
            on_request=True,
            shape="shape of weights",
            doc="with mixed_precision_weights",
        ),
    )
    alpha = attribute(common.decay, 0.9, doc="decay of the first moment")
    beta = attribute(common.decay, 0.999, doc="decay of the second moment")
    lambda_ = attribute(finite, 0.0, upstream="lambda", doc="weight decay")
    epsilon = attribute(common.not_negative, 1e-8)
    max_norm_clip = attribute(common.above_zero, 1.0, doc="of the unscaled gradients")
    do_bias_correction = attribute(boolean, True)
    weight_decay_mode: int = attribute(one_of(0, 1), 0)
    types: ClassVar[Types] = TypeRows(VARIABLES, *ROWS, free=FREE, H=common.HALVES)
    maximize: bool = False
    rounding_seed: int | None = None

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        if self.do_bias_correction:
            common.refuse_uncorrectable(self.name, alpha=self.alpha, beta=self.beta)

    def infer(self, *specs: Any) -> tuple[Inferred, ...]:
        """Return the specs of new T and of the arrays, which keep theirs; specs: as declared."""
        _, t, w, g, m1, m2, mixed, _, _, update, *_ = specs
        named = {"gradients": g, "moment_1": m1, "moment_2": m2, "mixed_precision_weights": mixed}
        for name, arrays in named.items():
            common.refuse_other_shapes(self.name, name, arrays, "weights", w)
        return common.new_step(self.name, "T", t, update), m1, m2, w, g, mixed

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan the update's launches (`_update`), then one that counts the step (`count`).

        specs: the inputs as declared, of which lists have two more behind, then the outputs.
        """
        n_outputs = len(self.outputs)
        (r, t, *arrays), others = specs[:7], specs[7:-n_outputs]
        loss_scale, norm, update, max_norm, largest = (*others, None, None)[:5]
        new_t, new_m1, new_m2, new_w, new_g, new_mixed, *new_largest = specs[-n_outputs:]
        scale, norm = common.value_or(loss_scale, 1.0), common.value_or(norm, common.ABSENT_NORM)
        clip = common.value_or(max_norm, self.max_norm_clip)
        args = self.rule(), r, t, scale, norm, clip, common.value_or(update, True)
        written = new_w, new_g, new_m1, new_m2, new_mixed, *(new_largest or (None,))
        steps = self._update((*arrays, largest), written, args)
        types = (x.dtype if isinstance(x, Spec) else x[0].dtype for x in arrays[:3])
        return steps.then(count(*types, r, t, scale, update, new_t))

    def rule(self, *rates: float) -> np.void:
        """Return the kernels' struct AdamRule; rates: (alpha, beta, lambda_, epsilon), or ().

        With () these are the attributes.
        """
        return rule(
            rates or (self.alpha, self.beta, self.lambda_, self.epsilon),
            correct_bias=self.do_bias_correction,
            decays=self.weight_decay_mode,
            maximize=self.maximize,
            seed=self.rounding_seed,
        )

    def _update(self, arrays: Sequence[Any], written: Sequence[Any], args: Args) -> Plan:
        """Plan the launches that update the arrays; args: a step's numbers, as kernels take them.

        arrays: w, g, m, v, low-precision w, largest v, None where absent. written: w, g, m, v,
        low-precision w, largest v, as far as they are wanted.
        """
        w, g, m, v, mixed, _ = arrays
        copies = common.low_precision_lists((mixed,), written[4:5])
        (mixed,), (copied,), is_bfloat16 = copies if copies[0] else ((None,), (None,), False)
        row = (w, g, m, v, mixed, *written[:4], copied, *args, is_bfloat16, w.size)
        types = {"W": w.dtype, "GRAD": g.dtype, "MOMENT": m.dtype}
        grid = ceil_div(w.size, chunk(w, m, ONE_NBYTES))
        return Plan((launch("adam_optimizer", grid, row, **types),) if w.size else ())


class AdamOptimizerList(AdamOptimizer):
    """Adam over a list: new_weights[i] = weights[i] - R (m / c1) / (sqrt(v / c2) + epsilon).

    Each parameter is treated as by AdamOptimizer; all have the same numbers. max_norm is in the
    place of max_norm_clip where it is passed. An entry of mixed_precision_weights may be None.

    With weight_decay_mode 2 lambda_ weights is added to the gradient, once it is unscaled and
    clipped: PyTorch's Adam. maximize: the gradient's negative in its place.

    Source: this package; ONNX Runtime runs AdamOptimizer once for each parameter.
    """

    domain = "cupy_training_ops"
    inputs = (
        common.number("R", "T1", "the learning rate"),
        common.step_input("T", "T2"),
        common.weights("T3"),
        *common.lists("T_GRAD", "gradients"),
        *common.lists("T4", "moment_1", "moment_2"),
        common.low_precision("T_MIXED_PRECISION_FP"),
        *common.scales("T_LOSS_SCALE", "T_GRAD_NORM", "global_gradient_norm"),
        common.UPDATE_SIGNAL,
        common.max_norm("above 0"),
    )
    outputs: ClassVar[tuple[Output, ...]] = (
        common.step_output("new_T", "T", "T2"),
        common.list_output("new_moment_1", "moment_1", "T4"),
        common.list_output("new_moment_2", "moment_2", "T4"),
        common.list_output("new_weights", "weights", "T3", on_request=True),
        common.list_output("new_gradients", "gradients", "T_GRAD", on_request=True),
        common.list_output(
            "new_mixed_precision_weights",
            "mixed_precision_weights",
            "T_MIXED_PRECISION_FP",
            on_request=True,
        ),
    )
    weight_decay_mode = attribute(one_of(0, 1, 2), 0)
    maximize = attribute(boolean, False)
    rounding_seed = attribute(
        optional(common.seed), None, doc="of bfloat16 weights; None: to nearest even"
    )
    types: ClassVar[Types] = TypeRows(
        f"{VARIABLES} T_MAX_NORM",
        *LIST_ROWS,
        free=FREE | {"T_MAX_NORM": common.NUMBERS},
        H=common.HALVES,
    )

    def infer(self, *specs: Any) -> tuple[Inferred, ...]:
        """Return what the base does; refuse a None in weights, and types not to round at random.

        specs: the inputs as declared.
        """
        weights = specs[2]
        common.refuse_none(self.name, "weights", weights)
        if self.rounding_seed is not None:
            common.refuse_rounding(self.name, weights[0].dtype)
        return super().infer(*specs)

    def _update(self, arrays: Sequence[Any], written: Sequence[Any], args: Args) -> Plan:
        return over_lists(arrays, written, args)


class AdamLargestList(AdamOptimizerList):
    """AMSGrad over a list: new_weights[i] = weights[i] - R (m / c1) / (sqrt(x / c2) + epsilon).

    AdamOptimizerList, but that x = max(x, v) is in the place of v: each element of largest_moment_2
    becomes the larger of it and the new v; a NaN of either stays.

    Source: this package; Reddi, Kale, Kumar, On the convergence of Adam and beyond.
    """

    inputs = (*AdamOptimizerList.inputs, *common.lists("T4", "largest_moment_2"))
    outputs: ClassVar[tuple[Output, ...]] = (
        *AdamOptimizerList.outputs,
        common.list_output("new_largest_moment_2", "largest_moment_2", "T4"),
    )

    def infer(self, *specs: Any) -> tuple[Inferred, ...]:
        """Return what the base does, and the specs of largest_moment_2, the last of `specs`."""
        *others, largest = specs
        inferred = super().infer(*others)
        common.refuse_other_shapes(self.name, "largest_moment_2", largest, "weights", specs[2])
        return *inferred, largest


# Shapes of the codes, in words, by input.
CODES = {
    "moment_1": "shape (n,) for n weights; (ceil(n / 2) + 2 ceil(n / 128),) with 4 bits",
    "moment_2": "shape (n + ceil(n / 128),); (ceil(n / 2) + 2 ceil(n / 128),) with 4 bits",
}


class AdamCodedList(AdamOptimizerList):
    """Adam over codes: new_weights[i] = weights[i] - R (m / c1) / (sqrt(v / c2) + epsilon).

    AdamOptimizerList with both moments in 2.008 bytes a weight, or with 4 bits in 1.04, in place of
    8. Each new moment is computed in float32 from the codes before it, has its part in the weights,
    and becomes a code again. Arrays of zeros are moments of 0.

    With 8 bits a second moment is a float of 5 bits of exponent and 3 of fraction, relative to the
    largest in its block of 128; what is not 0 never becomes 0. A first moment is a sign and a
    float of 4 and 3 bits, relative to the root of the second moment of the same weight, to the
    power of two at or below it: up to 2^6 of it; below 2^-10 it becomes 2^-10 of it or 0. So a
    weight moves as with float32 moments beside others whose gradients are up to 2^15 times larger.

    With 4 bits a second moment has 16 codes, relative to the largest in its block: 16 powers of
    two, or 8 or 4 that are divided by 1 or 2 bits, where they reach its least. First moments are
    multiples, from -7 to 7, of a seventh of the largest ratio to that power of two in the block.

    All are rounded up as often as they are nearer to what is above, by numbers that follow from
    place and step alone: a moment that changes by less than a code's step follows its mean all the
    same. Codes are the same on every provider, for the same gradients, but for subnormal ones,
    which are 0 to a GPU, and for the sign of a NaN.

    A NaN or an infinity in a gradient spoils the second moments of its block.

    Source: this package; Dettmers et al., 8-bit optimizers via block-wise quantization, and Li,
    Chen, Zhu, Memory efficient optimizers with 4-bit states, which code by tables, both moments
    relative to the largest in their blocks, and round to nearest.
    """

    inputs = tuple(
        replace(item, type="uint8", shape=CODES[item.name]) if item.name in CODES else item
        for item in AdamOptimizerList.inputs
    )
    outputs: ClassVar[tuple[Output, ...]] = tuple(
        replace(item, type="uint8", shape=CODES[str(item.aliases)])
        if item.aliases in CODES
        else item
        for item in AdamOptimizerList.outputs
    )
    bits = attribute(one_of(8, 4), 8, doc="of a code")
    types: ClassVar[Types] = TypeRows(
        f"{VARIABLES.replace(' T4', '')} T_MAX_NORM",
        "float32 float32",
        "float32 H",
        "H float32",
        "H H",
        free=FREE | {"T_MAX_NORM": common.NUMBERS},
        H=common.HALVES,
    )

    def infer(self, *specs: Any) -> tuple[Inferred, ...]:
        """Return the outputs' specs; refuse codes of other sizes than `coded_sizes` says."""
        w, *moments = specs[2], *specs[4:6]
        sizes = zip(*(coded_sizes(spec.size, self.bits) for spec in w), strict=True)
        for name, codes, own in zip(CODES, moments, sizes, strict=False):  # no weights, no sizes
            coded = tuple(Spec((size,), UINT8) for size in own)
            common.refuse_other_shapes(self.name, name, codes, "codes of weights", coded)
        new_t, _, _, *others = super().infer(*specs[:4], w, w, *specs[6:])
        return new_t, *moments, *others

    def _update(self, arrays: Sequence[Any], written: Sequence[Any], args: Args) -> Plan:
        """Plan launches that update all lists; args: the step's numbers.

        arrays, written: lists of weights, gradients, codes of both moments, low-precision weights,
        None; of inputs and of outputs.
        """
        # The kernels are in the module of float32 moments, which is compiled already.
        w, g, *_ = arrays
        symbol = "adam__coded_list" if self.bits == 8 else "adam__few_bits_list"
        make = partial(launch, symbol, W=w[0].dtype, GRAD=g[0].dtype, MOMENT=FLOAT32)
        return chunks_of_lists(arrays, written, args, CODED_CHUNK, make)


class AdamWOptimizer(Op):
    """AdamW over a list: w = w - lr ((m / c1) / (sqrt(v / c2) + epsilon) + weight_decay w).

    m = alpha momentums_1 + (1 - alpha) g and v = beta momentums_2 + (1 - beta) g^2 are the new
    momentums, c1 = 1 - alpha^step and c2 = 1 - beta^step, or 1 without correct_bias. This is
    PyTorch's AdamW; adam_mode 1 is that of Hugging Face, where epsilon is added to sqrt(v) before
    c2 divides it, and the decay is computed from the weight that is updated already.

    An `out=` of its own leaves weights or momentums as they are; an `outputs=` without them does
    not. The signal comes back where it was passed: an array is updated_flag too. An lr in an array
    that is not finite skips the step.

    momentums_2 in float16 loses squares: where (1 - beta) g^2 is below 3e-8 it is 0, and steps
    become far too large; bfloat16 has the range of float32.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/adamw/adamw.cc;
    Loshchilov and Hutter, Decoupled weight decay regularization.
    """

    detaches = True

    inputs = (
        common.number("lr", "T1", "the learning rate"),
        common.step_input("step", "T2"),
        common.weights("S_WEIGHT"),
        *common.lists("S_GRAD", "gradients"),
        *common.lists("S_MOMENT", "momentums_1", "momentums_2"),
        common.UPDATE_SIGNAL,
    )
    outputs = (
        common.signal_output("updated_flag"),
        common.list_output("updated_weights", "weights", "S_WEIGHT"),
        common.list_output("updated_momentums_1", "momentums_1", "S_MOMENT"),
        common.list_output("updated_momentums_2", "momentums_2", "S_MOMENT"),
    )
    alpha = attribute(common.decay, 0.9, doc="decay of the first moment")
    beta = attribute(common.decay, 0.999, doc="decay of the second moment")
    epsilon = attribute(common.not_negative, 1e-8)
    weight_decay = attribute(finite, 1e-2)
    correct_bias = attribute(boolean, True, doc="True in adam_mode 0")
    adam_mode = attribute(one_of(0, 1), 0)
    types: ClassVar[Types] = TypeRows(
        "T1 T2 S_WEIGHT S_MOMENT S_GRAD",
        *LIST_ROWS,
        free={"T1": common.NUMBERS, "T2": (INT64,)},
        H=common.HALVES,
    )

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        if self.adam_mode == 0 and not self.correct_bias:
            refuse(self.name, "correct_bias", "True in adam_mode 0", "False")
        if self.correct_bias:
            common.refuse_uncorrectable(self.name, alpha=self.alpha, beta=self.beta)

    def infer(
        self, lr: object, t: object, w: Specs, g: Specs, m1: Specs, m2: Specs, update: Any
    ) -> tuple[Inferred, ...]:
        """Return the update signal's spec or value, then the specs of weights and moments."""
        common.refuse_none(self.name, "weights", w)
        named = {"gradients": g, "momentums_1": m1, "momentums_2": m2}
        for name, arrays in named.items():
            common.refuse_other_shapes(self.name, name, arrays, "weights", w)
        return common.signal(update), w, m1, m2

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan the update by AdamOptimizerList's kernels, then a copy of the signal.

        specs: the seven inputs, then the four outputs, as declared.
        """
        lr, t, *arrays, update = specs[:7]
        updated, new_w, new_m1, new_m2 = specs[7:]
        rates = self.alpha, self.beta, self.weight_decay, self.epsilon
        fixed = rule(rates, correct_bias=self.correct_bias, decays=self.adam_mode)
        args = (fixed, lr, t, 1.0, common.ABSENT_NORM, math.inf, common.value_or(update, True))
        written = new_w, None, new_m1, new_m2, None, None
        steps = over_lists((*arrays, None, None), written, args)
        return steps.then(common.pass_signal(update, updated))


# ---- launches ------------------------------------------------------------------------------------


def launch(symbol: str, grid: int, args: Args, **types: Dtype) -> Launch:
    """Return a launch of the kernel `symbol` in `grid` blocks, with the arguments `args`.

    types: W, GRAD and MOMENT: dtypes of weights, gradients and moments that it is compiled for.
    """
    sizes = CHUNK_NBYTES, CAPACITY, LISTS
    return common.launch(symbol, grid, THREADS, args, *sizes, types)


def chunk(w: Spec, m: Spec, nbytes: int) -> int:
    """Return how many elements a block takes: `nbytes` of the wider of weights and moments."""
    return nbytes // max(w.dtype.itemsize, m.dtype.itemsize)


def rule(
    rates: tuple[float, ...],
    *,
    correct_bias: bool = True,
    decays: int = 0,
    maximize: bool = False,
    seed: int | None = None,
) -> np.void:
    """Return the kernels' struct AdamRule.

    rates: (alpha, beta, lambda, epsilon). correct_bias: moments are divided by 1 - rate^step.
    decays: weight_decay_mode: 0 decays the weight, 1 the updated one, 2 adds to the gradient.
    maximize: the gradient's sign is reversed. seed: of random rounding; None rounds to nearest.
    """
    numbers = dict(zip(("alpha", "beta", "lambda_", "epsilon"), rates, strict=True))
    return by_value(
        AdamRule,
        **numbers,
        seed=seed or 0,
        correct_bias=correct_bias,
        decays_updated=decays == 1,
        decays_gradient=decays == 2,
        maximize=maximize,
        rounds_at_random=seed is not None,
    )


def over_lists(inputs: Sequence[Any], outputs: Sequence[Any], args: Args) -> Plan:
    """Plan launches of adam__list, each over the chunks of a batch of parameters.

    inputs, outputs: lists of weights, gradients, first and second moments, low-precision weights,
    and the largest second moments, with which it is adam__largest_list. args: the step's numbers.
    """
    w, g, m, *_, largest = inputs
    symbol = "adam__list" if largest is None else "adam__largest_list"
    make = partial(launch, symbol, W=w[0].dtype, GRAD=g[0].dtype, MOMENT=m[0].dtype)
    return chunks_of_lists(inputs, outputs, args, chunk(w[0], m[0], CHUNK_NBYTES), make)


def chunks_of_lists(
    inputs: Sequence[Any], outputs: Sequence[Any], args: Args, most: int, make: Any
) -> Plan:
    """Plan launches make(grid, arguments), each over the chunks of a batch of parameters.

    inputs, outputs: lists of weights, gradients, first and second moments, low-precision weights
    and largest second moments, None where absent. args: the step's numbers, the same in each
    launch. most: elements of a chunk, which a block takes.
    """
    w, g, m, v, mixed, largest = inputs
    *written, copied, new_largest = outputs
    mixed, new_mixed, is_bfloat16 = common.low_precision_lists(mixed, copied)
    lists = (*(items or () for items in written), new_mixed, new_largest or ())
    columns = Columns.of(
        (w, g, m, v, mixed, largest or ()), dict(enumerate(lists)), LISTS * CAPACITY
    )
    sizes = [spec.size for spec in w]
    return common.over_lists(columns, sizes, most, CAPACITY, make, *args, is_bfloat16)


def count(w: Dtype, g: Dtype, m: Dtype, *numbers: Any) -> Plan:
    """Plan new_t = t + 1 by adam__count, in the module that is compiled for w, g and m already.

    w, g, m: dtypes of weights, gradients and moments. numbers: rate, step t, loss scale, update
    signal, and new_t or None.
    """
    wide = FLOAT32 if m == UINT8 else m
    make = partial(launch, "adam__count", W=w, GRAD=g, MOMENT=wide)
    return common.count_step(make, *numbers)


OPS = {
    "AdamCodedList": AdamCodedList,
    "AdamLargestList": AdamLargestList,
    "AdamOptimizer": AdamOptimizer,
    "AdamOptimizerList": AdamOptimizerList,
    "AdamWOptimizer": AdamWOptimizer,
}

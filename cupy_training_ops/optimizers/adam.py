# SPDX-License-Identifier: MIT
"""SGD, Adam, AdamW and Lamb for training loops."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from numpy.typing import DTypeLike

from ..codecs.numpy_file import BinaryFile, StrPath
from ..declare.schema import finite, positive_or_zero
from ..errors import refuse, shown
from ..planning.step import above_zero, not_negative, seed
from ..process_group import ProcessGroup
from ..typing import Array, Arrays, ArraysOrNone, Number
from .base import Names, Optimizer
from .state import BITS, Codes, State
from .steps import (
    AdamStep,
    AdamWCodedStep,
    AdamWStep,
    AMSGradStep,
    AMSGradWStep,
    LambStep,
    MomentumStep,
    SGDStep,
    check_betas,
    check_limits,
    check_number,
)


class SGD(Optimizer):
    """Gradient descent: p = p - lr b, with b = momentum b + (1 - dampening) g, or p = p - lr g.

    g = gradient / d + weight_decay p; with maximize the gradient's negative is in its place. d is
    the loss scale s; where the norm n of all gradients is above s max_norm, it is n / max_norm. In
    the first step of a parameter b is g; with nesterov p = p - lr (g + momentum b). This is
    PyTorch's SGD.

    parameters: a list of arrays of one dtype (any float), C-contiguous and on one device,
    NumPy (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. They are updated in
    place and stay what they are. lr: a number, or one element in an array on that device, which a
    step reads there. names: texts that tell the parameters apart in a state; their places by
    default. low_precision: an array of float16 or bfloat16, or None, for each parameter; every step
    that is made writes the new parameters there too, rounded once.

    rounding_seed: bfloat16 parameters are rounded at random, up as often as they are nearer to what
    is above, by this seed, the step and the place in the parameter; only with momentum.

    State: none that steps change without momentum; with it the momenta, in float32 (float64 for
    float64 parameters), and the counts of steps. NaN and infinities: see `step`. Deterministic.
    Raises ArgumentError and DtypeError.

    Source: this package; GradientNorm, SGDOptimizerList and SGDMomentumList do the work.
    """

    moments: tuple[str, ...] = ()  # without momentum
    counts = False

    def __init__(
        self,
        parameters: Arrays,
        lr: Number | Array = 1e-3,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        names: Names | None = None,
        low_precision: ArraysOrNone | None = None,
        rounding_seed: int | None = None,
    ) -> None:
        """Check the arguments; choose the operator of a step, with momentum MomentumStep.

        parameters: list of arrays, updated in place. lr: a number, or an array of one element,
        which each step reads. momentum, dampening, weight_decay, nesterov, maximize: as in
        PyTorch's SGD. names: texts that name the parameters in a state. low_precision: for each
        parameter a float16 or bfloat16 copy to write too, or None. rounding_seed: rounds bfloat16
        parameters at random.
        """
        momentum = check_number("SGD", "momentum", not_negative, momentum)
        dampening = check_number("SGD", "dampening", finite, dampening)
        weight_decay = check_number("SGD", "weight_decay", positive_or_zero, weight_decay)
        if nesterov and not (momentum and dampening == 0):
            got = f"momentum {momentum}, dampening {dampening}"
            refuse("SGD", "nesterov", "False without momentum or with dampening", got)
        decay: dict[str, Any] = {"weight_decay": weight_decay, "maximize": maximize}
        op: SGDStep | MomentumStep = SGDStep(**decay)
        if momentum:
            self.moments, self.counts = ("momenta",), True
            op = MomentumStep(
                **decay,
                momentum=momentum,
                dampening=dampening,
                nesterov=nesterov,
                rounding_seed=_checked_seed("SGD", rounding_seed),
            )
        elif rounding_seed is not None:
            refuse("SGD", "rounding_seed", "None, without momentum", shown(rounding_seed))
        super().__init__(op, parameters, lr, names, low_precision)
        self._refuse_rounding(rounding_seed)


def _checked_seed(optimizer: str, value: int | None) -> int | None:
    """Return a rounding_seed as an int in [0, 2^64), or None; raise ArgumentError for others.

    optimizer: the class name in the error.
    """
    return None if value is None else int(check_number(optimizer, "rounding_seed", seed, value))


class Adam(Optimizer):
    """Adam: p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon).

    m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2 are the moments, betas = (b1, b2), t counts
    the steps in which this parameter had a gradient. g = gradient / d + weight_decay p; with
    maximize the gradient's negative is in its place. d is the loss scale s; where the norm n of all
    gradients is above s max_norm, it is n / max_norm. amsgrad: the largest v so far is in the place
    of v. This is PyTorch's Adam.

    parameters: a list of arrays of one dtype (any float), C-contiguous and on one device,
    NumPy (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. They are updated in
    place and stay what they are. lr: a number, or one element in an array on that device, which a
    step reads there. names: texts that tell the parameters apart in a state; their places by
    default. low_precision: an array of float16 or bfloat16, or None, for each parameter; every step
    that is made writes the new parameters there too, rounded once. moment_dtype: float32 or
    bfloat16, not float16, in which squares of small gradients are 0; float64 for float64
    parameters. rounding_seed: bfloat16 parameters are rounded at random, up as often as they are
    nearer to what is above, by this seed, the step and the place in the parameter.

    NaN and infinities: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Source: GradientNorm, AdamOptimizerList and AdamLargestList do the work; Kingma and Ba, Adam: a
    method for stochastic optimization.
    """

    def __init__(
        self,
        parameters: Arrays,
        lr: Number | Array = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
        names: Names | None = None,
        low_precision: ArraysOrNone | None = None,
        moment_dtype: DTypeLike | None = None,
        rounding_seed: int | None = None,
    ) -> None:
        """Check the arguments; choose the operator of a step, with amsgrad AMSGradStep.

        parameters: list of arrays, updated in place. lr: a number, or an array of one element,
        which each step reads. betas, epsilon (eps there), weight_decay, amsgrad, maximize: as in
        PyTorch's Adam. names: texts that name the parameters in a state. low_precision: for each
        parameter a float16 or bfloat16 copy to write too, or None. moment_dtype: None for float32
        (float64). rounding_seed: rounds bfloat16 parameters at random.
        """
        alpha, beta = check_betas("Adam", betas)
        op = (AMSGradStep if amsgrad else AdamStep)(
            alpha=alpha,
            beta=beta,
            epsilon=epsilon,
            lambda_=check_number("Adam", "weight_decay", positive_or_zero, weight_decay),
            weight_decay_mode=2,  # added to the gradient
            maximize=maximize,
            max_norm_clip=math.inf,
            rounding_seed=_checked_seed("Adam", rounding_seed),
        )
        self.moments = (*type(self).moments, *(("largest_moment_2",) if amsgrad else ()))
        super().__init__(op, parameters, lr, names, low_precision, moment_dtype)
        self._refuse_rounding(rounding_seed)


class AdamW(Optimizer):
    """AdamW: p = p - lr ((m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay p).

    m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2 are the moments, betas = (b1, b2), t counts
    the steps in which this parameter had a gradient. g is the gradient over its loss scale s; where
    the norm n of all gradients is above s max_norm, it is the gradient over n / max_norm; with
    maximize it is the negative of that. amsgrad: the largest v so far is in the place of v. This is
    PyTorch's AdamW.

    parameters: a list of arrays of one dtype (any float), C-contiguous and on one device,
    NumPy (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. They are updated in
    place and stay what they are. lr: a number, or one element in an array on that device, which a
    step reads there. names: texts that tell the parameters apart in a state; their places by
    default. low_precision: an array of float16 or bfloat16, or None, for each parameter; every step
    that is made writes the new parameters there too, rounded once. moment_dtype: float32 or
    bfloat16, not float16, in which squares of small gradients are 0; float64 for float64
    parameters.

    state: '8bit' keeps both moments in 2.008 bytes a parameter, '4bit' in 1.04, for parameters of
    at most 32 bits: AdamCodedList says how. Those of fewer than 4,096 elements stay float32. States
    and files have all in float32, and go on bit for bit.

    rounding_seed: bfloat16 parameters are rounded at random, up as often as they are nearer to what
    is above, by this seed, the step and the place in the parameter: no float32 copy is needed.

    group: a ProcessGroup, whose ranks train the same parameters with gradients of their own and
    make each step together, by the mean of the gradients. Each rank has the moments of its part of
    the elements alone, and updates these. With bits as if each had updated all by the means; with
    max_norm within 1e-6, as the norm is put together. docs/training.md says more.

    NaN and infinities: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Source: GradientNorm and AdamOptimizerList do the work; Loshchilov and Hutter, Decoupled weight
    decay regularization.
    """

    over_ranks: ClassVar[type[AdamW]]  # the class of an AdamW with a group

    if TYPE_CHECKING:  # methods of that class, which have more parameters than the base's

        def state_dict(self, sharded: bool = False) -> State: ...
        def load_state_dict(self, state: State | Sequence[State]) -> None: ...
        def save(
            self, file: StrPath | BinaryFile, sharded: bool = False, *, sync: bool = True
        ) -> None: ...
        def load(self, file: StrPath | BinaryFile | Sequence[StrPath | BinaryFile]) -> None: ...

    def __new__(cls, *_: object, group: object = None, **__: object) -> Self:
        """Make an instance of `over_ranks` if there is a group; a subclass stays what it is."""
        if cls is AdamW and group is not None:
            return super().__new__(cls.over_ranks)  # type: ignore[return-value]
        return super().__new__(cls)

    def __init__(
        self,
        parameters: Arrays,
        lr: Number | Array = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 1e-2,
        names: Names | None = None,
        low_precision: ArraysOrNone | None = None,
        moment_dtype: DTypeLike | None = None,
        state: Literal["8bit", "4bit"] | None = None,
        group: ProcessGroup | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
        rounding_seed: int | None = None,
    ) -> None:
        """Check the arguments; choose the operator of a step, with `state` AdamWCodedStep.

        parameters: list of arrays, updated in place. lr: a number, or an array of one element,
        which each step reads. betas, epsilon (eps there), weight_decay, amsgrad, maximize: as in
        PyTorch's AdamW. names: texts that name the parameters in a state. low_precision: for each
        parameter a float16 or bfloat16 copy to write too, or None. moment_dtype: None for float32
        (float64). state: moments of 8 or 4 bits each. group: None here, as `__new__` makes another
        class with one. rounding_seed: rounds bfloat16 parameters at random.
        """
        if group is not None:
            refuse(type(self).__name__, "group", "None, for a class of your own", shown(group))
        alpha, beta = check_betas("AdamW", betas)
        codes = _codes(state, moment_dtype)
        rule: dict[str, Any] = {
            "alpha": alpha, "beta": beta, "epsilon": epsilon,
            "lambda_": check_number("AdamW", "weight_decay", finite, weight_decay),
            "max_norm_clip": math.inf, "maximize": maximize,
            "rounding_seed": _checked_seed("AdamW", rounding_seed),
        }  # fmt: skip
        op: AdamWStep | AMSGradWStep | AdamWCodedStep = AdamWStep(**rule)
        if amsgrad:
            if codes is not None:
                refuse("AdamW", "amsgrad", "False, with moments in codes", "True")
            op = AMSGradWStep(**rule)
            self.moments = (*type(self).moments, "largest_moment_2")
        elif codes is not None:
            op = AdamWCodedStep(**rule, bits=codes.bits)
        super().__init__(op, parameters, lr, names, low_precision, moment_dtype, codes)
        self._refuse_rounding(rounding_seed)


_, *_arguments = inspect.signature(AdamW.__init__).parameters.values()
AdamW.__signature__ = inspect.Signature(_arguments)  # type: ignore[attr-defined]  # not `__new__`'s


def _codes(state: str | None, moment_dtype: object) -> Codes | None:
    """Return the storage of moments for AdamW's `state`: codes of 8 or 4 bits; None for None.

    Raises ArgumentError for another `state`, or if a moment_dtype is passed beside it.
    """
    if state is None:
        return None
    if state not in BITS:
        refuse("AdamW", "state", f"None or {' or '.join(map(repr, BITS))}", shown(state))
    if moment_dtype is not None:
        refuse("AdamW", "moment_dtype", "None, with moments in codes", shown(moment_dtype))
    return Codes(BITS[state])


class Lamb(Optimizer):
    """LAMB: p = p - lr ratio d, ratio = |p| / |d| of each parameter.

    d = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay p is the direction, with
    the moments and numbers of AdamW. The ratio is kept between the two ratio_limits and is 1 where
    either norm is 0.

    parameters, lr, names, low_precision, moment_dtype: as for Adam; parameters are float32 or
    float64.

    max_norm of a step is a number, not an array, and one that is new prepares the step anew. A
    direction or a parameter that would not be finite is left out, element by element; NaN and
    infinite gradients: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Memory: a workspace for directions, see LambOptimizer.

    Source: GradientNorm and LambOptimizer do the work; You et al., Large batch optimization for
    deep learning.
    """

    def __init__(
        self,
        parameters: Arrays,
        lr: Number | Array = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        weight_decay: float = 1e-2,
        ratio_limits: tuple[float, float] = (-math.inf, math.inf),
        names: Names | None = None,
        low_precision: ArraysOrNone | None = None,
        moment_dtype: DTypeLike | None = None,
    ) -> None:
        """Check the arguments; store the rates for `_operator`, which makes a step's LambStep.

        parameters: list of arrays, updated in place. lr: a number, or an array of one element,
        which each step reads. betas, epsilon, weight_decay: as in AdamW. ratio_limits: (least,
        greatest) factor |p| / |d| of a parameter's step. names: texts that name the parameters in a
        state. low_precision: for each parameter a float16 or bfloat16 copy to write too, or None.
        moment_dtype: None for float32 (float64).
        """
        alpha, beta = check_betas("Lamb", betas)
        weight_decay = check_number("Lamb", "weight_decay", finite, weight_decay)
        ratio_min, ratio_max = check_limits("Lamb", ratio_limits)
        self._attributes = {
            "alpha": alpha, "beta": beta, "lambda_": weight_decay, "epsilon": epsilon,
            "ratio_min": ratio_min, "ratio_max": ratio_max,
        }  # fmt: skip
        super().__init__(self._operator(None), parameters, lr, names, low_precision, moment_dtype)

    def _variant(self, max_norm: Any) -> object:
        """Return max_norm, an attribute of the operator here; refuse one that is an array."""
        if max_norm is not None and type(max_norm) not in (int, float):
            refuse("Lamb", "max_norm", "a number", shown(max_norm))
        return max_norm

    def _operator(self, max_norm: Any) -> LambStep:
        """Return a new operator that clips all gradients to the norm max_norm; None: to none."""
        limit = math.inf
        if max_norm is not None:
            limit = check_number("Lamb", "max_norm", above_zero, max_norm)
        return LambStep(**self._attributes, max_norm_clip=limit)

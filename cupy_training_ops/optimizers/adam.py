# SPDX-License-Identifier: MIT
"""SGD, Adam, AdamW and Lamb for training loops."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from numpy.typing import DTypeLike

from ..codecs.numpy_file import BinaryFile, StrPath
from ..declare.schema import finite
from ..errors import refuse, shown
from ..planning.step import above_zero
from ..process_group import ProcessGroup
from ..typing import Array, Arrays, ArraysOrNone, Number
from .base import Names, Optimizer
from .state import Codes, State
from .steps import (
    AdamStep,
    AdamWCodedStep,
    AdamWStep,
    LambStep,
    SGDStep,
    check_betas,
    check_limits,
    check_number,
)


class SGD(Optimizer):
    """Gradient descent: p = p - lr g / d, where d unscales and clips the gradients.

    d is the loss scale s; where the norm n of all gradients is above s max_norm, it is
    n / max_norm.

    parameters: a list of arrays of one dtype (any float), C-contiguous and on one device,
    NumPy (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. They are updated in
    place and stay what they are. lr: a number, or one element in an array on that device, which a
    step reads there. names: texts that tell the parameters apart in a state; their places by
    default. low_precision: an array of float16 or bfloat16, or None, for each parameter; every step
    that is made writes the new parameters there too, rounded once.

    State: none that steps change. NaN and infinities: see `step`. Deterministic. Raises
    ArgumentError and DtypeError.

    Source: this package; GradientNorm and SGDOptimizerList do the work.
    """

    moments = ()
    counts = False

    def __init__(
        self,
        parameters: Arrays,
        lr: Number | Array = 1e-3,
        *,
        names: Names | None = None,
        low_precision: ArraysOrNone | None = None,
    ) -> None:
        super().__init__(SGDStep(), parameters, lr, names, low_precision)


class Adam(Optimizer):
    """Adam: p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon).

    m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2 are the moments, betas = (b1, b2), t counts
    the steps in which this parameter had a gradient. g is the gradient over its loss scale s; where
    the norm n of all gradients is above s max_norm, it is the gradient over n / max_norm.

    parameters: a list of arrays of one dtype (any float), C-contiguous and on one device,
    NumPy (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. They are updated in
    place and stay what they are. lr: a number, or one element in an array on that device, which a
    step reads there. names: texts that tell the parameters apart in a state; their places by
    default. low_precision: an array of float16 or bfloat16, or None, for each parameter; every step
    that is made writes the new parameters there too, rounded once. moment_dtype: float32 or
    bfloat16, not float16, in which squares of small gradients are 0; float64 for float64
    parameters.

    NaN and infinities: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Source: GradientNorm and AdamOptimizerList do the work; Kingma and Ba, Adam: a method for
    stochastic optimization.
    """

    def __init__(
        self,
        parameters: Arrays,
        lr: Number | Array = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        names: Names | None = None,
        low_precision: ArraysOrNone | None = None,
        moment_dtype: DTypeLike | None = None,
    ) -> None:
        alpha, beta = check_betas("Adam", betas)
        op = AdamStep(alpha=alpha, beta=beta, epsilon=epsilon, max_norm_clip=math.inf)
        super().__init__(op, parameters, lr, names, low_precision, moment_dtype)


class AdamW(Optimizer):
    """AdamW: p = p - lr ((m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay p).

    m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2 are the moments, betas = (b1, b2), t counts
    the steps in which this parameter had a gradient. g is the gradient over its loss scale s; where
    the norm n of all gradients is above s max_norm, it is the gradient over n / max_norm. This is
    PyTorch's AdamW.

    parameters: a list of arrays of one dtype (any float), C-contiguous and on one device,
    NumPy (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. They are updated in
    place and stay what they are. lr: a number, or one element in an array on that device, which a
    step reads there. names: texts that tell the parameters apart in a state; their places by
    default. low_precision: an array of float16 or bfloat16, or None, for each parameter; every step
    that is made writes the new parameters there too, rounded once. moment_dtype: float32 or
    bfloat16, not float16, in which squares of small gradients are 0; float64 for float64
    parameters.

    state: '8bit' keeps both moments in 2.02 bytes a parameter, for parameters of at most 32 bits:
    AdamCodedList says how. Weights whose first moment is below 1/256 of the largest in its block of
    128 hardly move. States and files have them in float32, and go on bit for bit.

    group: a ProcessGroup, whose ranks train the same parameters with gradients of their own and
    make each step together, by the mean of the gradients. Each rank has the moments of its part of
    the elements alone, and updates these. With bits as if each had updated all by the means; with
    max_norm within 1e-6, as the norm is put together. docs/training.md says more.

    NaN and infinities: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Source: GradientNorm and AdamOptimizerList do the work; Loshchilov and Hutter, Decoupled weight
    decay regularization.
    """

    over_ranks: ClassVar[type[AdamW]]  # the class of an AdamW with a group

    if TYPE_CHECKING:  # what that class takes more

        def state_dict(self, sharded: bool = False) -> State: ...
        def load_state_dict(self, state: State | Sequence[State]) -> None: ...
        def save(
            self, file: StrPath | BinaryFile, sharded: bool = False, *, sync: bool = True
        ) -> None: ...
        def load(self, file: StrPath | BinaryFile | Sequence[StrPath | BinaryFile]) -> None: ...

    def __new__(cls, *_: object, group: object = None, **__: object) -> Self:
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
        state: Literal["8bit"] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        if group is not None:
            refuse(type(self).__name__, "group", "None, for a class of your own", shown(group))
        alpha, beta = check_betas("AdamW", betas)
        weight_decay = check_number("AdamW", "weight_decay", finite, weight_decay)
        codes = _codes(state, moment_dtype)
        op = (AdamWStep if codes is None else AdamWCodedStep)(
            alpha=alpha, beta=beta, epsilon=epsilon, lambda_=weight_decay, max_norm_clip=math.inf
        )
        super().__init__(op, parameters, lr, names, low_precision, moment_dtype, codes)


_, *_arguments = inspect.signature(AdamW.__init__).parameters.values()
AdamW.__signature__ = inspect.Signature(_arguments)  # type: ignore[attr-defined]  # not `__new__`'s


def _codes(state: str | None, moment_dtype: object) -> Codes | None:
    """The codes of moments with state="8bit"; None where moments are arrays of numbers."""
    if state not in (None, "8bit"):
        refuse("AdamW", "state", "None or '8bit'", shown(state))
    if state is not None and moment_dtype is not None:
        refuse("AdamW", "moment_dtype", "None, with moments of 8 bits", shown(moment_dtype))
    return None if state is None else Codes()


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
        alpha, beta = check_betas("Lamb", betas)
        weight_decay = check_number("Lamb", "weight_decay", finite, weight_decay)
        ratio_min, ratio_max = check_limits("Lamb", ratio_limits)
        self._attributes = {
            "alpha": alpha, "beta": beta, "lambda_": weight_decay, "epsilon": epsilon,
            "ratio_min": ratio_min, "ratio_max": ratio_max,
        }  # fmt: skip
        super().__init__(self._operator(None), parameters, lr, names, low_precision, moment_dtype)

    def _variant(self, max_norm: Any) -> object:
        if max_norm is not None and type(max_norm) not in (int, float):
            refuse("Lamb", "max_norm", "a number", shown(max_norm))
        return max_norm

    def _operator(self, max_norm: Any) -> LambStep:
        limit = math.inf
        if max_norm is not None:
            limit = check_number("Lamb", "max_norm", above_zero, max_norm)
        return LambStep(**self._attributes, max_norm_clip=limit)

# SPDX-License-Identifier: MIT
"""Calls that onnxruntime answers on the CPU too: odd sizes, no neutral attributes, no zeros.

Left out is what onnxruntime gets wrong, or answers in another way on purpose: see the comments, and
WITHOUT_ORACLE for whole operators. In float16 it has few kernels; most calls go through float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.registry import REGISTRY
from cupy_training_ops.samples import Generator, Sample
from upstream import batch_norm, control, conv, layer_norm, losses

INT32 = np.dtype(np.int32)
Shape = tuple[int, ...]

SHAPES: tuple[Shape, ...] = ((257,), (3, 5, 7), (2, 1003))

NO_KERNEL = "onnxruntime has neither a CPU kernel nor a decomposition"
OTHER_DRAWS = "onnxruntime's masks are drawn by another generator"
OF_THIS_PACKAGE = "an operator of this package"
DOMAIN = "cupy_training_ops"  # of those
SEVERAL_PROCESSES = "onnxruntime has CUDA kernels alone, which need several processes"
BROKEN_GIST = "onnxruntime's CPU kernel crashes or fails"
WITHOUT_ORACLE = {
    **{cls.name: OF_THIS_PACKAGE for cls in REGISTRY.values() if cls.domain == DOMAIN},
    "AdasumAllReduce": SEVERAL_PROCESSES,
    "MegatronF": SEVERAL_PROCESSES,
    "MegatronG": SEVERAL_PROCESSES,
    "NcclAllGather": SEVERAL_PROCESSES,
    "NcclAllReduce": SEVERAL_PROCESSES,
    "NcclReduceScatter": SEVERAL_PROCESSES,
    "Recv": SEVERAL_PROCESSES,
    "Send": SEVERAL_PROCESSES,
    "LambOptimizer": NO_KERNEL,
    "All": NO_KERNEL,
    "BatchScale": NO_KERNEL,
    "BiasDropout": NO_KERNEL,
    "BiasSoftmaxDropout": NO_KERNEL,
    "BitmaskBiasDropout": NO_KERNEL,
    "BitmaskDropout": NO_KERNEL,
    "BitmaskDropoutGrad": NO_KERNEL,
    "Dropout": OTHER_DRAWS,
    "FlattenAndUnpad": NO_KERNEL,
    "GistBinarizeDecoder": BROKEN_GIST,
    "GistBinarizeEncoder": BROKEN_GIST,
    **{
        f"GistPack{bits}{direction}": NO_KERNEL
        for bits in ("1", "8", "16", "Msfp15")
        for direction in ("Encoder", "Decoder")
    },
    "ConvTransposeGrad": NO_KERNEL,
    "IsAllFinite": NO_KERNEL,
    "IsFinite": NO_KERNEL,
    "MixedPrecisionScale": NO_KERNEL,
    "PadAndUnflatten": NO_KERNEL,
    "ResizeGrad": NO_KERNEL,
    "ScaledSum": NO_KERNEL,
    "SoftmaxDropoutGrad": NO_KERNEL,
    "View": NO_KERNEL,
    **control.WITHOUT_ORACLE,
}


# ---- values --------------------------------------------------------------------------------------


def normal(rng: Generator, shape: Shape, dtype: Any = FLOAT32) -> Any:
    """Normal numbers, some beyond the linear part of any activation; integers, or bools."""
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    spread = 1000 if dtype in (INT32, INT64) else 2
    return np.asarray(spread * rng.standard_normal(shape)).astype(dtype)


def away_from_zero(rng: Generator, shape: Shape, dtype: Any = FLOAT32) -> Any:
    """Between 0.5 and 2 in magnitude, of either sign: for divisors, and what is divided."""
    signs = rng.choice([-1.0, 1.0], shape)
    return np.asarray(signs * rng.uniform(0.5, 2, shape)).astype(dtype)


def indices(rng: Generator, extent: Any, shape: Shape, dtype: Any = INT64) -> Any:
    """In range, of either sign, with duplicates wherever there are more of them than places."""
    return rng.integers(-np.asarray(extent), extent, shape).astype(dtype)


# ---- activations ---------------------------------------------------------------------------------

GRADIENTS = (
    "ReluGrad",
    "SigmoidGrad",
    "TanhGrad",
    "GeluGrad",
    "FastGeluGrad",
    "QuickGeluGrad",
    "LeakyReluGrad",
    "BiasGeluGrad_dX",
    "BiasFastGeluGrad_dX",
)
# Of those that take the forward output in place of X.
OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "SigmoidGrad": lambda x: 1 / (1 + np.exp(-x)),
    "TanhGrad": np.tanh,
}
ALPHAS: tuple[dict[str, Any], ...] = ({}, {"alpha": 1.1}, {"alpha": -0.6})


def _activation_gradients() -> Iterator[Sample]:
    for name, shape in itertools.product(GRADIENTS, SHAPES):
        make = partial(_slope, name=name, shape=shape)
        for attributes in ALPHAS if name in ("QuickGeluGrad", "LeakyReluGrad") else ({},):
            yield Sample(name, _label(shape, attributes), make, attributes)


def _slope(rng: Generator, name: str, shape: Shape) -> tuple[Any, ...]:
    """dY, X or Y, and the row that is added to X."""
    dy, x = _normals(rng, (shape, shape))
    row = [normal(rng, shape[-1:])] if name.startswith("Bias") else []
    return dy, OUTPUTS.get(name, np.asarray)(x), *row


def _activations() -> Iterator[Sample]:
    for shape in SHAPES:
        alone, row = partial(_normals, shapes=(shape,)), (shape, shape[-1:])
        yield Sample("Gelu", _label(shape), alone)
        yield Sample("FastGelu", _label(shape), alone)
        yield Sample("FastGelu", f"{_label(shape)}-bias", partial(_normals, shapes=row))
        yield Sample("BiasGelu", _label(shape), partial(_normals, shapes=row))
        for attributes in ALPHAS:
            yield Sample("QuickGelu", _label(shape, attributes), alone, attributes)


def _normals(rng: Generator, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    return tuple(normal(rng, shape) for shape in shapes)


# ---- dropout -------------------------------------------------------------------------------------

# Types of dy and of the ratio. Upstream forms 1 - ratio in float32, and divides: ratios whose
# reciprocal is exact give the same bits, others were seen one unit in the last place apart.
DROPOUT_TYPES = ((FLOAT32, FLOAT32), (FLOAT32, FLOAT64), (FLOAT64, FLOAT64), (FLOAT16, FLOAT32))


def _dropout() -> Iterator[Sample]:
    """In training mode, which upstream takes for granted."""
    for shape, (dtype, of_ratio) in itertools.product(SHAPES, DROPOUT_TYPES):
        for ratio in (None, 0.75, 0.875):
            make = partial(_dropped, shape=shape, dtype=dtype, ratio=ratio, of_ratio=of_ratio)
            types = f"{dtype_name(dtype)}-{dtype_name(of_ratio)}"
            yield Sample("DropoutGrad", f"{types}-{_label(shape)}-{ratio}", make)


def _dropped(
    rng: Generator, shape: Shape, dtype: Any, ratio: float | None, of_ratio: Any
) -> tuple[Any, ...]:
    given = () if ratio is None else (np.array(ratio, of_ratio), np.array(True))
    return normal(rng, shape, dtype), normal(rng, shape, BOOL), *given


# ---- elementwise ---------------------------------------------------------------------------------

DIVISIONS: tuple[tuple[Shape, Shape], ...] = (
    ((5, 7), (5, 7)),
    ((3, 5, 7), ()),
    ((), (3, 5, 7)),
    ((2, 3, 5), (5,)),
    ((5,), (2, 3, 5)),
    ((3, 4, 5), (2, 1, 1, 1)),
    ((2, 1, 1, 5), (1, 3, 4, 1)),
    ((4, 2, 3, 3), (4, 1, 1, 3)),
)


def _scales() -> Iterator[Sample]:
    """float64 by powers of two only: upstream rounds scale and reciprocal to float32."""
    types = (FLOAT32, FLOAT32), (FLOAT32, INT32), (FLOAT32, INT64), (FLOAT64, FLOAT64)
    for shape, (dtype, scale_dtype) in zip((*SHAPES, SHAPES[1]), types, strict=True):
        for attributes in ({}, {"scale_down": True}):
            make = partial(_scaled, shape=shape, dtype=dtype, scale_dtype=scale_dtype)
            types_label = f"{dtype_name(dtype)}-{dtype_name(scale_dtype)}"
            yield Sample("Scale", f"{types_label}-{_label(shape, attributes)}", make, attributes)


def _quantisations() -> Iterator[Sample]:
    for shape in SHAPES:
        for low, high in ((0, 255), (-20, 30)):
            limits = {"quant_min": low, "quant_max": high}
            yield Sample("FakeQuant", _label(shape, limits), partial(_quant, shape=shape), limits)
        yield Sample("FakeQuantGrad", _label(shape), partial(_quant_gradient, shape=shape))


def _divisions() -> Iterator[Sample]:
    for a, b in DIVISIONS:
        for dtype in (FLOAT32, FLOAT64):
            label = f"{dtype_name(dtype)}-{_label(a)}-by-{_label(b)}"
            yield Sample("DivGrad", label, partial(_division, a=a, b=b, dtype=dtype))


def _scaled(rng: Generator, shape: Shape, dtype: Any, scale_dtype: Any) -> tuple[Any, ...]:
    scale = {FLOAT32: rng.uniform(-3, -0.3), FLOAT64: -4.0}.get(scale_dtype, 7)
    return normal(rng, shape, dtype), np.array(scale, scale_dtype)


def _quant(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    """Either pair of limits clamps values on both sides."""
    scale = np.array(rng.uniform(0.005, 0.015), FLOAT32)
    return normal(rng, shape), scale, np.array(3, FLOAT32)


def _quant_gradient(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    return normal(rng, shape), normal(rng, shape, BOOL)


def _division(rng: Generator, a: Shape, b: Shape, dtype: Any) -> tuple[Any, ...]:
    dy = away_from_zero(rng, np.broadcast_shapes(a, b), dtype)
    return dy, away_from_zero(rng, a, dtype), away_from_zero(rng, b, dtype)


def _label(shape: Shape, attributes: Any = None) -> str:
    parts = ["x".join(map(str, shape)) or "scalar"]
    return "-".join(parts + [f"{name}={value}" for name, value in (attributes or {}).items()])


# ---- gradients' bookkeeping, sums ----------------------------------------------------------------

# shape, axes, other attributes than the defaults
SUMS: tuple[tuple[Shape, tuple[int, ...], dict[str, Any]], ...] = (
    ((37, 65), (0,), {}),
    ((37, 65), (-1,), {"keepdims": False}),
    ((3, 5, 7, 2), (0, -2), {}),
    ((3, 5, 7, 2), (3, 1), {"keepdims": False}),
    ((2, 3, 5), (), {}),
    ((2, 3, 5), (), {"keepdims": False}),
    ((2, 3, 5), (), {"noop_with_empty_axes": True}),
    ((2, 3, 5), (1,), {"noop_with_empty_axes": True}),
)
LISTS: tuple[tuple[Shape, ...], ...] = (((3,),), ((5, 7), (1,), (2, 3, 501)), ((13,),) * 40)


def _bookkeeping() -> Iterator[Sample]:
    """float32 only: for a narrower value upstream's kernel reads it as float32."""
    for shape in SHAPES:
        label, two = _label(shape), (shape, shape)
        yield Sample("InPlaceAccumulator", label, partial(_normals, shapes=two))
        yield Sample("InPlaceAccumulatorV2", label, partial(_normals, shapes=two))
        yield Sample("ZeroGradient", label, partial(_normals, shapes=(shape, (2,))))
        for flag in (False, True):
            make = partial(_flagged, shape=shape, flag=flag)
            yield Sample("InPlaceAccumulator", f"{label}-update_signal={flag}", make)
            yield Sample("InPlaceAccumulatorV2", f"{label}-overwrite_flag={flag}", make)


def _flagged(rng: Generator, shape: Shape, flag: bool) -> tuple[Any, ...]:
    return *_normals(rng, (shape, shape)), flag


def _reductions() -> Iterator[Sample]:
    for shape, axes, attributes in SUMS:
        for dtype in (FLOAT32, FLOAT64, INT32, INT64):
            label = f"{dtype_name(dtype)}-{_label(shape, {'axes': axes, **attributes})}"
            make = partial(_summed, shape=shape, axes=axes, dtype=dtype)
            yield Sample("ReduceSumTraining", label, make, attributes)
    for shapes in LISTS:
        yield Sample("ReduceAllL2", f"{len(shapes)}-tensors", partial(_list, shapes=shapes))


def _summed(rng: Generator, shape: Shape, axes: tuple[int, ...], dtype: Any) -> tuple[Any, ...]:
    return normal(rng, shape, dtype), np.array(axes, INT64)


def _list(rng: Generator, shapes: Sequence[Shape], dtype: Any = FLOAT32) -> tuple[Any, ...]:
    return ([normal(rng, shape, dtype) for shape in shapes],)


# ---- optimizers ----------------------------------------------------------------------------------

ADAM_MODES: tuple[dict[str, Any], ...] = (
    {"weight_decay_mode": 0, "do_bias_correction": True, "lambda_": 0.01},
    {"weight_decay_mode": 1, "do_bias_correction": True, "lambda_": 0.01, "epsilon": 1e-3},
    {"weight_decay_mode": 1, "do_bias_correction": False, "alpha": 0.8, "beta": 0.99},
)
ADAM_W_MODES: tuple[dict[str, Any], ...] = (
    {"adam_mode": 0, "correct_bias": True, "weight_decay": 0.01},
    {"adam_mode": 1, "correct_bias": True, "weight_decay": 0.02, "epsilon": 1e-3},
    {"adam_mode": 1, "correct_bias": False, "weight_decay": 0.0, "alpha": 0.8},
)


def _optimizers() -> Iterator[Sample]:
    """float32 only; upstream's AdamOptimizer knows no scale, norm, copy or signal. At step 100 its
    AdamWOptimizer has digits left of 1 - beta^step."""
    for shape in SHAPES:
        yield Sample("SGDOptimizer", _label(shape), partial(_descent, shape=shape))
        for attributes in ADAM_MODES:
            make = partial(_adam, shape=shape)
            yield Sample("AdamOptimizer", _label(shape, attributes), make, attributes)
    for number, shapes in enumerate(LISTS):
        for signal in (True, False):
            make = partial(_descents, shapes=shapes, signal=signal)
            yield Sample("SGDOptimizerV2", f"{len(shapes)}-tensors-{signal}", make)
            make = partial(_adam_w, shapes=shapes, signal=signal)
            label = f"{len(shapes)}-tensors-{signal}"
            yield Sample("AdamWOptimizer", label, make, ADAM_W_MODES[number])
        for most in (0.5, 1000.0):
            make, attributes = partial(_list, shapes=shapes), {"max_norm": most}
            label = f"{len(shapes)}-tensors-{most}"
            yield Sample("InplaceClipGradNorm", label, make, attributes)


def _descent(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    return np.full(1, 0.3, FLOAT32), *_normals(rng, (shape, shape))


def _adam(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    w, g, m, v = _normals(rng, (shape,) * 4)
    return np.full(1, 0.01, FLOAT32), np.full(1, 7, INT64), w, g, m, np.abs(v)


def _descents(rng: Generator, shapes: Sequence[Shape], signal: bool) -> tuple[Any, ...]:
    lists = (list(_normals(rng, shapes)) for _ in range(2))
    return np.full(1, 0.3, FLOAT32), *lists, np.array([signal])


def _adam_w(rng: Generator, shapes: Sequence[Shape], signal: bool) -> tuple[Any, ...]:
    w, g, m, v = (list(_normals(rng, shapes)) for _ in range(4))
    numbers = np.full(1, 0.01, FLOAT32), np.full(1, 100, INT64)
    return *numbers, w, g, m, [np.abs(x) for x in v], np.array([signal])


# ---- gradients of gathers and slices -------------------------------------------------------------

# shape of X, of the indices, attributes
GATHERS: dict[str, tuple[tuple[Shape, Shape, dict[str, Any]], ...]] = {
    "GatherGrad": (
        ((9, 7), (40,), {}),
        ((3, 11, 5), (4, 9), {"axis": 1}),
        ((3, 4, 13), (2, 3, 7), {"axis": -1}),
        ((6, 5), (), {"axis": 1}),
        ((3, 67), (301,), {}),
    ),
    "GatherNDGrad": (
        ((9, 8, 5), (60, 2), {}),
        ((7, 3), (31, 1), {}),
        ((4, 3, 5), (2, 17, 3), {}),
        ((3, 9, 7, 5), (3, 13, 2), {"batch_dims": 1}),
        ((2, 3, 4, 5), (2, 3, 9, 1), {"batch_dims": 2}),
    ),
    "GatherElementsGrad": (
        ((9, 7), (21, 7), {}),
        ((5, 7), (3, 25), {"axis": 1}),
        ((3, 5, 7), (2, 11, 6), {"axis": -2}),
        ((257,), (1003,), {}),
    ),
}

# shape of X; starts, ends, axes, steps. Upstream fails at negative steps of the last axis.
LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
SLICES: tuple[tuple[Shape, tuple[tuple[int, ...] | None, ...]], ...] = (
    ((5, 7), ((1, 2), (4, 6), None, None)),
    ((5, 7), ((1,), (LAST,), (1,), None)),
    ((5, 7), ((4, 1), (0, 6), None, (-2, 3))),
    ((5, 7, 3), ((-4, -1), (-1, FIRST), (0, 1), (2, -3))),
    ((3, 5, 7, 2), ((4, 100), (0, -100), (-2, 1), (-3, -1))),
    ((41,), ((3,), (38,), (0,), (4,))),
    ((4, 6), ((3,), (3,), (1,), (1,))),
)


def _gathers() -> Iterator[Sample]:
    """GatherNDGrad has int64 indices only."""
    for name, calls in GATHERS.items():
        index_types = (INT64,) if name == "GatherNDGrad" else (INT64, INT32)
        for (shape, at, attributes), index in itertools.product(calls, index_types):
            for dtype in (FLOAT32, FLOAT64):
                types = f"{dtype_name(dtype)}-{dtype_name(index)}"
                label = f"{types}-{_label(shape)}-at-{_label(at, attributes)}"
                make = partial(MAKERS[name], shape=shape, at=at, dtype=dtype, index=index)
                yield Sample(name, label, partial(make, **attributes), attributes)


def _gather(
    rng: Generator, shape: Shape, at: Shape, dtype: Any, index: Any, axis: int = 0
) -> tuple[Any, ...]:
    place = axis % len(shape)
    dy = normal(rng, shape[:place] + at + shape[place + 1 :], dtype)
    return np.array(shape), indices(rng, shape[axis], at, index), dy


def _gather_nd(
    rng: Generator, shape: Shape, at: Shape, dtype: Any, index: Any, batch_dims: int = 0
) -> tuple[Any, ...]:
    after = batch_dims + at[-1]
    update = normal(rng, at[:-1] + shape[after:], dtype)
    return np.array(shape), indices(rng, shape[batch_dims:after], at, index), update


def _gather_elements(
    rng: Generator, shape: Shape, at: Shape, dtype: Any, index: Any, axis: int = 0
) -> tuple[Any, ...]:
    return normal(rng, at, dtype), np.array(shape), indices(rng, shape[axis], at, index)


MAKERS = {
    "GatherGrad": _gather,
    "GatherNDGrad": _gather_nd,
    "GatherElementsGrad": _gather_elements,
}


def _slices() -> Iterator[Sample]:
    for number, (shape, bounds) in enumerate(SLICES):
        for dtype in (FLOAT32, FLOAT64):
            make = partial(_slice, shape=shape, bounds=bounds, dtype=dtype)
            yield Sample("SliceGrad", f"{dtype_name(dtype)}-{_label(shape)}-{number}", make)


def _slice(rng: Generator, shape: Shape, bounds: Any, dtype: Any) -> tuple[Any, ...]:
    """dY has the shape of NumPy's slice; its bounds are ONNX's but for FIRST, which is None."""
    starts, ends, axes, steps = bounds
    taken = [slice(None)] * len(shape)
    for i, axis in enumerate(axes or range(len(starts))):
        end = None if ends[i] < -shape[axis] else ends[i]
        taken[axis] = slice(starts[i], end, steps[i] if steps else 1)
    dy = normal(rng, np.empty(shape)[tuple(taken)].shape, dtype)
    return dy, np.array(shape), *(None if b is None else np.array(b, INT64) for b in bounds)


# ---- joining and splitting -----------------------------------------------------------------------

# axis, shapes that are joined, or come from splitting
PARTS: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (0, ((3, 5), (1, 5), (4, 5))),
    (-1, ((3, 1, 7), (3, 1, 2), (3, 1, 5))),
    (1, ((2, 3, 5), (2, 3, 5))),
    (1, tuple((3, 1 + n % 4) for n in range(35))),
)


def _joins() -> Iterator[Sample]:
    for axis, shapes in PARTS:
        for dtype in (FLOAT32, FLOAT64, FLOAT16, INT64, BOOL):
            label = f"{dtype_name(dtype)}-{len(shapes)}-of-{_label(shapes[0])}"
            make = partial(_list, shapes=shapes, dtype=dtype)
            yield Sample("ConcatTraining", label, make, {"axis": axis})


def _splits() -> Iterator[Sample]:
    for axis, shapes in PARTS:
        for dtype in (FLOAT32, INT64, INT32):
            label = f"{dtype_name(dtype)}-{len(shapes)}-of-{_label(shapes[0])}"
            make = partial(_parted, shapes=shapes, axis=axis, dtype=dtype)
            yield Sample("SplitTraining", label, make, {"axis": axis})
    equal = {"axis": 1, "num_outputs": 3}
    yield Sample("SplitTraining", "equal", partial(_parted, shapes=((2, 9, 5),), axis=None), equal)


def _parted(
    rng: Generator, shapes: Sequence[Shape], axis: int | None, dtype: Any = FLOAT32
) -> tuple[Any, ...]:
    """An array that falls into these shapes; for no axis into equal parts, `split` being empty."""
    sizes = [] if axis is None else [shape[axis] for shape in shapes]
    joined = np.concatenate([normal(rng, shape, dtype) for shape in shapes], axis=axis or 0)
    return joined, np.array(sizes, INT64)


SAMPLES: tuple[Sample, ...] = (
    *batch_norm.samples(),
    *control.samples(),
    *conv.samples(),
    *layer_norm.samples(),
    *losses.samples(),
    *_activation_gradients(),
    *_activations(),
    *_dropout(),
    *_scales(),
    *_quantisations(),
    *_divisions(),
    *_bookkeeping(),
    *_optimizers(),
    *_reductions(),
    *_gathers(),
    *_slices(),
    *_joins(),
    *_splits(),
)

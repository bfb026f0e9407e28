# SPDX-License-Identifier: MIT
"""Calls that onnxruntime answers on the CPU too: odd sizes, no neutral attributes, no zeros.

Left out is what onnxruntime gets wrong, or answers in another way on purpose: see the comments, and
WITHOUT_ORACLE for whole operators. In float16 it has few kernels; most calls go through float32.
"""

from __future__ import annotations

from cupy_training_ops.registry import REGISTRY
from cupy_training_ops.samples import Sample
from upstream import (
    batch_norm,
    control,
    conv,
    elements,
    gathers,
    joins,
    layer_norm,
    losses,
    optimizers,
    pools,
    sums,
)

NO_KERNEL = "onnxruntime has neither a CPU kernel nor a decomposition"
OTHER_DRAWS = "onnxruntime's masks are drawn by another generator"
OF_THIS_PACKAGE = "an operator of this package"
DOMAIN = "cupy_training_ops"  # of those
SHAPE_OF_GRAPH = "onnxruntime takes the shape of X from the graph around the node"
WRONG_IN_THREE = "onnxruntime's is wrong where windows of three dimensions overlap: see its test"
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
    "AveragePoolGrad": WRONG_IN_THREE,
    "MaxPoolGrad": SHAPE_OF_GRAPH,
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

SAMPLES: tuple[Sample, ...] = (
    *batch_norm.samples(),
    *control.samples(),
    *conv.samples(),
    *layer_norm.samples(),
    *losses.samples(),
    *elements.samples(),
    *pools.samples(),
    *sums.samples(),
    *optimizers.samples(),
    *gathers.samples(),
    *joins.samples(),
)

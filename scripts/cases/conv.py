# SPDX-License-Identifier: MIT
"""Gradients of ten layers of a ResNet-50 and of a depthwise one, with the channels last too, and of
ten that nobody tuned for; cuDNN, by PyTorch, as peer.

TF32 counts as another type: it is allowed to both or to none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, Dtype

from . import Case
from .parameters import images, normal
from .peers import on_tensors, torch

BATCH = 64


class Layer(NamedTuple):
    """A square kernel over square images, padded to their size."""

    name: str
    channels: int
    side: int
    filters: int
    extent: int
    stride: int = 1
    group: int = 1
    dilation: int = 1
    batch: int = BATCH

    @property
    def pad(self) -> int:
        """At each end."""
        return self.extent // 2 * self.dilation

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of all operators."""
        return {
            "group": self.group,
            "strides": (self.stride,) * 2,
            "dilations": (self.dilation,) * 2,
            "pads": (self.pad,) * 4,
        }


LAYERS = (
    Layer("conv1", 3, 224, 64, 7, 2),
    Layer("l1 1x1", 64, 56, 64, 1),
    Layer("l1 3x3", 64, 56, 64, 3),
    Layer("l1 1x1b", 64, 56, 256, 1),
    Layer("l2 3x3s2", 128, 56, 128, 3, 2),
    Layer("l2 3x3", 128, 28, 128, 3),
    Layer("l3 3x3", 256, 14, 256, 3),
    Layer("l3 1x1", 256, 14, 1024, 1),
    Layer("l4 3x3", 512, 7, 512, 3),
    Layer("l4 1x1", 512, 7, 2048, 1),
)
DEPTHWISE = Layer("depthwise", 512, 28, 512, 3, group=512)
UNTUNED = (
    Layer("mobile depthwise s2", 144, 56, 144, 3, 2, group=144),
    Layer("mobile 1x1", 144, 28, 32, 1),
    Layer("unet 3x3", 320, 32, 320, 3, batch=8),
    Layer("5x5s2", 64, 56, 128, 5, 2),
    Layer("dilated 3x3", 256, 28, 256, 3, dilation=2, batch=16),
    Layer("groups of 4", 128, 56, 128, 3, group=32),
    Layer("batch 1", 256, 64, 256, 3, batch=1),
    Layer("1x1s2", 256, 56, 512, 1, 2),
    Layer("odd channels", 100, 27, 200, 3),
    Layer("efficient 5x5 depthwise", 672, 14, 672, 5, group=672),
)
TYPES: Mapping[str, tuple[Dtype, bool]] = {
    "f4": (FLOAT32, False),
    "f2": (FLOAT16, False),
    "bf2": (BFLOAT16, False),
    "f4,tf32": (FLOAT32, True),
}


def shapes(op: str, layer: Layer) -> dict[str, tuple[int, ...]]:
    """Shapes of all arrays; X of a transposed convolution has the layer's filters as channels."""
    channels, extents = layer.channels, (layer.side,) * 2
    w = (layer.filters, layer.channels // layer.group, layer.extent, layer.extent)
    if "Transpose" in op:
        channels, extents = layer.filters, (layer.side // layer.stride,) * 2
    x = (layer.batch, channels, *extents)
    forward = get_op(op.removesuffix("Grad"))(**layer.attributes)
    (y,) = forward.infer(Spec(x, FLOAT32), Spec(w, FLOAT32), None)
    return {"x": x, "w": w, "y": y.shape, "b": y.shape[1:2]}


def _inputs(rng: Any, op: str, layer: Layer, dtype: Dtype, last: bool) -> tuple[Any, ...]:
    """X, W and B, or dY, X and W."""
    of = shapes(op, layer)
    arrays = [images(rng, of[name], dtype, last) for name in ("x", "w")]
    if not op.endswith("Grad"):
        return *arrays, normal(rng, of["b"], dtype)
    return images(rng, of["y"], dtype, last), *arrays


def _nbytes(*arrays: Any) -> int:
    """The gradients of X and W each read dY; dX and dW are as large as X and W."""
    return 2 * sum(array.nbytes for array in arrays)


def _torch(*arrays: Any, op: str, layer: Layer, tf32: bool) -> Any:
    """cuDNN with the fastest of its algorithms."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = tf32
    stride, pads, dilation = ([n] * 2 for n in (layer.stride, layer.pad, layer.dilation))
    how = (stride, pads, dilation, "Transpose" in op, [0, 0], layer.group)
    if not op.endswith("Grad"):
        return on_tensors(lambda *x: torch.ops.aten.convolution(*x, *how))(*arrays)
    backward, bias = torch.ops.aten.convolution_backward, [arrays[0].shape[1]]
    return on_tensors(lambda *x: backward(*x, bias, *how, [True] * 3))(*arrays)


def _case(op: str, layer: Layer, label: str, last: bool = False) -> Case:
    dtype, tf32 = TYPES[label]
    words = ["channels last"] if last else []
    return Case(
        op,
        ",".join((label, *words, layer.name)),
        partial(_inputs, op=op, layer=layer, dtype=dtype, last=last),
        {**layer.attributes, "allow_tf32": tf32},
        {"torch": partial(_torch, op=op, layer=layer, tf32=tf32)},
        _nbytes if op.endswith("Grad") else None,
    )


CASES = [
    *(_case("ConvGrad", layer, label) for label in TYPES for layer in LAYERS),
    *(_case("ConvGrad", DEPTHWISE, label) for label in ("f4", "f2", "bf2")),
    *(_case(op, LAYERS[2], "f2") for op in ("Conv", "ConvTranspose", "ConvTransposeGrad")),
    *(_case("ConvGrad", layer, "f2", last=True) for layer in (*LAYERS, DEPTHWISE)),
    *(_case("ConvGrad", layer, "f4,tf32", last=True) for layer in LAYERS),
    *(_case(op, LAYERS[2], "f2", last=True) for op in ("Conv", "ConvTranspose")),
    *(_case("ConvGrad", layer, "f2") for layer in UNTUNED),
]

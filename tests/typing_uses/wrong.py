# SPDX-License-Identifier: MIT
# ruff: noqa: T201
"""Wrong uses, one a line: mypy --strict and pyright have one error for each line marked so.

Neither CuPy nor PyTorch need be there: their arrays are the package's own protocols.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import cupy_training_ops as cto

x = np.zeros((2, 2), np.float32)
i: NDArray[np.int64] = np.zeros(2, np.int64)

print(cto.gist_pack9_encoder(x))  # wrong: a misspelt name
print(cto.GeluGradd())  # wrong: a misspelt class
print(cto.gelu_grad(x))  # wrong: an argument is missing
print(cto.gelu_grad(dY=x, x=x))  # wrong: an input's name
print(cto.leaky_relu_grad(x, x, alfa=0.1))  # wrong: an attribute's name
print(cto.compress(x, "msfp16"))  # wrong: there is no such codec
print(cto.compress(x, "pack8", keep_nonfinite=True))  # wrong: an option of another codec
print(cto.resize_grad(x, x, mode="nearest"))  # wrong: a mode that is not there
print(cto.gather_grad("4, 8", i, x))  # wrong: a text for a shape
print(cto.concat_training(x, axis=0))  # wrong: an array where a list is due
print(cto.gelu([1.0, 2.0]))  # wrong: a list where an array is due
print(cto.fake_quant(x, 1, 0).mask)  # wrong: a tuple has no names
a, b, c = cto.div_grad(x, x, x)  # wrong: there are two outputs
print(cto.div_grad(x, x, x, outputs=("dC",)))  # wrong: no output's name
print(cto.div_grad(x, x, x, out=x))  # wrong: out= is a tuple where there are several
print(cto.get_op("ScaledSum")(scale_0=1.0)(x, x))  # wrong: an attribute is missing
print(cto.get_op("Scale")()(x))  # wrong: an argument of the call is missing
print(cto.GatherGrad(axis="1"))  # wrong: a text for a number
cto.GatherGrad().axis = 1  # wrong: attributes are frozen


def results(xs: list[NDArray[np.float32]]) -> None:
    """The type of a result follows from the arguments'."""
    print(cto.gelu(x).detach())  # wrong: NumPy's array, no tensor
    print(cto.gelu_grad(x, x, out=x).get())  # wrong: nor CuPy's
    print(cto.concat_training(xs, axis=0)[0].lengths)  # wrong: an array has none
    print(cto.GatherGrad(axis=1)((4,), i, x).bits)  # wrong: of a class, too
    print(cto.compress(x, "pack8").decompress().bits)  # wrong: what was compressed comes back
    print(cto.Packed.load("x.npz").decompress().get())  # wrong: NumPy's by default
    print(cto.is_finite(x, out=[x]))  # wrong: no list for out=
    text: str = cto.ReluGrad()(x, x)  # wrong: an array is no text
    print(text, cto.batch_scale(x, scale_0=1, scale_1=1)[0].bits)  # wrong: nor one of several


def names(model: bytes) -> None:
    """Names are Literals."""
    print(cto.get_op("GeluGradd"))  # wrong: no operator
    print(cto.lookup("GeluGradd", dY="float16"))  # wrong: nor here
    print(cto.get_op("GeluGrad", domain="com.microsft"))  # wrong: no domain
    print(cto.ActivationStash("defualt"))  # wrong: no policy
    print(cto.compress(x, "mspf15"))  # wrong: no codec
    print(cto.Packed.load("x.npz", provider="gpu"))  # wrong: no provider
    print(cto.onnx.TrainingSession("folder", activations="smal"))  # wrong: no policy
    print(cto.onnx.TrainingSession.from_model(model, loss="mse", optimizer="Adam"))  # wrong
    with cto.ActivationStash() as stash:
        stash.put("x", x, "sing")  # wrong: no need


def libraries(tensor: cto.typing.Tensor[Any], device: cto.typing.CupyArray) -> None:
    """A call has arrays of one library."""
    print(cto.relu_grad(x, tensor))  # wrong: NumPy's and PyTorch's
    print(cto.relu_grad(tensor, x))  # wrong: the other way
    print(cto.relu_grad(device, x))  # wrong: CuPy's and NumPy's
    print(cto.relu_grad(tensor, device))  # wrong: PyTorch's and CuPy's
    print(cto.relu_grad(x, x, out=device))  # wrong: also in out=
    print(cto.concat_training([x, tensor], axis=0))  # wrong: also in a list
    print(cto.ReluGrad()(x, tensor))  # wrong: also of a class
    print(cto.AdamW([x, device]))  # wrong: also in an optimizer
    print(cto.AdamW([x]).step([x, tensor]))  # wrong: also in its step


def values(model: bytes) -> None:
    """Values of other kinds."""
    print(cto.AdamW([x], lr="0.1"))  # wrong: a text for a rate
    print(cto.AdamW([x], betas=0.9))  # wrong: one of two numbers
    print(cto.AdamW([x], state="2bit"))  # wrong: no such state
    print(cto.AdamW(x))  # wrong: an array for a list
    print(cto.SGD([x]).step([x], lr="0.1"))  # wrong: also in a step
    print(cto.Lamb([x], momentum=0.9))  # wrong: no such argument
    print(cto.conv(x, x, strides=2))  # wrong: a number for a list
    print(cto.MaxPool(kernel_shape=2))  # wrong: also of a class
    print(cto.onnx.Session(model, "numpy"))  # wrong: a name for a module
    print(cto.onnx.Session(model).run([x]))  # wrong: a list for a dictionary

# SPDX-License-Identifier: MIT
# ruff: noqa: T201
"""Wrong uses, one a line: mypy --strict and pyright have one error for each line marked so."""

from __future__ import annotations

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

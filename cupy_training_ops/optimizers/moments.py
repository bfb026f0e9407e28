# SPDX-License-Identifier: MIT
"""How an optimizer keeps its moments: as numbers, or in codes of a byte each."""

from __future__ import annotations

import math
from typing import Any

from ..call.backends import info
from ..declare.schema import Shape
from ..dtypes import FLOAT32, FLOAT64, UINT8, Dtype, HostArray
from ..errors import refuse
from ..families.adam.codes import coded_nbytes, decode, encode
from .memory import copied, zeros


class Numbers:
    """Arrays of a dtype, shaped as their parameters."""

    name = ""  # of the optimizer's `state`

    def __init__(self, dtype: Dtype) -> None:
        self.dtype = dtype  # in a state

    def first(self, parameter: Any) -> Any:
        """Moments of 0."""
        return zeros(parameter, parameter.shape, self.dtype)

    def told(self, _: str, array: Any, __: Shape) -> HostArray:
        """The arrays of a state."""
        return copied(array)

    def kept(self, _: str, array: HostArray) -> HostArray:
        """The array that is made of a state's."""
        return array


class Codes(Numbers):
    """Moments of a byte each. A state has their numbers, from which the same codes come."""

    name = "8bit"

    def __init__(self) -> None:
        super().__init__(FLOAT32)

    def first(self, parameter: Any) -> Any:
        if info(parameter)[1] == FLOAT64:
            refuse("AdamW", "state", "None, where parameters are float64", "'8bit'")
        return zeros(parameter, (coded_nbytes(math.prod(parameter.shape)),), UINT8)

    def told(self, moment: str, array: Any, shape: Shape) -> HostArray:
        found = decode(copied(array), math.prod(shape), signed=moment == "moment_1")
        return found.reshape(shape)

    def kept(self, moment: str, array: HostArray) -> HostArray:
        return encode(array, signed=moment == "moment_1")

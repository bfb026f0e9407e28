# SPDX-License-Identifier: MIT
"""Tensors on the host in the place of a GPU's: with emulated kernels, or none."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import torch
from runs import DEVICE, EMULATED

from cupy_training_ops.backend import Info
from cupy_training_ops.call.backends import TENSORS, OneStream
from cupy_training_ops.device.tensors import TensorBackend
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.hollow import HollowDriver, HollowModule, Queued


class HostTensors(OneStream, TensorBackend):
    """PyTorch's own tensors of the host as those of device 0."""

    kind = "cpu"
    loads_at_once = False

    def __init__(self, driver: Any) -> None:
        self.devices, self.driver = {torch.device("cpu"): 0}, driver

    def device(self, index: int) -> Device:
        return DEVICE

    def current_device(self) -> int:
        return 0

    def fill(self, array: torch.Tensor, nbytes: int, byte: int) -> None:
        ctypes.memset(array.data_ptr(), byte, nbytes)

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        ctypes.memset(address, 0, nbytes)


class HollowTensors(HostTensors):
    """Launches are noted; memory is never looked at."""

    def __init__(self) -> None:
        self.launches: list[Queued] = []
        super().__init__(HollowDriver(self.launches))

    def device(self, index: int) -> Device:
        return Device(132, (9, 0), 227 * 1024)

    def fill(self, array: torch.Tensor, nbytes: int, byte: int) -> None:
        self.launches.append(("fill", (array.data_ptr(), nbytes, byte)))

    def work(self, name: str) -> Any:
        return lambda *arguments: self.launches.append((name, arguments))

    def load(self, source: Any, options: tuple[str, ...]) -> HollowModule:
        return HollowModule(self.launches)


class EmulatedTensors(HostTensors):
    """Kernels run in the emulator, on copies of the tensors that it watches."""

    def __init__(self) -> None:
        super().__init__(EmulatedDriver(self))
        self.arrays: dict[int, np.ndarray] = {}

    def info(self, array: torch.Tensor) -> Info:
        result = super().info(array)
        self._note(array)
        return result

    def pointers(self, arrays: Any) -> list[int]:
        for array in arrays:
            self._note(array)
        return super().pointers(arrays)

    def offset(self, array: torch.Tensor, nbytes: int) -> int:
        self._note(array)
        return super().offset(array, nbytes)

    def load(self, source: Any, options: tuple[str, ...]) -> Any:
        return EMULATED.load(source, options)

    def _note(self, array: torch.Tensor | None) -> None:
        """Its memory may be a kernel's argument from now on."""
        if array is not None and array.numel():
            bits = array.detach().view(torch.uint8 if array.dim() else array.dtype)
            self.arrays[array.data_ptr()] = bits.numpy()


class EmulatedDriver:
    """Finds arguments in memory as CUDA's does, and launches emulated kernels with them."""

    def __init__(self, backend: EmulatedTensors) -> None:
        self.backend = backend
        self.kernels: list[tuple[Any, ...]] = []

    def head(self, *kernel: Any) -> tuple[int, ...]:
        self.kernels.append(kernel)
        return (len(self.kernels) - 1,)

    def mend(self, error: Exception) -> bool:
        return False

    def launch(self, number: int, stream: int, arguments: int, _: int) -> None:
        function, grid, block, nbytes, types = self.kernels[number]
        result = (ctypes.c_uint64 * max(len(types), 1)).from_address(arguments)
        values = tuple([value_at(*pair) for pair in zip(result, types, strict=False)])
        known = list(self.backend.arrays.values())
        function(grid, block, values, nbytes, reachable=known)


def value_at(address: int, dtype: np.dtype) -> Any:
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return np.frombuffer(bytes(memory), dtype)[0]


def tensor_of(value: Any) -> Any:
    """A tensor with an array's values; anything else as it is."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.array(value)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def numpy_of(value: Any) -> Any:
    """The array with a tensor's values; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.bfloat16:
        return value.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.detach().numpy()


@contextlib.contextmanager
def tensors_on(backend: Any):
    """Tensors of the host run on a backend in the context, whose value it is."""
    from cupy_training_ops.device.tensors import PLAIN
    from cupy_training_ops.torch.ops import dispatch

    dispatch.forget()  # what ran on another backend
    try:
        with mock.patch.dict(TENSORS, dict.fromkeys(PLAIN, backend)):
            yield backend
    finally:
        dispatch.forget()

# SPDX-License-Identifier: MIT
"""List the kernels that operators launch, without a GPU: samples run on a backend that idles.

A sample is an example call of an operator. Calls take the same path as on a GPU, so that the list
is right whatever an operator's plan depends on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..backend import Info, Kernel, KernelSource
from ..backend import Module as CompiledModule
from ..call.backends import NumpyBackend, numpy_runs_on, strides
from ..device.launch import launch_log
from ..device.source import Source, load
from ..dtypes import HostArray
from ..plan import Device, Launch, Step
from ..registry import get_op
from ..samples import Sample
from .samples import placed_inputs

Slots = tuple[tuple[str, str], ...]  # (name, C++ type or number) of each parameter of a source


class Module(NamedTuple):
    """One compilation: a source, the types and numbers that it is compiled for, its kernels."""

    source: Source
    slots: dict[str, str]  # such as {"T": "float", "N": "2"}
    symbols: tuple[str, ...]  # names of the kernels that are launched

    @property
    def label(self) -> str:
        """Return source and types for people: "adam.cu (T=float)"."""
        types = ", ".join(f"{k}={v}" for k, v in self.slots.items() if not v.isdecimal())
        return f"{self.source.name}.cu ({types})"


def idle(*launch: object) -> None:
    """Do nothing: every kernel of IdleBackend."""


class IdleBackend(NumpyBackend):
    """Backend that plans as for a GPU, with NumPy arrays and kernels that do nothing."""

    name = "idle"
    runs_kernels = True

    def __init__(self, device: Device) -> None:
        self._device = device

    def info(self, array: HostArray) -> Info:
        """Return the fields of ArrayInfo of an array as on GPU 0."""
        aligned = array.ctypes.data % 16 == 0
        return (self, array.dtype, array.shape, aligned, strides(array), 0)

    def device(self, index: int) -> Device:
        """Return the device that is planned for."""
        return self._device

    def fill(self, array: HostArray, nbytes: int, byte: int) -> None:
        """Do nothing: no kernel reads the array."""

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Do nothing: no kernel reads that memory."""

    def offset(self, array: HostArray, nbytes: int) -> HostArray:
        """Return the array itself, in place of one that begins nbytes later: no kernel reads it."""
        return array

    def load(self, source: KernelSource, options: tuple[str, ...]) -> CompiledModule:
        """Return this object, the module of idle kernels; compile nothing."""
        return self

    def current_device(self) -> int:
        """Return 0, the only device."""
        return 0

    def work(self, name: str) -> Kernel:
        """Return `idle`, in place of work that is no kernel."""
        return idle

    def allow_shared(self, function: Kernel, nbytes: int) -> None:
        """Do nothing, in place of the kernel's limit of shared memory."""

    def get_function(self, name: str) -> Kernel:
        """Return `idle` for every name."""
        return idle


def modules(samples: Iterable[Sample], device: Device) -> list[Module]:
    """Return the distinct compilations that the samples need on a device, sorted by source."""
    backend = IdleBackend(device)
    symbols: dict[tuple[str, Slots], set[str]] = {}  # kernels by (source, its types)
    for sample in samples:
        family = get_op(sample.op).family
        for step in launches(sample, backend):
            if isinstance(step, Launch):
                slots = tuple(sorted(step.slots.items()))
                symbols.setdefault((step.family or family, slots), set()).add(step.symbol)
    return [
        Module(load(family), dict(slots), tuple(sorted(kernels)))
        for (family, slots), kernels in sorted(symbols.items())
    ]


def launches(sample: Sample, backend: IdleBackend) -> list[Step]:
    """Return the steps that a sample's call would launch on the backend's device, in order."""
    op = get_op(sample.op)(**sample.attributes)
    inputs = placed_inputs(op, sample.make(np.random.default_rng(0)), sample.offset, np)
    with numpy_runs_on(backend), launch_log() as log:
        op(*inputs)
    return log

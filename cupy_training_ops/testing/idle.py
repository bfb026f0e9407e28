# SPDX-License-Identifier: MIT
"""Which kernels the operators launch, without a GPU: samples run on a backend that idles.

Calls go their whole way, so that this stays right whatever an operator's plan depends on.
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

Slots = tuple[tuple[str, str], ...]


class Module(NamedTuple):
    """One compilation: a source, its type slots, and the kernels wanted from it."""

    source: Source
    slots: dict[str, str]
    symbols: tuple[str, ...]

    @property
    def label(self) -> str:
        """Family and types, for people."""
        types = ", ".join(f"{k}={v}" for k, v in self.slots.items() if not v.isdecimal())
        return f"{self.source.name}.cu ({types})"


def idle(*launch: object) -> None:
    """The kernel that does nothing."""


class IdleBackend(NumpyBackend):
    """NumPy's memory in the place of a GPU's, and kernels that do nothing."""

    name = "idle"
    runs_kernels = True

    def __init__(self, device: Device) -> None:
        self._device = device

    def info(self, array: HostArray) -> Info:
        """Describe an array as on a GPU: alignment counts."""
        aligned = array.ctypes.data % 16 == 0
        return (self, array.dtype, array.shape, aligned, strides(array), 0)

    def device(self, index: int) -> Device:
        """The device that is planned for."""
        return self._device

    def fill(self, array: HostArray, nbytes: int, byte: int) -> None:
        """Nothing is written."""

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Nothing is written."""

    def offset(self, array: HostArray, nbytes: int) -> HostArray:
        """Never read."""
        return array

    def load(self, source: KernelSource, options: tuple[str, ...]) -> CompiledModule:
        """A module of idle kernels."""
        return self

    def current_device(self) -> int:
        """There is one."""
        return 0

    def work(self, name: str) -> Kernel:
        """Any work."""
        return idle

    def allow_shared(self, function: Kernel, nbytes: int) -> None:
        """Idle kernels ask for nothing."""

    def get_function(self, name: str) -> Kernel:
        """Every kernel."""
        return idle


def modules(samples: Iterable[Sample], device: Device) -> list[Module]:
    """The distinct compilations that the samples need on a device."""
    backend = IdleBackend(device)
    symbols: dict[tuple[str, Slots], set[str]] = {}
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
    """The steps that a sample would launch on the backend's device."""
    op = get_op(sample.op)(**sample.attributes)
    inputs = placed_inputs(op, sample.make(np.random.default_rng(0)), sample.offset, np)
    with numpy_runs_on(backend), launch_log() as log:
        op(*inputs)
    return log

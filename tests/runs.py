# SPDX-License-Identifier: MIT
"""Where a test runs: the GPU, emulated kernels in three thread orders, or the CPU provider."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import emulator
import numpy as np
from numpy.typing import NDArray

from cupy_training_ops.backend import Info, KernelSource
from cupy_training_ops.call import backends
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.compiler import header_options
from cupy_training_ops.plan import Device
from cupy_training_ops.registry import FAMILIES
from cupy_training_ops.testing.samples import (
    all_samples,
    as_it_lies,
    blank,
    mapped_inputs,
    place,
)

ORDERS = ("forward", "reverse", "random")
EMULATED_RUNS = tuple(f"emulated-{order}" for order in ORDERS)
RUNS = (*EMULATED_RUNS, "cuda")


def drawn_run(test: str, seed: int) -> str:
    """The one of EMULATED_RUNS in which a session runs this test unless it is to be thorough."""
    return random.Random(f"{seed} {test}").choice(EMULATED_RUNS)


def drawn(items: Iterable[tuple[str, ...]], share: float) -> tuple[str, ...]:
    """One of them, by a share from 0 to 1: the same of equal ones, the frequent ones more often."""
    ordered = sorted(items)
    return ordered[int(share * len(ordered))]


@functools.cache
def types_and_ids() -> dict[str, tuple[tuple[tuple[str, ...], str], ...]]:
    """Of each operator that has samples the combination of types and the id of each."""
    result = all_samples().items()
    return {name: tuple((s.types, s.id) for s in samples) for name, samples in result if samples}


@functools.cache
def drawn_samples(seed: int) -> frozenset[str]:
    """Ids of the samples that a session runs emulated unless it is to be thorough.

    Of each operator those of one combination of types: g++ takes seconds for each. Combinations
    with more samples are drawn more often, and alike for operators that share their kernels.
    """
    ids: set[str] = set()
    for family, operators in FAMILIES.items():
        share = random.Random(f"{seed} {family}").random()
        for samples in filter(None, map(types_and_ids().get, operators)):
            chosen = drawn((types for types, _ in samples), share)
            ids.update(name for types, name in samples if types == chosen)
    return frozenset(ids)


@functools.cache
def drawn_types(seed: int) -> dict[str, set[tuple[str, ...]]]:
    """Of each family the combinations of types of the samples that are drawn."""
    known, ids = types_and_ids(), drawn_samples(seed)
    return {
        family: {types for name in ops for types, result in known.get(name, ()) if result in ids}
        for family, ops in FAMILIES.items()
    }


def built(
    combinations: Iterable[tuple[str, ...]], samples: Iterable[tuple[str, ...]]
) -> set[tuple[str, ...]]:
    """The combinations of types that need no kernels but those of samples."""
    return {types for types in combinations if any(set(types) <= set(others) for others in samples)}


class EmulatedBackend(backends.NumpyBackend):
    """The frame's view of the emulator: NumPy's memory, kernels compiled with g++."""

    name = "emulated"
    runs_kernels = True

    def info(self, array: NDArray[Any]) -> Info:
        aligned = array.ctypes.data % 16 == 0
        return (self, array.dtype, array.shape, aligned, backends.strides(array), 0)

    def pointers(self, arrays: Sequence[NDArray[Any] | None]) -> list[int]:
        return [0 if array is None else emulator.device_address(array) for array in arrays]

    def empty(self, spec: Spec, device: int) -> NDArray[Any]:
        return emulator.guarded_copy(np.empty(spec.shape, spec.dtype))

    def zeros(self, nbytes: int, device: int) -> NDArray[Any]:
        return emulator.guarded_copy(np.zeros(nbytes, np.uint8))

    def device(self, index: int) -> Device:
        return DEVICE

    def current_device(self) -> int:
        return 0

    def work(self, name: str) -> Callable[..., None]:
        return WORK[name]

    def load(self, source: KernelSource, options: tuple[str, ...]) -> EmulatedFunctions:
        module = emulator.EmulatedModule(
            source.code,
            options + header_options(),
            max_shared_nbytes=DEVICE.max_shared_nbytes,
        )
        return EmulatedFunctions(module)


class EmulatedFunctions(NamedTuple):
    """A compiled module as the runtime sees it."""

    module: emulator.EmulatedModule

    def get_function(self, name: str) -> Any:
        return self.module.get_function(name)

    def allow_shared(self, function: Any, nbytes: int) -> None:
        function.max_dynamic_shared_size_bytes = nbytes - function.shared_size_bytes


def address_of(argument: Any) -> Any:
    """Of scratch memory, as on a GPU; any other argument as it is."""
    return argument.ctypes.data if isinstance(argument, np.ndarray) else argument


WORK = {
    "call": lambda function, *args: function(*map(address_of, args)),
    "copy": lambda source, target: np.copyto(target, source),
}
DEVICE = Device(multiprocessors=4, capability=(9, 0), max_shared_nbytes=227 * 1024)
EMULATED = EmulatedBackend()


class Run:
    """One way to run operators, active inside its context."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.on_gpu = name == "cuda"
        self._seed = seed
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Run:
        if self.name.startswith("emulated"):
            order = self.name.removeprefix("emulated-")
            self._stack.enter_context(emulator.thread_order(order, seed=self._seed))
            self._stack.enter_context(backends.numpy_runs_on(EMULATED))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def xp(self) -> Any:
        """The arrays' library."""
        if not self.on_gpu:
            return np
        import cupy

        return cupy

    def place(self, array: Any, offset: int = 0) -> Any:
        """A NumPy array (or a list of them) in this run's memory; anything else as it is."""
        if isinstance(array, list):
            return [self.place(item, offset) for item in array]
        return self._guarded(place(array, offset, self.xp))

    def place_inputs(self, op: Any, inputs: Any, offset: int = 0) -> list[Any]:
        """An operator's inputs, the device ones in this run's memory."""
        return mapped_inputs(op, inputs, lambda value: self.place(value, offset))

    def blank(self, spec: Spec, offset: int = 0) -> Any:
        """An unwritten array in this run's memory."""
        return self._guarded(blank(spec, offset, self.xp))

    def _guarded(self, array: Any) -> Any:
        """Emulated kernels also reach arrays through tables of addresses: guard the arrays."""
        emulated = self.name.startswith("emulated") and isinstance(array, np.ndarray)
        return as_it_lies(array, emulator.guarded_copy) if emulated else array

    def host(self, array: Any) -> Any:
        """A result as a NumPy array."""
        return array if isinstance(array, np.ndarray) else array.get()


@functools.cache
def gpu_reason(count: int = 1) -> str | None:
    """Why tests that need `count` GPUs cannot run, or None where they can."""
    try:
        import cupy

        result = cupy.cuda.runtime.getDeviceCount() if cupy.cuda.is_available() else 0
    except ImportError as error:
        return f"no GPU test without CuPy: {error}"
    return None if result >= count else f"{count} GPU needed, {result} found"


@functools.cache
def reason_not_to_run(name: str) -> str | None:
    """Why a run of RUNS is not possible here, or None."""
    if name == "cpu":
        return None
    if name == "cuda":
        return gpu_reason()
    reason = emulator.unavailable_reason()
    return None if reason is None else f"no emulator: {reason}"

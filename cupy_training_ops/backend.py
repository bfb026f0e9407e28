# SPDX-License-Identifier: MIT
"""The protocol of a kind of array: its memory, its streams, its kernels.

The protocol stands at the root because both packages speak it and neither imports the other for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from .declare.schema import Shape, Spec
from .dtypes import Dtype, HostArray
from .plan import Device

Info = tuple["Backend", Dtype, Shape, bool, Shape | None, int]  # the fields of ArrayInfo
Piece = tuple[int, Shape]  # bytes from the start of an array, and a shape


class Array(Protocol):
    """An array of any library, as far as a call looks at it."""

    @property
    def dtype(self) -> Dtype: ...

    @property
    def shape(self) -> Shape: ...

    @property
    def size(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def transpose(self, axes: Any, /) -> Any: ...


class ArrayInfo(NamedTuple):
    """The properties of an array on which a plan may depend."""

    backend: Backend
    dtype: Dtype
    shape: Shape
    aligned: bool  # to 16 bytes
    strides: Shape | None  # in bytes; None of a C-contiguous array
    device: int  # -1 for the host

    @classmethod
    def of(cls, info: Info) -> ArrayInfo:
        """With a plain tuple for a shape: PyTorch's are of a type of their own."""
        return cls(*info)._replace(shape=tuple(info[2]))

    @property
    def spec(self) -> Spec:
        """The part that planning sees."""
        return Spec(self.shape, self.dtype, self.aligned)

    @property
    def place(self) -> str:
        """The device, for messages."""
        return "the host" if self.device < 0 else f"{self.backend.name} device {self.device}"


class KernelSource(Protocol):
    """CUDA text that can be compiled."""

    @property
    def name(self) -> str: ...

    @property
    def code(self) -> str: ...


Kernel = Callable[..., None]  # of grid, block, arguments and shared memory
Extents = tuple[int, ...]  # of a grid or a block


class Module(Protocol):
    """Compiled CUDA text."""

    def get_function(self, name: str) -> Kernel:
        """The kernel of that name; it takes grid, block, arguments and bytes of shared memory."""

    def allow_shared(self, function: Kernel, nbytes: int) -> None:
        """Let launches of a kernel have so much shared memory, static and dynamic."""


class Driver(Protocol):
    """Launches kernels whose arguments are in memory."""

    def head(
        self, function: Kernel, grid: Extents, block: Extents, nbytes: int, types: Sequence[Dtype]
    ) -> tuple[int, ...]:
        """First arguments of `launch` for a kernel with parameters of these types."""

    @property
    def launch(self) -> Callable[..., object]:
        """Queue a kernel: its head, a stream, the address of its arguments' addresses, and 0."""

    def mend(self, error: Exception) -> bool:
        """Mend what the first launch of a thread fails for; True if it may be queued again."""


class Backend(Protocol):
    """The memory, streams and kernels of one kind of array; it takes no other kind."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def runs_kernels(self) -> bool:
        """Return True if plans run on it; else the families' `reference.py` do."""

    @property
    def loads_at_once(self) -> bool:
        """Return True if several threads may load modules at a time."""

    @property
    def has_tensors(self) -> bool:
        """Return True if arrays are PyTorch's: they may require gradients, change while they live,
        and be made in a captured graph, which then owns their memory."""

    @property
    def driver(self) -> Driver | None:
        """Launcher of packed arguments; None where kernels are called with objects."""

    def info(self, array: Any) -> Info:
        """The fields of ArrayInfo; a bare tuple, because every call makes some."""

    def infos(self, arrays: Sequence[Any]) -> list[Info | None]:
        """The `info` of each array of a list; None for None."""

    def pointers(self, arrays: Sequence[Any]) -> list[int]:
        """The addresses of the first elements; 0 for None."""

    def states(self, arrays: Sequence[Any]) -> list[object]:
        """State of arrays that may change while they live: equal states of the same objects mean
        that they are as before."""

    def offset(self, array: Any, nbytes: int) -> object:
        """A kernel argument that points `nbytes` into the array."""

    def views(self, array: Any, pieces: Sequence[Piece]) -> tuple[Array, ...]:
        """Views of a contiguous array under new shapes, each so many bytes from its start."""

    def maker(self, spec: Spec, device: int) -> Callable[[], Array]:
        """Return a function that makes an uninitialised array."""

    def permute(self, array: Any, axes: Sequence[int]) -> Array:
        """A view of the array's memory with its dimensions in another order."""

    def of_host(self, array: HostArray) -> object:
        """A result on the host, as those that are given such arrays expect it."""

    def empty(self, spec: Spec, device: int) -> Array:
        """An uninitialised array."""

    def zeros(self, nbytes: int, device: int) -> Array:
        """Bytes of zeros, for scratch memory."""

    def fill(self, array: Any, nbytes: int, byte: int) -> None:
        """Queue this byte into the first ones of an array, on the current stream."""

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Queue zeros into memory of the current device, on the stream at an address."""

    def to_host(self, array: Any) -> HostArray:
        """The array as NumPy's; copied, which waits, where it is not on the host."""

    def from_host(self, array: HostArray) -> Array:
        """A NumPy array on the current device; copied where that is not the host."""

    def overwrite(self, array: Any, source: HostArray) -> None:
        """Put the elements of a NumPy array of the same shape and type into an array."""

    def device(self, index: int) -> Device:
        """The properties that planning may use."""

    def is_current(self, device: int) -> bool:
        """Return True if launches and allocations go to `device` as things stand."""

    def on(self, device: int) -> AbstractContextManager[object]:
        """A context in which `device` is current."""

    def stream(self, device: int) -> Hashable:
        """The device's current stream; every thread has its own per-thread stream."""

    def stream_address(self, device: int) -> int:
        """Where the driver has the device's current stream."""

    def stream_of(self, device: int) -> Callable[[], int]:
        """Return a function that gives that address, for who asks in every call."""

    def is_alone(self, device: int) -> bool:
        """Return True if the machine has no other device, so this one is always current."""

    def capturing(self, device: int) -> bool:
        """Return True if the device's current stream is being captured into a graph."""

    def keeps_memory(self) -> bool:
        """Return True if what is made under capture stays as long as the graph."""

    def current_device(self) -> int:
        """The device that is current; -1 for the host."""

    def work(self, name: str) -> Callable[..., None]:
        """A named piece of work that is no kernel; it queues itself on the current stream."""

    def record(self) -> object:
        """A mark of what is queued on the current stream so far; None where nothing ever is."""

    def wait(self, mark: Any) -> None:
        """Let the current stream wait from here on for a mark of any backend's."""

    def load(self, source: KernelSource, options: tuple[str, ...]) -> Module:
        """The source compiled for the current device."""

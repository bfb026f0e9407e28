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
        """Make it of its fields, with the shape as a plain tuple: PyTorch's is a torch.Size."""
        return cls(*info)._replace(shape=tuple(info[2]))

    @property
    def spec(self) -> Spec:
        """The part that planning sees: shape, dtype and alignment."""
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


Kernel = Callable[..., None]  # of (grid, block, arguments, bytes of shared memory)
Extents = tuple[int, ...]  # of a grid or a block: one to three


class Module(Protocol):
    """Compiled CUDA text."""

    def get_function(self, name: str) -> Kernel:
        """Return the kernel of that name: f(grid, block, arguments, bytes of shared memory)."""

    def allow_shared(self, function: Kernel, nbytes: int) -> None:
        """Let launches of a kernel have `nbytes` of shared memory a block, static and dynamic."""


class Driver(Protocol):
    """Launcher of kernels whose arguments are in memory, at addresses that a row there lists."""

    def head(
        self, function: Kernel, grid: Extents, block: Extents, nbytes: int, types: Sequence[Dtype]
    ) -> tuple[int, ...]:
        """Return the first arguments of `launch` for a kernel, `function`, with parameters of these
        types.

        grid, block: its blocks, and the threads of each. nbytes: of dynamic shared memory.
        """

    @property
    def launch(self) -> Callable[..., object]:
        """Queue a kernel: launch(*head, stream's address, address of the row of arguments'
        addresses, 0)."""

    def mend(self, error: Exception) -> bool:
        """Mend the cause of an error of a thread's first launch; return True if it was known, so
        that the launch may be queued again."""


class Backend(Protocol):
    """The memory, streams and kernels of one kind of array; it takes no other kind."""

    @property
    def name(self) -> str:
        """Name in messages: "cpu" or "cuda"."""

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
        """Launcher of kernels by addresses of arguments; None: they are called with objects."""

    def info(self, array: Any) -> Info:
        """Return the fields of ArrayInfo; a bare tuple, because every call makes some."""

    def infos(self, arrays: Sequence[Any]) -> list[Info | None]:
        """Return the `info` of each array of a list; None for None."""

    def pointers(self, arrays: Sequence[Any]) -> list[int]:
        """Return the addresses of the first elements; 0 for None."""

    def states(self, arrays: Sequence[Any]) -> list[object]:
        """Return for each array what may change while it lives, as its shape; None for None.

        If the states of the same objects are equal, they are as before.
        """

    def offset(self, array: Any, nbytes: int) -> object:
        """Return a kernel argument that points `nbytes` bytes into the array."""

    def views(self, array: Any, pieces: Sequence[Piece]) -> tuple[Array, ...]:
        """Return views of a contiguous array: (bytes from its start, shape) of each."""

    def maker(self, spec: Spec, device: int) -> Callable[[], Array]:
        """Return a function that makes an uninitialised array of this shape and dtype."""

    def permute(self, array: Any, axes: Sequence[int]) -> Array:
        """Return a view with permuted dimensions, as np.transpose does."""

    def of_host(self, array: HostArray) -> object:
        """Return an output in host memory as the caller gets it: NumPy's, or a CPU tensor."""

    def empty(self, spec: Spec, device: int) -> Array:
        """Return an uninitialised array of this shape and dtype."""

    def zeros(self, nbytes: int, device: int) -> Array:
        """Return a uint8 array of zeros, for scratch memory."""

    def fill(self, array: Any, nbytes: int, byte: int) -> None:
        """Queue on the current stream that the first `nbytes` bytes are set to `byte`."""

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Queue, on the stream at an address, that `nbytes` bytes at `address` are set to 0."""

    def to_host(self, array: Any) -> HostArray:
        """Return the array as NumPy's; from a device it is copied, which waits."""

    def from_host(self, array: HostArray) -> Array:
        """Return a NumPy array as this kind of array; copied if that is on a device."""

    def overwrite(self, array: Any, source: HostArray) -> None:
        """Copy the elements of a NumPy array of the same shape and dtype into an array."""

    def device(self, index: int) -> Device:
        """Return the properties of the device with this number that planning may use."""

    def is_current(self, device: int) -> bool:
        """Return True if `device` is current: launches and allocations go there."""

    def on(self, device: int) -> AbstractContextManager[object]:
        """Return a context in which `device` is current."""

    def stream(self, device: int) -> Hashable:
        """Return a key of the device's current stream; per-thread streams differ by thread."""

    def stream_address(self, device: int) -> int:
        """Return the address (CUstream) of the device's current stream."""

    def stream_of(self, device: int) -> Callable[[], int]:
        """Return a function that returns `stream_address(device)`, for calls that repeat."""

    def is_alone(self, device: int) -> bool:
        """Return True if the machine has no other device, so this one is always current."""

    def capturing(self, device: int) -> bool:
        """Return True if the device's current stream is being captured into a graph."""

    def keeps_memory(self) -> bool:
        """Return True if memory that is allocated under capture lives as long as the graph."""

    def current_device(self) -> int:
        """Return the number of the current device; -1 for the host."""

    def work(self, name: str) -> Callable[..., None]:
        """Return the function of a `Work`, which is no kernel: it queues on the current stream."""

    def record(self) -> object:
        """Return an event after what is queued on the current stream so far; None on the host."""

    def wait(self, mark: Any) -> None:
        """Let the current stream wait for an event that any backend's `record` returned."""

    def load(self, source: KernelSource, options: tuple[str, ...]) -> Module:
        """Return the source compiled for the current device, with these compiler options."""

# SPDX-License-Identifier: MIT
"""The backend of PyTorch's tensors on CUDA devices, without CuPy arrays.

New tensors and scratch memory come from PyTorch's allocator, and work is queued on its current
stream; kernels are those of the CUDA backend.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import cupy
import numpy as np
import torch
from torch import Tensor

from ..backend import Info, Piece
from ..declare.schema import Shape, Spec
from ..dtypes import BFLOAT16, ELEMENT_TYPES, Dtype, HostArray
from .cuda import CudaBackend
from .tensor_guards import dense_strides, state

# PyTorch's dtypes by NumPy's, and the other way round.
_OWN = {r.dtype: getattr(torch, r.name) for r in ELEMENT_TYPES if hasattr(torch, r.name)}
_FOREIGN = {o: dtype for dtype, o in _OWN.items() if dtype.kind != "c"}
_COMPLEX = {o: dtype for dtype, o in _OWN.items() if dtype.kind == "c"}
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_guards = getattr(torch._C._dynamo, "guards", None)
_n_modes = torch._C._len_torch_dispatch_stack
PLAIN = (Tensor, torch.nn.Parameter)  # not subclasses that override behaviour


class TensorBackend(CudaBackend):
    """The backend of all CUDA devices, which have the same numbers in PyTorch and CuPy."""

    kind = "cuda"  # of PyTorch's devices
    has_tensors = True

    def __init__(self) -> None:
        n_devices = torch.cuda.device_count()
        # Number of each device; a KeyError says that a tensor is on none of them.
        self.devices = {torch.device("cuda", index): index for index in range(n_devices)}

    def info(self, array: Tensor) -> Info:
        """Return (backend, dtype, shape, is aligned to 16 bytes, strides in bytes or None, device).

        KeyError for a tensor that has to be converted, as it does not show its memory as it is.
        """
        dtype, device = _FOREIGN.get(array.dtype) or _complex(array), self.devices[array.device]
        try:
            address = array.data_ptr()
            strides = None if array.is_contiguous() else _bytes(array.stride(), dtype.itemsize)
        except RuntimeError:  # no storage: sparse, or in a functorch transform
            raise KeyError(type(array)) from None
        if array.is_neg() or (not address and array.numel()):
            raise KeyError(type(array))
        return (self, dtype, array.shape, address % 16 == 0, strides, device)

    def infos(self, arrays: Sequence[Tensor | None]) -> list[Info | None]:
        """Return the tuple of `info` (backend, dtype, ...) for each tensor; None for None."""
        return [None if array is None else self.info(array) for array in arrays]

    def pointers(self, arrays: Sequence[Tensor | None]) -> list[int]:
        """Return the addresses of arrays, 0 for None."""
        return [0 if array is None else array.data_ptr() for array in arrays]

    def states(self, arrays: Sequence[Tensor | None]) -> list[object]:
        """Return (address, shape, strides, dtype) of each tensor, which may all change."""
        return [None if array is None else state(array) for array in arrays]

    def offset(self, array: Tensor, nbytes: int) -> int:
        """Return the address `nbytes` after the tensor's start."""
        address: int = array.data_ptr() + nbytes
        return address

    def views(self, array: Tensor, pieces: Sequence[Piece]) -> tuple[Tensor, ...]:
        """Return a view of a contiguous tensor for each piece (offset in bytes, shape)."""
        data = array.detach()
        start, size = data.storage_offset(), data.element_size()
        return tuple(
            [data.as_strided(shape, dense_strides(shape), start + n // size) for n, shape in pieces]
        )

    def permute(self, array: Tensor, axes: Sequence[int]) -> Tensor:
        """Return a view with permuted dimensions."""
        return array.permute(*axes)

    def maker(self, spec: Spec, device: int) -> Callable[[], Tensor]:
        """Return a function that allocates a tensor of this shape and dtype on a device.

        On the current device, without dispatch modes, it calls the function of compiled code, which
        skips the dispatcher and takes half the time.
        """
        form, dtype = (tuple(spec.shape), dense_strides(spec.shape)), _OWN[spec.dtype]
        place = torch.device(self.kind, device)
        plain = partial(torch.empty_strided, *form, dtype=dtype, device=place)
        fast = getattr(_guards, f"_empty_strided_{self.kind}", None)
        if fast is None:
            return plain
        make, n_modes = partial(fast, *form, dtype), _n_modes
        if self.is_alone(device):
            return lambda: plain() if n_modes() else make()
        current = torch._C._cuda_getDevice  # PyTorch sets the driver's device lazily
        return lambda: make() if current() == device and not n_modes() else plain()

    def empty(self, spec: Spec, device: int) -> Tensor:
        """Allocate a tensor from PyTorch's pool."""
        return self.maker(spec, device)()

    def zeros(self, nbytes: int, device: int) -> Tensor:
        """Allocate a uint8 tensor of zeros from PyTorch's pool."""
        return torch.zeros(nbytes, dtype=torch.uint8, device=torch.device(self.kind, device))

    def fill(self, array: Tensor, nbytes: int, byte: int) -> None:
        """Queue a memset of the first `nbytes` bytes to `byte`, which a capture records too."""
        if nbytes:
            stream = self.stream_address(array.get_device())
            cupy.cuda.runtime.memsetAsync(array.data_ptr(), byte, nbytes, stream)

    def to_host(self, array: Tensor) -> HostArray:
        """Copy to NumPy; waits for the current stream."""
        bits = array.detach().view(torch.int16) if array.dtype == torch.bfloat16 else array.detach()
        copied: HostArray = bits.cpu().numpy()
        return copied.view(BFLOAT16) if bits.dtype != array.dtype else copied

    def from_host(self, array: HostArray) -> Tensor:
        """Copy to the current device."""
        return _tensor(array).to(torch.device(self.kind, self.current_device()))

    def of_host(self, array: HostArray) -> Tensor:
        """Return an output in host memory as the caller gets it: a CPU tensor."""
        return _tensor(array)

    def overwrite(self, array: Tensor, source: HostArray) -> None:
        """Copy `source`, of the same shape, into the tensor on the current stream."""
        array.detach().copy_(_tensor(np.asarray(source, order="C")))

    def stream(self, device: int) -> Hashable:
        """Return a key of PyTorch's current stream."""
        return self.stream_address(device)

    def stream_address(self, device: int) -> int:
        """Return the address of PyTorch's current stream."""
        known = _raw_stream
        address: int = known(device) if known else torch.cuda.current_stream(device).cuda_stream
        return address

    def stream_of(self, device: int) -> Callable[[], int]:
        """Return a function that returns `stream_address(device)`, PyTorch's own if possible."""
        return partial(_raw_stream or self.stream_address, device)

    def is_alone(self, device: int) -> bool:
        """Return True if this machine has one device, which is always current."""
        return len(self.devices) == 1

    def capturing(self, device: int) -> bool:
        """Return True if the current stream of the device, which is current, is being captured."""
        return bool((_is_capturing or torch.cuda.is_current_stream_capturing)())

    def keeps_memory(self) -> bool:
        """Return True: PyTorch allocates under capture from a pool that the graph owns."""
        return True

    def work(self, name: str) -> Callable[..., None]:
        """Return the function that does a `Work` of this name; only "copy" is supported."""
        return {"copy": _copy}[name]


def array_over(tensor: Tensor, info: Info) -> cupy.ndarray:
    """Return a CuPy array over a contiguous tensor, in a tenth of the time of DLPack.

    info: the tensor's, from `TensorBackend.info`.
    """
    _, dtype, shape, _, _, device = info
    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), tensor.nbytes, tensor, device)
    return cupy.ndarray(tuple(shape), dtype, cupy.cuda.MemoryPointer(memory, 0))


def _copy(source: Tensor, target: Tensor) -> None:
    target.detach().copy_(source.detach(), non_blocking=True)


def _complex(array: Tensor) -> Dtype:
    """Return a tensor's complex dtype; KeyError if it is none, or the tensor a lazy conjugate."""
    dtype = _COMPLEX[array.dtype]
    if array.is_conj():
        raise KeyError(type(array))
    return dtype


def _bytes(strides: Sequence[int], itemsize: int) -> Shape:
    return tuple([stride * itemsize for stride in strides])


def _tensor(array: HostArray) -> Tensor:
    """Return a tensor over a NumPy array's memory; bfloat16 as int16 in between."""
    bits = array.view(np.int16) if array.dtype == BFLOAT16 else array
    tensor = torch.from_numpy(bits)
    return tensor.view(torch.bfloat16) if bits is not array else tensor

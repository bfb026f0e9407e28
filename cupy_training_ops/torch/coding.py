# SPDX-License-Identifier: MIT
"""Encoders and decoders over addresses: on a GPU prepared launches, without array objects."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ..activations.policies import coders
from ..call.backends import cuda_backend
from ..call.interop import NO_FOREIGN
from ..call.op import Op
from ..call.run import KernelCall
from ..codecs.table import get_codec
from ..declare.schema import Spec
from ..dtypes import UINT8, to_dtype
from ..families.gist_guard.sample import Grouping
from ..families.gist_sparse.facts import HEAD_NBYTES
from ..families.gist_sparse.operators import SparseDecoder

ALIGNED = 16  # bytes
MANY = 4096  # codings that are cached
REUSED_NBYTES = 1 << 16  # scratch memory up to this size is reused by a stream
HEAD = Spec((HEAD_NBYTES,), UINT8)  # the start of sparse codes, which has their length


class Stream:
    """A CUDA stream as CuPy takes it; one object for each stream, compared by identity."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr


class Move(Protocol):
    """A prepared operator: reads memory at the first address and writes at the others, on a
    stream."""

    def __call__(self, addresses: tuple[int, ...], stream: Stream, /) -> None: ...


class Coding(NamedTuple):
    """A codec, prepared for n contiguous elements of one dtype on one device."""

    code_nbytes: int  # of the longest codes
    leaves_room: bool  # codes may be shorter; their first eight bytes are their length
    encode: Move  # addresses: data, codes and, with TILES, measured numbers
    encode_unaligned: Move
    decode: Move


@functools.lru_cache(MANY)
def coding(
    codec: str,
    dtype: str,
    n: int,
    device: int,
    measure: str = "",
    grouping: Grouping | None = None,
) -> Coding:
    """Prepare a codec for n elements of a dtype, both by name; device -1 is the host.

    measure: TILES if the encoder measures errors, over the groups of `grouping`, else "".
    """
    encoder, decoder = coders(codec, dtype, (n,), measure, grouping)
    plain = Spec((n,), to_dtype(dtype))
    outputs = encoder.infer(plain)
    code, encoded = outputs[0], (plain, *outputs)
    if device < 0:
        encode = encode_unaligned = _on_host(encoder, encoded)
        decode = _on_host(decoder, (code, plain))
    else:
        encode = _on_device(encoder, encoded, device)
        encode_unaligned = _on_device(encoder, encoded, device, offset=plain.dtype.itemsize)
        decode = _on_device(decoder, (code, plain), device)
    return Coding(code.nbytes, get_codec(codec).leaves_room, encode, encode_unaligned, decode)


def _on_host(op: Op, specs: tuple[Spec, ...]) -> Move:
    """Return a function that runs the operator `op` on host memory, synchronously.

    specs: of its input and of each result. Codes for a SparseDecoder begin with their own length.
    """
    is_short = isinstance(op, SparseDecoder)
    x_spec, results = specs[0], specs[1:]

    def move(addresses: tuple[int, ...], _: Stream) -> None:
        source = addresses[0]
        n = _host_array(source, HEAD).view(np.int64)[0] if is_short else x_spec.size
        x = _host_array(source, Spec((int(n),), x_spec.dtype) if is_short else x_spec)
        out = [_host_array(*each) for each in zip(addresses[1:], results, strict=True)]
        op(x, out=out[0] if len(out) == 1 else tuple(out))

    return move


def _host_array(address: int, spec: Spec) -> Any:
    """View host memory as a NumPy array."""
    memory = (ctypes.c_char * spec.nbytes).from_address(address)
    return np.frombuffer(memory, spec.dtype).reshape(spec.shape)


def _on_device(op: Op, specs: tuple[Spec, ...], device: int, offset: int = 0) -> Move:
    """Check and compile the launches of `op` for arrays at any addresses; return a function that
    queues them.

    specs: of its input and of each result. offset: bytes by which the input is off alignment.
    """
    cuda_backend()  # imports CuPy
    place = 1 << 20  # a fake address, never read: plans depend only on specs and alignment
    places = [i * place for i in range(1, len(specs) + 1)]
    places[0] += offset
    x, *results = (_device_array(at, spec, device) for at, spec in zip(places, specs, strict=True))
    call, _, _ = op.prepared_call((x,), tuple(results), None, NO_FOREIGN)
    assert isinstance(call, KernelCall)
    assert call.ready.takes_addresses
    queue, nbytes, zeros = call.at, call.workspace_nbytes, call.ready.zeros_nbytes
    if not nbytes:
        return queue
    is_shared = nbytes <= REUSED_NBYTES and call.ready.is_one_launch

    def move(addresses: tuple[int, ...], stream: Stream) -> None:
        """Queue the launches with scratch memory: of the stream, or for this call only."""
        # A captured graph has its own scratch memory, as it may run beside other calls.
        if not is_shared or torch.cuda.is_current_stream_capturing():
            scratch = torch.empty(nbytes, dtype=torch.uint8, device=device)
            queue(addresses, stream, scratch.data_ptr())
            return
        address = _SCRATCH.get((device, stream.ptr, zeros, nbytes))
        queue(
            addresses,
            stream,
            address or _allocate_scratch(device, stream.ptr, zeros, nbytes),
            is_clear=True,
        )

    return move


def _allocate_scratch(device: int, stream: int, zeros: int, nbytes: int) -> int:
    """Allocate scratch memory of a stream, which its calls reuse, and return its address.

    zeros: bytes at its start that kernels need zeroed, and leave so.
    """
    memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    _SCRATCH_TENSORS.append(memory)
    return _SCRATCH.setdefault((device, stream, zeros, nbytes), memory.data_ptr())


def _device_array(address: int, spec: Spec, device: int) -> object:
    """View device memory as a CuPy array."""
    cupy = sys.modules["cupy"]
    memory = cupy.cuda.UnownedMemory(address, spec.nbytes, None, device)
    return cupy.ndarray(spec.shape, spec.dtype, cupy.cuda.MemoryPointer(memory, 0))


def current_stream(index: int) -> Stream:
    """Return PyTorch's current stream of a GPU by its index, or NO_STREAM for device -1."""
    if index < 0:
        return NO_STREAM
    if raw_stream is not None:
        address = raw_stream(index)
        return _STREAMS.get(address) or stream_of(address)
    return stream_of(torch.cuda.current_stream(index).cuda_stream)


def stream_of(address: int) -> Stream:
    """Return the one Stream object of an address."""
    return _STREAMS.get(address) or _STREAMS.setdefault(address, Stream(address))


NO_STREAM = Stream(0)  # for the host
_STREAMS: dict[int, Stream] = {}  # by address
# Addresses of scratch memory, by (device, stream's address, bytes that are zeroed, bytes).
_SCRATCH: dict[tuple[int, int, int, int], int] = {}
_SCRATCH_TENSORS: list[object] = []  # keeps it alive
# Returns the address of a device's current stream; None if PyTorch is built without CUDA.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

# SPDX-License-Identifier: MIT
"""Encoding and decoding memory at addresses: on a GPU a prepared launch, and no array objects."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..codecs.table import get_codec
from ..dtypes import UINT8, to_dtype
from ..frame.backends import cuda_backend
from ..frame.foreign import NONE_LENT
from ..frame.op import Op
from ..frame.providers import KernelCall
from ..ops.gist_sparse import HEAD_NBYTES, SparseDecoder
from ..schema import Spec
from ..stash.policies import OPTIONS

ALIGNED = 16  # bytes
MANY = 4096  # kinds of memory that are prepared
HEAD = Spec((HEAD_NBYTES,), UINT8)


class Stream(NamedTuple):
    """A CUDA stream as CuPy's launches take it, and its streams."""

    ptr: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr


class Move(Protocol):
    """One operator from one piece of memory to another."""

    def __call__(self, source: int, target: int, stream: Stream, /) -> None: ...


class Coding(NamedTuple):
    """What a codec does with n consecutive elements of one dtype on one device."""

    code_nbytes: int  # what the longest codes take
    leaves_room: bool  # codes may be shorter; their first eight bytes say how long they are
    encode: Move
    encode_unaligned: Move
    decode: Move


@functools.lru_cache(MANY)
def coding(codec: str, dtype: str, n: int, device: int) -> Coding:
    """The prepared codec; device -1 is the host."""
    found, options = get_codec(codec), OPTIONS.get(codec, {})
    encoder = found.encoder(**options)
    told = found.kept(encoder.attribute_values, options)
    decoder = found.decoder(to=dtype, shape=(n,), **told)
    plain = Spec((n,), to_dtype(dtype))
    (code,) = encoder.infer(plain)
    if device < 0:
        encode = unaligned = _on_host(encoder, plain, code)
        decode = _on_host(decoder, code, plain)
    else:
        encode = _on_device(encoder, plain, code, device)
        unaligned = _on_device(encoder, plain, code, device, offset=plain.dtype.itemsize)
        decode = _on_device(decoder, code, plain, device)
    return Coding(code.nbytes, found.leaves_room, encode, unaligned, decode)


def _on_host(op: Op, x: Spec, y: Spec) -> Move:
    """A call of the operator over the host's memory, done when it returns."""

    shortened = isinstance(op, SparseDecoder)

    def move(source: int, target: int, _: Stream) -> None:
        taken = _host_array(source, HEAD).view(np.int64)[0] if shortened else x.size
        op(_host_array(source, Spec((int(taken),), x.dtype)), out=_host_array(target, y))

    return move


def _host_array(address: int, spec: Spec) -> Any:
    memory = (ctypes.c_char * spec.nbytes).from_address(address)
    return np.frombuffer(memory, spec.dtype).reshape(spec.shape)


def _on_device(op: Op, x: Spec, y: Spec, device: int, offset: int = 0) -> Move:
    """The operator's launches, checked and compiled here for arrays that are not there yet."""
    backend = cuda_backend()
    place = 1 << 20  # nobody touches memory there: plans depend on an array's form alone
    arrays = _device_array(place + offset, x, device), _device_array(place, y, device)
    call, _, _ = op.prepared_call(arrays[:1], arrays[1:], None, NONE_LENT)
    assert isinstance(call, KernelCall)
    queue = call.at
    if call.ready.is_bare:
        return lambda source, target, stream: queue((source, target), stream)

    def move(source: int, target: int, stream: Stream) -> None:
        """With scratch memory, which belongs to the operator and the stream."""
        with backend.on(device), sys.modules["cupy"].cuda.Stream.from_external(stream):
            op(_device_array(source, x, device), out=_device_array(target, y, device))

    return move


def _device_array(address: int, spec: Spec, device: int) -> Any:
    cupy = sys.modules["cupy"]
    memory = cupy.cuda.UnownedMemory(address, spec.nbytes, None, device)
    return cupy.ndarray(spec.shape, spec.dtype, cupy.cuda.MemoryPointer(memory, 0))


def stream_of(address: int) -> Stream:
    """The stream at an address, one object for each."""
    return _STREAMS.get(address) or _STREAMS.setdefault(address, Stream(address))


_STREAMS: dict[int, Stream] = {}

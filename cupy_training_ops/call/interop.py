# SPDX-License-Identifier: MIT
"""Arrays of other libraries, adopted: viewed as NumPy's or CuPy's arrays without a copy.

* An array that a call writes (`out=`, or an input that an output replaces) is returned as the
  caller's own object. Other results are NumPy's or CuPy's.
* If all arrays of a call are PyTorch's, every result is a tensor, host outputs too, and the call
  runs on PyTorch's current stream. Ordinary tensors on a GPU are not adopted: their metadata is
  enough, and no CuPy array is made.
* Autograd does not see a call: while it records, tensors that require gradients are refused, except
  by operators with `detaches`.
* JAX arrays are read-only: no call writes them.

No library is imported here: a caller with a tensor has imported PyTorch. Triton is an exception.

In all functions `op` is the operator's name, for messages, `declared` are its declared inputs,
`inputs` and `out` the arguments of a call.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..declare.schema import Input
from ..device.streams import on_stream
from ..device.tensor_guards import dense_strides, raise_versions
from ..dtypes import BFLOAT16, HostArray, dtype_name
from ..errors import ProviderError, raise_if_from_handler, refuse
from .backends import ForeignError, cuda_backend, infos, tensor_backend
from .checks import is_number
from .prepared import Arguments, Arrays, Prepared, list_writes

_LIBRARIES = (
    ("numpy", "ndarray", "NumPy"),
    ("cupy", "ndarray", "CuPy"),
    ("torch", "Tensor", "PyTorch"),
)
_DLPACK_CPU = 1
_DLPACK_CUDA = (2, 13)  # device and managed memory


def share_memory(value: Any) -> Any:
    """Return a NumPy or CuPy array over a foreign array's memory; None for other values."""
    if is_tensor(value):
        return _of_tensor(value)
    if hasattr(value, "__dlpack__"):
        kind, _ = value.__dlpack_device__()
        if kind == _DLPACK_CPU:
            return _host_exchanged(value)
        if kind in _DLPACK_CUDA:
            return _device_exchanged("from_dlpack", value)
    if hasattr(value, "__cuda_array_interface__"):
        return _device_exchanged("asarray", value)
    return None


def is_tensor(value: object) -> bool:
    """Return True if a value is a PyTorch tensor."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_read_only(value: object) -> bool:
    """Return True if a value is a JAX array, whose memory may be shared."""
    return isinstance(value, getattr(sys.modules.get("jax"), "Array", ()))


def refuse_read_only(op: str, argument: str) -> NoReturn:
    """Refuse to write a read-only array."""
    refuse(op, argument, "an array to write to", "a read-only one")


def refuse_unwritable(op: str, argument: str, value: object) -> None:
    """Refuse to write to a read-only array, or to a NumPy scalar, as only its copy would be."""
    if is_read_only(value):
        refuse_read_only(op, argument)
    if isinstance(value, np.generic):
        refuse(op, argument, "an array to write to", f"a scalar ({type(value).__name__})")


def as_tensor(array: Any) -> Any:
    """Return a tensor over a NumPy or CuPy array's memory, on its device.

    bfloat16, which NumPy's exchange lacks, is viewed as int16 in between.
    """
    torch = sys.modules["torch"]
    bits = array.view(np.int16) if array.dtype == BFLOAT16 else array
    if not isinstance(bits, np.ndarray):
        _refuse_exchange(bits.data.device_id)
    tensor = (torch.from_numpy if isinstance(bits, np.ndarray) else torch.from_dlpack)(bits)
    if array.size < 2:  # no view, as autograd lets no result be one that is written
        memory, first = tensor.untyped_storage(), tensor.storage_offset()
        tensor.set_(memory, first, array.shape, dense_strides(array.shape))
    return tensor if bits is array else tensor.view(torch.bfloat16)


class ForeignArrays:
    """Notes of a call's arrays of other libraries: which NumPy or CuPy array stands for which.

    is_native: all arrays are tensors that stay as they are. True if there are notes. An array is
    noted by its `id`: who makes notes keeps the array alive.
    """

    def __init__(
        self,
        declared: Sequence[Input],
        inputs: Sequence[object],
        out: Arguments,
        *,
        natively: bool = False,
        detaches: bool = True,
        op: str = "",
    ) -> None:
        """Look at the arrays among a call's inputs and `out`; `note` adds notes later.

        natively: do not convert tensors, if all arrays are ordinary tensors on a GPU. detaches:
        accept tensors that require gradients. op: refuse arrays of two libraries, in the name of
        this operator; "": do not.
        """
        self.detaches = detaches
        self._owners: dict[int, object] = {}
        self._unwritable: dict[int, object] = {}
        kinds = _kinds_of(declared, inputs, out)
        self._tensor = _first_tensor(declared, inputs, out, kinds)
        if op and self._tensor is None and len(kinds) > 1:
            refuse_mixed(op, declared, inputs, out)
        are_tensors = natively and self._tensor is not None
        self.is_native = are_tensors and _have_backend(declared, inputs, out)

    def __bool__(self) -> bool:
        return bool(self._owners)

    def owner(self, array: Any) -> Any:
        """Return the foreign array that an array stands for, or the array itself."""
        return self._owners.get(id(array), array)

    def note(self, value: Any, array: Any) -> Any:
        """Note that `array` stands for the caller's `value`, kept alive by this; return `array`."""
        is_copy = isinstance(value, np.generic)
        if array is not value and not is_copy:
            self._owners[id(array)] = value
        if is_copy or is_read_only(value):
            self._unwritable[id(array)] = value
        return array

    def include(self, before: ForeignArrays) -> None:
        """Add the notes of arrays that were adopted earlier."""
        self._owners.update(before._owners)
        self._unwritable.update(before._unwritable)

    @property
    def has_unwritable(self) -> bool:
        """Return True if a noted array must not be written: JAX's, or a copy of a NumPy scalar."""
        return bool(self._unwritable)

    def stream(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which CuPy's current stream is PyTorch's, if all arrays are tensors
        on a GPU that are converted; else an empty one."""
        on_gpu = self._tensor is not None and self._tensor.device.type == "cuda"
        on_gpu = on_gpu and not self.is_native
        return _stream(self._tensor.device.index) if on_gpu else contextlib.nullcontext()

    def refuse_unwritable(self, prepared: Prepared, arrays: Arrays) -> None:
        """Refuse to write to JAX arrays and copies of scalars; arrays: the call's, then `out`."""
        for place in [each.place for each in list_writes(prepared)]:
            value = self._unwritable.get(id(arrays[place]))
            refuse_unwritable(prepared.op, prepared.names[place], value)

    def raise_versions(self, places: Sequence[int], arrays: Arrays) -> None:
        """Raise autograd's version counters of tensors that a call wrote: arrays at `places`."""
        owners = [self.owner(arrays[place]) for place in places] if self._owners else ()
        tensors = list(filter(is_tensor, owners))
        if tensors:
            raise_versions(tensors)

    def give_back(self, result: Any) -> Any:
        """Return results, a tuple or one, as the caller gets them.

        An array that stands for the caller's object is that object; a new one is a tensor over its
        memory if all arrays of the call were tensors.
        """
        if not self._owners:
            return result
        if isinstance(result, tuple):
            return tuple(map(self.give_back, result))
        owner = self._owners.get(id(result))
        if owner is not None:
            return owner
        return result if self._tensor is None or result is None else as_tensor(result)

    def keep(self, arrays: Arrays) -> None:
        """Note one object for each of these arrays, which `give_back` then always returns."""
        for array in arrays:
            if array is not None and id(array) not in self._owners:
                self._owners[id(array)] = self.give_back(array)


@contextlib.contextmanager
def _stream(device: int) -> Iterator[None]:
    """Make PyTorch's current stream of a device CuPy's inside, and the device current."""
    backend, cuda = cuda_backend(), sys.modules["torch"].cuda
    with backend.on(device):
        theirs = _Stream(cuda.current_stream(device).cuda_stream)
        with on_stream(sys.modules["cupy"].cuda.Stream.from_external(theirs)):
            yield


@contextlib.contextmanager
def same_stream(device: int) -> Iterator[None]:
    """Make CuPy's current stream PyTorch's current one inside; nothing for the host, -1."""
    if has_same_stream(device):
        yield
        return
    cuda, address = sys.modules["torch"].cuda, _address(device)
    # ExternalStream(0) would be a new stream.
    own = cuda.ExternalStream(address, device=device) if address else cuda.default_stream(device)
    with cuda.stream(own):
        yield


def has_same_stream(device: int) -> bool:
    """Return True if CuPy and PyTorch have the same current stream, or PyTorch uses no GPU.

    Imports PyTorch if Triton is there, which would import it at its first launch.
    """
    if device >= 0 and "triton" in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    torch = sys.modules.get("torch")
    if device < 0 or torch is None or not torch.cuda.is_available():
        return True
    return bool(torch.cuda.current_stream(device).cuda_stream == _address(device))


def _address(device: int) -> int:
    """Return the address of CuPy's current stream; 0 for 1, both the default stream."""
    address: int = sys.modules["cupy"].cuda.get_current_stream(device).ptr
    return 0 if address == 1 else address


class _Stream(NamedTuple):
    """A stream with CUDA's protocol, which older PyTorch streams lack."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _kinds_of(declared: Sequence[Input], inputs: Sequence[Any], out: Arguments) -> set[type]:
    """Return the classes of the arrays; none if PyTorch is not imported, as only its arrays must
    not be mixed with others."""
    if "torch" not in sys.modules:
        return set()
    kinds = set(map(type, _arrays(declared, inputs, out)))
    kinds.discard(type(None))
    return kinds


def _first_tensor(
    declared: Sequence[Input], inputs: Sequence[Any], out: Arguments, kinds: set[type]
) -> Any:
    """Return the first array if all are PyTorch tensors, else None."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    if not kinds or not all(issubclass(kind, tensor) for kind in kinds):
        return None
    return next(value for value in _arrays(declared, inputs, out) if value is not None)


def refuse_mixed(op: str, declared: Sequence[Input], inputs: Sequence[Any], out: Any) -> None:
    """Refuse arrays of PyTorch beside NumPy's or CuPy's, except inputs that a call does not read.

    Arrays of other libraries, such as JAX's, may be beside any. The error names the first array
    whose library differs from that of the first array.
    """
    if "torch" not in sys.modules:
        return
    read = tuple(None if i.not_accessed else x for i, x in zip(declared, inputs, strict=False))
    kinds = set(map(type, _arrays(declared, read, out)))
    libraries = set(map(_library, kinds)) - {""} if len(kinds) > 1 else set[str]()
    if len(libraries) < 2 or "PyTorch" not in libraries:  # CuPy's and NumPy's: checks.one_place
        return
    first = known = ""
    for item, value in (*zip(declared, read, strict=False), *((None, x) for x in out)):
        name = "out" if item is None else item.name
        arrays = list(_arrays((item,), (value,), ()) if item else _arrays((), (), (value,)))
        for i, array in enumerate(arrays):
            library = _library(type(array))
            known, first = known or library, first or (name if library else "")
            if library not in ("", known):
                place = f"{name}[{i}]" if isinstance(value, list | tuple) else name
                refuse(op, place, f"an array of {known}, as {first} is", f"one of {library}")


def _library(kind: type) -> str:
    """Return the name of the library of a class: "NumPy", "CuPy" or "PyTorch"; "" for others."""
    for module, name, library in _LIBRARIES:
        if issubclass(kind, getattr(sys.modules.get(module), name, ())):
            return library
    return ""


def are_native(declared: Sequence[Input], inputs: Sequence[object], out: Arguments) -> bool:
    """Return True if all arrays are ordinary tensors on a GPU, which need not be converted."""
    return ForeignArrays(declared, inputs, out, natively=True).is_native


def _have_backend(declared: Sequence[Input], inputs: Sequence[object], out: Arguments) -> bool:
    """Return True if all arrays have a backend, so that no tensor has to be converted."""
    arrays: list[Any] = [v for v in _arrays(declared, inputs, out) if v is not None]
    if any(value.device.type == "cuda" for value in arrays):
        tensor_backend()
    try:
        infos(arrays)
    except ForeignError:
        return False
    except KeyError as error:  # an unusual tensor, or a CPU tensor beside a GPU's
        raise_if_from_handler(error)
        return False
    return True


def may_record(arrays: Sequence[Any]) -> bool:
    """Return True if a use of these may be recorded by autograd, or have a tangent."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if _carries_tangents(torch):
        return True
    return torch.is_grad_enabled() and any([getattr(a, "requires_grad", False) for a in arrays])


def refuse_gradients(op: str, names: Sequence[str], arrays: Sequence[Any]) -> None:
    """Refuse tensors whose gradients, or tangents, would silently be lost; names: for messages."""
    if not may_record(arrays):
        return
    torch = sys.modules["torch"]
    for name, array in zip(names, arrays, strict=False):
        if not is_tensor(array):
            continue
        if array.requires_grad and torch.is_grad_enabled():
            expected = "a tensor that requires no gradient: autograd does not see this call"
            how = f"{name}.detach(), torch.no_grad() or a torch.autograd.Function"
            refuse(op, name, expected, f"one that does (give it as data by {how})")
        unpack = torch.autograd.forward_ad.unpack_dual
        if _carries_tangents(torch) and unpack(array).tangent is not None:
            expected = "a tensor without a tangent: forward-mode differentiation does not see this"
            refuse(op, name, expected, f"a dual tensor (give it as data by {name}.detach())")


def _carries_tangents(torch: Any) -> bool:
    """Return True inside PyTorch's forward-mode differentiation, where tensors may have tangents.

    By a private variable: False if PyTorch renamed it.
    """
    return getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0


def _arrays(
    declared: Sequence[Input], inputs: Sequence[object], out: Arguments
) -> Iterator[object]:
    """Yield arguments that are arrays, flattened; subclasses of list are read as lists."""
    for item, value in zip(declared, inputs, strict=False):
        if item.memory == "device" and item.variadic and isinstance(value, list):
            yield from list.__iter__(value)
        elif item.memory == "device" and item.variadic and isinstance(value, tuple):
            yield from tuple.__iter__(value)
        elif item.memory == "device" or (item.memory == "either" and not is_number(value)):
            yield value
    for value in out:
        yield from value if isinstance(value, tuple) else (value,)


def _of_tensor(tensor: Any) -> Any:
    """Return a NumPy or CuPy array over a tensor's memory; bfloat16 as int16 in between.

    BufferError for a tensor whose memory does not hold its elements one by one.
    """
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        form = str(tensor.layout)
        raise BufferError(f"it is no dense tensor, but {form} (Sparse tensors have to_dense)")
    data = tensor.detach()  # a tensor that requires gradients cannot be exchanged
    bits = data.view(torch.int16) if data.dtype == torch.bfloat16 else data
    if data.device.type not in ("cpu", "cuda"):
        raise BufferError(f"it is on the device {data.device}")
    if data.numel() > 0 and not _has_memory(data):
        raise BufferError("its storage was resized and has no memory for it")
    if data.device.type == "cpu":
        array = bits.numpy()
    elif data.is_neg():  # DLPack would lend the values without their sign
        raise BufferError("its negative bit is set (copy it first: resolve_neg)")
    else:
        _refuse_exchange(data.device.index)
        array = _device_exchanged("from_dlpack", bits)
    return array if bits is data else array.view(BFLOAT16)


def _refuse_exchange(device: int) -> None:
    """Refuse DLPack under graph capture if streams differ: a wait for the other ends a capture."""
    if not has_same_stream(device) and _is_captured(device):
        raise ProviderError(
            "under graph capture CuPy and PyTorch lend each other memory only on one stream, "
            "which has to be current in both: give arrays of the library that captures"
        )


def _is_captured(device: int) -> bool:
    """Return True if a current stream, CuPy's or PyTorch's, is being captured."""
    address, backend = sys.modules["torch"].cuda.current_stream(device).cuda_stream, cuda_backend()
    if backend.capturing(device):
        return True
    with backend.on(device):  # PyTorch asks for its current device
        return address not in (0, 1) and tensor_backend().capturing(device)


def _has_memory(tensor: Any) -> bool:
    """Return True if a tensor has memory, or no storage: its exchange then raises an error."""
    try:
        return bool(tensor.data_ptr())
    except RuntimeError as error:
        raise_if_from_handler(error)
        return True


def _device_exchanged(function: str, value: Any) -> Any:
    """Return a CuPy array over a device array, by CuPy's `from_dlpack` or `asarray`."""
    cuda_backend()
    try:
        return getattr(sys.modules["cupy"], function)(value)
    except RuntimeError as error:  # CUDA's own: no GPU, no driver
        raise_if_from_handler(error)
        raise ProviderError(f"cannot use a device array here: {error}") from None


def _host_exchanged(value: Any) -> HostArray:
    """Return a NumPy array over the memory of `value`, a host array, by DLPack; of bfloat16, which
    NumPy's DLPack lacks, by `np.asarray`."""
    try:
        return np.from_dlpack(value)
    except (RuntimeError, BufferError) as error:
        raise_if_from_handler(error)
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            array = np.asarray(value, copy=False)
            if dtype_name(array.dtype) == "bfloat16":
                return array
        raise


NO_FOREIGN = ForeignArrays((), (), ())  # without arrays

# SPDX-License-Identifier: MIT
"""Self-describing compressed arrays: `compress(x, "msfp15")` returns a Packed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from ..backend import Array
from ..call import arguments, backends
from ..call.interop import as_tensor, is_tensor
from ..declare.schema import Shape, Spec, integer
from ..dtypes import Dtype, HostArray, dtype_name, to_dtype
from ..errors import ArgumentError, OpError, ProviderError, raise_if_from_handler, refuse, shown
from ..families.gist.operators import Decoder
from ..plan import ceil_div
from ..summary import Summary
from ..typing import ArrayT, CupyArray, OutT, Provider
from . import container
from .numpy_file import BinaryFile, Header, NumpyArray, Stored, StrPath
from .table import Codec, describe, get_codec

FORMAT = container.Format("packed array", version=3, longest_header=1 << 20)


@dataclass(frozen=True, eq=False, repr=False)
class Packed(Summary, Generic[ArrayT]):
    """An encoded array with all that decoding needs: codec, dtype name, shape, options.

    code: the encoder's output, a NumPy or CuPy array or a PyTorch tensor.
    """

    codec: str
    dtype: str
    shape: tuple[int, ...]
    code: Array
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that all fits; make `code` a NumPy or CuPy array, unless it is a PyTorch tensor."""
        code: Array = arguments.adopt("Packed", "code", self.code)
        if code is None:
            refuse("Packed", "code", "a NumPy or CuPy array", "None")
        _check(self.codec, self.dtype, self.shape, self.options, code)
        if not is_tensor(self.code):  # tensors stay, as their results are tensors
            object.__setattr__(self, "code", code)  # frozen dataclass

    def _facts(self) -> dict[str, object]:
        """Return what `repr` shows: the fields, with the code's size in place of the code."""
        shown = {name: getattr(self, name) for name in ("codec", "dtype", "shape", "options")}
        return {**shown, "nbytes": self.nbytes}

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        """Refuse to be read as an array, which would be one of objects."""
        raise ArgumentError(
            "Packed: expected an array, got its codes: decompress() returns the array, "
            "code is the array of codes"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return int(self.code.nbytes)

    @property
    def original_nbytes(self) -> int:
        """Bytes of the array before encoding."""
        return math.prod(self.shape) * to_dtype(self.dtype).itemsize

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after; 1 for an empty array."""
        return self.original_nbytes / self.nbytes if self.nbytes else 1.0

    @overload
    def decompress(self, out: None = None) -> ArrayT: ...
    @overload
    def decompress(self, out: OutT) -> OutT: ...

    def decompress(self, out: object = None) -> Any:
        """Return the decoded array, on the device of the codes.

        out: an array of its dtype and shape to write into, C-contiguous, on that device.
        Deterministic; no copy between host and device. Raises ArgumentError and DtypeError.
        """
        code: Any = self.code
        if out is not None and is_tensor(out) != is_tensor(code):  # as of a file, into a tensor
            array = arguments.adopt("Packed", "code", code)
            code = as_tensor(array) if is_tensor(out) else array
        return self.decoder()(code, out=out)

    def trimmed(self, nbytes: int | None = None) -> Packed[ArrayT]:
        """Return this array with its codes cut to their length, for sparse codecs on a GPU.

        nbytes: that length in bytes; None reads it from the codes, and waits for a GPU. A wrong
        length is refused, but on a GPU, where nothing is read, only an impossible one. Raises
        ArgumentError.
        """
        checked = None if nbytes is None else self._checked_length(nbytes)
        if not get_codec(self.codec).leaves_room:
            return self
        nbytes = self._length() if checked is None else checked
        if nbytes == self.nbytes:
            return self
        code = self.code[:nbytes]
        return replace(self, code=code.clone() if is_tensor(code) else code.copy())

    def save(self, file: StrPath | BinaryFile, *, sync: bool = True) -> None:
        """Write a `.npz` file, or to an open binary file; codes on a GPU are copied to the host.

        A path is replaced atomically, with `sync` also if the machine crashes. Raises OSError.
        """
        header = {name: getattr(self, name) for name in ("codec", "dtype", "shape", "options")}
        container.write(file, FORMAT, header, {"code": _to_host(self.trimmed().code)}, sync)

    @overload
    @classmethod
    def load(
        cls, file: StrPath | BinaryFile, provider: Literal["cpu"] = "cpu"
    ) -> Packed[NDArray[Any]]: ...
    @overload
    @classmethod
    def load(cls, file: StrPath | BinaryFile, provider: Literal["cuda"]) -> Packed[CupyArray]: ...

    @classmethod
    def load(cls, file: StrPath | BinaryFile, provider: Provider = "cpu") -> Packed[Any]:
        """Read what `save` wrote, codes onto the host ("cpu") or the current GPU ("cuda").

        Packed files of several arrays, `.safetensors` or `.npz`, are for `cupy-training-ops
        decode`. Nothing in the file is executed. Raises ArgumentError if it is damaged, no Packed,
        or of another format version; OSError if it cannot be read; ProviderError for "cuda" without
        a GPU.
        """
        if provider not in ("cpu", "cuda"):
            refuse("Packed", "provider", "'cpu' or 'cuda'", repr(provider))
        with container.load(file, FORMAT) as loaded:
            stored = loaded.member("code")
            codec, dtype, shape, options = _read_header(file, loaded.header, stored)
            code = stored.read()
        refuse_flaw(str(file), _decoder(codec, dtype, shape, options), code)
        return cls(codec, dtype, shape, code if provider == "cpu" else _from_host(code), options)

    def _length(self) -> int:
        """Return the length of the codes in bytes; waits for a GPU."""
        codec = get_codec(self.codec)
        return codec.length(_to_host(self.code[:8])) if codec.leaves_room else self.nbytes

    def _checked_length(self, nbytes: object) -> int:
        """Return nbytes, the argument of `trimmed`, as an int; refuse another than the codes'
        length."""
        try:
            length = integer(nbytes)
        except ArgumentError as error:
            raise ArgumentError(f"Packed: nbytes: {error}") from None
        on_host = isinstance(arguments.adopt("Packed", "code", self.code), np.ndarray)
        if on_host and length != self._length():
            refuse("Packed", "nbytes", f"{self._length()}, the codes' length", shown(length))
        if not 0 <= length <= self.nbytes:
            refuse("Packed", "nbytes", f"0 to {self.nbytes} bytes", shown(length))
        return length

    def decoder(self) -> Decoder:
        """Return the operator that decodes the codes."""
        return _decoder(self.codec, self.dtype, self.shape, self.options)


def compress(x: object, codec: str, **options: object) -> Packed:
    """Encode an array: `compress(x, "msfp15").decompress()` is x within the codec's bound.

    x: float32, float16, float64 or bfloat16 (bool too for "pack1", integers for "index4", any type
    for "sparse"), any shape, C-contiguous, NumPy (CPU provider), CuPy (CUDA provider) or anything
    with `__dlpack__`. options: `check` for "index4", `keep_nonfinite` for "msfp15" and
    "msfp15_signed". Infinities and NaN are kept, and of a NaN its sign at most, by all codecs of
    values; with keep_nonfinite=False a tile of eight with one becomes zeros, as ONNX Runtime's.
    Deterministic; no copy between host and device. On a GPU a sparse codec's codes are in a buffer
    of maximum size: `trimmed` cuts it. Raises ArgumentError and DtypeError.
    """
    row = get_codec(codec)
    options = {**row.defaults, **options}
    encoder = row.encoding(**options)
    code = encoder(x)
    dtype, shape, is_numpy = _form(encoder.name, x)
    packed = object.__new__(Packed)  # without the checks of __post_init__
    of_decoder = row.decoder_options(encoder.attribute_values, options)
    vars(packed).update(
        codec=codec, dtype=dtype_name(dtype), shape=shape, code=code, options=of_decoder
    )
    return packed.trimmed() if is_numpy else packed


def refuse_flaw(file: str, decoder: Decoder, code: HostArray) -> None:
    """Raise ArgumentError for codes that no encoder makes, as their decoder finds.

    file: the name of their file, for the message.
    """
    flaw = decoder.flaw(code)
    if flaw:
        raise ArgumentError(f"{file}: damaged packed array: {flaw}")


def _form(op: str, x: object) -> tuple[Dtype, Shape, bool]:
    """Return (dtype, shape, True if it is a NumPy array); op: an operator's name, for errors."""
    try:
        _, dtype, shape, *_ = backends.info(x)  # type: ignore[arg-type]
    except KeyError as error:
        raise_if_from_handler(error)
        x = array = arguments.adopt(op, "X", x)
        dtype, shape = array.dtype, array.shape
    return dtype, tuple(shape), isinstance(x, np.ndarray)


compress.__doc__ = "\n".join([inspect.cleandoc(compress.__doc__ or ""), "", *describe()])


def _decoder(codec: str, dtype: str, shape: tuple[int, ...], options: dict[str, object]) -> Decoder:
    """Return the operator that decodes such a Packed; equal ones are the same object."""
    return get_codec(codec).decoder.shared(to=dtype, shape=shape, **options)


def _read_header(file: object, header: container.Header, code: Stored) -> tuple[Any, ...]:
    """Return (codec, dtype, shape, options) of a file's header; refuse codes that do not fit them.

    code: the file's array of codes, of which shape and dtype are read.
    """
    try:
        shape = tuple(header["shape"])
        about = (header["codec"], header["dtype"], shape, header["options"])
        _check(*about, code.header())
    except (OpError, KeyError, TypeError) as error:
        raise_if_from_handler(error)
        raise ArgumentError(f"{file}: damaged packed array: {error}") from None
    return about


def _check(codec: Any, dtype: Any, shape: Any, options: Any, code: Array | Header) -> None:
    """Refuse values that a file cannot store, bad options, and codes that do not fit.

    codec, dtype, shape, options: fields of a Packed. code: of it, or its header in a file, shape
    and dtype are read.
    """
    plain = {"codec": (codec, str), "dtype": (dtype, str), "shape": (shape, tuple)}
    for name, (value, kind) in (plain | {"options": (options, dict)}).items():
        if not isinstance(value, kind):
            refuse("Packed", name, f"a {kind.__name__}", type(value).__name__)
    if not all(type(extent) is int for extent in shape):
        refuse("Packed", "shape", "a tuple of Python integers", repr(shape))
    for name, value in options.items():
        if not (isinstance(name, str) and isinstance(value, bool | int | float | str | None)):
            refuse("Packed", "options", "Python's own numbers and text", f"{name!r}: {value!r}")
    encoder = get_codec(codec).encoding(**options)
    decoder = _decoder(codec, dtype, shape, options)
    x = Spec(shape, decoder.to)
    (expected,) = encoder.infer(x)
    if not encoder.takes_back(x, code.shape, code.dtype):
        raise ArgumentError(
            f"Packed: code: expected {dtype_name(expected.dtype)} of shape {expected.shape} "
            f"for {codec} of {dtype} {shape}, got {dtype_name(code.dtype)} of shape {code.shape}"
        )


def _to_host(array: Array) -> NumpyArray:
    return backends.to_host(arguments.adopt("Packed", "code", array))


def _from_host(array: NumpyArray) -> Array:
    """Copy an array to the current GPU."""
    backend = backends.cuda_backend()
    try:
        return backend.from_host(array)
    except RuntimeError as error:  # CUDA's own: no GPU, no driver
        raise ProviderError(
            f"Packed: provider: cannot use 'cuda' here: {error}; "
            f"`cupy-training-ops doctor` says more"
        ) from None


# ---- in parts: with little memory, and progress after each -------------------------

# elements | 0 ............ | ............ n |
# codes    | 0 .... |  ....  |    whole tiles: groups of elements that are encoded together

PART = 1 << 22  # elements
Advance = Callable[[int], None]  # called with the number of elements of each part


class Part(NamedTuple):
    """Slices of an array and of its codes, both in row-major order."""

    elements: slice
    codes: slice


def parts(codec: Codec, n: int, whole: bool = False) -> Iterator[Part]:
    """Yield the parts of n elements and of their codes by `codec`, each of about PART elements; one
    if n is 0 or with `whole`."""
    tiles = codec.encoder.tiles or {}
    # A tile is `element` elements of the array and `code` elements of the codes.
    element, code = tiles.get("X", 1), tiles.get("Y", 1)
    most = max(n, 1) if whole else max(PART // element, 1) * element
    for start in range(0, max(n, 1), most):
        stop = min(start + most, n)
        yield Part(
            slice(start, stop), slice(start // element * code, ceil_div(stop, element) * code)
        )


def encode_in_parts(
    x: HostArray, name: str, options: dict[str, object], advance: Advance
) -> Packed:
    """Encode x, which is C-contiguous, as compress(x, name, **options) does, but part by part.

    advance(n) is called after each part of n elements.
    """
    codec = get_codec(name)
    options = {**codec.defaults, **options}
    if codec.leaves_room:  # a part's position in the codes depends on earlier values
        packed = compress(x, name, **options)
        advance(x.size)
        return packed
    encoder = codec.encoding(**options)
    (spec,) = encoder.infer(Spec(x.shape, x.dtype))
    code = np.empty(spec.shape, spec.dtype)
    elements, codes = x.reshape(-1), code.reshape(-1)
    for part in parts(codec, x.size):
        encoder(elements[part.elements], out=codes[part.codes])
        advance(part.elements.stop - part.elements.start)
    of_decoder = codec.decoder_options(encoder.attribute_values, options)
    return Packed(name, dtype_name(x.dtype), x.shape, code, of_decoder)


def decode_in_parts(packed: Packed, advance: Advance) -> Iterator[HostArray]:
    """Yield the decoded elements of `packed` in row-major order, in flat parts.

    advance(n) is called after each part of n elements.
    """
    codec, n = get_codec(packed.codec), math.prod(packed.shape)
    if codec.leaves_room:
        yield packed.decompress().reshape(-1)
        advance(n)
        return
    codes = np.asarray(packed.code).reshape(-1)
    for part in parts(codec, n):
        size = part.elements.stop - part.elements.start
        decoder = codec.decoder.shared(to=packed.dtype, shape=(size,), **packed.options)
        yield decoder(codes[part.codes])
        advance(size)

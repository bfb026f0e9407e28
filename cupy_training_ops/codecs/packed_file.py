# SPDX-License-Identifier: MIT
"""A file of several arrays: codes of some, the others uncoded, names and metadata.

One description in JSON, in two kinds of files. In `.npz` it is the member `header`, and arrays are
members called by their numbers; in `.safetensors` it is the text `cupy-training-ops` of
`__metadata__`, beside the file's own texts, and arrays have their names.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import Dtype, HostArray
from ..errors import ArgumentError, cut, raise_if_from_handler
from . import container, safetensors_file
from .numpy_file import BinaryFile, NumpyArray
from .packed import Packed, refuse_flaw

FORMAT = container.Format("packed file", version=1, longest_header=1 << 28)
KEY = "cupy-training-ops"  # name of the description in `__metadata__`


@dataclass(frozen=True)
class Uncoded:
    """An array that is not coded: its bytes, and its type's name as `.safetensors` has it.

    dtype: None for a type that NumPy lacks.
    """

    type: str
    dtype: Dtype | None
    shape: tuple[int, ...]
    content: HostArray  # uint8, flat

    @classmethod
    def of_array(cls, array: NumpyArray) -> Uncoded:
        """Store an array; `type` is "" for a dtype that `.safetensors` lacks."""
        try:
            name = safetensors_file.type_name(array.dtype)
        except ArgumentError:
            name = ""
        flat = np.ascontiguousarray(array).reshape(-1)
        return cls(name, array.dtype, array.shape, flat.view(np.uint8))

    @classmethod
    def of_tensor(cls, tensor: safetensors_file.Tensor) -> Uncoded:
        """Store a tensor of any type."""
        dtype = tensor.header().dtype if tensor.is_array() else None
        return cls(tensor.type, dtype, tensor.shape, tensor.content)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(self.content.nbytes)

    @property
    def original_nbytes(self) -> int:
        """Bytes of the array, the same as it is not coded."""
        return self.nbytes

    def array(self) -> NumpyArray:
        """Return its values; flat bytes for a type that NumPy lacks."""
        if self.dtype is None:
            return self.content
        return self.content.view(self.dtype).reshape(self.shape)


Item = Packed | Uncoded


class PackedFile(NamedTuple):
    """Arrays by name, and the texts of the file that they came from."""

    items: Mapping[str, Item]
    metadata: Mapping[str, str]


def write_npz(stream: BinaryFile, whole: PackedFile) -> None:
    """Write the whole, arrays and texts, as a `.npz` file with a description, member `header`."""
    arrays = {
        str(i): np.asarray(item.code) if isinstance(item, Packed) else _storable(item)
        for i, item in enumerate(whole.items.values())
    }
    about = [{"name": name, **_about(item)} for name, item in whole.items.items()]
    header = {"arrays": about, "metadata": dict(whole.metadata)}
    container.write(stream, FORMAT, header, arrays)


def write_safetensors(stream: BinaryFile, whole: PackedFile) -> None:
    """Write the whole, arrays and texts, as a `.safetensors` file, a description among its texts.

    Raises ArgumentError for a type that such files lack.
    """
    entries = []
    for name, item in whole.items.items():
        if isinstance(item, Packed):
            code = np.asarray(item.code)
            kind, shape, content = safetensors_file.type_name(code.dtype), code.shape, _flat(code)
        else:
            kind, shape, content = stored_type(name, item), item.shape, item.content
        entries.append(safetensors_file.Entry(name, kind, shape, content.nbytes, [content.data]))
    about = [{"name": n, **_about(i)} for n, i in whole.items.items() if isinstance(i, Packed)]
    order = list(whole.items)  # the file's own is by alignment
    header = {"format": FORMAT.name, "version": FORMAT.version, "arrays": about, "order": order}
    text = json.dumps(header)
    safetensors_file.save(stream, entries, {**whole.metadata, KEY: text})


def stored_type(name: str, item: Uncoded) -> str:
    """Return the type's name in `.safetensors`; raise ArgumentError, naming the array, for none."""
    if not item.type:
        raise ArgumentError(f"{name}: .safetensors has no type {item.dtype}; .npz has it")
    return item.type


def from_npz(file: Any) -> PackedFile:
    """Read what `write_npz` wrote, a path or an open file."""
    with container.load(file, FORMAT) as opened, _naming_damage(file):
        items: dict[str, Item] = {}
        for i, about in enumerate(opened.header["arrays"]):
            array = opened.member(str(i)).read()
            if "codec" in about:
                items[about["name"]] = _packed(file, about, array)
            else:
                items[about["name"]] = _uncoded(about, array)
        return PackedFile(items, _texts(opened.header["metadata"]))


def from_safetensors(opened: safetensors_file.Opened, file: object) -> PackedFile:
    """Read what `write_safetensors` wrote, from an opened file; file: its name, for messages."""
    texts = dict(opened.metadata)
    with _naming_damage(file):
        header = container.checked_header(file, FORMAT, json.loads(texts.pop(KEY)))
        coded = {about["name"]: about for about in header["arrays"]}
        items: dict[str, Item] = {}
        for name, tensor in opened.tensors.items():
            if name in coded:
                items[name] = _packed(file, coded.pop(name), tensor.map())
            else:
                items[name] = Uncoded.of_tensor(tensor)
        if coded:
            raise KeyError(next(iter(coded)))
        if "order" in header:  # older files lack it
            if sorted(header["order"]) != sorted(items):
                raise ValueError("the order names other arrays")
            items = {name: items[name] for name in header["order"]}
    return PackedFile(items, texts)


@contextlib.contextmanager
def _naming_damage(file: object) -> Iterator[None]:
    """Convert errors that a wrong description causes to an ArgumentError that names the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise_if_from_handler(error)
        raise ArgumentError(f"{file}: damaged packed file: {cut(str(error))}") from None


def _about(item: Item) -> dict[str, Any]:
    """Return the JSON description of an item, from which and its array it is read again."""
    if isinstance(item, Packed):
        return {name: getattr(item, name) for name in ("codec", "dtype", "shape", "options")}
    about = {"type": item.type, "shape": item.shape}
    return {**about, "raw": True} if _is_raw(item) else about


def _packed(file: object, about: Mapping[str, Any], code: NumpyArray) -> Packed:
    """Return the Packed of its description and codes; refuse codes that no encoder makes."""
    options = dict(about["options"])
    packed = Packed(about["codec"], about["dtype"], tuple(about["shape"]), code, options)
    refuse_flaw(f"{file}: {cut(about['name'])}", packed.decoder(), code)
    return packed


def _is_raw(item: Uncoded) -> bool:
    """Return True for types that NumPy's files lack, such as bfloat16: `.npz` holds their bytes."""
    return item.dtype is None or item.dtype in safetensors_file.NOT_NUMPYS.values()


def _storable(item: Uncoded) -> NumpyArray:
    """Return the array of `.npz`: the values, or the bytes if `_is_raw`."""
    return item.content if _is_raw(item) else item.array()


def _uncoded(about: Mapping[str, Any], array: NumpyArray) -> Uncoded:
    """Return the uncoded item of its description `about` and its array in a `.npz`."""
    if not about.get("raw"):
        return Uncoded.of_array(array)
    dtype = safetensors_file.NOT_NUMPYS.get(about["type"])
    item = Uncoded(about["type"], dtype, tuple(about["shape"]), _flat(array))
    item.array()  # refuses a shape that is not that of the bytes
    return item


def _flat(array: NumpyArray) -> HostArray:
    """Return the bytes of an array, a flat uint8 array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _texts(metadata: Any) -> dict[str, str]:
    """Return metadata as a dictionary; raise TypeError if a value is no text."""
    if not all(isinstance(text, str) for text in metadata.values()):
        raise TypeError("its metadata holds other than texts")
    return dict(metadata)

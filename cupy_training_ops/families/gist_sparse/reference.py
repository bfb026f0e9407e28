# SPDX-License-Identifier: MIT
"""Sparse codes in NumPy. The bytes are drawn in `operators.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from ...dtypes import Dtype, HostArray
from ...rules.widening import pad_tiles, put_nan
from ..gist.reference import gist_pack_msfp15_decoder, gist_pack_msfp15_encoder
from ..gist_narrow.reference import gist_fp10_decoder, gist_fp10_encoder
from .facts import FP10_GROUP, GROUP_NBYTES, HEAD_NBYTES, MSFP15_GROUP, TILE_NBYTES
from .layout import layout

Shape = tuple[int, ...] | None


class Values(NamedTuple):
    """A codec of values (elements that are not zero): `group` of them take 16 bytes.

    encode(values): whole groups to an array of codes. decode(bytes, dtype): back to values.
    Of a tile whose values are not where the code says, elements are NaN where `has_nan`, else 0.
    """

    group: int
    encode: Callable[[HostArray], HostArray]
    decode: Callable[[HostArray, Dtype], HostArray]
    has_nan: bool = True


def _as_they_are(dtype: Dtype) -> Values:
    """Return the codec that leaves values of `dtype` as they are."""
    return Values(
        GROUP_NBYTES // dtype.itemsize, lambda x: x, lambda code, to: code.view(to), has_nan=False
    )


def _fp10() -> Values:
    """Return the codec that makes values FP10, three in a word."""
    return Values(
        FP10_GROUP,
        gist_fp10_encoder,
        lambda code, to: gist_fp10_decoder(code.view(np.uint32), to=to, shape=None),
    )


def _msfp15(keep_sign: bool = False) -> Values:
    """Return the codec that makes values MSFP15, which keeps infinities and NaN.

    keep_sign: no value but 0 gets a magnitude of 0.
    """
    encode = partial(gist_pack_msfp15_encoder, keep_nonfinite=True, keep_sign=keep_sign)
    decode = partial(gist_pack_msfp15_decoder, shape=None, keep_nonfinite=True)
    return Values(MSFP15_GROUP, encode, lambda code, to: decode(code, to=to))


def gist_sparse_encoder(x: HostArray) -> HostArray:
    return _encode(x, _as_they_are(x.dtype))


def gist_sparse_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return _decode(x, to, shape, _as_they_are(to))


def gist_sparse_fp10_encoder(x: HostArray) -> HostArray:
    return _encode(x, _fp10())


def gist_sparse_fp10_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return _decode(x, to, shape, _fp10())


def gist_sparse_msfp15_encoder(x: HostArray, *, keep_sign: bool) -> HostArray:
    return _encode(x, _msfp15(keep_sign))


def gist_sparse_msfp15_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return _decode(x, to, shape, _msfp15())


def _encode(x: HostArray, values: Values) -> HostArray:
    """Return the code of x as uint8, padded with zeros to the most bytes that x's code can take.

    values: the codec of the elements that are not zero. Where the sparse code is not shorter than
    the elements as they are, the code is plain: head [its bytes, 1], then all elements.
    """
    flat = x.ravel()
    code = np.zeros(layout(flat.size, x.dtype.itemsize, values.group).most, np.uint8)
    sparse = _sparse(flat, values)
    plain = HEAD_NBYTES + flat.nbytes  # bytes of the plain code
    if sparse.size < plain:
        code[: sparse.size] = sparse
    else:
        code[:HEAD_NBYTES] = np.array([plain, 1], np.uint64).view(np.uint8)
        code[HEAD_NBYTES:plain] = flat.view(np.uint8)
    return code


def _sparse(flat: HostArray, values: Values) -> HostArray:
    """Return the sparse code of `flat`, uint8; values: the codec of elements that are not zero.

    In order: head [bytes of the code, 0]; for each tile of TILE_NBYTES bytes of elements the byte
    of the code where its values begin; a bit for each element, 1 if it is not zero; the values.
    """
    tile = TILE_NBYTES // flat.dtype.itemsize
    mask = _has_bits(flat)
    counts = _counts(mask, tile)
    groups = -(-counts // values.group)
    # Values of all tiles, each filled with zeros to whole groups; begins: where a tile's begin.
    packed = np.zeros(int(groups.sum()) * values.group, flat.dtype)
    begins = values.group * (np.cumsum(groups) - groups)
    nonzeros = flat[mask]
    for part, place in _runs(counts, begins):
        packed[place] = nonzeros[part]
    bits = np.packbits(pad_tiles(mask, 128), bitorder="little")  # whole 16 bytes
    first = layout(flat.size, flat.dtype.itemsize, values.group).values
    starts = first + GROUP_NBYTES * (np.cumsum(groups) - groups)
    total = first + GROUP_NBYTES * int(groups.sum())
    parts = (np.array([total, 0], np.uint64), pad_tiles(starts.astype(np.uint64), 2), bits)
    return np.concatenate(
        [*(p.view(np.uint8) for p in parts), values.encode(packed).view(np.uint8)]
    )


def _decode(x: HostArray, to: Dtype, shape: Shape, values: Values) -> HostArray:
    """Return the elements of code x, of dtype `to` in `shape` (None: that of one element).

    values: the codec of elements that are not zero. Tiles whose values do not begin where the mask
    says are NaN, or 0 if the codec has none.
    """
    code, y = x.ravel(), np.zeros(math.prod(shape or ()), to)
    plain = HEAD_NBYTES + y.nbytes
    if code[8:HEAD_NBYTES].any() and plain <= code.size:
        y.view(np.uint8)[...] = code[HEAD_NBYTES:plain]
    else:
        sound = _scatter(y, code, values)
        if values.has_nan:
            put_nan(y, ~sound, np.zeros_like(sound))
    return y.reshape(shape or ())


def _scatter(y: HostArray, code: HostArray, values: Values) -> HostArray:
    """Write the elements of the sparse `code` to y, flat; return True for each of a sound tile.

    values: the codec of elements that are not zero; y is zero elsewhere already. A tile
    is not sound where its start does not follow from the mask, as in codes of another width.
    """
    tile = TILE_NBYTES // y.dtype.itemsize
    tiles, mask_start, first, *_ = layout(y.size, y.dtype.itemsize, values.group)
    if code.size < first:
        return np.zeros(y.size, np.bool_)
    mask = np.unpackbits(code[mask_start:first], count=y.size, bitorder="little").view(np.bool_)
    counts = _counts(mask, tile)
    starts = _numbers(code[HEAD_NBYTES : HEAD_NBYTES + 8 * tiles])
    ends = np.append(starts[1:], _numbers(code[:8]))
    groups = -(-counts // values.group)
    # sound: a bool for each tile
    sound = (starts >= first) & (starts % 16 == 0) & (ends <= code.size) & (starts <= ends)
    sound &= ends - starts == GROUP_NBYTES * groups
    if values.has_nan:  # what lies as other widths or plain elements do is no code of this one
        others = code[8:HEAD_NBYTES].any() or code[HEAD_NBYTES + 8 * tiles : mask_start].any()
        sound &= starts[0] == first and not others
    of_element: HostArray = np.repeat(sound, tile)[: y.size]
    mask &= of_element
    counts[~sound] = 0
    coded = code[first : code.size - (code.size - first) % GROUP_NBYTES].copy()
    begins = (starts - first) // GROUP_NBYTES * values.group
    decoded = values.decode(coded, y.dtype)
    own = np.empty(int(counts.sum()), y.dtype)
    for part, place in _runs(counts, begins):
        own[part] = decoded[place]
    y[mask] = own
    return of_element


def _numbers(code: HostArray) -> HostArray:
    """Return int64 of bytes at any address."""
    return np.frombuffer(code.tobytes(), np.int64)


def _counts(mask: HostArray, tile: int) -> HostArray:
    """Return how many bits of the mask are set in each tile of `tile` elements."""
    starts = np.arange(0, mask.size, tile)
    return np.add.reduceat(mask, starts, dtype=np.int64) if mask.size else starts


def _runs(counts: HostArray, begins: HostArray) -> Iterator[tuple[slice, slice]]:
    """Yield each tile's slice of all values without gaps, and its slice from begins[tile] on."""
    ends = np.cumsum(counts)
    for first, last, begin in zip(
        *(a.tolist() for a in (ends - counts, ends, begins)), strict=True
    ):
        yield slice(first, last), slice(begin, begin + last - first)


def _has_bits(flat: HostArray) -> HostArray:
    """Return True for each element with a bit that is 1: -0.0 has one."""
    if flat.itemsize <= 8:
        return np.asarray(flat.view(f"u{flat.itemsize}") != 0)
    return np.asarray(np.any(flat.view(np.uint8).reshape(flat.size, -1), axis=1))

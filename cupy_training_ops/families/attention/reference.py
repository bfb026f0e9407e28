# SPDX-License-Identifier: MIT
"""Attention and its gradient in NumPy, some queries at a time. Formulas: `operators.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypedDict, Unpack

import numpy as np

from ...dtypes import HostArray
from ...rules.widening import cast, quiet, wide
from .facts import MAX_EXTENT

PART = 2**21  # scores that are in memory at a time


class Options(TypedDict):
    """Attributes of both operators."""

    is_causal: bool
    q_num_heads: int | None
    kv_num_heads: int | None
    scale: float | None
    softcap: float
    pads_mask: bool


class Part(NamedTuple):
    """Scores (heads, queries, keys) of some queries of one element of the batch."""

    batch: int
    queries: slice
    bends: HostArray | None  # tanh(scale Q K^T / softcap); None without softcap
    scores: HostArray  # with softcap and mask; -inf where a key is hidden


@quiet
def flash_attention(
    q: HostArray,
    k: HostArray,
    v: HostArray,
    mask: HostArray | None = None,
    lengths: HostArray | None = None,
    **options: Unpack[Options],
) -> tuple[HostArray, HostArray]:
    """Return Y = softmax(scores) V, in Q's layout, and LSE = ln sum of e^scores of each query.

    q, k, v: (batch, heads, rows, width), or with q_num_heads (batch, rows, heads width). mask:
    bool, True where a query sees a key, or added to scores. lengths: (batch,), keys that exist.
    """
    heads, kv_heads = options["q_num_heads"], options["kv_num_heads"]
    wide_q, wide_k, wide_v = _by_heads(q, heads), _by_heads(k, kv_heads), _by_heads(v, kv_heads)
    y = np.zeros((*wide_q.shape[:-1], wide_v.shape[-1]), wide_q.dtype)
    lse = np.full(wide_q.shape[:-1], -np.inf, wide_q.dtype)
    for part in _parts(wide_q, wide_k, mask, lengths, options):
        place = part.batch, slice(None), part.queries
        peak = part.scores.max(-1, keepdims=True, initial=-np.inf)
        powers = np.exp(part.scores - np.where(peak == -np.inf, 0, peak))
        total = powers.sum(-1, keepdims=True)
        lse[place] = (peak + np.log(total))[..., 0]
        weights = powers / np.where(total == 0, 1, total)
        y[place] = _times(weights, wide_v[part.batch])
    return cast(_like(y, q), q.dtype), lse


@quiet
def flash_attention_grad(
    dy: HostArray,
    q: HostArray,
    k: HostArray,
    v: HostArray,
    y: HostArray,
    lse: HostArray,
    mask: HostArray | None = None,
    lengths: HostArray | None = None,
    *,
    mask_gradient: bool,
    **options: Unpack[Options],
) -> tuple[HostArray | None, ...]:
    """Return dQ, dK, dV, and dS with mask_gradient, else None; dS = P (dY V^T - sum of dY Y).

    y, lse: what flash_attention returned. dy, q, k, v: (batch, heads, rows, width), or with
    q_num_heads (batch, rows, heads width). mask, lengths: flash_attention's. dS: (batch, heads,
    queries, keys). options: the attributes.
    """
    heads, kv_heads = options["q_num_heads"], options["kv_num_heads"]
    wide_q, wide_dy, wide_y = (_by_heads(x, heads) for x in (q, dy, y))
    wide_k, wide_v = _by_heads(k, kv_heads), _by_heads(v, kv_heads)
    dq, dk, dv = np.zeros_like(wide_q), np.zeros_like(wide_k), np.zeros_like(wide_v)
    scale = _scale(options, wide_q)
    ds = np.zeros((*lse.shape, wide_k.shape[2]), q.dtype) if mask_gradient else None
    for part in _parts(wide_q, wide_k, mask, lengths, options):
        place = part.batch, slice(None), part.queries
        of_row = lse[place][..., None]
        weights = np.exp(part.scores - np.where(of_row == -np.inf, np.inf, of_row))
        slopes = (wide_dy[place] * wide_y[place]).sum(-1, keepdims=True)
        steps = weights * (_times(wide_dy[place], wide_v[part.batch].swapaxes(-1, -2)) - slopes)
        if ds is not None:
            ds[place] = cast(steps, q.dtype)
        if part.bends is not None:
            steps *= 1 - part.bends**2
        dq[place] = scale * _times(steps, wide_k[part.batch])
        dk[part.batch] += scale * _summed(steps, wide_q[place], wide_k.shape[1])
        dv[part.batch] += _summed(weights, wide_dy[place], wide_k.shape[1])
    gradients = (cast(_like(d, x), x.dtype) for d, x in ((dq, q), (dk, k), (dv, v)))
    return *gradients, ds


def _parts(
    q: HostArray,
    k: HostArray,
    mask: HostArray | None,
    lengths: HostArray | None,
    options: Options,
) -> Iterator[Part]:
    """Yield the scores of some queries at a time, of all heads of one element of the batch.

    q, k: (batch, heads, rows, width). mask: bool, True where a query sees a key, or numbers that
    are added; its shape broadcasts to (batch, heads, queries, keys). lengths: keys that exist, of
    each element of the batch. options: attributes of the operator.
    """
    batch, heads, queries, _ = q.shape
    keys, scale, softcap = k.shape[2], _scale(options, q), options["softcap"]
    n = max(1, PART // max(1, heads * keys))
    for b in range(batch):
        length = keys if lengths is None else int(np.clip(lengths[b], -MAX_EXTENT, MAX_EXTENT))
        offset = 0 if lengths is None else length - queries
        for first in range(0, queries, n):
            rows = slice(first, first + n)
            scores = _times(q[b, :, rows], k[b].swapaxes(-1, -2)) * scale
            bends = np.tanh(scores / softcap) if softcap else None
            scores = scores if bends is None else bends * softcap
            shown = np.broadcast_to(np.arange(keys) < length, scores.shape[-2:])
            if options["is_causal"]:
                at = np.arange(first, first + scores.shape[1])[:, None] + offset
                shown = shown & (np.arange(keys) <= at)
            if mask is not None:
                part = _mask_part(mask, b, rows, 1 if options["pads_mask"] else keys)
                hidden = ((0, 0), (0, 0), (0, keys - part.shape[-1]))
                if part.dtype == np.bool_:
                    shown = shown & np.pad(part, hidden)
                else:
                    added = np.pad(wide(part), hidden, constant_values=-np.inf)
                    scores = scores + added
            yield Part(b, rows, bends, np.where(shown, scores, -np.inf))


def _mask_part(mask: HostArray, b: int, rows: slice, repeats: int) -> HostArray:
    """Return the mask (heads, queries, keys) of the queries `rows` of batch element b.

    A mask of one key is repeated to `repeats` keys; one of all heads or queries stays broadcast.
    """
    whole = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    own = whole[b if whole.shape[0] > 1 else 0]
    own = own if own.shape[1] == 1 else own[:, rows]
    return np.repeat(own, repeats, -1) if own.shape[-1] == 1 else own


def _scale(options: Options, q: HostArray) -> float:
    """Return the attribute scale, by default 1 / sqrt(width of a head)."""
    scale = options["scale"]
    return float(1 / np.sqrt(q.shape[-1])) if scale is None else scale


def _by_heads(x: HostArray, heads: int | None) -> HostArray:
    """Return an array as (batch, heads, rows, width) in the computing type.

    heads: of an array (batch, rows, heads width); None: it has rank 4 already.
    """
    if heads is None:
        return wide(x)
    split = wide(x).reshape(*x.shape[:2], heads, x.shape[2] // heads)
    return np.ascontiguousarray(split.swapaxes(1, 2))


def _like(x: HostArray, like: HostArray) -> HostArray:
    """Return x (batch, heads, rows, width) in the layout of `like`: of rank 4, or of rank 3."""
    if like.ndim == 4:
        return x
    return x.swapaxes(1, 2).reshape(*like.shape[:2], x.shape[1] * x.shape[3])


def _times(rows: HostArray, of_keys: HostArray) -> HostArray:
    """Return rows[h] @ of_keys[h // n], where n heads of rows share one of keys."""
    products = _by_kv_heads(rows, len(of_keys)) @ of_keys
    return products.reshape(*rows.shape[:2], of_keys.shape[-1])


def _summed(weights: HostArray, rows: HostArray, kv_heads: int) -> HostArray:
    """Return the sum of weights[h]^T @ rows[h] over the heads h that share one of kv_heads."""
    left = _by_kv_heads(weights, kv_heads).swapaxes(-1, -2)
    return np.asarray(left @ _by_kv_heads(rows, kv_heads))


def _by_kv_heads(x: HostArray, kv_heads: int) -> HostArray:
    """Return (heads, rows, columns) as (kv_heads, heads / kv_heads * rows, columns)."""
    return x.reshape(kv_heads, len(x) // kv_heads * x.shape[1], x.shape[2])

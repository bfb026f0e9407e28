# SPDX-License-Identifier: MIT
"""Launches of the family: over one parameter, over lists, over lists with moments in codes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...declare.schema import Spec
from ...dtypes import FLOAT32, UINT8, Dtype
from ...plan import Launch, Plan, by_value
from ...planning import parameter_update
from ...planning.multi_tensor import Columns
from .facts import CAPACITY, CHUNK_NBYTES, CODED_CHUNK, LISTS, THREADS, AdamRule

Args = tuple[object, ...]


def launch(symbol: str, grid: int, args: Args, **types: Dtype) -> Launch:
    """A launch of this family."""
    sizes = CHUNK_NBYTES, CAPACITY, LISTS
    return parameter_update.launch(symbol, grid, THREADS, args, *sizes, types)


def chunk(w: Spec, m: Spec, nbytes: int) -> int:
    """Elements that a block takes, so many bytes of the widest array."""
    return nbytes // max(w.dtype.itemsize, m.dtype.itemsize)


def rule(rates: tuple[float, ...], correct_bias: bool, decays_updated: object) -> np.void:
    """alpha, beta, lambda and epsilon, and what follows from attributes: the kernels' AdamRule."""
    numbers = dict(zip(("alpha", "beta", "lambda_", "epsilon"), rates, strict=True))
    flags = {"correct_bias": correct_bias, "decays_updated": bool(decays_updated)}
    return by_value(AdamRule, **numbers, **flags)


def over_lists(inputs: Sequence[Any], outputs: Sequence[Any], args: Args) -> Plan:
    """A step over weights, gradients, both moments and low-precision weights, in this order."""
    w, g, m, *_ = inputs
    made = partial(launch, "adam__list", W=w[0].dtype, GRAD=g[0].dtype, MOMENT=m[0].dtype)
    return _over(inputs, outputs, args, chunk(w[0], m[0], CHUNK_NBYTES), made)


def over_coded(inputs: Sequence[Any], outputs: Sequence[Any], args: Args) -> Plan:
    """The same with moments in codes; compiled with the lists of float32 moments."""
    w, g, *_ = inputs
    made = partial(launch, "adam__coded_list", W=w[0].dtype, GRAD=g[0].dtype, MOMENT=FLOAT32)
    return _over(inputs, outputs, args, CODED_CHUNK, made)


def _over(inputs: Sequence[Any], outputs: Sequence[Any], args: Args, most: int, made: Any) -> Plan:
    w, g, m, v, mixed = inputs
    mixed, new_mixed, is_bfloat16 = parameter_update.low_precision_lists(mixed, outputs[-1])
    written = dict(enumerate([*(items or () for items in outputs[:-1]), new_mixed]))
    columns = Columns.of((w, g, m, v, mixed), written, LISTS * CAPACITY)
    sizes = [spec.size for spec in w]
    return parameter_update.over_lists(columns, sizes, most, CAPACITY, made, *args, is_bfloat16)


def count(w: Dtype, g: Dtype, m: Dtype, *numbers: Any) -> Plan:
    """The step after this one, by a kernel that is compiled for these arrays already."""
    wide = FLOAT32 if m == UINT8 else m
    made = partial(launch, "adam__count", W=w, GRAD=g, MOMENT=wide)
    return parameter_update.count_step(made, *numbers)

# SPDX-License-Identifier: MIT
"""Slices of a matrix and rows of padded sentences; PyTorch's slicing and indexing as peers."""

from __future__ import annotations

from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import over
from .parameters import normal, normals
from .peers import on_tensors, torch

ROWS, WIDTH = 65536, 1024
DIMS, HIDDEN, TOKENS = (64, 512), 1024, 24576
TYPES = (FLOAT32, FLOAT16)


def _slice(dtype: Any, start: int = 256) -> Any:
    half = WIDTH // 2
    then = (ROWS, WIDTH), (start,), (start + half,), (1,), (1,)
    return normals(dtype, (ROWS, half), then=then)


def _indices() -> Any:
    return cupy.sort(cupy.random.permutation(DIMS[0] * DIMS[1])[:TOKENS])


def _packed_rows(dtype: Any) -> Any:
    return lambda rng: (normal(rng, (TOKENS, HIDDEN), dtype), _indices(), DIMS)


def _padded(dtype: Any) -> Any:
    return lambda rng: (normal(rng, (*DIMS, HIDDEN), dtype), _indices())


def _selected_nbytes(x: Any, indices: Any) -> int:
    """Selected rows are read and written."""
    return int(indices.nbytes + 2 * indices.size * x.nbytes // (DIMS[0] * DIMS[1]))


SLICE = on_tensors(
    lambda dy, _, starts, ends, _axes, _steps, dx: dx.zero_()[:, starts[0] : ends[0]].copy_(dy),
    lambda dy, shape, *_: torch.empty(shape, dtype=dy.dtype, device=dy.device),
)
PAD = on_tensors(
    lambda x, rows, _, y: y.zero_().index_copy_(0, rows, x),
    lambda x, _, dims: x.new_empty(dims[0] * dims[1], x.shape[1]),
)
SELECT = on_tensors(lambda x, rows: x.reshape(-1, x.shape[2]).index_select(0, rows))


CASES = [
    *over(TYPES, "SliceGrad", _slice, peers={"torch slice": SLICE}),
    *over(TYPES, "SliceGrad", lambda t: _slice(t, 3), ",odd", peers={"torch slice": SLICE}),
    *over(TYPES, "PadAndUnflatten", _packed_rows, peers={"torch index_copy": PAD}),
    *over(
        TYPES,
        "FlattenAndUnpad",
        _padded,
        peers={"torch index_select": SELECT},
        nbytes=_selected_nbytes,
    ),
]

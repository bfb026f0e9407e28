# SPDX-License-Identifier: MIT
"""The CPU provider in pieces: the same results as of whole arrays, in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.call import tiling
from cupy_training_ops.call.tiling import blocks
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.families.activation.samples import HALVES
from cupy_training_ops.registry import names
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import all_samples

IN_PIECES = [name for name in names() if get_op(name).tiles is not None]
SAMPLES = all_samples()
MANY = 3_000_003


small = pytest.mark.usefixtures("small_pieces")


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(tiling, "PIECE", 64)


def results(name: str, attributes, inputs) -> list:
    """What an instance of its own gives for copies of the inputs."""
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
    result = get_op(name)(**attributes)(*arguments)
    return list(result) if isinstance(result, tuple) else [result]


@small
@pytest.mark.parametrize("name", IN_PIECES)
def test_pieces_give_what_the_whole_gives(name, rng, monkeypatch) -> None:
    for sample in SAMPLES[name]:
        inputs = sample.make(rng)
        in_pieces = results(name, sample.attributes, inputs)
        with monkeypatch.context() as patch:
            patch.setattr(get_op(name), "tiles", None)
            whole = results(name, sample.attributes, inputs)
        for ours, expected in zip(in_pieces, whole, strict=True):
            assert (ours is None) == (expected is None)
            if ours is not None:
                assert_matches(ours, expected, 0 if get_op(name).bitwise_exact else None)


def test_the_operators_that_come_apart() -> None:
    """All that work element by element or tile by tile, on arrays that are no lists or halves."""
    families = {get_op(name).family for name in names() if name not in (*IN_PIECES, *HALVES)}
    assert not families & {"gist", "activation"}
    assert {"Scale", "BatchScale", "FakeQuant", "InPlaceAccumulator"} <= set(IN_PIECES)


@pytest.mark.parametrize(
    ("n_rows", "n_tiles", "most", "sizes"),
    [
        (1, 5, 8, [(1, 5)]),
        (1, 17, 8, [(1, 8), (1, 8), (1, 1)]),
        (7, 3, 8, [(2, 3)] * 3 + [(1, 3)]),
        (2, 9, 8, [(1, 8), (1, 1)] * 2),
    ],
)
def test_blocks_are_rows_or_parts_of_one(n_rows, n_tiles, most, sizes) -> None:
    covered = np.zeros((n_rows, n_tiles), int)
    results = []
    for block in blocks(n_rows, n_tiles, most):
        covered[block] += 1
        results.append(covered[block].shape)
    assert (covered == 1).all()
    assert results == sizes


@pytest.mark.parametrize("name", ["Gelu", "GeluGrad", "GistPack8Encoder", "GistPackMsfp15Encoder"])
def test_memory_beside_the_result_does_not_grow_with_it(name, rng) -> None:
    op = get_op(name)()
    arrays = [rng.standard_normal(MANY, FLOAT32) for _ in op.inputs]
    op(*(array[:100_000].copy() for array in arrays))
    tracemalloc.start()
    try:
        result = op(*arrays)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < result.nbytes + 8_000_000


@small
def test_in_place_in_pieces(rng) -> None:
    dy, x, b = (rng.standard_normal(shape, FLOAT32) for shape in [(5, 40), (5, 40), (40,)])
    op = get_op("BiasGeluGrad_dX")()
    expected = op(dy, x, b)
    assert op(dy, x, b, out=dy) is dy
    np.testing.assert_array_equal(dy, expected)


def test_what_is_not_read_does_not_come_apart() -> None:
    """It may have any strides: making it flat would take four petabytes here."""
    gradient = np.ones(100, FLOAT32)
    get_op("ZeroGradient")()(gradient, np.broadcast_to(FLOAT32.type(0), (2**20, 2**30)))
    assert not gradient.any()

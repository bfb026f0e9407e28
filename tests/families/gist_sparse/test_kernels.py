# SPDX-License-Identifier: MIT
"""Sparse codes' kernels where the samples do not lead: other blocks' tiles, and hostile codes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from references import computed

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOATS, UINT8, dtype_name
from cupy_training_ops.families.gist_sparse.operators import GistSparseEncoder
from cupy_training_ops.families.gist_sparse.samples import code_bytes
from cupy_training_ops.testing.compare import poison

TILE = 4096  # elements of four bytes
HEAD = 16
UNWRITTEN = 0xA5


class Unfinished(GistSparseEncoder):
    """The first launch alone."""

    def plan(self, device, x, y):
        plan = super().plan(device, x, y)
        return replace(plan, steps=plan.steps[:1])


Unfinished.family = "gist_sparse"


def sparse(rng, n: int, dtype=FLOAT32, share: float = 0.3) -> np.ndarray:
    return (rng.integers(1, 9, n) * (rng.random(n) < share)).astype(dtype)


def encoded(name: str, x: np.ndarray) -> np.ndarray:
    """The code that the CPU provider makes, without the room behind it."""
    return code_bytes(computed(get_op(name)(), x))


def ends(code: np.ndarray, tiles: int) -> np.ndarray:
    """Where the values of each tile begin, and those of the last end."""
    numbers = code[: HEAD + 8 * tiles].view(np.int64)
    return np.array([*numbers[2:], numbers[0]])


def said(code: np.ndarray, tiles: int) -> np.ndarray:
    """The words of tiles that blocks share, none full: one more than the groups of values."""
    return np.diff(ends(code, tiles)) // 16 + 1 + 2**31


def launched(run, op, x: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code and zeros after a call that begins with these: a ticket, and what is said of tiles."""
    y = run.place(np.full(op.layout(Spec(x.shape, x.dtype)).most, UNWRITTEN, UINT8))
    op(run.place(x), out=y)
    y[...] = UNWRITTEN
    (store,) = op.workspaces._stores.values()
    begun = run.place(words.view(UINT8))
    store.zeros[: words.nbytes] = begun
    op(run.place(x), out=y)
    return run.host(y), run.host(store.zeros).view(np.uint32)


@pytest.mark.parametrize("name", ["GistSparseEncoder", "GistSparseFp10Encoder"])
def test_one_instance_packs_arrays_of_any_sizes(run, rng, name) -> None:
    """What a call leaves in the memory that calls share disturbs none with other tiles."""
    op = get_op(name)()
    for n in (5000, 12_000, 100, 16_000, 20_000):  # 2, 3, 1, 4 and 5 tiles
        x = np.maximum(rng.standard_normal(n), 0).astype(np.float32)
        code, expected = run.host(op(run.place(x))), encoded(name, x)
        np.testing.assert_array_equal(code[: expected.size], expected)


def test_tiles_begin_behind_those_of_other_blocks(run, rng) -> None:
    """As if other blocks had taken three tiles, and had said what they have."""
    tiles, others = 11, 3
    x = sparse(rng, tiles * TILE - 3)
    op, expected = GistSparseEncoder(), encoded("GistSparseEncoder", x)
    words = np.zeros(4 + tiles, np.uint32)
    words[0], words[4 : 4 + others] = others, said(expected, tiles)[:others]
    code, after = launched(run, op, x, words)
    begin = ends(expected, tiles)[others]
    np.testing.assert_array_equal(code[begin : expected.size], expected[begin:])
    np.testing.assert_array_equal(code[:HEAD], expected[:HEAD])
    starts = slice(HEAD + 8 * others, HEAD + 8 * tiles)
    np.testing.assert_array_equal(code[starts], expected[starts])
    assert (code[HEAD : starts.start] == UNWRITTEN).all()
    assert after[0] == 0
    assert not after[4:].any()


def test_each_tile_is_said(run, rng) -> None:
    tiles = 70  # more words than workspaces have for alignment
    x = sparse(rng, tiles * TILE - 3)
    op = Unfinished()
    _, after = launched(run, op, x, np.zeros(4 + tiles, np.uint32))
    assert after[0] == 0
    np.testing.assert_array_equal(
        after[4 : 4 + tiles], said(encoded("GistSparseEncoder", x), tiles)
    )


# Which elements are zero: from, to, every so many, in tiles and elements.
ZEROS = {
    "full": ((0, 0), (0, 0), 1),
    "few zeros": ((0, 0), (6, 0), 2053),
    "zeros behind the first tile": ((1, 0), (6, 0), 1),
    "zeros from the first tile on": ((0, 7), (6, 0), 1),
    "a tile of zeros": ((2, 0), (3, 0), 1),
    "zeros at the end": ((5, 70), (6, 0), 1),
    "half of all behind three tiles": ((3, 0), (6, 0), 2),
}


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", [UINT8, FLOAT16, FLOAT32])
@pytest.mark.parametrize("kind", ZEROS)
def test_full_tiles_before_others(run, rng, kind, dtype, offset) -> None:
    """They are written where elements as they are belong, whatever the code becomes."""
    tile = 4 * TILE // dtype.itemsize
    x = rng.integers(1, 100, 5 * tile + 77).astype(dtype)
    (first, skipped), (end, _), step = ZEROS[kind]
    x[first * tile + skipped : end * tile : step] = 0
    op, expected = GistSparseEncoder(), encoded("GistSparseEncoder", x)
    most = op.layout(Spec(x.shape, dtype)).most
    for _ in range(2):  # the second call finds what the first left in scratch memory
        y = poison(run.blank(Spec((most,), UINT8), offset))
        op(run.place(x, offset), out=y)
        np.testing.assert_array_equal(run.host(y)[: expected.size], expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_fp10_values_of_any_codes(run, rng, dtype) -> None:
    """NaN of every kind beside numbers."""
    x = np.ones(20_000, dtype)
    x[::3] = 0
    code = encoded("GistSparseFp10Encoder", x).copy()
    values = code[ends(code, 1)[0] :].view(np.uint32)
    values[:] = rng.integers(0, 2**30, values.size)
    op = get_op("GistSparseFp10Decoder")(to=dtype, shape=x.shape)
    actual, expected = run.host(op(run.place(code))), computed(op, code)
    np.testing.assert_array_equal(actual.view(UINT8), expected.view(UINT8))


def test_bytes_beside_an_empty_tile(run) -> None:
    x = np.zeros(2 * 16_384, UINT8)
    x[:16_384] = 1
    decode = get_op("GistSparseDecoder")(to=UINT8, shape=x.shape)
    np.testing.assert_array_equal(run.host(decode(run.place(encoded("GistSparseEncoder", x)))), x)


HOSTILE = {
    "GistSparse": (UINT8, FLOAT32),
    "GistSparseFp10": (FLOAT32,),
    "GistSparseMsfp15": (FLOAT32,),
}


def damaged(rng, code: np.ndarray, layout, kind: int) -> np.ndarray:
    """Of another length, random, with wrong starts, a wrong mask, bits behind it, or a lie."""
    starts = code[HEAD : HEAD + 8 * layout.tiles].view(np.int64)
    mask = code[layout.mask : layout.values]
    wild = (0, -16, -(2**63), 2**62, layout.values, layout.values + 16, code.size - code.size % 16)
    if kind == 0:
        return code[: rng.integers(layout.least, code.size + 1)]
    if kind == 1:
        code[HEAD:] = rng.integers(0, 256, code.size - HEAD)
    if kind == 2 and starts.size:
        starts[rng.integers(starts.size)] = rng.choice(wild)
        code[:8].view(np.int64)[0] = rng.choice(wild)
    if kind == 3:
        mask[:] = rng.integers(0, 256, mask.size)
    if kind == 4:
        mask |= np.uint8(1) << rng.integers(0, 8, mask.size).astype(UINT8)
    if kind == 5:
        code[8] = 1  # it has the elements as they are, for which it is too short
    return code


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("offset", [0, 1])
def test_hostile_codes_give_what_the_cpu_provider_gives(name, offset, run, rng) -> None:
    for dtype in HOSTILE[name]:
        tile = 16_384 // dtype.itemsize
        for kind, n in enumerate((101, tile - 1, 2 * tile + 5, tile + 9, 201, tile + 7)):
            decode = get_op(f"{name}Decoder")(to=dtype, shape=(n,))
            actual = decode.layout(Spec((n,), dtype))
            code = encoded(f"{name}Encoder", sparse(rng, n, dtype, share=0.2))
            code = damaged(rng, code.copy(), actual, kind)
            with np.errstate(all="ignore"):
                expected = computed(decode, code)
            argument = run.host(decode(run.place(code, offset)))
            assert argument.tobytes() == expected.tobytes(), (dtype, kind)


@pytest.mark.parametrize("share", [0.002, 0.2, 1.0])
@pytest.mark.parametrize("n", [100, 3000, 8192, 9000, 24_577])
@pytest.mark.parametrize("pair", list(itertools.permutations(FLOATS, 2)), ids=str)
@pytest.mark.parametrize("values", ["Fp10", "Msfp15"])
def test_a_code_of_another_type_decodes_right_or_to_nan(anywhere, rng, values, pair, n, share):
    """Never to other numbers: where tiles are others, and where elements lie as they are."""
    dtype, to = pair
    x = (rng.standard_normal(n) * (rng.random(n) < share)).astype(dtype)
    if n > 3000 and share < 1:
        x[n // 3 :] = 0  # so that tiles are without a value
    encoder, decoder = (get_op(f"GistSparse{values}{way}") for way in ("Encoder", "Decoder"))
    code = computed(encoder(), x)
    code = code[: int(code[:8].view(np.int64)[0])]
    if code[8] and dtype.itemsize == to.itemsize:
        return  # of elements as they are nothing says which type of their width they have
    right = computed(decoder(to=dtype, shape=(n,)), code).astype(np.float64)
    try:
        placed = decoder(to=to, shape=(n,))(anywhere.place(code))
    except ArgumentError:  # no code of that type has as many bytes
        return
    result = anywhere.host(placed)
    assert result.tobytes() == computed(decoder(to=to, shape=(n,)), code).tobytes()
    wide = result.astype(np.float64)
    bound = np.abs(right) * 2.0**-8 + 2.0**-24
    assert (np.isnan(wide) | (np.abs(wide - right) <= bound)).all()

# SPDX-License-Identifier: MIT
"""Attention kernels: every tile, ends of tiles, masks, softcaps, and what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import runs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import References, computed

from cupy_training_ops import flash_attention, flash_attention_grad, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.attention.operators import max_width
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches

attention = References("attention")

H200 = Device(132, (9, 0), 227 * 1024)
TURING = Device(68, (7, 5), 64 * 1024)
SMALLEST = Device(4, (8, 0))
LENGTHS = (1, 15, 16, 17, 33, 63, 64, 65, 130)

drawn = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(run: Any, arrays: list[Any], dtype: Any, **options: Any) -> None:
    """Compare both operators with the reference; arrays: dY, Q, K, V, the mask, lengths."""
    dy, q, k, v, mask, lengths = (
        x.astype(dtype) if x is not None and x.dtype == FLOAT64 else x for x in arrays
    )
    with_mask = mask is not None and mask.dtype != bool
    op = get_op("FlashAttention")(**options)  # a new one, which plans anew
    given_ = q, k, v, mask, lengths
    y, lse = computed(op, *given_)
    placed = [None if x is None else run.place(x) for x in given_]
    for actual, expected in zip(op(*placed), (y, lse), strict=True):
        assert_matches(run.host(actual), expected)
    op = get_op("FlashAttentionGrad")(mask_gradient=with_mask, **options)
    expected = computed(op, dy, q, k, v, y, lse, mask, lengths)
    of_forward = map(run.place, (y, lse))
    actual = op(run.place(dy), *placed[:3], *of_forward, *placed[3:])
    for one, other in zip(actual, expected, strict=True):
        assert one is other is None or assert_matches(run.host(one), other) is None


def normal(rng: np.random.Generator, extents: tuple[int, ...]) -> list[Any]:
    """dY, Q, K, V of (batch, heads, kv_heads, queries, keys, width, v_width)."""
    batch, heads, kv_heads, queries, keys, width, v_width = extents
    shapes = (heads, queries, v_width), (heads, queries, width)
    shapes += (kv_heads, keys, width), (kv_heads, keys, v_width)
    return [rng.standard_normal((batch, *shape)) for shape in shapes]


def each_device() -> Iterator[Any]:
    """A type and a GPU with much or little shared memory, or without tensor cores."""
    for dtype in FLOATS:
        for name, device in (("large", runs.DEVICE), ("small", SMALLEST), ("old", TURING)):
            is_default = name == "large" and dtype == BFLOAT16
            marks = () if is_default else pytest.mark.thorough
            yield pytest.param(dtype, device, marks=marks, id=f"{dtype_name(dtype)}-{name}")


@pytest.mark.parametrize(("dtype", "device"), list(each_device()))
def test_any_lengths(run, rng, monkeypatch, dtype, device) -> None:
    """In the tiles of every GPU."""
    width = 16
    if not run.on_gpu:
        monkeypatch.setattr(runs, "DEVICE", device)
        width = max_width(dtype) if device is SMALLEST else 16

    @drawn
    @given(
        queries=st.sampled_from(LENGTHS),
        keys=st.sampled_from(LENGTHS),
        is_causal=st.booleans(),
        softcap=st.sampled_from([0.0, 0.0, 2.0]),
        mask=st.sampled_from(["", "", "bool", "added"]),
        has_lengths=st.booleans(),
    )
    def compare(queries, keys, is_causal, softcap, mask, has_lengths) -> None:
        arrays = normal(rng, (2, 4, 2, queries, keys, width, width))
        mask = rng.standard_normal((2, 1, queries, keys)) if mask == "added" else mask
        mask = rng.random((4, queries, keys)) < 0.7 if isinstance(mask, str) and mask else mask
        lengths = rng.integers(0, keys + 2, 2) if has_lengths else None
        arrays += [mask if isinstance(mask, np.ndarray) else None, lengths]
        with launch_log() as log:
            check(run, arrays, dtype, is_causal=is_causal, softcap=softcap)
        by_fragments = dtype.itemsize == 2 and device is not TURING
        if not run.on_gpu:
            assert {step.slots["FRAGMENTS"] for step in log} == {str(int(by_fragments))}
            assert {step.slots["WARPS"] for step in log} == {"2" if device is SMALLEST else "4"}

    compare()


@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths_beyond_all_extents(run, rng, is_causal) -> None:
    arrays = [*normal(rng, (4, 2, 2, 9, 9, 8, 8)), None, np.array([2**63 - 1, 2**32, -1, -(2**63)])]
    check(run, arrays, BFLOAT16, is_causal=is_causal)


@pytest.mark.parametrize(
    "dtype", [pytest.param(FLOAT32, marks=pytest.mark.thorough), BFLOAT16], ids=dtype_name
)
def test_large_scores(run, rng, dtype) -> None:
    """The largest score of a row comes last, or first: sums are made smaller, or added nothing.

    Scores are exact, as eighths times 32nds: rounded, those up to 25 would move weights by 1e-5.
    """
    dy, q, k, v = normal(rng, (1, 2, 2, 40, 150, 32, 32))
    q[:] = np.rint(np.abs(q) * 8) / 8
    sizes = np.rint(np.linspace(0.1, 4, 150) * 32) / 32
    k[:] = np.sign(k.mean(-1, keepdims=True)) * sizes[:, None] * np.ones(32)
    k[:, 1] = k[:, 1, ::-1]
    check(run, [dy, q, k, v, None, None], dtype, scale=0.25)


def test_nan_stays_in_its_rows(run, rng) -> None:
    q, k, v = (x.astype(BFLOAT16) for x in normal(rng, (1, 1, 1, 70, 70, 8, 8))[1:])
    q[0, 0, 40, 3] = np.nan
    k[0, 0, 60, 2] = np.nan
    y, lse = (run.host(x) for x in flash_attention(*map(run.place, (q, k, v)), is_causal=True))
    bad = np.array([i == 40 or i >= 60 for i in range(70)])
    assert (np.isnan(y[0, 0]).all(-1) == bad).all()
    assert (np.isnan(lse[0, 0]) == bad).all()
    assert not np.isnan(y[0, 0, ~bad]).any()


@pytest.mark.parametrize("wanted", [("dQ",), ("dK",), ("dV", "dQ"), ("dS",), ("dK", "dV")])
def test_only_what_is_asked_for(run, rng, wanted) -> None:
    arrays = [x.astype(BFLOAT16) for x in normal(rng, (1, 2, 2, 20, 30, 8, 8))]
    mask = rng.standard_normal((20, 30)).astype(BFLOAT16)
    given_ = (*arrays, *attention.flash_attention(*arrays[1:], mask), mask)
    op = get_op("FlashAttentionGrad")(mask_gradient=True)
    whole = op(*map(run.place, given_))
    some = op(*map(run.place, given_), outputs=wanted)
    for name, one, other in zip(("dQ", "dK", "dV", "dS"), some, whole, strict=True):
        assert (one is None) == (name not in wanted)
        assert one is None or (run.host(one) == run.host(other)).all()


def test_y_alone_is_the_same(run, rng) -> None:
    arrays = [run.place(x.astype(BFLOAT16)) for x in normal(rng, (1, 2, 2, 20, 30, 8, 8))[1:]]
    y, lse = get_op("FlashAttention")()(*arrays, outputs=("Y",))
    assert lse is None
    assert (run.host(y) == run.host(flash_attention(*arrays)[0])).all()


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0)])
def test_what_has_no_rows(run, rng, queries, keys) -> None:
    arrays = [run.place(x.astype(BFLOAT16)) for x in normal(rng, (2, 2, 1, queries, keys, 8, 8))]
    y, lse = flash_attention(*arrays[1:])
    assert not run.host(y).any()
    assert (run.host(lse) == -np.inf).all()
    gradients = flash_attention_grad(*arrays, y, lse)
    for actual, x in zip(gradients, arrays[1:], strict=False):
        assert actual.shape == x.shape
        assert not run.host(actual).any()


def fixed(run) -> list[bytes]:
    rng = np.random.default_rng(3)
    arrays = [run.place(x.astype(BFLOAT16)) for x in normal(rng, (1, 4, 2, 70, 130, 32, 32))]
    y, lse = flash_attention(*arrays[1:])
    results = (y, lse, *flash_attention_grad(*arrays, y, lse)[:3])
    return [run.host(x).tobytes() for x in results]


def test_the_order_of_threads_changes_no_bit(in_every_order) -> None:
    first, *others = in_every_order(fixed)
    assert all(other == first for other in others)


# ---- plans ---------------------------------------------------------------------------------------


def planned(device: Device, dtype: Any, width: int, aligned: bool = True) -> list[Any]:
    """The launches of Y and of all gradients, of 2 x 16 heads and 2,048 rows."""
    rows = Spec((2, 16, 2048, width), dtype, aligned)
    numbers = Spec((2, 16, 2048), FLOAT64 if dtype == FLOAT64 else FLOAT32)
    forward = get_op("FlashAttention")().plan(device, *[rows] * 3, None, None, rows, numbers)
    of_gradient = (*[rows] * 5, numbers, None, None, *[rows] * 3, None)
    gradient = get_op("FlashAttentionGrad")().plan(device, *of_gradient)
    assert forward.scratch_nbytes == 0
    assert gradient.scratch_nbytes == 2 * 16 * 2048 * numbers.dtype.itemsize  # no scores
    return [*forward.steps, *gradient.steps]


@pytest.mark.parametrize(
    ("device", "dtype", "width", "expected"),
    [
        (H200, BFLOAT16, 64, [16, 32, 32]),
        (H200, FLOAT16, 128, [16, 32, 32]),
        (H200, FLOAT32, 128, [32, 32, 32]),
        (TURING, BFLOAT16, 64, [32, 32, 32]),
        (Device(68, (8, 0), 64 * 1024), BFLOAT16, 128, [64, 64, 64]),
        (SMALLEST, FLOAT64, 64, [64, 64, 64]),
        (Device(188, (12, 0), 99 * 1024), BFLOAT16, 128, [32, 32, 32]),
    ],
)
def test_blocks_of_a_head(device, dtype, width, expected) -> None:
    """As many as rows of tiles that fit; all launches are of one module."""
    launches = planned(device, dtype, width)
    assert [step.config.grid[0] // 32 for step in launches] == expected
    assert all(step.config.shared_nbytes <= device.max_shared_nbytes for step in launches)
    assert len({tuple(step.slots.items()) for step in launches}) == 1


def test_vectors_need_whole_rows() -> None:
    aligned = [
        planned(H200, dtype, width, aligned)[0].slots["ALIGNED"]
        for dtype, width, aligned in (
            (BFLOAT16, 40, True),
            (BFLOAT16, 36, True),
            (FLOAT32, 36, True),
            (BFLOAT16, 40, False),
        )
    ]
    assert aligned == ["1", "0", "1", "0"]


def test_nothing_is_launched_for_nothing(run) -> None:
    x = run.place(np.ones((0, 2, 3, 4), FLOAT32))
    with launch_log() as log:
        assert flash_attention(x, x, x)[0].shape == x.shape
    assert not log

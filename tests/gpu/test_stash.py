# SPDX-License-Identifier: MIT
"""Stashes of CuPy's arrays on a GPU: streams, memory, graphs and bits."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ProviderError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's, and of ours where all is small
]
SHAPE = (257, 4099)
BUSY = 20_000_000  # cycles of a stream that is kept busy: 10 ms


@pytest.fixture
def stream():
    """A stream of CuPy's that is current."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as actual:
        yield actual
        actual.synchronize()


def drawn(rng, n=6):
    """Activations, half of them zeros, of several sizes."""
    return [
        np.maximum(rng.standard_normal((SHAPE[0] + i, SHAPE[1])), 0).astype(np.float32)
        for i in range(n)
    ]


def expected(x, policy):
    codec = {"lossless": "sparse", "default": "msfp15_signed", "small": "sparse_fp10"}[policy]
    return cto.compress(x, codec).decompress()


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("policy", ["lossless", "default", "small"])
def test_arrays_come_back_though_their_memory_is_used_again(rng, policy) -> None:
    import cupy

    arrays = drawn(rng)
    wanted = [expected(x, policy) for x in arrays]
    with cto.ActivationStash(policy) as stash:
        for _ in range(5):
            for i, x in enumerate(arrays):
                stash.put(str(i), cupy.asarray(x))
                for _ in range(3):  # in the memory of what was put
                    cupy.empty(x.shape, x.dtype).fill(cupy.nan)
            for i in reversed(range(len(arrays))):
                y = stash.get(str(i))
                cupy.empty(y.shape, y.dtype).fill(cupy.nan)
                assert y.get().tobytes() == wanted[i].tobytes()


def test_put_on_one_stream_and_get_on_another(rng) -> None:
    import cupy

    arrays = drawn(rng)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    with cto.ActivationStash("default") as stash:
        for i, x in enumerate(arrays):
            with streams[0]:
                stash.put(str(i), cupy.asarray(x))
        for i in reversed(range(len(arrays))):
            with streams[1]:
                y = stash.get(str(i))
                assert y.get().tobytes() == expected(arrays[i], "default").tobytes()


def chain(xp, x, depth, stash=None):
    """Layers of ReLU and a scale, and the gradient of x; layers' outputs are put somewhere."""
    kept = {}
    put = kept.__setitem__ if stash is None else stash.put
    for i in range(depth):
        x = cto.relu_grad(cto.scale(x, 1.25), x)
        put(str(i), x)
    slope = xp.ones_like(x)
    del x
    for i in reversed(range(depth)):
        y = kept.pop(str(i)) if stash is None else stash.get(str(i))
        slope = cto.relu_grad(slope, y) * y
    return slope


@pytest.mark.usefixtures("stream")
def test_lossless_training_is_the_same_bits(rng) -> None:
    import cupy

    x = cupy.asarray(rng.standard_normal(SHAPE).astype(np.float32))
    plain = chain(cupy, x, 5)
    with cto.ActivationStash("lossless") as stash:
        kept = chain(cupy, x, 5, stash)
    assert plain.get().tobytes() == kept.get().tobytes()
    assert stash.report()["after"] < 0.7 * stash.report()["before"]


@pytest.mark.usefixtures("stream")
def test_memory_goes_back_as_soon_as_it_is_safe() -> None:
    """Without a wait of the host: it is far ahead of the GPU, and the pool stays small."""
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    n, depth = 1 << 24, 24
    before, most = pool.used_bytes(), 0
    with cto.ActivationStash("default") as stash:
        x = cupy.ones(n, np.float32)
        for i in range(depth):
            x = x * 1.01
            stash.put(str(i), x)
            most = max(most, pool.used_bytes() - before)
        del x
        for i in reversed(range(depth)):
            y = stash.get(str(i))
            most = max(most, pool.used_bytes() - before)
            del y
    plain = depth * 4 * n
    assert most < 0.45 * plain  # a quarter in codes, and three or four arrays
    assert pool.total_bytes() < 0.6 * plain
    assert stash.report()["peak"] <= plain / 4 + 2 * 4 * n


def test_a_step_is_captured(rng, stream) -> None:
    import cupy

    x = cupy.asarray(np.abs(rng.standard_normal(SHAPE)).astype(np.float32))
    out, twice, result = (cupy.empty_like(x) for _ in range(3))
    stash = cto.ActivationStash("default", keep_buffers=True)

    def step():
        with stash:
            cto.scale(x, 2.0, out=twice)
            stash.put("twice", twice)
            stash.put("x", x)
            cto.relu_grad(stash.get("x", out=out), out, out=result)
            cto.scaled_sum(
                result, stash.get("twice", out=out), scale_0=1.0, scale_1=1.0, out=result
            )

    step()
    eager = result.get()
    stream.begin_capture()
    try:
        step()
    finally:
        graph = stream.end_capture()
    for _ in range(2):
        result.fill(0)
        graph.launch(stream)
        assert result.get().tobytes() == eager.tobytes()


@pytest.mark.parametrize(
    ("policy", "keep", "message"),
    [
        ("default", False, "needs memory that exists already for the codes of 'x'"),
        ("small", True, "'sparse_fp10' cannot be captured"),
        ("default", True, "a capture needs `out` for 'x'"),
    ],
)
def test_what_cannot_be_captured_is_refused(stream, policy, keep, message) -> None:
    import cupy

    x, stash = cupy.ones(SHAPE, np.float32), cto.ActivationStash(policy, keep_buffers=keep)

    def step():
        with stash:
            stash.put("x", x)
            stash.get("x")

    step()
    stream.begin_capture()
    try:
        with pytest.raises(ProviderError, match=message):
            step()
    finally:
        stream.end_capture()

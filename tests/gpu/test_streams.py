# SPDX-License-Identifier: MIT
"""Streams, threads, devices and repeated runs."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import ranks
from probe.probe import ProbeSum
from runs import Run

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.call.backends import to_host
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import all_samples, flat, sampled_operators

pytestmark = pytest.mark.gpu


def test_two_streams_have_scratch_memory_of_their_own(rng) -> None:
    import cupy

    op = ProbeSum()
    arrays = [cupy.asarray(rng.integers(-8, 8, 400_000 + i).astype(np.float32)) for i in range(2)]
    outs = [cupy.zeros(1, np.float32) for _ in arrays]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in arrays]
    cupy.cuda.Device().synchronize()
    for _ in range(50):
        for x, y, stream in zip(arrays, outs, streams, strict=True):
            with stream:
                op(x, out=y)
    for x, y, stream in zip(arrays, outs, streams, strict=True):
        stream.synchronize()
        assert float(y[0]) == float(x.get().sum())


def test_two_threads_share_an_operator(rng) -> None:
    import cupy

    op = get_op("GistPackMsfp15Encoder")()
    values = [rng.standard_normal(100_000 + 8 * i).astype(np.float32) for i in range(4)]
    results = [None] * len(values)

    def work(i: int) -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.asarray(values[i])
            for _ in range(20):
                results[i] = op(x)
            stream.synchronize()

    ranks.results(ranks.gathered([functools.partial(work, i) for i in range(len(values))], 60))
    for value, result in zip(values, results, strict=True):
        assert_matches(result.get(), op(value), 0)


@pytest.mark.parametrize("name", sampled_operators())
def test_two_runs_give_the_same_bits(name: str, rng) -> None:
    sample = next(s for s in all_samples()[name] if s.label.endswith("large"))
    op = get_op(name)(**sample.attributes)
    values = sample.make(rng)
    first, second = (flat(op(*Run("cuda", 0).place_inputs(op, values))) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        if one is None or other is None:
            assert one is other is None
        else:  # what is behind a code in its memory is nobody's
            bits = [sample.comparable(to_host(each)).tobytes() for each in (one, other)]
            assert bits[0] == bits[1]


@pytest.mark.multi_gpu
def test_a_second_device_has_its_own_kernels(rng) -> None:
    import cupy

    op = get_op("GistPack8Encoder")()
    value = rng.standard_normal(5000).astype(np.float32)
    for device in (0, 1, 0):
        with cupy.cuda.Device(device):
            x = cupy.asarray(value)
        with cupy.cuda.Device(1 - device):  # the arrays' device counts, not the current one
            result = op(x)
        assert result.device.id == device
        assert_matches(result.get(), op(value), 0)


@pytest.mark.multi_gpu
def test_arrays_on_two_devices_are_refused() -> None:
    import cupy

    with cupy.cuda.Device(0):
        x = cupy.ones(100, np.float32)
    with cupy.cuda.Device(1):
        out = cupy.empty(100, np.float16)
    with pytest.raises(
        ArgumentError, match=r"X is on cuda device 0, out \(Y\) is on cuda device 1"
    ):
        get_op("GistPack16Encoder")()(x, out=out)


def test_host_and_device_arrays_together_are_refused() -> None:
    import cupy

    with pytest.raises(ArgumentError, match=r"X is on cuda device 0, out \(Y\) is on the host"):
        get_op("GistPack16Encoder")()(cupy.ones(4, np.float32), out=np.empty(4, np.float16))


@pytest.fixture
def used():
    """A stream that `use()` made current: CuPy's own context would forget it."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    yield stream
    cupy.cuda.Stream.null.use()


def stashed() -> None:
    import cupy

    with cto.ActivationStash("default") as stash:
        stash.put("y", cupy.ones((256, 1024), np.float32))
        stash.get("y")


def given_tensors() -> None:
    """To an operator that takes them as CuPy's arrays."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    with cto.ProcessGroup(0, 1) as group:
        cto.nccl_all_reduce([torch.ones(300, device="cuda")], group=group)


def beside() -> None:
    from cupy_training_ops.device import graphs

    with graphs.SideStream().beside():
        pass


@pytest.mark.parametrize("call", [beside, given_tensors, stashed])
def test_a_stream_that_is_in_use_stays_current(call, used) -> None:
    import cupy

    call()
    assert cupy.cuda.get_current_stream().ptr == used.ptr

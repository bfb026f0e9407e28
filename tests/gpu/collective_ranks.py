# SPDX-License-Identifier: MIT
"""A rank on a GPU of its own: what is asked for by name; prints what it found, or what it was told.

Ends with status 0, with 3 where the group told it of a fault, 4 where ranks disagree.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import collective_faults as faults
import cupy
import numpy as np
from collective_cases import check_all, compare, sums
from optimizers.sharded_training import SHAPES, RankTraining, by_means
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.optimizers import parts

# Of parameters, gradients, copies and moments.
TYPES = [(np.float32, np.float32, np.float16, "bfloat16"), (np.float32, BFLOAT16, BFLOAT16, None)]


def place(arrays):
    return [cupy.asarray(array) for array in arrays]


def host(arrays):
    return [array.get() for array in arrays]


def operators(group) -> None:
    """Every operator for every type, on the default stream and on another."""
    print(check_all(group, place, host), "checks")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        print(check_all(group, place, host), "checks on a stream")


def lists(group) -> None:
    """1, 3 and 500 arrays, of 0, 1 and more elements, pieces of one array among them."""
    for n in (1, 3, 500):
        sizes = [(i * 37) % 1009 if i % 5 else i % 2 for i in range(n)]
        made = [[np.full(size, rank * 3 + i % 7, np.float32) for i, size in enumerate(sizes)]
                for rank in range(group.size)]  # fmt: skip
        given = place(made[group.rank])
        whole = cupy.zeros(sum(sizes) + n, np.float32)
        ends = np.cumsum([size + 1 for size in sizes])
        pieces = [whole[end - 1 - size : end - 1] for end, size in zip(ends, sizes, strict=True)]
        for _ in range(2):
            cto.nccl_all_reduce(given, group=group, out=tuple(pieces))
        compare(host(pieces), sums(made), np.float32)
        assert not whole[ends - 1].any()  # what lies between stays
        cto.nccl_all_reduce(pieces, group=group)
        compare(host(pieces), [group.size * x for x in sums(made)], np.float32)
    print("lists")


def sharded(group) -> None:
    """AdamW whose moments are divided, beside one by the means; what buckets make is the same."""
    run = SimpleNamespace(place=cupy.asarray)
    shapes = [*SHAPES, (1000, 513), (70_001,)]
    for types in TYPES:
        expected = by_means(group.size, 5, types, run, shapes, without=(1, 3))
        for parts.MIN_TURN in (1, 2**26):  # parameters travel in some turns, or at once
            training = RankTraining(group, 5, types, run, shapes)
            training.steps(2)
            training.steps(2, without=(1, 3))
            assert_same(training.results(), expected.results())
    plain = (np.float32, np.float32, None, None)
    clipped = RankTraining(group, 6, plain, run, shapes)
    clipped.steps(4, max_norm=1.0)
    expected = by_means(group.size, 6, plain, run, shapes, max_norm=1.0)
    for array, other in zip(clipped.parameters, expected.parameters, strict=True):
        assert bool((abs(array - other) <= 1e-6 * abs(other) + 1e-7).all())
    for is_whole in (False, True):
        in_buckets(group, run, shapes, is_whole)
    print("sharded")


def captured_steps(group) -> None:
    """Replayed steps whose parameters travel beside the stream have the bits of made ones."""
    parts.MIN_TURN = 1
    run, shapes = SimpleNamespace(place=cupy.asarray), [*SHAPES, (1000, 513), (70_001,)]
    made, replayed = (RankTraining(group, 8, TYPES[0], run, shapes) for _ in "ab")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gradients, own = made.gradients(0), made.gradients(0)
        for _ in range(4):
            made.optimizer.step(gradients)
        replayed.optimizer.step(own)
        stream.begin_capture()
        replayed.optimizer.step(own)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    assert_same(replayed.results(), made.results())
    print("captured steps")


def in_buckets(group, run, shapes, is_whole) -> None:
    """The same bits by gradients that become means in buckets first."""
    training = RankTraining(group, 7, TYPES[0], run, shapes)
    expected = by_means(group.size, 7, TYPES[0], run, shapes)
    if is_whole:
        training.optimizer = cto.AdamW(
            training.parameters, 0.1, low_precision=training.copies, moment_dtype=TYPES[0][3]
        )
    optimizer = None if is_whole else training.optimizer
    buckets = cto.GradientBuckets(training.parameters, group, megabytes=0.5, optimizer=optimizer)
    for i in range(4):
        gradients = training.gradients(i)
        for place in np.random.default_rng((i, group.rank)).permutation(len(shapes)):
            buckets.ready(int(place), gradients[place])
        training.optimizer.step(buckets.wait())
    assert_same(training.results(), expected.results())


def tensors(group) -> None:
    """Gradients that autograd gives to buckets, in memory that is kept or not; one is None."""
    import torch

    device = torch.device("cuda", group.device or cupy.cuda.runtime.getDevice())
    torch.cuda.set_device(device)
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(257, 257, device=device) for _ in range(4)))
    unused = torch.nn.Parameter(torch.zeros(5, device=device))
    parameters = [*model.parameters(), unused]
    xs = [torch.randn(31, 257, device=device) for _ in range(group.size)]
    each = [torch.autograd.grad(model(x).square().sum(), parameters[:-1]) for x in xs]
    expected = [torch.stack(actual).mean(0) for actual in zip(*each, strict=True)]
    buckets = cto.torch.GradientBuckets(parameters, group, megabytes=0.6)
    for is_kept in (False, True, True):
        for p in parameters:
            p.grad = torch.zeros_like(p) if is_kept and p is not unused else None
        model(xs[group.rank]).square().sum().backward()
        actual = buckets.wait()
        assert actual[-1] is None
        for p, mean, wanted in zip(parameters, actual, expected, strict=False):
            assert mean is p.grad
            torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-4)
    buckets.close()
    of_tensors(group, parameters, lambda: model(xs[group.rank]).square().sum().backward())
    print("tensors")


def of_tensors(group, parameters, backward) -> None:
    """Divided moments of PyTorch's parameters, by gradients of new memory: bits of a whole step."""
    wholes = [p.detach().clone() for p in parameters]
    whole, divided = cto.AdamW(wholes, 0.01), cto.AdamW(parameters, 0.01, group=group)
    buckets = cto.torch.GradientBuckets(parameters, group)
    for _ in range(3):
        for p in parameters:
            p.grad = None
        backward()
        means = buckets.wait()
        whole.step([None if g is None else g.clone() for g in means])
        divided.step([None if g is None else g.clone() for g in means])
    for p, other in zip(parameters, wholes, strict=True):
        assert bool((p == other).all())


def large(group) -> None:
    """More than 2^31 bytes, and more than 2^31 elements."""
    for dtype, n in ((np.float32, 2**29 + 5), (np.uint8, 2**31 + 3)):
        x = cupy.full(n, group.rank + 1, dtype)
        x[-1] = 7
        total = group.size * (group.size + 1) // 2
        cto.nccl_all_reduce([x], group=group)
        assert int(x[-1]) == 7 * group.size
        assert bool((x[:-1] == total).all())
        if dtype == np.float32:
            x[...] = group.rank + 1
            y = cto.adasum_all_reduce([x], group=group)[0]
            mean = (group.size + 1) / 2  # which Adasum is of arrays of one direction
            assert bool(cupy.allclose(y, mean)), y[:3]
        del x
    if group.rank == 0:
        cto.send(True, 1, [cupy.full(2**31 + 3, 5, np.int8)], group=group, tag=1, element_types=[3])
    if group.rank == 1:
        _, (x,) = cto.recv(True, 0, group=group, tag=1, element_types=[3])
        assert x.size == 2**31 + 3
        assert bool((x == 5).all())
    cupy.cuda.Device().synchronize()
    print("large")


def capture(group) -> None:
    """An all-reduce, and messages, replayed."""
    x, y = cupy.ones(1000, np.float32), cupy.zeros(1000, np.float32)
    op = cto.NcclAllReduce(group=group)
    keywords = {"group": group, "tag": 2, "element_types": [1]}

    def calls():
        op([x])
        if group.rank == 0:
            cto.send(True, 1, [x], **keywords)
        if group.rank == 1:
            cto.recv(True, 0, **keywords, out=(None, (y,)))

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        calls()
        stream.begin_capture()
        calls()
        graph = stream.end_capture()
        x[...] = 1
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    assert bool((x == group.size**3).all()), x[:3]
    if group.rank == 1:
        assert bool((y == group.size**3).all()), y[:3]
    cto.nccl_all_reduce([x], group=group)  # and calls go on
    assert bool((x == group.size**4).all())
    print("captured")


def first_under_capture(group) -> None:
    """Refused, since NCCL cannot connect there."""
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.ones(10, np.float32)
    with stream:
        stream.begin_capture()
        try:
            cto.nccl_all_reduce([x], group=group)
        except cto.ProviderError as error:
            print(error)
        finally:
            stream.end_capture()
    cto.nccl_all_reduce([x], group=group)
    assert bool((x == group.size).all())


def disagree(group) -> None:
    cto.nccl_all_reduce([cupy.ones(5 + group.rank)], group=group)


def tags(group) -> None:
    """A tag that differs, at the first message of two ranks."""
    if group.rank % 2 == 0:
        cto.send(True, group.rank + 1, [cupy.ones(3)], group=group, tag=1, element_types=[11])
    else:
        cto.recv(True, group.rank - 1, group=group, tag=2, element_types=[11])


def other_device(group) -> None:
    """A group that communicates from one GPU refuses arrays of another."""
    cto.nccl_all_reduce([cupy.ones(3)], group=group)
    with cupy.cuda.Device((group.device + 1) % group.size):
        try:
            cto.nccl_all_reduce([cupy.ones(3)], group=group)
        except cto.ArgumentError as error:
            print(error)


def host_time(group) -> None:
    """Microseconds of host time of a call that was made before, in several forms."""
    x = cupy.ones(256, np.float32)
    many = [cupy.ones(16_384, np.float32) for _ in range(500)]
    op = cto.NcclAllReduce(group=group)
    op([x])
    (communicator,) = group.resources.communicators.values()
    stream = cupy.cuda.get_current_stream()
    binding, each = communicator.made.allReduce, (x.data.ptr, x.data.ptr, 256, 7, 0, stream.ptr)
    calls = {
        "binding": lambda: binding(*each),
        "class": lambda: op([x]),
        "function": lambda: cto.nccl_all_reduce([x], group=group),
        "bound": op.bound([x]),
        "megatron_g": lambda: cto.megatron_g(x, group=group),
        "500 arrays": lambda: op(many),
        "500 arrays, bound": op.bound(many),
    }
    for name, call in calls.items():
        print(f"{name}: {best_time(call, 20 if '500' in name else 100) * 1e6:.1f} us", flush=True)


def best_time(call, n: int) -> float:
    """Seconds of the host for a call, the best of several rounds."""
    best = 1e9
    for _ in range(20):
        cupy.cuda.Device().synchronize()
        started = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - started) / n)
    cupy.cuda.Device().synchronize()
    return best


PARTS = {
    part.__name__: part
    for part in (
        operators, lists, sharded, captured_steps, tensors, large, capture, first_under_capture,
        faults.killed, faults.stopped, faults.interrupted, faults.late, faults.raises, disagree,
        tags, other_device, host_time,
    )
}  # fmt: skip

started = time.monotonic()
try:
    cupy.cuda.Device(int(os.environ["LOCAL_RANK"]) % cupy.cuda.runtime.getDeviceCount()).use()
    with cto.ProcessGroup() as ranks:
        for name in sys.argv[1:]:
            PARTS[name](ranks)
except cto.GroupError as error:
    print(f"{error} [{time.monotonic() - started:.1f} s]")
    sys.exit(3)
except cto.ArgumentError as error:
    print(error)
    sys.exit(4)

# SPDX-License-Identifier: MIT
"""PyTorch's saved tensors as codes on a GPU: streams, memory, graphs, bits, and no copies."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import cupy_training_ops as cto

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's, and of ours where all is small
]
SHAPE = (257, 4099)
BUSY = 20_000_000  # cycles of a stream that is kept busy: 10 ms


@pytest.fixture
def torch():
    actual = pytest.importorskip("torch", reason="PyTorch is in no extra")
    if not actual.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    return actual


def model_and_data(torch, layout=None):
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, 2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 32 * 32, 64), nn.GELU(), nn.Linear(64, 10)),
    ).cuda()
    x = torch.randn(64, 3, 64, 64, device="cuda")
    if layout is not None:
        model, x = model.to(memory_format=layout), x.to(memory_format=layout)
    return model, x, torch.randint(10, (64,), device="cuda")


def step(torch, model, x, target, policy, autocast=False):
    """The gradients of a step, and the report."""
    import contextlib

    kept = cto.torch.compressed_activations(policy) if policy else contextlib.nullcontext()
    with kept, torch.autocast("cuda", torch.bfloat16, autocast):
        loss = torch.nn.functional.cross_entropy(model(x), target)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return gradients, kept.report() if policy else None


@pytest.fixture
def deterministic(torch, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_lossless_gradients_are_the_same_bits(torch, autocast, layout) -> None:
    model, x, target = model_and_data(torch, getattr(torch, layout))
    plain, _ = step(torch, model, x, target, None, autocast)
    again, _ = step(torch, model, x, target, None, autocast)
    kept, report = step(torch, model, x, target, "lossless", autocast)
    assert all(map(torch.equal, plain, again))
    assert all(map(torch.equal, plain, kept))
    assert report["tensors"] >= 4
    assert report["after"] < report["before"]
    assert report["held"] == 0


def test_default_on_the_gpu_gives_the_hosts_codes(torch) -> None:
    """Bit for bit, through prepared launches, of every dtype and alignment."""
    kept = cto.torch.compressed_activations("plain_msfp15")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        whole = torch.randn(300_001, device="cuda").to(dtype).requires_grad_() * 1
        for x in (whole, whole[1:], whole[:300_000].view(400, 750).t()):
            for _ in range(2):
                actual = kept.unpack(kept.pack(x))
            host = cto.compress(x.t().contiguous().cpu() if x.dim() == 2 else x.cpu(), "msfp15")
            wanted = host.decompress()
            assert torch.equal(actual.cpu(), wanted.t() if x.dim() == 2 else wanted)
            assert actual.stride() == x.stride()


@pytest.mark.usefixtures("deterministic")
def test_streams_are_followed(torch) -> None:
    """On a stream that is late; what is saved there is unpacked there, and on another one."""
    model, x, target = model_and_data(torch)
    plain, _ = step(torch, model, x, target, "default")
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(BUSY)
            kept, _ = step(torch, model, x, target, "default")
        torch.cuda.synchronize()
        for one, other in zip(kept, plain, strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)
    hooks = cto.torch.compressed_activations(lambda *_: "pack16")
    source = torch.randn(1 << 22, device="cuda").half().float().requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        y = source * 2
        saved = hooks.pack(y)
    actual = hooks.unpack(saved)  # on the default stream, which the hooks let wait
    assert torch.equal(actual.cpu(), 2 * source.detach().cpu())


def test_threads(torch) -> None:
    hooks, actual = cto.torch.compressed_activations("lossless"), [None] * 4
    inputs = [torch.randn(1 << 20, device="cuda").requires_grad_() for _ in actual]
    torch.cuda.synchronize()

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                with hooks:
                    total = (torch.relu(inputs[i] * 1) ** 2).sum()
                actual[i] = torch.autograd.grad(total, inputs[i])[0]
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(actual))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, slope in zip(inputs, actual, strict=True):
        assert torch.equal(slope, 2 * torch.relu(x.detach()))
    assert hooks.report()["held"] == 0


def test_a_quarter_is_held_between_forward_and_backward(torch) -> None:
    def held(policy):
        x = torch.randn(1 << 24, device="cuda").requires_grad_()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        hooks = cto.torch.compressed_activations(policy)
        with hooks:
            y = x
            for _ in range(8):
                y = (y * 0.9).sin()
        nbytes = torch.cuda.memory_allocated() - before
        y.sum().backward()
        return nbytes

    assert held("plain_msfp15") < 0.4 * held(lambda *_: None)


def test_a_step_is_captured_with_pytorchs_graph(torch) -> None:
    x = torch.randn(1 << 20, device="cuda").requires_grad_()
    hooks = cto.torch.compressed_activations("default")

    def gradient():
        with hooks:
            total = (torch.relu(x * 1) ** 2).sin().sum()
        return torch.autograd.grad(total, x)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager = gradient()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = gradient()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(replayed, eager)


def drawn_functions(seed):
    """A share of the zoo, as in `tests/zoo`."""
    import random

    from zoo.measured import FUNCTIONS, MODELS, of_function, of_model

    names = sorted(
        [*((of_function, n) for n in FUNCTIONS), *((of_model, n) for n in MODELS)], key=str
    )
    return random.Random(seed).sample(names, 24)


def test_a_drawn_share_of_the_zoo_is_near_plain_training(torch, seed) -> None:
    from zoo.measured import compared

    torch.set_default_device("cuda")
    try:
        for make, name in drawn_functions(seed):
            try:
                step = make(name, 0)
            except RuntimeError:  # a generator of the host
                continue
            actual = compared(step)
            assert actual.is_finite, name
            assert actual.whole <= 0.03, f"{name}: {actual.whole:.2%}"
    finally:
        torch.set_default_device(None)


def layers(torch, n=12, width=2048):
    torch.manual_seed(0)
    parts = [part for _ in range(n) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts).cuda(), torch.randn(4096, width, device="cuda")


def test_scratch_memory_of_a_stream_is_left_clear(torch) -> None:
    """Codes of many shapes on two streams; then the zeros that their kernels share are zeros."""
    from cupy_training_ops.torch import coding

    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    weight = torch.randn(512, 512, device="cuda", requires_grad=True)
    for rows in (64, 300, 5000, 64):
        for stream in streams:
            with torch.cuda.stream(stream), cto.torch.compressed_activations() as kept:
                x = torch.randn(rows, 512, device="cuda", requires_grad=True)
                total = torch.relu(x @ weight).sum()
            total.backward()
            assert kept.report()["tensors"] > 0
    torch.cuda.synchronize()
    rooms = {made.data_ptr(): made for made in coding._SCRATCH_TENSORS}
    assert len({key[1] for key in coding._SCRATCH}) >= 2
    for (_, _, zeros, _), address in coding._SCRATCH.items():
        assert not rooms[address][:zeros].any()


def test_the_host_is_ahead_while_guards_are_read(torch) -> None:
    """A forward pass that fits into the window queues everything without a wait."""
    import time

    model, x = layers(torch, n=4)
    hooks = cto.torch.compressed_activations("default")
    for _ in range(2):
        with hooks:
            model(x).sum().backward()
    torch.cuda.synchronize()
    torch.cuda._sleep(50 * BUSY)
    start = time.perf_counter()
    with hooks:
        total = model(x).sum()
    queued = time.perf_counter() - start
    torch.cuda.synchronize()
    assert queued < 0.5 * (time.perf_counter() - start)
    total.backward()


def test_the_window_bounds_originals(torch, monkeypatch) -> None:
    monkeypatch.setattr("cupy_training_ops.torch.activations._steps", {})  # a first step
    model, x = layers(torch, n=24)
    hooks = cto.torch.compressed_activations("default")
    with hooks:
        total = model(x).sum()
    held = torch.cuda.memory_allocated()
    report = hooks.report()
    assert report["window"] <= 256 << 20
    assert report["tensors"] >= 20
    assert held > 0
    total.backward()


def test_late_failures_give_originals(torch) -> None:
    layer = torch.nn.Linear(1024, 1024).cuda()
    x = torch.randn(4096, 1024, device="cuda").requires_grad_()
    hooks = cto.torch.compressed_activations("default")
    with hooks:
        total = layer(x + 100).sum()
    (actual,) = torch.autograd.grad(total, layer.weight)
    assert torch.equal(actual, torch.autograd.grad(layer(x + 100).sum(), layer.weight)[0])
    assert hooks.report()["failed"] == {"linear tiles": 1}


def test_decisions_are_frozen_under_capture_and_later_failures_counted(torch) -> None:
    layer = torch.nn.Linear(1024, 1024).cuda()
    x = torch.randn(4096, 1024, device="cuda")
    hooks = cto.torch.compressed_activations("default")

    def gradient():
        with hooks:
            total = torch.relu(layer(x.requires_grad_() * 1)).sum()
        return torch.autograd.grad(total, layer.weight)[0]

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradient()
        gradient()
        hooks.report()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, stream=side):
        gradient()
    graph.replay()
    torch.cuda.synchronize()
    assert hooks.report()["failed_later"] == 0
    with torch.no_grad():
        x.add_(1000)
    graph.replay()
    torch.cuda.synchronize()
    assert hooks.report()["failed_later"] >= 1


def copies(torch, function) -> Counter:
    """Kernels and copies of a function, by kind, as CUDA's own tracing has them."""
    from torch.profiler import ProfilerActivity, profile

    function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as actual:
        function()
        torch.cuda.synchronize()
    names = [event.name for event in actual.events() if "CUDA" in str(event.device_type)]
    return Counter(
        next((kind for kind in ("HtoD", "DtoH") if kind in name), "kernels") for name in names
    )


def test_nothing_is_copied_between_host_and_device(torch) -> None:
    import cupy

    model, x, target = model_and_data(torch)
    array = cupy.ones(SHAPE, np.float32)

    def stashed():
        with cto.ActivationStash("default") as stash:
            for i in range(4):
                stash.put(str(i), array)
            for i in reversed(range(4)):
                stash.get(str(i))

    hooked = copies(torch, lambda: step(torch, model, x, target, "default"))
    beside = copies(torch, stashed)
    if not hooked["kernels"]:
        pytest.skip("nothing is traced here")
    assert hooked["HtoD"] == beside["HtoD"] == beside["DtoH"] == 0  # of guards 16 bytes a tensor
    assert beside["kernels"] >= 8


def test_the_digits_learn_from_codes(monkeypatch) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is in the extra `examples`")
    import cupy

    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    monkeypatch.delitem(sys.modules, "train_digits", raising=False)
    import train_digits

    results = {p: train_digits.train(cupy, 1, 60, p) for p in ("lossless", "default", "small")}
    assert results["small"].stash["peak"] < results["default"].stash["peak"]
    assert results["default"].losses[-1] < results["default"].losses[0]

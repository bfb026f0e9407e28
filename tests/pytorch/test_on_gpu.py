# SPDX-License-Identifier: MIT
"""The front door on a GPU: operators, functions, compiled code, captured graphs, memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from cupy_training_ops.torch import functional  # noqa: E402

from .pairs import pairs, with_gradients  # noqa: E402
from .test_functional import CASES, assert_all_close  # noqa: E402
from .test_operators import FORWARDS, OTHERS, forwards, others, overload  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def on_gpu(made, dtype=None):
    """The same tensors there."""

    def moved(*shape, **given):
        x = made(*shape, **given)
        return (
            x.detach()
            .to("cuda", dtype if x.is_floating_point() else None)
            .requires_grad_(x.requires_grad)
        )

    return moved


@pytest.mark.parametrize("case", FORWARDS + OTHERS)
def test_pytorch_takes_it_for_an_operator(leaf, labels, case) -> None:
    given = forwards(leaf, labels) if case in FORWARDS else others(leaf, labels)
    arguments = [
        a.detach().cuda().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in given[case]
    ]
    torch.library.opcheck(overload(case), tuple(arguments))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_pytorchs(leaf, labels, case, dtype) -> None:
    ours, expected, leaves = pairs(on_gpu(leaf, dtype), on_gpu(labels))[case]
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    for _ in range(2):
        actual = with_gradients(ours, leaves)
        assert_all_close(actual, with_gradients(expected, leaves), tolerance)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("case", CASES)
def test_compiled_is_eager(leaf, labels, case, backend) -> None:
    ours, _, leaves = pairs(on_gpu(leaf, torch.float32), on_gpu(labels))[case]
    actual = torch.compile(ours, fullgraph=True, backend=backend, dynamic=False)
    assert_all_close(with_gradients(actual, leaves), with_gradients(ours, leaves), 1e-4)


@pytest.mark.parametrize("way", ["inside", "shifted", "broken", "sliced"])
@pytest.mark.parametrize("classes", [50257, 30522], ids=["GPT-2", "BERT"])
def test_compiled_heads_with_the_loss_in_place(leaf, labels, classes, way) -> None:
    """Inductor pads the rows of their scores."""
    x, w = (on_gpu(leaf, torch.bfloat16)(*shape) for shape in ((4, 128, 64), (classes, 64)))
    target = labels(classes - 57, 4, 128).cuda()

    def function(loss):
        scores, flat = x @ (w / 8).t(), target.flatten()
        if way == "inside":
            return loss(scores.view(-1, classes), flat)
        if way == "shifted":
            return loss(scores[:, :-1].reshape(-1, classes), target[:, 1:].flatten())
        if way == "broken":
            torch._dynamo.graph_break()
            return loss(scores.flatten(0, 1), flat)
        return loss(scores.flatten(0, 1)[:, : classes - 57], flat)

    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False)
    expected = function(lambda *given: torch.nn.functional.cross_entropy(*given).float())
    gradients = torch.autograd.grad(expected, (x, w))
    for _ in range(2):
        loss = compiled(lambda *given: functional.cross_entropy(*given, inplace=True))
        torch.testing.assert_close(loss.float(), expected, atol=0.1, rtol=1e-2)
        for dx, other in zip(torch.autograd.grad(loss, (x, w)), gradients, strict=True):
            assert (dx - other).float().norm() < 2e-2 * other.float().norm()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device(leaf, labels) -> None:
    actual = pairs(on_gpu(leaf, torch.float32), on_gpu(labels))
    dropped = on_gpu(leaf, torch.float32)(64, 64)

    def calls():
        for name, (ours, _, leaves) in actual.items():
            if name != "cross_entropy of one":  # indexes a label
                with_gradients(ours, leaves)
        functional.dropout(dropped).sum().backward()

    calls()
    torch.cuda.set_sync_debug_mode("error")
    try:
        calls()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_each_replay_of_a_graph_draws_anew() -> None:
    x = torch.ones(64, 64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        functional.dropout(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = functional.dropout(x)
    draws = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        draws.append(y.clone())
    assert not torch.equal(*draws)
    assert 0.3 < (draws[0] == 0).double().mean() < 0.7


def test_a_captured_step_is_an_eager_one(leaf, labels) -> None:
    x, w = on_gpu(leaf, torch.float32)(64, 32), on_gpu(leaf, torch.float32)(128, 32)
    target = labels(128, 64).cuda()

    def step():
        y = functional.layer_norm(x, (32,)) @ w.t()
        return torch.autograd.grad(functional.cross_entropy(y, target, inplace=True), w)[0]

    expected = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = step()
    for _ in range(3):
        graph.replay()
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_streams_and_threads_have_scratch_memory_of_their_own(leaf, labels) -> None:
    import threading

    scores, target = on_gpu(leaf, torch.float32)(512, 256).detach(), labels(256, 512).cuda()
    expected = torch.nn.functional.cross_entropy(scores, target)
    failed = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                loss = functional.cross_entropy(scores, target)
                if not torch.allclose(loss, expected, atol=1e-5):
                    failed.append(loss)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.large
@pytest.mark.parametrize("name", ["cross_entropy"])
def test_a_loss_in_place_takes_no_memory_beside_its_scores(name) -> None:
    leaf = torch.randn(8192, 131072, device="cuda", dtype=torch.bfloat16).requires_grad_()
    target = torch.randint(131072, (8192,), device="cuda")
    scores = leaf.clone()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(getattr(functional, name)(scores, target, inplace=True), leaf)
    beside = torch.cuda.max_memory_allocated() - before
    assert beside <= 0.02 * scores.nbytes


@pytest.mark.large
def test_memory_of_a_loss_in_chunks() -> None:
    made = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    hidden, weight = torch.randn(16384, 4096, **made), torch.randn(131072, 4096, **made)
    target = torch.randint(131072, (16384,), device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    functional.linear_cross_entropy(hidden, weight, target).backward()
    beside = torch.cuda.max_memory_allocated() - before - hidden.nbytes - weight.nbytes
    assert beside <= 0.6e9, "cross_entropy"

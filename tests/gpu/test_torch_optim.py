# SPDX-License-Identifier: MIT
"""Optimizers of PyTorch's protocol on a GPU: beside PyTorch's, in graphs, without waiting."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
from torch_processes import largest_difference  # noqa: E402
from torch_training import N_STEPS, Loop, assert_close, net  # noqa: E402

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops.torch import SGD, AdamW, Lamb  # noqa: E402

pytestmark = pytest.mark.gpu
SHAPES = ((33, 7), (5,), (2, 3), (1000,))


@pytest.fixture
def made(seed):
    """Makes normal tensors of these shapes."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return lambda *shapes: [torch.randn(s, generator=generator, device="cuda") for s in shapes]


@pytest.mark.parametrize(
    "kind",
    [{}, {"scales": True, "bad": (3, 77), "max_norm": 0.1, "reloads": True}],
    ids=["plain", "all"],
)
def test_adamw_is_pytorchs(kind, seed) -> None:
    loops = [
        Loop(make, seed, scales="scales" in kind, max_norm=kind.get("max_norm"), device="cuda")
        for make in (AdamW, torch.optim.AdamW)
    ]
    for loop in loops:
        for i in range(N_STEPS):
            loop.step(i in kind.get("bad", ()))
            if i == N_STEPS // 2 and "reloads" in kind:
                loop.reload()
    assert_close(loops[0].model, loops[1].model)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("make", [AdamW, SGD, Lamb])
@pytest.mark.parametrize("n_groups", [1, 2])
def test_a_step_waits_for_nothing(made, make, n_groups) -> None:
    weights = [torch.nn.Parameter(tensor) for tensor in made(*SHAPES)]
    groups = [{"params": weights[i::n_groups]} for i in range(n_groups)]
    optimizer = make(groups, lr=1e-2, max_norm=1.0)
    scale, actual = (torch.tensor([v], device="cuda") for v in (2.0, 0.0))
    mode = torch.cuda.get_sync_debug_mode()
    for i in range(4):
        for p, gradient in zip(weights, made(*SHAPES), strict=True):
            p.grad = gradient
        if i == 2:
            weights[0].grad = None
        optimizer.grad_scale, optimizer.found_inf = scale, actual
        torch.cuda.set_sync_debug_mode("error" if i else mode)
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize("make", [AdamW, Lamb])
def test_a_graph_replays_steps(made, make) -> None:
    """Counts of steps are on the device, and a rate that is written between replays is read."""
    start, gradients = made(*SHAPES), [made(*SHAPES) for _ in range(5)]
    rates = [0.1, 0.03, 0.01, 0.02, 0.05]
    actual = []
    for is_captured in (False, True):
        weights = [torch.nn.Parameter(tensor.clone()) for tensor in start]
        rate = torch.tensor([0.1], device="cuda")
        optimizer = make(weights, lr=rate, capturable=True, max_norm=1.0)
        held = [torch.zeros_like(tensor) for tensor in start]
        for p, gradient in zip(weights, held, strict=True):
            p.grad = gradient
        graph = torch.cuda.CUDAGraph()
        for i, (some, value) in enumerate(zip(gradients, rates, strict=True)):
            for gradient, values in zip(held, some, strict=True):
                gradient.copy_(values)
            rate.fill_(value)
            if not is_captured or i < 2:
                stream = torch.cuda.Stream() if is_captured else torch.cuda.current_stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    optimizer.step()
                torch.cuda.current_stream().wait_stream(stream)
                continue
            if i == 2:
                with torch.cuda.graph(graph):
                    optimizer.step()
            graph.replay()
        actual.append(weights)
        assert [float(s["step"]) for s in optimizer.state_dict()["state"].values()] == [5.0] * 4
    for eager, replayed in zip(*actual, strict=True):
        assert torch.equal(eager, replayed)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
def test_steps_over_tensors_are_those_over_arrays(made, name) -> None:
    """By metadata, and by CuPy's arrays over copies of the same memory."""
    cupy = pytest.importorskip("cupy")
    start = made(*SHAPES)
    weights = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    arrays = [cupy.from_dlpack(tensor.clone()) for tensor in start]
    ours, expected = (getattr(cto, name)(some, 0.1) for some in (weights, arrays))
    for _ in range(4):
        gradients = made(*SHAPES)
        ours.step(gradients, loss_scale=2.0, max_norm=1.0)
        torch.cuda.synchronize()
        expected.step([cupy.from_dlpack(g) for g in gradients], loss_scale=2.0, max_norm=1.0)
    for weight, array in zip(weights, arrays, strict=True):
        assert torch.equal(weight.detach(), torch.from_dlpack(array))


def test_steps_on_two_streams_read_what_is_queued_there(made) -> None:
    """Nothing is synchronised between what makes gradients and the step."""
    weights = [torch.nn.Parameter(tensor) for tensor in made((4096, 64))]
    other = [torch.nn.Parameter(weights[0].detach().clone())]
    for some, stream in ((weights, torch.cuda.current_stream()), (other, torch.cuda.Stream())):
        torch.cuda.synchronize()
        optimizer = AdamW(some, lr=0.1)
        with torch.cuda.stream(stream):
            for i in itertools.count(1):
                torch.cuda._sleep(1_000_000)
                some[0].grad = torch.full((4096, 64), float(i), device="cuda")
                optimizer.step()
                if i == 3:
                    break
        torch.cuda.synchronize()
    assert torch.equal(weights[0], other[0])


def test_many_steps_leave_no_memory_behind(made) -> None:
    weights = [torch.nn.Parameter(tensor) for tensor in made(*SHAPES)]
    optimizer = AdamW(weights, max_norm=1.0)
    held = []
    for i in range(400):
        for p, gradient in zip(weights, made(*SHAPES), strict=True):
            p.grad = gradient
        optimizer.step()
        if i in (100, 399):
            held.append(torch.cuda.memory_allocated())
    assert held[0] == held[1]


def test_a_model_that_moves_is_refused_in_words(seed) -> None:
    """Moments stay where they are, as PyTorch's do."""
    model = net(seed, "cuda")
    optimizer = AdamW(model.parameters())
    for is_moved in (False, True):
        if is_moved:
            model.cpu()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        if is_moved:
            with pytest.raises(cto.OpError, match="AdamW: "):
                optimizer.step()
        else:
            optimizer.step()


@pytest.mark.multi_gpu
def test_sharded_parameters_are_updated_as_whole_ones(tmp_path) -> None:
    assert largest_difference(tmp_path, "cuda") < 1e-6

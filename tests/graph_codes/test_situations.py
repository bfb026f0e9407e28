# SPDX-License-Identifier: MIT
"""Codes in each situation of the table in docs/stash.md: it works, or is refused in words."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import cupy_training_ops as cto  # noqa: E402

from ..torch_processes import largest_difference  # noqa: E402
from .compiled import WIDTH, Layers, backend, errors, normal  # noqa: E402

# Dynamo's are not ours, and ours say that a graph has no codes
pytestmark = pytest.mark.filterwarnings("ignore", "error:activation_codes")
SCRIPT = Path(__file__).parent / "two_ranks.py"
LIMIT = 0.02


def layers(seed, *parts, **named):
    torch.manual_seed(seed)
    return Layers(*parts, **named)


def gradients(model, run, *inputs):
    """Gradients of all parameters after a backward pass for each input."""
    model.zero_grad()
    for x in inputs:
        run(x).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def codes_of(**settings):
    return cto.torch.activation_codes(**{"least": 0} | settings)


def compile_with(codes, model, **settings):
    torch._dynamo.reset()
    return torch.compile(model, backend=backend(codes), **settings)


def assert_near(plain, coded):
    assert 0 < errors(plain, coded)[-1] <= LIMIT


def assert_works(model, codes, *inputs, **settings):
    """Gradients of the compiled model are near those of the model itself."""
    coded = gradients(model, compile_with(codes, model, **settings), *inputs)
    assert_near(gradients(model, model, *inputs), coded)


def n_graphs(codes):
    return len(codes.report()["graphs"])


def test_dynamic_batch_and_length(seed):
    codes = codes_of()
    sizes = (4, 32), (8, 32), (8, 48), (3, 17)
    inputs = [normal(seed, *size, WIDTH) for size in sizes]
    assert_works(layers(seed), codes, *inputs, dynamic=True)
    assert n_graphs(codes) == 1
    assert codes.report()["coded"]["int8"]["tensors"] >= 4


def test_a_dynamic_width_has_no_codes(seed):
    """Tiles of 32 need to know the last dimension."""
    codes = codes_of()

    class Free(nn.Module):
        def forward(self, x):
            return (x.sin() * x).square().sum()

    x = normal(seed, 8, WIDTH).requires_grad_()
    run = compile_with(codes, Free(), dynamic=True)
    (coded,) = torch.autograd.grad(run(x), x)
    (plain,) = torch.autograd.grad(Free()(x), x)
    assert torch.allclose(plain, coded, rtol=1e-4)
    assert "int8" not in codes.report()["coded"]


def test_another_shape_compiles_anew(seed):
    codes = codes_of()
    inputs = [normal(seed, n, WIDTH) for n in (16, 32)]
    assert_works(layers(seed), codes, *inputs, dynamic=False)
    assert n_graphs(codes) == 2


def test_autocast(seed):
    model, codes, x = layers(seed), codes_of(), normal(seed, 128, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        plain = gradients(model, compile_with(None, model), x)
        coded = gradients(model, compile_with(codes, model), x)
    assert_near(plain, coded)
    dtypes = {line["dtype"] for line in codes.report()["graphs"][0] if line["as"] == "int8"}
    assert "bfloat16" in dtypes


def test_fullgraph(seed):
    codes = codes_of()
    assert_works(layers(seed), codes, normal(seed, 128, WIDTH), fullgraph=True)
    assert n_graphs(codes) == 1


def test_graph_breaks(seed):
    codes = codes_of()

    def stop(x):
        torch._dynamo.graph_break()
        return x

    assert_works(layers(seed, stop), codes, normal(seed, 128, WIDTH))
    assert n_graphs(codes) == 2


def test_gradient_accumulation(seed):
    codes = codes_of()
    assert_works(layers(seed), codes, *(normal(seed + i, 64, WIDTH) for i in range(3)))
    assert n_graphs(codes) == 1


def test_backward_passes_after_all_forward_passes(seed):
    model, inputs = layers(seed), [normal(seed + i, 64, WIDTH) for i in range(3)]
    plain = gradients(model, model, *inputs)
    model.zero_grad()
    run = compile_with(codes_of(), model)
    for loss in [run(x) for x in inputs]:
        loss.backward()
    assert_near(plain, {name: p.grad for name, p in model.named_parameters()})


def test_two_backward_passes_over_one_graph(seed):
    model, x = layers(seed), normal(seed, 64, WIDTH)
    plain = gradients(model, model, x, x)
    model.zero_grad()
    with torch._functorch.config.patch(donated_buffer=False):
        loss = compile_with(codes_of(), model)(x)
        loss.backward(retain_graph=True)
        loss.backward()
    assert_near(plain, {name: p.grad for name, p in model.named_parameters()})


def test_checkpointing_inside(seed):
    def again(block, x):
        return checkpoint(block, x, use_reentrant=False)

    codes = codes_of()
    assert_works(layers(seed, wrap=again), codes, normal(seed, 128, WIDTH), fullgraph=True)
    names = [line["name"] for line in codes.report()["graphs"][0]]
    plain = codes_of()
    assert_works(layers(seed), plain, normal(seed, 128, WIDTH))
    assert len(names) < len(plain.report()["graphs"][0])


def test_a_parameter_as_an_input(seed):
    """Values computed from it have no codes, and count: only parameters are there anyway."""
    model, x, codes = layers(seed), nn.Parameter(normal(seed, 32, WIDTH)), codes_of()
    gradients(model, compile_with(codes, model), x)
    report = codes.report()
    assert not report["coded"]
    stays = report["as_it_is"]["computed from parameters"]
    assert report["before"] == report["after"] == stays["after"] >= 2 * 32 * WIDTH * 4

    assert_works(model, codes := codes_of(), x.view_as(x))
    assert codes.report()["coded"]["int8"]


def test_modes_go_with_codes():
    codes = cto.torch.activation_codes(mode="reduce-overhead")
    modes = torch._inductor.list_mode_options()
    assert {name: codes[name] for name in modes["reduce-overhead"]} == modes["reduce-overhead"]
    assert "custom_partitioner_fn" in codes
    assert codes.report()["graphs"] == []
    with pytest.raises(RuntimeError, match=r"[Ee]ither mode or options"):
        torch.compile(nn.Linear(2, 2), options=codes, mode="reduce-overhead")


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_evaluation(context, seed):
    model, x, codes = layers(seed).eval(), normal(seed, 64, WIDTH), codes_of()
    run = compile_with(codes, model)
    with context():
        assert torch.allclose(run(x), model(x), rtol=1e-4)
    assert n_graphs(codes) == 0
    assert_near(gradients(model, model, x), gradients(model, run, x))
    assert n_graphs(codes) == 1


@pytest.mark.parametrize("kind", ["ddp", "fully_shard"])
@pytest.mark.thorough
def test_two_ranks(kind, tmp_path):
    assert 0 < largest_difference(tmp_path, kind, SCRIPT) <= LIMIT


@pytest.mark.parametrize("budget", [None, 0.5])
def test_two_threads_compile_at_once(budget, seed):
    models, x = [layers(seed + i) for i in range(2)], normal(seed, 64, WIDTH)
    expected = [gradients(model, model, x) for model in models]
    torch._dynamo.reset()
    codes = codes_of(budget=budget)
    runs = [torch.compile(model, backend=backend(codes)) for model in models]
    results, start = {}, threading.Barrier(2)

    def work(i):
        start.wait()
        results[i] = gradients(models[i], runs[i], x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, plain in enumerate(expected):
        assert_near(plain, results[i])


def test_gradients_of_gradients_are_refused_by_pytorch(seed):
    model, x = layers(seed), normal(seed, 64, WIDTH).requires_grad_()
    (slope,) = torch.autograd.grad(compile_with(codes_of(), model)(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        slope.sum().backward()


def test_recompilation_of_a_changed_model(seed):
    model, x, codes = layers(seed), normal(seed, 64, WIDTH), codes_of()
    run = compile_with(codes, model)
    gradients(model, run, x)
    before = codes.report()
    model.between = f.relu
    assert_near(gradients(model, model, x), gradients(model, run, x))
    assert n_graphs(codes) == 2
    assert len(before["graphs"]) == 1  # a report is of its time


@pytest.mark.thorough
def test_inductor_with_a_mode_and_dynamic_sizes(seed):
    """On the host a mode of CUDA graphs changes nothing; it must not be in the way either."""
    model, codes = layers(seed), codes_of(mode="reduce-overhead")
    inputs = [normal(seed, *size, WIDTH) for size in ((4, 32), (8, 48))]
    torch._dynamo.reset()
    run = torch.compile(model, options=codes, fullgraph=True, dynamic=True)
    with torch._inductor.config.patch(force_disable_caches=True):
        coded = gradients(model, run, *inputs)
    assert_near(gradients(model, model, *inputs), coded)
    assert n_graphs(codes) == 1

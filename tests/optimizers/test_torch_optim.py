# SPDX-License-Identifier: MIT
"""Optimizers of PyTorch's protocol beside PyTorch's own; on the CPU, and on emulated kernels."""

from __future__ import annotations

import contextlib
import copy
import pickle

import numpy as np
import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import EmulatedTensors, tensors_on  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch_training import (  # noqa: E402
    N_STEPS,
    SMOOTH,
    Loop,
    assert_close,
    backward,
    difference,
    net,
    pair,
    steps,
)

from cupy_training_ops.torch.optim import SGD, AdamW, Lamb  # noqa: E402


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"max_norm": 0.1},
        {"scales": True, "bad": (2, 50)},
        {"scales": True, "bad": (3, 77), "max_norm": 0.1, "reloads": True},
    ],
    ids=lambda kind: "-".join(kind) or "plain",
)
def test_adamw_is_pytorchs(kind, seed) -> None:
    loops = [
        Loop(make, seed, scales="scales" in kind, max_norm=kind.get("max_norm"))
        for make in (AdamW, torch.optim.AdamW)
    ]
    for loop in loops:
        for i in range(N_STEPS):
            loop.step(i in kind.get("bad", ()))
            if i == N_STEPS // 2 and "reloads" in kind:
                loop.reload()
    ours, theirs = loops
    assert_close(ours.model, theirs.model)
    n_steps = {
        float(state["step"])
        for loop in loops
        for state in loop.optimizer.state_dict()["state"].values()
    }
    assert n_steps == {N_STEPS - len(kind.get("bad", ()))}
    if ours.scaler is not None:
        assert ours.scaler.get_scale() == theirs.scaler.get_scale()


def test_groups_have_numbers_of_their_own_and_one_norm(seed) -> None:
    actual = pair(seed, weight_decay=0.0, lr=3e-3, betas=(0.8, 0.95))
    (ours, optimizer), (theirs, _) = actual
    optimizer.max_norm = 0.05
    steps(actual, seed, 20, max_norm=0.05)
    assert_close(ours, theirs)
    grads = [p.grad for p in ours.parameters()]
    norm = torch.nn.utils.get_total_norm(grads)
    torch.testing.assert_close(optimizer.gradient_norm.float(), norm)


@pytest.mark.parametrize("first", [(), (0, 3)])
def test_parameters_count_their_own_steps(seed, first) -> None:
    """Gradients that are missing at times, at first, and of all."""
    actual = pair(seed, numbers=SMOOTH, weight_decay=0.0)
    for i, missing in enumerate([first, (3,), (1, 3), (1, 2, 3), (), (0, 1, 2, 3), ()]):
        steps(actual, seed + i, 3, missing)
    (ours, optimizer), (theirs, other) = actual
    assert_close(ours, theirs)
    counts = [
        [float(one.state_dict()["state"][i]["step"]) for i in range(4)]
        for one in (optimizer, other)
    ]
    assert counts[0] == counts[1]


def test_states_go_both_ways(seed) -> None:
    """Ours into PyTorch's own, PyTorch's into ours; each goes on as the other would."""
    actual = pair(seed, numbers=SMOOTH, weight_decay=0.0)
    steps(actual, seed, 5, (1,))
    steps(actual, seed, 5)
    crossed = [copy.deepcopy(actual[1]), copy.deepcopy(actual[0])]
    for (model, optimizer), (_, giver) in zip(actual, copy.deepcopy(crossed), strict=True):
        optimizer.load_state_dict(giver.state_dict())
        del model
    steps(actual, seed + 1, 5)
    steps(crossed, seed + 1, 5)
    for (model, _), (other, _) in zip(actual, crossed, strict=True):
        assert_close(model, other)
    assert_close(actual[0][0], actual[1][0])


def test_a_states_tensors_are_each_parameters_own(seed) -> None:
    """One that counts its steps in place counts them once."""
    model, optimizer = pair(seed)[0]
    steps([(model, optimizer)], seed, 3)
    for group in optimizer.param_groups:
        group["capturable"] = not group["capturable"]
        state = optimizer.state_dict()["state"]
        assert len({s["step"].data_ptr() for s in state.values()}) == len(state)
        state[0]["step"] += 1
        assert [float(optimizer.state_dict()["state"][i]["step"]) for i in range(4)] == [3] * 4


def test_checkpoints_by_names(seed) -> None:
    """As distributed checkpoints have them, also before a first step."""
    (model, optimizer), (other, fresh) = pair(seed)[0], pair(seed + 1)[0]
    steps([(model, optimizer)], seed, 4)
    state = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    assert state["state"]["0.weight"].keys() == {"step", "exp_avg", "exp_avg_sq"}
    set_optimizer_state_dict(other, fresh, state)
    other.load_state_dict(model.state_dict())
    actual = [(model, optimizer), (other, fresh)]
    steps(actual, seed + 2, 4)
    assert difference(model, other) == 0


@pytest.mark.parametrize("is_bad", [False, True])
@pytest.mark.parametrize("max_norm", [None, 1e-3])
def test_gradients_that_a_scaler_unscaled_are_not_unscaled_again(seed, max_norm, is_bad) -> None:
    """Its infinities skip the step all the same."""
    actual = pair(seed)
    for model, optimizer in actual:
        scaler = torch.amp.GradScaler("cpu", 1024.0)
        for i in range(3):
            optimizer.zero_grad()
            backward(model, torch.Generator().manual_seed(seed), scaler)
            if is_bad and i == 1:
                model[2].bias.grad[0] = float("-inf")
            scaler.unscale_(optimizer)
            if optimizer is actual[0][1]:
                optimizer.max_norm = max_norm
            elif max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
    assert_close(actual[0][0], actual[1][0])
    assert {float(s["step"]) for s in actual[0][1].state.values()} == {3.0 - is_bad}


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on(seed, how) -> None:
    model, optimizer = pair(seed)[0]
    optimizer.max_norm = 0.1
    steps([(model, optimizer)], seed, 3)
    copied = how((model, optimizer))
    assert copied[1].max_norm == 0.1
    steps([(model, optimizer), copied], seed + 1, 3)
    assert difference(model, copied[0]) == 0
    assert float(optimizer.state[model[0].weight]["step"]) == 6


def test_what_a_version_before_had_pickled_goes_on(seed) -> None:
    """It had no record of a write that was interrupted."""
    model, optimizer = pair(seed)[0]
    steps([(model, optimizer)], seed, 3)
    again, state = copy.deepcopy((model, optimizer.__getstate__()))
    del state["_whole"]
    other = object.__new__(AdamW)
    other.__setstate__(state)
    steps([(model, optimizer), (again, other)], seed + 1, 3)
    assert difference(model, again) == 0
    for home, actual in {"adamw": AdamW, "sgd": SGD, "lamb": Lamb}.items():
        name = f"ccupy_training_ops.torch.optim.{home}\n{actual.__name__}\n."
        assert pickle.loads(name.encode()) is actual


def test_a_group_that_is_added_begins_at_once(seed) -> None:
    actual = pair(seed, weight_decay=0.0)
    steps(actual, seed, 3)
    extra = [torch.nn.Parameter(torch.ones(3)) for _ in actual]
    for p, (_, optimizer) in zip(extra, actual, strict=True):
        optimizer.add_param_group({"params": [p], "lr": 0.5})
    for i in range(3):
        for p in extra:
            p.grad = torch.full((3,), 0.1 + i)
        for _, optimizer in actual:
            optimizer.step()
    torch.testing.assert_close(*extra)
    assert_close(actual[0][0], actual[1][0])


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_parameters_without_elements_count_steps(max_norm) -> None:
    """Of a group of their own, too; a step that is skipped does not count."""
    weights = [torch.nn.Parameter(torch.ones(n)) for n in (0, 3)]
    optimizer = AdamW([{"params": [p]} for p in weights], max_norm=max_norm)
    for found_inf in (0.0, 1.0, 0.0):
        for p in weights:
            p.grad = torch.ones_like(p)
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in weights] == [2, 2]


def test_gradients_with_a_nan_skip_a_clipped_step(seed) -> None:
    model, optimizer = pair(seed)[0]
    optimizer.max_norm = 1.0
    steps([(model, optimizer)], seed, 2)
    before = copy.deepcopy(model)
    backward(model, torch.Generator().manual_seed(seed))
    model[2].bias.grad[1] = float("nan")
    optimizer.step()
    assert difference(model, before) == 0
    assert [float(s["step"]) for s in optimizer.state.values()] == [2] * 4
    assert optimizer.gradient_norm.isnan()


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_types_and_layouts(seed, max_norm) -> None:
    """Channels-last and permuted parameters, gradients that lie otherwise, bfloat16 beside."""
    generator = torch.Generator().manual_seed(seed)

    def made():
        torch.manual_seed(seed)
        image = torch.randn(4, 3, 2, 5).to(memory_format=torch.channels_last)
        return [
            torch.nn.Parameter(t)
            for t in (image, torch.randn(6, 4).t(), torch.randn(7), torch.randn(9).bfloat16())
        ]

    ours, theirs = made(), made()
    theirs[3] = torch.nn.Parameter(theirs[3].detach().float())
    optimizers = AdamW(ours, max_norm=max_norm), torch.optim.AdamW(theirs)
    for i in range(6):
        for j, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            g = torch.randn(p.shape, generator=generator).to(p.dtype)
            p.grad = g.contiguous() if i % 2 or j == 3 else torch.empty_like(p).copy_(g)
            q.grad = torch.empty_like(q).copy_(g)
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(ours[:3], theirs, strict=False):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ours[3].float(), theirs[3], atol=6 * 2**-7, rtol=2**-7)
    state = optimizers[0].state[ours[3]]
    assert state["exp_avg"].dtype == torch.float32
    again = AdamW(ours)
    again.load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    assert torch.equal(again.state[ours[3]]["exp_avg"], state["exp_avg"])


def test_square_parameters_beside_gradients_that_lie_otherwise(seed) -> None:
    """What was laid in the order of a parameter's memory is not laid so again."""
    actual = []
    for make in (AdamW, torch.optim.AdamW):
        generator = torch.Generator().manual_seed(seed)
        weights = [torch.randn(8, 8, generator=generator) for _ in range(2)]
        weights = [torch.nn.Parameter(w) for w in (weights[0].t(), weights[1])]
        for p in weights:
            p.grad = torch.randn(8, 8, generator=generator)
        weights[1].grad = weights[1].grad.t()
        make(weights, lr=0.1).step()
        actual.append(weights)
    torch.testing.assert_close(*actual)


def test_one_norm_of_gradients_that_lie_otherwise(seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.nn.Parameter(torch.zeros(3, 4)) for _ in range(3)]
    draw = [torch.randn(n, generator=generator) for n in ((4, 3), (3, 8), ())]
    grads = draw[0].t(), draw[1][:, ::2], draw[2].expand(3, 4)
    for p, g in zip(weights, grads, strict=True):
        p.grad = g
    optimizer = SGD([{"params": weights[:2]}, {"params": weights[2:]}], lr=1.0, max_norm=0.5)
    optimizer.step()
    norm = torch.nn.utils.get_total_norm(grads)
    torch.testing.assert_close(optimizer.gradient_norm, norm)
    for p, g in zip(weights, grads, strict=True):
        torch.testing.assert_close(p.detach(), -g * 0.5 / norm)


@pytest.mark.parametrize("make", [AdamW, SGD])
@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("n_groups", [1, 2])
def test_gradients_that_are_negative_views(seed, make, max_norm, n_groups) -> None:
    """As that of the imaginary part of a conjugate is one."""
    actual = []
    for is_view in (True, False):
        generator = torch.Generator().manual_seed(seed)
        weights = [torch.nn.Parameter(torch.randn(4, 3, generator=generator)) for _ in range(3)]
        weights.append(torch.nn.Parameter(torch.randn(3, 4, generator=generator).t()))
        for p in weights:
            gradient = torch.randn(4, 3, generator=generator)
            p.grad = torch._neg_view(gradient) if is_view else -gradient
        groups = [{"params": weights[i::n_groups]} for i in range(n_groups)]
        make(groups, lr=0.1, max_norm=max_norm).step()
        actual.append(weights)
    torch.testing.assert_close(*actual, atol=0, rtol=0)


def test_a_count_that_is_set_is_followed(seed) -> None:
    """Of one parameter: others of its part go on from their own."""
    actual = pair(seed)
    steps(actual, seed, 3)
    for model, optimizer in actual:
        optimizer.state[model[0].weight]["step"] = torch.tensor(0.0)
    steps(actual, seed + 1, 2)
    assert_close(actual[0][0], actual[1][0])
    counts = [[float(o.state[p]["step"]) for p in m.parameters()] for m, o in actual]
    assert counts[0] == counts[1] == [2, 5, 5, 5]


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("change", ["zero_", "fill_ 7", "add_ -2"])
def test_a_count_that_is_written_in_place_is_followed(seed, change, is_native) -> None:
    """It is one tensor of all parameters that were updated in the same steps."""
    name, *given = change.split()
    actual = pair(seed)
    with tensors_on(EmulatedTensors()) if is_native else contextlib.nullcontext():
        steps(actual, seed, 3)
        for model, optimizer in actual:
            counts = {id(t): t for t in (optimizer.state[p]["step"] for p in model.parameters())}
            for count in counts.values():
                getattr(count, name)(*map(int, given))
        steps(actual, seed + 1, 2)
    assert_close(actual[0][0], actual[1][0])
    counts = [[float(o.state[p]["step"]) for p in m.parameters()] for m, o in actual]
    assert counts[0] == counts[1]


def test_a_state_of_pytorchs_adam_is_loaded(seed) -> None:
    """Its decay of weights is another: what is loaded goes on as AdamW."""
    actual = pair(seed)
    giver = pair(seed, torch.optim.Adam)[0]
    steps([giver], seed, 3)
    for model, optimizer in actual:
        model.load_state_dict(giver[0].state_dict())
        optimizer.load_state_dict(copy.deepcopy(giver[1].state_dict()))
    assert all(g["decoupled_weight_decay"] for _, o in actual for g in o.param_groups)
    steps(actual, seed + 1, 3)
    assert_close(actual[0][0], actual[1][0])


@pytest.mark.parametrize("n_groups", [1, 2])
def test_the_norm_of_no_element_is_0(n_groups) -> None:
    weights = [torch.nn.Parameter(torch.ones(0, 3)) for _ in range(2)]
    optimizer = AdamW([{"params": weights[i::n_groups]} for i in range(n_groups)], max_norm=1.0)
    for p in weights:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.gradient_norm == 0


def test_sgd_is_pytorchs(seed) -> None:
    actual = pair(seed, SGD, torch.optim.SGD)
    actual[0][1].max_norm = 0.1
    steps(actual, seed, 10, (2,), max_norm=0.1)
    steps(actual, seed, 10, max_norm=0.1)
    assert_close(actual[0][0], actual[1][0])


def test_lamb_is_ours_over_arrays(seed) -> None:
    model = net(seed)
    arrays = [p.detach().numpy().copy() for p in model.parameters()]
    optimizer = Lamb(model.parameters(), lr=1e-2, weight_decay=0.1, max_norm=0.5)
    expected = cto.Lamb(arrays, 1e-2, weight_decay=0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        optimizer.zero_grad()
        backward(model, generator)
        optimizer.step()
        expected.step([p.grad.numpy() for p in model.parameters()], max_norm=0.5)
    for p, array in zip(model.parameters(), arrays, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), array)


def test_a_closure_gives_the_loss(seed) -> None:
    model, optimizer = pair(seed)[0]
    generator = torch.Generator().manual_seed(seed)

    def closure() -> float:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        backward(model, generator)
        return 0.5

    before = copy.deepcopy(model)
    assert optimizer.step(closure) == 0.5
    assert difference(model, before) > 0

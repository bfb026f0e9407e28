# SPDX-License-Identifier: MIT
"""Changes between steps of PyTorch's optimizers: memory order, size, dtype, groups, modes."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from cupy_training_ops import OpError  # noqa: E402
from cupy_training_ops.torch.optim import SGD, Adam, AdamW  # noqa: E402

MAKERS = {
    "AdamW": (AdamW, torch.optim.AdamW, {}),
    "AMSGrad": (Adam, torch.optim.Adam, {"amsgrad": True}),
    "momentum": (SGD, torch.optim.SGD, {"momentum": 0.9}),
    "SGD": (SGD, torch.optim.SGD, {}),
}


def both(kind, tensors, n_first=0):
    """Return [(parameters, optimizer)] of this package and of PyTorch, over equal parameters.

    n_first: parameters in a first group, whose learning rate is three times the other's.
    """
    pairs = []
    for make in MAKERS[kind][:2]:
        parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
        groups = [{"params": parameters[:n_first], "lr": 0.3}, {"params": parameters[n_first:]}]
        pairs.append((parameters, make(groups[not n_first :], lr=0.1, **MAKERS[kind][2])))
    return pairs


def steps(pairs, generator, n=2) -> None:
    """Steps of all optimizers, with equal new gradients, each in its parameter's memory order."""
    for _ in range(n):
        gradients = [torch.randn(p.shape, generator=generator) for p in pairs[0][0]]
        for parameters, optimizer in pairs:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = torch.empty_like(parameter).copy_(gradient)
            optimizer.step()


def assert_equal_parameters(pairs) -> None:
    for ours, theirs in zip(*(parameters for parameters, _ in pairs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def turn(parameter) -> None:
    """Lay a parameter in channels-last order, without its gradient."""
    parameter.grad = None
    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("shape", [(6, 3, 3, 3), (2, 5, 3, 4)])
def test_moments_follow_the_order_of_their_parameter(kind, shape, seed) -> None:
    """No shape tells which order the moments of 3 channels and 3 x 3 weights have."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(n, generator=generator) for n in (shape, (4,))]
    pairs = both(kind, tensors)
    steps(pairs, generator)
    for parameters, _ in pairs:
        turn(parameters[0])
    steps(pairs, generator)
    assert_equal_parameters(pairs)


def test_a_moment_that_is_replaced_may_lie_in_another_order(seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    pairs = both("AdamW", [torch.randn(4, 4, generator=generator).t()])
    steps(pairs, generator)
    for (parameter,), optimizer in pairs:
        state = optimizer.state[parameter]
        state["exp_avg"] = torch.empty(4, 4).copy_(state["exp_avg"])
    steps(pairs, generator)
    assert_equal_parameters(pairs)


@pytest.mark.parametrize("state", ["8bit", "4bit"])
@pytest.mark.parametrize("how", ["a step", "a group", "a state", "a copy", "copied", "loaded"])
def test_codes_follow_the_order_of_their_parameter(state, how, seed) -> None:
    """Moments are what they were, but for rounding to other codes: blocks are others."""
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.randn(160, 3, 3, 3, generator=generator))
    optimizer = AdamW([parameter], state=state)
    steps([([parameter], optimizer)], generator)
    before = optimizer.state_dict()["state"][0]
    if how == "copied":
        optimizer = pickle.loads(pickle.dumps(optimizer))
        (parameter,) = optimizer.param_groups[0]["params"]
    elif how == "loaded":
        optimizer.load_state_dict(optimizer.state_dict())
    turn(parameter)
    if how == "a copy":
        optimizer = copy.deepcopy(optimizer)
        (parameter,) = optimizer.param_groups[0]["params"]
    elif how == "a state":
        optimizer.state_dict()
        parameter.data = parameter.data.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    elif how == "a group":
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    betas = optimizer.param_groups[0]["betas"]
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = optimizer.state_dict()["state"][0]
    for name, beta in zip(("exp_avg", "exp_avg_sq"), betas, strict=True):
        expected = before[name] * beta
        assert (after[name] - expected).abs().mean() < 0.2 * expected.abs().mean()


def test_a_parameter_that_moves_to_the_next_group_has_its_rate(seed) -> None:
    """All groups together have the same parameters in the same order as before."""
    generator = torch.Generator().manual_seed(seed)
    pairs = both("AdamW", [torch.ones(n) for n in (3, 4, 5)], n_first=2)
    steps(pairs, generator)
    for _, optimizer in pairs:
        first, second = optimizer.param_groups
        second["params"].insert(0, first["params"].pop())
    steps(pairs, generator)
    assert_equal_parameters(pairs)


@pytest.mark.parametrize("n_others", [0, 1])
def test_a_parameter_without_elements_may_grow(n_others, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    pairs = both("SGD", [torch.empty(0), *[torch.ones(4)] * n_others])
    steps(pairs, generator)
    for parameters, _ in pairs:
        parameters[0].grad = None
        parameters[0].data = torch.ones(3)
    steps(pairs, generator)
    assert_equal_parameters(pairs)
    assert (pairs[0][0][0] != 1).all()


def test_one_parameter_of_a_group_may_become_another_dtype(seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    pairs = both("SGD", [torch.ones(3), torch.ones(4)])
    steps(pairs, generator)
    for parameters, _ in pairs:
        parameters[0].grad = None
        parameters[0].data = parameters[0].data.double()
    steps(pairs, generator)
    assert_equal_parameters(pairs)


def test_the_norm_is_that_of_the_last_step_where_options_come_back(seed) -> None:
    """A step by an operator that was bound before others."""
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.ones(5))
    optimizer = AdamW([parameter], max_norm=1.0)
    for maximize in (False, True, False):
        optimizer.param_groups[0]["maximize"] = maximize
        steps([([parameter], optimizer)], generator, 1)
        torch.testing.assert_close(optimizer.gradient_norm, parameter.grad.norm())


def test_a_refused_step_leaves_the_norm(seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    ((parameters, optimizer), _) = both("AdamW", [torch.ones(3), torch.ones(4)], n_first=1)
    optimizer.max_norm = 1.0
    steps([(parameters, optimizer)], generator)
    before = optimizer.gradient_norm.clone()
    optimizer.param_groups[1]["lr"] = -1.0
    with pytest.raises(OpError, match="lr"):
        steps([(parameters, optimizer)], generator, 1)
    assert optimizer.gradient_norm == before


def test_a_gathering_that_fails_forgets_no_parameter(seed) -> None:
    """One without a gradient so far, beside a state that lacks its count for a while."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = AdamW([first, second])
    steps([([first], optimizer)], generator)
    count = optimizer.state[first].pop("step")
    with pytest.raises(KeyError):
        optimizer.step()
    optimizer.state[first]["step"] = count
    steps([([first, second], optimizer)], generator)
    assert (second != 1).all()
    assert optimizer.state[first]["step"] == 4


@pytest.mark.parametrize("kind", MAKERS)
def test_steps_within_inference_mode(kind, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    pairs = both(kind, [torch.ones(3), torch.ones(2, 4)])
    with torch.inference_mode():
        steps(pairs, generator)
        pairs[0][1].load_state_dict(pairs[0][1].state_dict())
        steps(pairs, generator)
    assert_equal_parameters(pairs)
    steps(pairs[:1], generator)  # PyTorch's own moments are inference tensors, and refused here
    before = pairs[0][0][0].detach().clone()
    pairs[0][1].load_state_dict(pairs[0][1].state_dict())
    steps(pairs[:1], generator)
    assert (pairs[0][0][0] != before).all()

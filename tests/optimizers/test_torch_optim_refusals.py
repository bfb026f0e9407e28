# SPDX-License-Identifier: MIT
"""Optimizers of PyTorch's protocol: what they refuse, when they are made and later."""

from __future__ import annotations

import pytest

from cupy_training_ops import OpError

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from cupy_training_ops.torch.optim import SGD, Adam, AdamW, Lamb  # noqa: E402


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (AdamW, {"differentiable": True}),
        (Adam, {"differentiable": True}),
        (SGD, {"differentiable": True}),
        (SGD, {"nesterov": True}),
        (SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
    ],
)
def test_what_no_kernel_does_is_refused(make, options) -> None:
    p = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(OpError, match=f"{make.__name__}: {next(iter(options))}: expected"):
        make([p], **options)
    optimizer = make([p])
    state = optimizer.state_dict()
    state["param_groups"][0] |= options
    with pytest.raises(OpError, match=f"{make.__name__}: {next(iter(options))}: expected"):
        optimizer.load_state_dict(state)
    assert not any(map(optimizer.param_groups[0].get, options))  # it is as it was
    with pytest.raises(OpError, match=f"{make.__name__}: {next(iter(options))}: expected"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], **options})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0] |= options
    p.grad = torch.ones(3)
    with pytest.raises(OpError, match=f"{make.__name__}: {next(iter(options))}: expected"):
        optimizer.step()
    assert torch.equal(p, torch.ones(3))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        *((make, {"lr": -1.0}) for make in (AdamW, SGD, Lamb)),
        *((make, {"max_norm": 0.0}) for make in (AdamW, SGD, Lamb)),
        (AdamW, {"lr": float("nan")}),
        (AdamW, {"lr": torch.tensor(-1.0)}),
        (AdamW, {"lr": torch.ones(2)}),
        (AdamW, {"betas": (0.9, 1.0)}),
        (AdamW, {"betas": (-0.1, 0.9)}),
        (AdamW, {"betas": (0.9,)}),
        (Lamb, {"betas": 0.9}),
        (AdamW, {"eps": -1e-8}),
        (AdamW, {"weight_decay": -0.1}),
        (Lamb, {"weight_decay": -0.1}),
        (AdamW, {"fused": True, "foreach": True}),
        (SGD, {"fused": True, "foreach": True}),
        (SGD, {"momentum": -0.5}),
        (SGD, {"momentum": float("nan")}),
        (SGD, {"dampening": float("inf")}),
        (SGD, {"weight_decay": -1}),
        (Adam, {"lr": torch.tensor(0.1), "foreach": True}),
        (Adam, {"betas": (torch.tensor(0.9), torch.tensor(0.99)), "foreach": True}),
        (AdamW, {"betas": (0.9, torch.tensor(0.99))}),
        (AdamW, {"betas": (torch.tensor(0.9), 0.99)}),
        *((make, {"rounding_seed": -1}) for make in (AdamW, Adam, SGD)),
        *((make, {"rounding_seed": 0.5}) for make in (AdamW, SGD)),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused_before_a_step(make, options) -> None:
    """Where an optimizer is made, where a group is added, and where a state is loaded."""
    p, name = torch.nn.Parameter(torch.ones(3)), next(iter(options))
    refused = pytest.raises(OpError, match=f"{make.__name__}: {name}: expected")
    with refused:
        make([p], **options)
    if name in ("max_norm", "rounding_seed"):
        return
    optimizer = make([p])
    with refused:
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], **options})
    state = optimizer.state_dict()
    state["param_groups"][0] |= options
    with refused:
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "written", "message"),
    [
        (AdamW, {"betas": (1.5, 0.9)}, "betas: expected a number below 1"),
        (AdamW, {"betas": 0.9}, "betas: expected two numbers, got 0.9"),
        (AdamW, {"lr": "0.1"}, "lr: expected a number, got '0.1'"),
        (Lamb, {"betas": (0.9, "much")}, "betas: expected a number, got 'much'"),
        (Lamb, {"weight_decay": float("nan")}, "weight_decay: expected a finite number"),
        (Lamb, {"weight_decay": -1}, "weight_decay: expected a finite number of at least 0"),
        (Lamb, {"eps": -1}, "eps: expected a number of at least 0"),
        (Lamb, {"ratio_limits": (2, 1)}, "ratio_limits: expected the lower one first"),
        (Lamb, {"ratio_limits": 2}, "ratio_limits: expected two numbers"),
    ],
)
def test_what_is_written_into_groups_is_refused_by_its_name_there(make, written, message) -> None:
    """Not by the one that it has in the operator."""
    p = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(OpError, match=f"^{make.__name__}: {message}"):
        make([p], **written)
    optimizer = make([p])
    optimizer.param_groups[0] |= written
    p.grad = torch.ones(3)
    with pytest.raises(OpError, match=f"^{make.__name__}: {message}"):
        optimizer.step()
    assert torch.equal(p, torch.ones(3))


@pytest.mark.parametrize("options", [{}, {"state": "8bit"}])
@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"exp_avg": torch.ones(1)}, r"state: expected exp_avg of shape \(3,\), got \(1,\)"),
        ({"exp_avg_sq": torch.ones(3, 1)}, r"state: expected exp_avg_sq of shape \(3,\), got"),
        ({"exp_avg": None}, "state: expected step, exp_avg, exp_avg_sq, got step, exp_avg_sq"),
        ({"step": None}, "state: expected step, exp_avg, exp_avg_sq, got exp_avg, exp_avg_sq"),
        ({"step": torch.tensor(-1.0)}, "state: step: expected a number of steps, got -1.0"),
        ({"step": float("nan")}, "state: step: expected a number of steps, got nan"),
    ],
)
def test_states_that_do_not_fit_are_refused(options, written, message) -> None:
    """Not at the next step, and not by beginning anew."""
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([p], **options)
    p.grad = torch.ones(3)
    optimizer.step()
    state = optimizer.state_dict()
    own = state["state"][0] | written
    state["state"][0] = {name: value for name, value in own.items() if value is not None}
    state["param_groups"][0]["lr"] = 0.5
    with pytest.raises(OpError, match=message):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 1e-3  # it is as it was
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["step"] == 2


def test_states_of_another_optimizer_are_refused() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    theirs = torch.optim.SGD([p], momentum=0.9)
    p.grad = torch.ones(3)
    theirs.step()
    state = theirs.state_dict()
    state["param_groups"][0]["momentum"] = 0
    with pytest.raises(OpError, match=r"AdamW: state: expected step, .*, got momentum_buffer"):
        AdamW([p]).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        *((make, {"lr": float("nan")}) for make in (AdamW, SGD, Lamb)),
        (SGD, {"nesterov": True}),
        (SGD, {"momentum": "much"}),
        (AdamW, {"weight_decay": "much"}),
        *((make, {"betas": (1.5, 0.9)}) for make in (AdamW, Lamb)),
        *((make, None) for make in (AdamW, SGD, Lamb)),
    ],
)
def test_a_step_that_is_refused_for_its_last_group_changes_no_group(make, options) -> None:
    """Who mends it makes the step again, which would be the second of the first group."""
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (3, 5)]
    optimizer = make([{"params": [p]} for p in parameters], lr=0.1)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    before = [p.detach().clone() for p in parameters]
    if options is None:  # its gradient is none that the operator takes
        parameters[1].grad = torch.ones(5).to_sparse()
    optimizer.param_groups[1] |= options or {}
    with pytest.raises(OpError, match="gradients" if options is None else next(iter(options))):
        optimizer.step()
    assert all(map(torch.equal, parameters, before))
    if make is not SGD:
        assert {float(optimizer.state[p]["step"]) for p in parameters} == {1}


@pytest.mark.parametrize("n_made", [0, 1])
@pytest.mark.parametrize("options", [{}, {"state": "8bit"}])
def test_a_beginning_that_was_stopped_begins_anew(monkeypatch, n_made, options) -> None:
    """As by memory that is out. No part is there twice, and no state without its number."""

    def begun():
        types = torch.float32, torch.bfloat16
        parameters = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in types]
        for p in parameters:
            p.grad = torch.ones_like(p)
        return AdamW(parameters, lr=0.1, **options), parameters

    (optimizer, actual), (other, expected) = begun(), begun()
    made, parts = AdamW._make, []

    def stopped(*given):
        if len(parts) == n_made:
            raise MemoryError
        parts.append(made(*given))
        return parts[-1]

    monkeypatch.setattr(AdamW, "_make", stopped)
    with pytest.raises(MemoryError):
        optimizer.step()
    monkeypatch.undo()
    assert not optimizer.state
    for each in (optimizer, other):
        torch.manual_seed(1)
        for _ in range(2):
            each.step()
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", [AdamW, SGD, Lamb])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int32], ids=str)
def test_types_that_no_kernel_updates_are_refused_by_the_parameters_name(make, dtype) -> None:
    p = torch.nn.Parameter(torch.ones(3).to(dtype), requires_grad=False)
    optimizer = make([p], lr=0.1)
    p.grad = torch.ones(3).to(dtype)
    for _ in range(2):
        with pytest.raises(OpError, match=rf"{make.__name__}: weights\[0\]: "):
            optimizer.step()

# SPDX-License-Identifier: MIT
"""AdamW of PyTorch's protocol with moments of a byte each."""

from __future__ import annotations

import contextlib
import copy
import pickle

import numpy as np
import pytest

from cupy_training_ops import OpError
from cupy_training_ops.families.adam import codes as of_numpy

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import EmulatedTensors, HollowTensors, tensors_on  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch_training import Loop, backward, difference, net  # noqa: E402

from cupy_training_ops.torch.optim import AdamW, codes  # noqa: E402

NAMES = ("exp_avg", "exp_avg_sq")


def coded(parameters, **options):
    return AdamW(parameters, **{"lr": 1e-2, **options}, state="8bit")


def trained(seed, n=5, **options):
    """A model after so many steps, and its optimizer."""
    model = net(seed)
    optimizer = coded(model.parameters(), **options)
    steps(model, optimizer, seed, n)
    return model, optimizer


def steps(model, optimizer, seed, n=3) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        optimizer.zero_grad()
        backward(model, generator)
        optimizer.step()


def all_codes(optimizer):
    return [state[name].clone() for state in optimizer.state.values() for name in NAMES]


def assert_same(one, other) -> None:
    assert difference(one[0], other[0]) == 0
    assert all(map(torch.equal, all_codes(one[1]), all_codes(other[1])))


@pytest.mark.parametrize("name", NAMES)
def test_codes_are_those_of_numpy(rng, name) -> None:
    signed = codes.SIGNED[name]
    x = (rng.standard_normal((7, 43)) * 10.0 ** rng.uniform(-9, 9, (7, 43))).astype(np.float32)
    x = x if signed else np.abs(x)
    x.flat[:5] = 0, np.inf, 1e-45, 3e38, np.nan
    tensor = torch.from_numpy(x)
    code = codes.encode(tensor, tensor, signed=signed)
    wide = codes.decode(code, tensor, signed=signed)
    expected = of_numpy.decode(code.numpy(), x.size, signed=signed).reshape(x.shape)
    np.testing.assert_array_equal(wide.numpy(), expected)
    np.testing.assert_array_equal(codes.encode(wide, tensor, signed=signed).numpy(), code.numpy())
    np.testing.assert_array_equal(of_numpy.encode(wide, signed=signed, step=3), code.numpy())


def test_codes_are_the_nearest(rng) -> None:
    """Not those of a step, which are rounded up or down by chance."""
    x = rng.uniform(0.02, 1, 1000).astype(np.float32)
    for signed in (True, False):
        tensor = torch.from_numpy(x)
        wide = codes.decode(codes.encode(tensor, tensor, signed=signed), tensor, signed=signed)
        np.testing.assert_array_less(np.abs(wide.numpy() - x), 2.0**-5 * 1.001 * x)


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (0, 3), (), (128,)])
def test_codes_are_in_the_order_of_memory(rng, shape) -> None:
    x = torch.from_numpy(np.asarray(rng.standard_normal(shape), np.float32))
    like = x.to(memory_format=torch.channels_last) if len(shape) == 4 else x
    found = codes.decode(codes.encode(x, like, signed=True), like, signed=True)
    assert found.stride() == like.stride()
    atol = float(np.abs(x.numpy()).max(initial=0)) / 100  # below 1 / 119 of a block's largest: 0
    torch.testing.assert_close(found, like, rtol=2**-5, atol=atol)
    flat = codes.encode(like, like, signed=True)
    ordered = like.permute(0, 2, 3, 1) if len(shape) == 4 else x
    assert torch.equal(flat, codes.encode(ordered.contiguous(), ordered.contiguous(), signed=True))


def test_both_moments_take_two_bytes_a_parameter() -> None:
    p = torch.nn.Parameter(torch.ones(1000, 100))
    optimizer = coded([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert sum(optimizer.state[p][name].nbytes for name in NAMES) <= 2.1 * p.numel()


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_a_loop_is_near_that_of_numbers(seed, max_norm) -> None:
    """Schedules of rates, infinities that a GradScaler finds, clipping."""
    loops = []
    for make in (coded, AdamW):
        loop = Loop(make, seed, scales=True, max_norm=max_norm)
        for i in range(60):
            loop.step(i in (3, 40))
        loops.append(loop)
    ours, theirs = (
        torch.cat([p.detach().flatten() for p in loop.model.parameters()]) for loop in loops
    )
    first = torch.cat([p.detach().flatten() for p in Loop(AdamW, seed).model.parameters()])
    assert (ours - theirs).norm() < 0.15 * (theirs - first).norm()
    counts = {float(s["step"]) for loop in loops for s in loop.optimizer.state.values()}
    assert counts == {58}


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_kernels_step_as_the_host(seed, max_norm) -> None:
    """Codes are the same bits, as long as weights are not rounded otherwise on the way."""
    found = []
    for is_native in (True, False):
        with tensors_on(EmulatedTensors()) if is_native else contextlib.nullcontext():
            found.append(trained(seed, 1, max_norm=max_norm))
    (ours, optimizer), (theirs, other) = found
    assert difference(ours, theirs) < 1e-6
    assert all(map(torch.equal, all_codes(optimizer), all_codes(other)))


def test_a_step_neither_waits_nor_exchanges(monkeypatch, seed) -> None:
    from cupy_training_ops.call import interop

    def waits(*_: object, **__: object) -> None:
        raise AssertionError("it waits for the device")

    with tensors_on(HollowTensors()) as backend:
        model, optimizer = trained(seed, 1, max_norm=1.0)
        for name in ("share_memory", "as_tensor", "_stream"):
            monkeypatch.setattr(interop, name, None)
        backward(model, torch.Generator().manual_seed(seed))
        backend.launches.clear()
        with monkeypatch.context() as patched:
            for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__"):
                patched.setattr(torch.Tensor, name, waits)
            optimizer.step()
        assert backend.launches


def test_a_skipped_step_leaves_the_codes(seed) -> None:
    model, optimizer = trained(seed)
    before = copy.deepcopy((model, optimizer))
    optimizer.grad_scale, optimizer.found_inf = torch.ones(1), torch.ones(1)
    steps(model, optimizer, seed, 1)
    assert_same((model, optimizer), before)


def test_states_go_both_ways(seed) -> None:
    """As PyTorch's own numbers; a state of ours goes on bit for bit."""
    model, optimizer = trained(seed)
    state = copy.deepcopy(optimizer.state_dict())
    for own, p in zip(state["state"].values(), model.parameters(), strict=True):
        assert {own[name].dtype for name in NAMES} == {torch.float32}
        assert {own[name].shape for name in NAMES} == {p.shape}
    other = copy.deepcopy(model)
    again = coded(other.parameters())
    again.load_state_dict(state)
    assert all(map(torch.equal, all_codes(optimizer), all_codes(again)))
    steps(model, optimizer, seed + 1)
    steps(other, again, seed + 1)
    assert_same((model, optimizer), (other, again))
    theirs = torch.optim.AdamW(other.parameters())
    theirs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(other, theirs, seed + 2)
    again.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for p in other.parameters():
        for name, signed in codes.SIGNED.items():
            wide = theirs.state[p][name]
            found = codes.decode(again.state[p][name], p, signed=signed)
            torch.testing.assert_close(
                found, wide, rtol=2**-4, atol=2**-7 * float(wide.abs().max())
            )


@pytest.mark.parametrize("is_coded", [True, False])
def test_state_dicts_may_keep_codes(seed, is_coded) -> None:
    """Of a quarter of the bytes; what takes them goes on bit for bit, in codes or in numbers."""
    model, optimizer = trained(seed)
    small, large = copy.deepcopy(optimizer.state_dict(coded=True)), optimizer.state_dict()
    before = copy.deepcopy(small)
    held = [sum(own[name].nbytes for own in d["state"].values() for name in NAMES)
            for d in (small, large)]  # fmt: skip
    assert held[0] < 0.27 * held[1]
    other = copy.deepcopy(model)
    again = AdamW(other.parameters(), lr=1e-2, state="8bit" if is_coded else None)
    again.load_state_dict(small)
    if is_coded:
        assert_same((model, optimizer), (other, again))
        steps(model, optimizer, seed + 1)
        steps(other, again, seed + 1)
        assert_same((model, optimizer), (other, again))
    else:
        for own, theirs in zip(again.state.values(), large["state"].values(), strict=True):
            assert all(torch.equal(own[name], theirs[name]) for name in NAMES)
    for own, was in zip(small["state"].values(), before["state"].values(), strict=True):
        assert all(torch.equal(own[name], was[name]) for name in NAMES)  # it is the caller's


def test_codes_of_another_order_are_decoded(seed) -> None:
    """Codes lie as their parameter does; a state dict is by indices."""
    p = torch.nn.Parameter(torch.ones(2, 3, 5, 7).to(memory_format=torch.channels_last))
    q = torch.nn.Parameter(torch.ones(2, 3, 5, 7))
    one, other = coded([p]), coded([q])
    generator = torch.Generator().manual_seed(seed)
    q.grad = torch.randn(q.shape, generator=generator)
    p.grad = q.grad.to(memory_format=torch.channels_last)
    for each in (one, other):
        each.step()
    assert one.state_dict(coded=True)["state"][0]["exp_avg"].dtype == torch.float32
    one.load_state_dict(other.state_dict(coded=True))
    found, expected = (each.state_dict()["state"][0]["exp_avg"] for each in (one, other))
    torch.testing.assert_close(
        found, expected, rtol=2**-4, atol=2**-7 * float(expected.abs().max())
    )


def test_codes_of_other_parameters_are_refused(seed) -> None:
    _, optimizer = trained(seed)
    state = copy.deepcopy(optimizer.state_dict(coded=True))
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"][:-1]
    with pytest.raises(OpError, match=r"AdamW: state: expected codes of .* bytes for .* elements"):
        optimizer.load_state_dict(state)


def test_checkpoints_by_names(seed) -> None:
    (model, optimizer), (other, fresh) = trained(seed), trained(seed + 1, 0)
    set_optimizer_state_dict(
        other, fresh, copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    )
    other.load_state_dict(model.state_dict())
    found = (model, optimizer), (other, fresh)
    for one in found:
        steps(*one, seed + 2)
    assert_same(*found)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on(seed, how) -> None:
    found = trained(seed)
    copied = how(found)
    for one in (found, copied):
        steps(*one, seed + 1)
    assert_same(found, copied)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_16_bits(seed, dtype) -> None:
    model = net(seed).to(dtype)
    optimizer, before = coded(model.parameters()), copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(dtype)
    optimizer.step()
    for p, q in zip(model.parameters(), before.parameters(), strict=True):
        expected = q.double() * (1 - 1e-4) - 1e-2 * p.grad.sign()
        torch.testing.assert_close(p.double(), expected.double(), atol=1e-2, rtol=1e-2)


def test_what_it_does_not_serve_is_refused_in_words() -> None:
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    with pytest.raises(OpError, match="AdamW: state: expected None or '8bit', got '4bit'"):
        AdamW([p], state="4bit")
    optimizer = coded([p])
    p.grad = torch.ones_like(p)
    with pytest.raises(OpError, match="AdamW: state: expected None, where parameters are float64"):
        optimizer.step()

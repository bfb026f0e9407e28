# SPDX-License-Identifier: MIT
"""AdamW of PyTorch's protocol with moments in codes of 8 or 4 bits."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys

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
pytestmark = pytest.mark.usefixtures("all_coded")


@pytest.fixture(params=["8bit", "4bit"], autouse=True)
def state(request, monkeypatch) -> str:
    """The form of moments in this test."""
    monkeypatch.setattr(sys.modules[__name__], "STATE", request.param)
    return request.param


STATE = "8bit"


def coded(parameters, **options):
    return AdamW(parameters, **{"lr": 1e-2, "state": STATE, **options})


def bits() -> int:
    return int(STATE[0])


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


def drawn(rng, shape, octaves=9):
    """Moments as they come, the first beside the roots of the second."""
    v = 2.0 ** rng.uniform(-octaves, 0, shape)
    m = rng.standard_normal(shape) * np.sqrt(v)
    return [np.asarray(x, np.float32) for x in (m, v)]


def both(m, v):
    return {name: torch.from_numpy(x) for name, x in zip(NAMES, (m, v), strict=True)}


def test_codes_are_those_of_numpy(rng) -> None:
    x = np.asarray(rng.standard_normal((7, 43)) * 10.0 ** rng.uniform(-9, 9, (7, 43)), np.float32)
    m, v = x, np.abs(x[::-1]).copy()
    v.flat[:5] = 0, np.inf, 1e-45, 3e38, np.nan
    m.flat[3:6] = -np.inf, np.nan, 1e-45
    like = torch.from_numpy(x)
    code = codes.encode(both(m, v), like, bits())
    wide = codes.decode(code, like)
    pair = tuple(code[name].numpy() for name in NAMES)
    expected = of_numpy.decode(pair, x.size, bits())
    for name, numbers in zip(NAMES, expected, strict=True):
        np.testing.assert_array_equal(wide[name].numpy(), numbers.reshape(x.shape))
    finite = np.isfinite(np.stack([wide[name].numpy() for name in NAMES])).all(0)
    m, v = (np.where(finite, wide[name].numpy(), 0) for name in NAMES)
    again = codes.decode(codes.encode(both(m, v), like, bits()), like)
    by_numpy = of_numpy.decode(of_numpy.encode(m, v, bits(), step=3), x.size, bits())
    for name, exact, numbers in zip(NAMES, (m, v), by_numpy, strict=True):
        np.testing.assert_array_equal(again[name].numpy(), exact)
        np.testing.assert_array_equal(numbers.reshape(x.shape), exact)


def test_codes_are_the_nearest(rng) -> None:
    """Not those of a step, which are rounded up or down by chance."""
    m, v = drawn(rng, 1000, 1.9)
    like = torch.from_numpy(m)
    wide = codes.decode(codes.encode(both(m, v), like, bits()), like)
    first, second = (wide[name].numpy() for name in NAMES)
    np.testing.assert_array_less(
        np.abs(second - v), (2.0**-4 if bits() == 8 else 2.0**-3) * 1.001 * v
    )
    least = 2.0**-10 if bits() == 8 else np.abs(m).max() / 7 * 2
    error = 2.0**-4 * np.abs(m) if bits() == 8 else 0
    assert (np.abs(first - m) <= error * 1.001 + least).all()


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (0, 3), (), (128,)])
def test_codes_are_in_the_order_of_memory(rng, shape) -> None:
    m, v = map(torch.from_numpy, drawn(rng, shape, 1))
    lies = {"memory_format": torch.channels_last} if len(shape) == 4 else {}
    like = m.to(**lies) if lies else m
    given = dict(zip(NAMES, (m, v), strict=True))
    actual = codes.decode(codes.encode(given, like, bits()), like)
    assert {x.stride() for x in actual.values()} == {like.stride()}
    atol = float(m.abs().amax()) / 2 if m.numel() else 0
    torch.testing.assert_close(actual["exp_avg"], m, rtol=2**-4, atol=atol if bits() == 4 else 1e-2)
    torch.testing.assert_close(actual["exp_avg_sq"], v, rtol=2**-2, atol=0)
    flat = codes.encode(given, like, bits())
    if len(shape) == 4:
        given = {name: x.permute(0, 2, 3, 1).contiguous() for name, x in given.items()}
    ordered = codes.encode(given, given["exp_avg"], bits())
    assert all(torch.equal(flat[name], ordered[name]) for name in NAMES)


def test_bytes_of_a_parameter() -> None:
    p = torch.nn.Parameter(torch.ones(1000, 100))
    optimizer = coded([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert (
        sum(optimizer.state[p][name].nbytes for name in NAMES)
        <= (1.1 if bits() == 4 else 2.1) * p.numel()
    )


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
    assert (ours - theirs).norm() < (0.5 if bits() == 4 else 0.15) * (theirs - first).norm()
    counts = {float(s["step"]) for loop in loops for s in loop.optimizer.state.values()}
    assert counts == {58}


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_kernels_step_as_the_host(seed, max_norm) -> None:
    """Codes are the same bits, as long as weights are not rounded otherwise on the way."""
    actual = []
    for is_native in (True, False):
        with tensors_on(EmulatedTensors()) if is_native else contextlib.nullcontext():
            actual.append(trained(seed, 1, max_norm=max_norm))
    (ours, optimizer), (theirs, other) = actual
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
        actual = codes.decode(again.state[p], p)
        for name in NAMES:
            wide, few = theirs.state[p][name], bits() == 4
            close = {
                "rtol": 0.5 if few else 2**-3,
                "atol": (0.2 if few else 0.01) * float(wide.abs().max()),
            }
            torch.testing.assert_close(actual[name], wide, **close)


@pytest.mark.parametrize("is_coded", [True, False])
def test_state_dicts_may_keep_codes(seed, is_coded) -> None:
    """Of a quarter of the bytes; what takes them goes on bit for bit, in codes or in numbers."""
    model, optimizer = trained(seed)
    small, large = copy.deepcopy(optimizer.state_dict(coded=True)), optimizer.state_dict()
    before = copy.deepcopy(small)
    held = [sum(own[name].nbytes for own in d["state"].values() for name in NAMES)
            for d in (small, large)]  # fmt: skip
    assert held[0] < (0.27 if bits() == 8 else 0.2) * held[1]  # parameters are small
    other = copy.deepcopy(model)
    again = AdamW(other.parameters(), lr=1e-2, state=STATE if is_coded else None)
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
    actual, expected = (each.state_dict()["state"][0]["exp_avg"] for each in (one, other))
    few = bits() == 4
    atol = (0.2 if few else 0.01) * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0.5 if few else 2**-3, atol=atol)


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
    actual = (model, optimizer), (other, fresh)
    for one in actual:
        steps(*one, seed + 2)
    assert_same(*actual)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on(seed, how) -> None:
    actual = trained(seed)
    copied = how(actual)
    for one in (actual, copied):
        steps(*one, seed + 1)
    assert_same(actual, copied)


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
    with pytest.raises(
        OpError, match="AdamW: state: expected None or '8bit' or '4bit', got '2bit'"
    ):
        AdamW([p], state="2bit")
    with pytest.raises(OpError, match="AdamW: amsgrad: expected False, with moments in codes"):
        coded([p], amsgrad=True)
    optimizer = coded([p])
    p.grad = torch.ones_like(p)
    with pytest.raises(OpError, match="AdamW: state: expected None, where parameters are float64"):
        optimizer.step()


def test_small_parameters_have_numbers(coded_from, seed) -> None:
    """They go on in one step with those in codes; states go both ways."""
    coded_from(4096)
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(n, generator=generator)) for n in (4095, 4096, 7)]
    alone = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    optimizer, plain = coded(parameters), AdamW(alone, lr=1e-2)
    for _ in range(3):
        for p, q in zip(parameters, alone, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        optimizer.step()
        plain.step()
    kinds = [optimizer.state[p]["exp_avg"].dtype for p in parameters]
    assert kinds == [torch.float32, torch.uint8, torch.float32]
    assert torch.equal(parameters[0], alone[0])
    assert torch.equal(parameters[2], alone[2])
    assert {float(own["step"]) for own in optimizer.state.values()} == {3}
    again = coded([torch.nn.Parameter(p.detach().clone()) for p in parameters])
    again.load_state_dict(copy.deepcopy(optimizer.state_dict(coded=True)))
    assert all(map(torch.equal, all_codes(optimizer), all_codes(again)))


OLD = {  # of an older version: 300 elements, whose moments are 2^-4 (sign in turns) and 2^-8
    "exp_avg": torch.tensor([112 + 128 * (i % 2) for i in range(300)] + [123] * 3).byte(),
    "exp_avg_sq": torch.tensor([240] * 300 + [119] * 3).byte(),
}


@pytest.mark.parametrize("how", ["state_dict", "pickle"])
@pytest.mark.parametrize("least", [1, 4096])
def test_codes_of_older_versions_go_on(how, least, coded_from, seed) -> None:
    coded_from(least)
    p, q = (torch.nn.Parameter(torch.ones(300)) for _ in range(2))
    optimizer, plain = coded([p]), AdamW([q], lr=1e-2)
    old = {"step": torch.tensor(5.0), **{name: x.clone() for name, x in OLD.items()}}
    signs = 1.0 - 2.0 * (torch.arange(300) % 2)
    wide = {
        "step": torch.tensor(5.0),
        "exp_avg": signs / 16,
        "exp_avg_sq": torch.full((300,), 2**-8),
    }
    plain.load_state_dict({**plain.state_dict(), "state": {0: wide}})
    if how == "state_dict" or bits() == 4:  # older versions had 8 bits
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: old}})
    else:
        content = optimizer.__getstate__() | {"state": {p: old}, "is_coded": True}
        del content["bits"], content["rounding_seed"]
        optimizer = AdamW.__new__(AdamW)
        optimizer.__setstate__(content)
    for actual, expected in zip(
        optimizer.state_dict()["state"][0].values(), wide.values(), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=0.01 if bits() == 4 else 0, atol=0)
    p.grad = q.grad = torch.randn(300, generator=torch.Generator().manual_seed(seed))
    optimizer.step()
    plain.step()
    torch.testing.assert_close(p, q, rtol=1e-3 if bits() == 4 else 1e-6, atol=0)
    assert float(optimizer.state[p]["step"]) == 6

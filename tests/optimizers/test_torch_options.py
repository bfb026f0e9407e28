# SPDX-License-Identifier: MIT
"""SGD, Adam and AdamW of PyTorch's protocol with all their options, beside PyTorch's own."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest

from cupy_training_ops import OpError

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import EmulatedTensors, tensors_on  # noqa: E402

from cupy_training_ops.torch.optim import SGD, Adam, AdamW  # noqa: E402

MOMENTUM = {"momentum": 0.9, "weight_decay": 0.1}
WAYS = {
    "SGD": (SGD, {"weight_decay": 0.1, "maximize": True}),
    "momentum": (SGD, MOMENTUM),
    "dampening": (SGD, {**MOMENTUM, "dampening": 0.5, "maximize": True}),
    "nesterov": (SGD, {**MOMENTUM, "nesterov": True}),
    "Adam": (Adam, {"weight_decay": 0.1, "maximize": True}),
    "decoupled": (Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "amsgrad": (Adam, {"weight_decay": 0.1, "amsgrad": True}),
    "AdamW": (AdamW, {"amsgrad": True, "maximize": True}),
}
every_way = pytest.mark.parametrize("way", WAYS)
SHAPES = ((7, 40), (130,), (), (2, 3, 5, 4), (0, 3))


def theirs_of(make):
    return getattr(torch.optim, make.__name__)


def begun(seed, dtype=torch.float32):
    """Parameters in several layouts."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    made[0] = made[0].t().contiguous().t()
    made[3] = made[3].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(x) for x in made]


def steps(pairs, seed, n=4, missing=()) -> None:
    """Steps with gradients of any layout, some of which are missing."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(n):
        drawn = [torch.randn(shape, generator=generator) * (1 + i % 3) for shape in SHAPES]
        for parameters, optimizer in pairs:
            for k, (p, g) in enumerate(zip(parameters, drawn, strict=True)):
                own = g.to(p.dtype)
                own = own.t().contiguous().t() if own.dim() == 2 and i % 2 else own
                p.grad = None if k in missing and i < 2 else own
            optimizer.step()


def assert_same(some, others, **tolerances) -> None:
    for p, q in zip(some, others, strict=True):
        torch.testing.assert_close(p, q, **tolerances)


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_pytorchs(way, dtype, seed) -> None:
    """Some parameters have their first gradient later."""
    make, options = WAYS[way]
    ours, theirs = begun(seed, dtype), begun(seed, dtype)
    pairs = (ours, make(ours, lr=0.1, **options)), (theirs, theirs_of(make)(theirs, 0.1, **options))
    steps(pairs, seed, missing=(1, 3))
    assert_same(ours, theirs)


@every_way
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_kernels_step_as_the_host(way, max_norm, seed) -> None:
    make, options = WAYS[way]
    actual = []
    for is_native in (True, False):
        with tensors_on(EmulatedTensors()) if is_native else contextlib.nullcontext():
            parameters = begun(seed)
            optimizer = make(parameters, lr=0.1, max_norm=max_norm, **options)
            steps([(parameters, optimizer)], seed, 2, missing=(1,))
        actual.append((parameters, optimizer))
    (ours, one), (theirs, other) = actual
    assert_same(ours, theirs, rtol=1e-5, atol=1e-6)
    for a, b in zip(one.state.values(), other.state.values(), strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


@every_way
def test_states_go_both_ways(way, seed) -> None:
    """Also into one that begins, and by pickles."""
    make, options = WAYS[way]
    ours, theirs = begun(seed), begun(seed)
    one, other = make(ours, lr=0.1, **options), theirs_of(make)(theirs, 0.1, **options)
    steps([(ours, one), (theirs, other)], seed)
    state, wanted = one.state_dict(), other.state_dict()
    assert state["state"].keys() == wanted["state"].keys()
    for key, own in wanted["state"].items():
        assert {k for k, v in own.items() if v is not None} == state["state"][key].keys()
    again, copied = begun(seed + 1), begun(seed + 1)
    with torch.no_grad():
        for p, q, r in zip(again, copied, theirs, strict=True):
            p.copy_(r)
            q.copy_(r)
    loaded, back = make(again, lr=0.5, **options), theirs_of(make)(copied, 0.5, **options)
    loaded.load_state_dict(copy.deepcopy(wanted))
    back.load_state_dict(copy.deepcopy(state))
    pickled = pickle.loads(pickle.dumps((ours, one)))
    pairs = (again, loaded), (copied, back), (theirs, other), (ours, one), pickled
    steps(pairs, seed + 2)
    for parameters, _ in pairs:
        assert_same(parameters, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["dampening", "nesterov", "amsgrad", "AdamW"])
def test_a_step_that_grad_scaler_skips_changes_nothing(way, seed) -> None:
    """The first too: the momentum of the next one is its gradient."""
    make, options = WAYS[way]
    ours, theirs = begun(seed), begun(seed)
    one, other = make(ours, lr=0.1, **options), theirs_of(make)(theirs, 0.1, **options)
    for p in ours:
        p.grad = torch.full_like(p, torch.inf)
    one.grad_scale, one.found_inf = torch.full((), 4.0), torch.ones(1)
    one.step()
    assert_same(ours, begun(seed), rtol=0, atol=0)
    if make is SGD:
        assert {own["momentum_buffer"] for own in one.state_dict()["state"].values()} == {None}
    one.grad_scale = one.found_inf = None
    steps([(ours, one), (theirs, other)], seed)
    assert_same(ours, theirs)


def test_schedulers_may_write_momenta(seed) -> None:
    """OneCycleLR does; 0 leaves the momenta alone, as PyTorch's, and others go on."""
    ours, theirs = begun(seed), begun(seed)
    pairs = (ours, SGD(ours, lr=0.1)), (theirs, torch.optim.SGD(theirs, lr=0.1))
    for i, momentum in enumerate((0, 0.9, 0.5, 0, 0.9)):
        for _, optimizer in pairs:
            optimizer.param_groups[0] |= {"momentum": momentum, "nesterov": momentum == 0.5}
        steps(pairs, seed + i, 2, missing=(1,))
        assert_same(ours, theirs, rtol=1e-5, atol=1e-5)
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10) for _, o in pairs]
    (_, one), _ = pairs
    for _ in range(3):
        steps(pairs, seed, 1)
        calls = sum(len(part._calls) for part in one._parts)
        for scheduler in schedulers:
            scheduler.step()
    steps(pairs, seed, 1)
    assert calls == sum(len(part._calls) for part in one._parts)  # nothing is bound anew
    assert_same(ours, theirs, rtol=1e-5, atol=1e-5)


def test_amsgrad_may_begin_later(seed) -> None:
    """PyTorch's fails; the largest so far are then those of the first step with it."""
    ours = begun(seed)
    optimizer = AdamW(ours, lr=0.1)
    steps([(ours, optimizer)], seed, 2)
    optimizer.param_groups[0]["amsgrad"] = True
    steps([(ours, optimizer)], seed, 1)
    for own in optimizer.state.values():
        assert float(own["step"]) == 3
        assert torch.equal(own["max_exp_avg_sq"], own["exp_avg_sq"])


# ---- bfloat16 parameters that are rounded at random ----------------------------------------------


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"state": "8bit"}, {"state": "4bit"}])
@pytest.mark.parametrize("make", [AdamW, SGD])
def test_small_steps_are_not_lost(make, options, coded_from) -> None:
    """Each is a hundredth of a rounding; the same seed gives the same bits."""
    coded_from(4096)
    if make is SGD:
        options = {"momentum": 0.5, "nesterov": True}
    n, actual = 1 << 13, []
    for own in (None, 7, 7, 8):
        p = torch.nn.Parameter(torch.ones(n, dtype=torch.bfloat16))
        q = torch.nn.Parameter(torch.ones(5))  # of another type, rounded to nearest
        more = {"weight_decay": 0} if make is AdamW else {}
        optimizer = make([p, q], lr=2.0**-14, rounding_seed=own, **more, **options)
        for _ in range(20):
            p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
            optimizer.step()
        actual.append(p.detach().float())
    exact = float(q.detach()[0])
    assert exact < 1 - 18 * 2.0**-14
    assert (actual[0] == 1).all()  # all steps are lost
    assert torch.equal(actual[1], actual[2])
    assert not torch.equal(actual[1], actual[3])
    assert abs(float(actual[1].mean()) - exact) < 0.1 * (1 - exact)


def test_a_seed_without_a_momentum_is_refused() -> None:
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    with pytest.raises(OpError, match="SGD: rounding_seed: expected None, without momentum, got 3"):
        SGD([p], rounding_seed=3)

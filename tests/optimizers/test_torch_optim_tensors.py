# SPDX-License-Identifier: MIT
"""Optimizers of PyTorch's protocol over tensors by their metadata: what a step waits for and makes.

Without a GPU: tensors of the host stand for a GPU's, with hollow or emulated kernels.
"""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import EmulatedTensors, HollowTensors, tensors_on  # noqa: E402
from torch_training import Loop, assert_close, backward, net, pair, steps  # noqa: E402

from cupy_training_ops.torch.optim import SGD, AdamW, Lamb, part  # noqa: E402


@contextlib.contextmanager
def no_waiting(monkeypatch):
    """Whatever reads a tensor's elements fails."""

    def waits(*_: object, **__: object) -> None:
        raise AssertionError("it waits for the device")

    with monkeypatch.context() as patched:
        for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__"):
            patched.setattr(torch.Tensor, name, waits)
        yield


@pytest.mark.parametrize("make", [AdamW, SGD, Lamb])
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("n_groups", [1, 2])
def test_a_step_neither_waits_nor_exchanges(monkeypatch, seed, make, max_norm, n_groups) -> None:
    from cupy_training_ops.call import interop

    model = net(seed)
    actual = list(model.parameters())
    groups = [{"params": actual[i::n_groups]} for i in range(n_groups)]
    with tensors_on(HollowTensors()) as backend:
        optimizer = make(groups, lr=1e-2, max_norm=max_norm)
        for name in ("share_memory", "as_tensor", "_stream"):
            monkeypatch.setattr(interop, name, None)
        generator = torch.Generator().manual_seed(seed)
        for i in range(4):
            optimizer.zero_grad()
            backward(model, generator)
            if i == 2:
                actual[0].grad = None
            optimizer.grad_scale, optimizer.found_inf = torch.ones(1), torch.zeros(1)
            backend.launches.clear()
            with no_waiting(monkeypatch):
                optimizer.step()
            assert given_to(backend.launches) >= {
                t.data_ptr() for p in actual if p.grad is not None for t in (p, p.grad)
            }


def given_to(launches) -> set[int]:
    """All addresses in the tables of launches."""
    tables = [v for _, arguments in launches for v in arguments if isinstance(v, np.void)]
    words = [np.frombuffer(t.tobytes(), np.uint64) for t in tables if t.nbytes % 8 == 0]
    return set(np.concatenate(words).tolist())


def test_a_step_looks_at_no_state_that_nobody_wrote(monkeypatch, seed) -> None:
    from cupy_training_ops.torch.optim.part import Part

    loop = Loop(AdamW, seed)
    with tensors_on(HollowTensors()):
        for _ in range(2):
            loop.step()
        monkeypatch.setattr(Part, "_has_states", None)
        loop.step()
        state = next(iter(loop.optimizer.state.values()))
        state["others"] = 1
        with pytest.raises(TypeError):
            loop.step()


def test_gradients_where_others_were_make_no_tables_anew(monkeypatch, seed) -> None:
    """Of the last few steps; an allocator gives the same memory again."""
    from cupy_training_ops.call.run import KernelCall

    weights = [torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2)]
    grads = torch.randn(20, 2, 3, 4, generator=torch.Generator().manual_seed(seed))
    made, placed_at = [], KernelCall.placed_at
    monkeypatch.setattr(KernelCall, "placed_at", lambda *given: made.append(1) or placed_at(*given))
    with tensors_on(HollowTensors()) as backend:
        optimizer = AdamW(weights)
        for i in (0, 1, 2, 0, 1, 2, *range(20), 19):
            weights[0].grad, weights[1].grad = grads[i]
            backend.launches.clear()
            optimizer.step()
            assert given_to(backend.launches) >= {g.data_ptr() for g in grads[i]}
        (part,) = optimizer._parts
        ((_, opened),) = [form.last for c in part._calls.values() for form in c._forms.values()]
    assert len(made) == 20
    assert len(opened._placed) <= 8


def test_schedulers_prepare_nothing_anew(seed) -> None:
    """Rates and betas are numbers of each call."""
    from cupy_training_ops.optimizers.steps import AdamWStepWithRates

    loop = Loop(AdamW, seed, max_norm=1.0)
    with tensors_on(HollowTensors()):
        for _ in range(3):
            loop.step()
        (part,) = loop.optimizer._parts
        (call,) = part._calls.values()
        assert isinstance(call._op, AdamWStepWithRates)
        (way,) = call._forms.values()
        assert len(way._calls) == 1
        betas = {tuple(group["betas"]) for group in loop.optimizer.param_groups}
        loop.step()
        assert betas != {tuple(group["betas"]) for group in loop.optimizer.param_groups}
        assert list(part._calls.values()) == [call]
        assert len(way._calls) == 1


def test_schedulers_that_prepare_lamb_anew_keep_few_calls(seed) -> None:
    """Its rates are attributes."""
    model = net(seed)
    optimizer = Lamb(model.parameters(), lr=1e-2)
    for i in range(40):
        backward(model, torch.Generator().manual_seed(seed))
        optimizer.param_groups[0]["betas"] = (0.9 - i / 100, 0.99)
        optimizer.step()
    assert len(optimizer._operators) <= 16
    assert len(optimizer._parts[0]._calls) <= 16


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_kernels_step_as_pytorch(seed, max_norm) -> None:
    ours, theirs = (Loop(make, seed, max_norm=max_norm) for make in (AdamW, torch.optim.AdamW))
    for loop in (ours, theirs):
        with tensors_on(EmulatedTensors()) if loop is ours else contextlib.nullcontext():
            for _ in range(6):
                loop.step()
    assert_close(ours.model, theirs.model)


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("what", ["data", "exp_avg data", "exp_avg", "state"])
def test_tensors_that_became_others_are_followed(seed, what, is_native) -> None:
    """A parameter's or a moment's memory, a moment of the state, a whole state."""
    actual = pair(seed)
    with tensors_on(EmulatedTensors()) if is_native else contextlib.nullcontext():
        steps(actual[:1], seed, 3)
        steps(actual[1:], seed, 3)
        for model, optimizer in actual:
            p = model[0].weight
            state = optimizer.state[p]
            if what == "data":
                p.data = p.data * 2
            elif what == "exp_avg data":
                state["exp_avg"].data = state["exp_avg"].data * 2
            elif what == "exp_avg":
                state["exp_avg"] = state["exp_avg"] * 2
            else:
                optimizer.state[p] = {k: v.clone() * 2 for k, v in state.items()}
        steps(actual, seed + 1, 3)
    assert_close(actual[0][0], actual[1][0])
    counts = [float(optimizer.state[model[0].weight]["step"]) for model, optimizer in actual]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("later", [0, 1])
def test_a_number_of_steps_that_was_written_holds_for_all_parameters(later) -> None:
    """Also for one that has no gradient in the next step."""
    actual = []
    for make in (AdamW, torch.optim.AdamW):
        parameters = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
        optimizer = make(parameters, lr=0.1)
        for i, some in enumerate([parameters, parameters[later:][:1], parameters]):
            for parameter in parameters:
                has_one = any(parameter is each for each in some)
                parameter.grad = torch.full_like(parameter, 1.0 + i) if has_one else None
            optimizer.step()
            if i == 0:
                for parameter in parameters:
                    optimizer.state[parameter]["step"].fill_(50)
        actual.append(torch.stack([p.detach() for p in parameters]))
    torch.testing.assert_close(*actual, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", [AdamW, SGD, Lamb])
def test_copies_of_gradients_live_until_their_step_is_queued(monkeypatch, make) -> None:
    """Launches know them by address, and all groups are checked before the first is queued."""
    writes, lay_out, copies = part.Part.writes, part.laid_out, []

    def laid_out(gradient, like):
        copies.append(weakref.ref(copied := lay_out(gradient, like)))
        return copied

    def looked_at(*given):
        actual, before = writes(*given), copies[:]
        assert before
        assert all(copy() is not None for copy in before)
        return actual

    monkeypatch.setattr(part, "laid_out", laid_out)
    monkeypatch.setattr(part.Part, "writes", looked_at)
    parameters = [torch.nn.Parameter(torch.ones(4, 5)) for _ in range(2)]
    with tensors_on(HollowTensors()):
        optimizer = make([{"params": [p]} for p in parameters])
        for p in parameters:
            p.grad = torch.ones(5, 4).t()
        optimizer.step()
    assert len(copies) == 2
    assert not any(copy() is not None for copy in copies)

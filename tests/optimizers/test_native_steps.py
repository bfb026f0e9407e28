# SPDX-License-Identifier: MIT
"""Steps over PyTorch's tensors by their metadata: what may change about them is seen each time.

Without a GPU: tensors of the host stand for a GPU's, with hollow or emulated kernels.
"""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, OpError
from cupy_training_ops.testing.compare import assert_matches

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import EmulatedTensors, HollowTensors, tensors_on  # noqa: E402

NAMES = ("SGD", "Adam", "AdamW", "Lamb")
SHAPES = ((33, 7), (5,), (2, 3), (1000,))


def parameters(tensors):
    return [torch.nn.Parameter(tensor) for tensor in tensors]


def addresses(launches) -> set[int]:
    """All that the launches were given, and all in their tables."""
    actual: set[int] = set()
    for _, arguments in launches:
        for value in arguments:
            if isinstance(value, np.uint64):
                actual.add(int(value))
            elif isinstance(value, np.void) and value.nbytes % 8 == 0:
                actual.update(np.frombuffer(value.tobytes(), np.uint64).tolist())
    return actual


def stepped(backend, optimizer, gradients, **numbers) -> set[int]:
    """The addresses that a step launches with."""
    backend.launches.clear()
    optimizer.step(gradients, **numbers)
    assert backend.launches
    return addresses(backend.launches)


def pointers(tensors) -> set[int]:
    return {tensor.data_ptr() for tensor in tensors}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_exchanged(backend, monkeypatch, made, name) -> None:
    """No array of another library is made, and no stream object, first or later."""
    from cupy_training_ops.call import interop

    for function in ("share_memory", "as_tensor", "_stream"):
        monkeypatch.setattr(interop, function, None)
    monkeypatch.setattr(torch.Tensor, "__dlpack__", None)
    weights = parameters(made(*SHAPES))
    optimizer = getattr(cto, name)(weights, torch.tensor([0.1]))
    for _ in range(4):
        gradients, rate = made(*SHAPES), torch.tensor([0.1])
        actual = stepped(backend, optimizer, gradients, lr=rate, loss_scale=2.0, max_norm=1.0)
        assert pointers([*gradients, *weights, rate]) <= actual
        assert type(optimizer.gradient_norm) is torch.Tensor


@pytest.mark.usefixtures("known_by")
@pytest.mark.parametrize("name", NAMES)
def test_steps_are_the_cpu_providers(name, seed) -> None:
    """New gradients in each step, one with a NaN, one with a parameter left out."""
    rng = np.random.default_rng(seed)
    start = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    own = [array.copy() for array in start]
    weights = parameters(map(torch.from_numpy, [array.copy() for array in start]))
    expected = getattr(cto, name)(own, 0.1)
    with tensors_on(EmulatedTensors()):
        optimizer = getattr(cto, name)(weights, 0.1)
        for i in range(5):
            values = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
            values[1][2] = np.nan if i == 2 else values[1][2]
            values[0] = None if i == 3 else values[0]
            given = [None if v is None else torch.from_numpy(v.copy()) for v in values]
            for one, gradients in ((expected, values), (optimizer, given)):
                one.step(gradients, loss_scale=2.0, max_norm=1.5)
            assert bool(optimizer.is_finite) == (i != 2)
        state, wanted = optimizer.state_dict(), expected.state_dict()
    for weight, array in zip(weights, own, strict=True):
        assert_matches(weight.detach().numpy(), array)
    assert state.get("step") == wanted.get("step")
    for moment in optimizer.moments:
        for key, array in wanted[moment].items():
            assert_matches(state[moment][key], array)


def test_a_state_goes_from_one_kind_of_memory_to_the_other(made) -> None:
    weights, gradients = made((5,)), made((5,))
    host = cto.AdamW([weights[0].numpy().copy()])
    host.step([gradients[0].numpy()])
    with tensors_on(EmulatedTensors()):
        optimizer = cto.AdamW(parameters(weights))
        optimizer.load_state_dict(host.state_dict())
        actual = optimizer.state_dict()
    assert actual["step"] == 1
    assert_matches(actual["moment_1"]["0"], host.state_dict()["moment_1"]["0"], 0)


# ---- gradients -----------------------------------------------------------------------------------


def test_new_gradients_at_an_old_address_are_taken(backend, made) -> None:
    """Freed, and another tensor of another shape where they were."""
    memory = torch.zeros(64)
    optimizer = cto.AdamW(parameters(made((4, 4), (4, 4))))
    views = [memory[:16].view(4, 4), memory[16:32].view(4, 4)]
    assert pointers(views) <= stepped(backend, optimizer, views)
    assert pointers(views) <= stepped(backend, optimizer, views[::-1])
    backend.launches.clear()
    for other in (memory[16:32], memory[16:32].view(2, 8), memory[16:32].view(4, 4).t()):
        with pytest.raises(OpError, match=r"AdamW: gradients\[1\]"):
            optimizer.step([views[0], other])
    with pytest.raises(OpError, match=r"AdamW: gradients\[1\]: expected dtype float32 like"):
        optimizer.step([views[0], memory.view(torch.float16)[32:48].view(4, 4)])
    assert not backend.launches
    assert pointers(views) <= stepped(backend, optimizer, views)


@pytest.mark.parametrize("how", ["set_", "data", "resize_", "t_", "dtype", "freed"])
def test_a_gradient_that_became_another_is_seen(backend, made, how) -> None:
    (gradient,), others = made((6, 6)), made((6, 6), (6, 6))
    optimizer = cto.SGD(parameters(made((6, 6))))
    stepped(backend, optimizer, [gradient])
    if how == "set_":
        gradient.set_(others[0])
    elif how == "data":
        gradient.data = others[0]
    elif how == "resize_":
        gradient.resize_(3, 6)
    elif how == "t_":
        gradient.t_()
    elif how == "freed":
        gradient.untyped_storage().resize_(0)
    else:
        gradient.data = gradient.data.view(torch.int32)
    if how in ("set_", "data"):
        assert others[0].data_ptr() in stepped(backend, optimizer, [gradient])
        return
    backend.launches.clear()
    with pytest.raises(OpError, match=r"SGD: gradients\[0\]"):
        optimizer.step([gradient])
    assert not backend.launches


@pytest.mark.parametrize("kind", ["negative", "sparse", "meta", "subclass", "numpy", "number"])
def test_an_unusual_gradient_is_never_taken_by_its_memory_alone(backend, made, kind) -> None:
    weights, gradients = made((5,), (5,)), made((5,), (5,))
    optimizer = cto.SGD(parameters(weights))
    stepped(backend, optimizer, gradients)
    backend.launches.clear()
    unusual = {
        "negative": torch._neg_view,
        "sparse": torch.Tensor.to_sparse,
        "meta": lambda x: x.to("meta"),
        "subclass": lambda x: x.as_subclass(type("Tagged", (torch.Tensor,), {})),
        "numpy": torch.Tensor.numpy,
        "number": lambda _: 1.0,
    }[kind](gradients[1])
    if kind == "subclass":  # its memory is taken as an array's, here by NumPy
        optimizer.step([gradients[0], unusual])
    else:
        with pytest.raises(ArgumentError, match=r"gradients\[1\]"):
            optimizer.step([gradients[0], unusual])
    assert not backend.launches
    assert pointers(gradients) <= stepped(backend, optimizer, gradients)


def test_another_alignment_is_another_kind_of_call(backend, made) -> None:
    memory, optimizer = torch.zeros(64), cto.SGD(parameters(made((8,))))
    aligned = memory[-memory.data_ptr() // 4 % 4 :]
    for gradient in (aligned[:8], aligned[1:9], aligned[8:16]):
        assert gradient.data_ptr() in stepped(backend, optimizer, [gradient])
    (call,) = (form for bound in optimizer._bound.values() for form in bound._forms.values())
    assert len(call._calls) == 2


@pytest.mark.usefixtures("backend")
def test_gradients_are_not_kept(made) -> None:
    optimizer = cto.AdamW(parameters(made((5,), (3,))))
    for _ in range(3):
        gradients = made((5,), (3,))
        alive = [weakref.ref(gradient) for gradient in gradients]
        optimizer.step(gradients)
        del gradients
        gc.collect()
        assert [one() for one in alive] == [None, None]


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_over_a_parameters_memory_is_refused(backend, made, name) -> None:
    """After steps with gradients that were apart, too: the first, the last, in part."""
    memory = torch.zeros(96)
    weights = parameters([memory[32:48], memory[48:64]])
    optimizer, apart = getattr(cto, name)(weights), made((16,), (16,))
    for _ in range(2):
        stepped(backend, optimizer, apart)
    backend.launches.clear()
    for start in (17, 32, 40, 48, 63):
        for gradients in ([memory[start : start + 16], apart[1]], [apart[0], memory[start:][:16]]):
            with pytest.raises(ArgumentError, match=f"{name}: .*: expected memory of its own"):
                optimizer.step(gradients)
    assert not backend.launches
    beside = [memory[16:32], memory[64:80]]
    assert pointers(beside) <= stepped(backend, optimizer, beside)


# ---- parameters ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_by")
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("how", ["set_", "data"])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_followed(made, name, how, native) -> None:
    """Weights in other memory are updated there, their old memory is left alone."""
    (start,), (other,), gradients = made((5,)), made((5,)), [made((5,)) for _ in range(3)]
    expected = torch.nn.Parameter(other.clone())
    weight, old = torch.nn.Parameter(start), start.detach()
    before = other.clone()

    def train() -> None:
        optimizer = getattr(cto, name)([weight], 0.1)
        optimizer.step(gradients[0])
        kept = old.clone()
        with torch.no_grad():
            if how == "set_":
                weight.set_(other)
            else:
                weight.data = other
        assert torch.equal(weight, before)
        for gradient in gradients[1:]:
            optimizer.step(gradient)
        assert torch.equal(old, kept)
        if name == "SGD":
            alone = getattr(cto, name)([expected], 0.1)
            for gradient in gradients[1:]:
                alone.step(gradient)
            assert torch.equal(weight, expected)
        assert not torch.equal(weight, before)

    if not native:
        train()
        return
    with tensors_on(EmulatedTensors()):
        train()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("how", ["resize_", "t_", "dtype"])
def test_parameters_of_another_form_are_refused(made, how, native) -> None:
    weight, gradients = torch.nn.Parameter(made((6, 4))[0], requires_grad=False), made((6, 4))

    def train() -> None:
        optimizer = cto.AdamW([weight])
        optimizer.step(gradients)
        before = weight.detach().clone()
        with torch.no_grad():
            if how == "resize_":
                weight.resize_(3, 4)
            elif how == "t_":
                weight.t_()
            else:
                weight.data = weight.data.view(torch.int32)
        for _ in range(2):
            with pytest.raises(OpError, match="AdamW: "):
                optimizer.step(gradients)
        actual = weight.detach()
        actual = actual.t() if how == "t_" else actual.view(torch.float32)
        assert torch.equal(actual, before[: len(actual)])

    if not native:
        train()
        return
    with tensors_on(HollowTensors()) as backend:
        train()
        assert [name for name, _ in backend.launches].count("adam__list") == 1


def test_threads_have_steps_of_their_own(backend, made) -> None:
    """Optimizers of the same forms in several threads: each launches with its own addresses."""
    n, errors = 4, []
    weights = [parameters(made((5,), (3,))) for _ in range(n)]
    gradients = [[made((5,), (3,)) for _ in range(20)] for _ in range(n)]
    optimizers = [cto.AdamW(some) for some in weights]
    for optimizer, some in zip(optimizers, gradients, strict=True):
        optimizer.step(some[0])
    backend.launches.clear()

    def run(i: int) -> None:
        try:
            for some in gradients[i]:
                optimizers[i].step(some)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for name, arguments in backend.launches:
        if name == "adam__list":
            actual = addresses([(name, arguments)])
            (owner,) = (i for i in range(n) if actual & pointers(weights[i]))
            assert sum(pointers(some) <= actual for some in gradients[owner]) == 1

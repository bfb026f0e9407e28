# SPDX-License-Identifier: MIT
"""Saved tensors as codes beside what else PyTorch does: autocast, threads, compiling, streams."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from late_events import Event

import cupy_training_ops as cto
from cupy_training_ops import ProviderError

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from cupy_training_ops.torch import activations  # noqa: E402
from cupy_training_ops.torch.coding import stream_of  # noqa: E402

from .cases import N, assert_as_without, assert_equal, gradients, pack16  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


def test_two_backwards_and_two_of_one_graph(tensor) -> None:
    x, w = tensor(16, 1024), tensor(1024, 16)
    with cto.torch.compressed_activations(pack16):
        total = (torch.relu(x) @ w).sum()
    first, second = (torch.autograd.grad(total, (x, w), retain_graph=True) for _ in range(2))
    assert_equal(first, second)
    assert_equal(first, torch.autograd.grad((torch.relu(x) @ w).sum(), (x, w)))


def test_double_backward(tensor) -> None:
    x = tensor()

    def second(keep):
        with keep:
            total = (torch.relu(x * 1) ** 3).sum()
            (slope,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad((slope * slope).sum(), x)

    expected = second(torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x))
    assert_equal(second(cto.torch.compressed_activations("lossless")), expected)


class Compressed(torch.nn.Module):
    """Has a context of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kept = torch.nn.Linear(256, 256), cto.torch.compressed_activations()

    def forward(self, x):
        with self.kept:
            return self.layer(torch.relu(self.layer(x)))


def test_a_model_with_a_context_is_copied_and_pickled() -> None:
    model, x = Compressed(), torch.randn(128, 256)
    loss = model(x).sum()  # that has codes
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        with torch.random.fork_rng():
            twin(x).sum().backward()
        assert twin.kept.report()["tensors"] >= 1
    loss.backward()
    assert model.kept.report()["tensors"] == 2  # its own, and that of the shallow copy


def test_autocast_and_checkpointing(tensor) -> None:
    """Under checkpointing its own hooks win: nothing in a block is compressed."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)))
    x = tensor(128, 256)

    def loss(x, *_):
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.relu(layers[0](x * 1))
            y = checkpoint(lambda y: torch.relu(layers[1](y)), y, use_reentrant=False)
            return layers[2](y)

    report = assert_as_without([x, *layers.parameters()], loss)
    assert report["passed"]["parameter"] >= 2 * 2 * 256 * 256
    assert report["tensors"] == 3
    assert all("ToCopy" not in name or n["tensors"] == 1 for name, n in report["names"].items())


def test_threads_share_one_object(tensor) -> None:
    kept = cto.torch.compressed_activations("lossless")
    inputs = [tensor() for _ in range(4)]
    actual = [None] * 4

    def work(i):
        for _ in range(20):
            with kept:
                total = (torch.relu(inputs[i] * 1) ** 2).exp().sum()
            actual[i] = torch.autograd.grad(total, inputs[i])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, slope in zip(inputs, actual, strict=True):
        expected = torch.autograd.grad((torch.relu(x * 1) ** 2).exp().sum(), x)[0]
        assert torch.equal(slope, expected)
    assert kept.report()["held"] == 0


def test_it_is_left_by_the_thread_that_entered_it(tensor) -> None:
    activations, x = cto.torch.compressed_activations("lossless"), tensor()
    with ThreadPoolExecutor(1) as other:
        with activations:
            with pytest.raises(ProviderError, match="by the thread that entered it"):
                other.submit(activations.__exit__, None, None, None).result()
            y = torch.relu(x * 1) ** 2  # as if nothing had been tried
        assert activations.report()["tensors"] == 1
        assert_equal(torch.autograd.grad(y.sum(), x), [2 * torch.relu(x)])
        with pytest.raises(ProviderError, match="got one that has not"):
            activations.__exit__(None, None, None)


def test_what_torch_compile_saves_passes_and_is_said(tensor) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
    compiled, x = torch.compile(model, backend="eager"), tensor(128, 256)
    custom = torch.compile(model, backend="aot_eager")
    report = assert_as_without([x, *model.parameters()], lambda x, *_: compiled(x))
    assert report["tensors"]
    x = tensor(1024, 256)
    with pytest.warns(
        UserWarning, match=r": 0 bytes were compressed, \d+ were not \(\d+ as 'leaf'"
    ):
        gradients([x], custom)


def test_inside_of_torch_compile_it_is_refused(tensor) -> None:
    def step(x):
        with cto.torch.compressed_activations():
            return torch.relu(x) ** 2

    with pytest.raises(ProviderError, match="outside of what torch"):
        torch.compile(step, backend="eager")(tensor())


def by_what_saves(*_, consumer):
    return "sparse" if consumer == "relu" else "pack16"


@pytest.mark.parametrize("is_late", [False, True])
def test_longer_codes_in_place_of_sparse_ones_are_all_that_counts(
    tensor, monkeypatch, is_late
) -> None:
    """Also where the length of the sparse ones is known only when they are gone."""
    waits = []

    def copied(numbers, _):
        waits.append(Event())
        return numbers.clone(), waits[-1]

    if is_late:
        monkeypatch.setattr(activations, "copy_to_host", copied)
    x, w = tensor(64, N // 64), tensor(N // 64, 8)
    kept = cto.torch.compressed_activations(by_what_saves)
    with kept:
        total = (torch.relu(x) @ w).sum()
    report, nbytes = kept.report(), x.nbytes
    row = {"tensors": 1, "shared": 1, "before": nbytes, "after": nbytes // 2}
    assert report["names"] == {"ReluBackward0 pack16": row}
    assert (report["held"], report["after"]) == (nbytes // 2, nbytes // 2)
    assert len(waits) == is_late
    (actual,) = torch.autograd.grad(total, w)
    assert torch.equal(actual, torch.autograd.grad((torch.relu(x) @ w).sum(), w)[0])


def test_hooks_of_another_stream_follow_it(tensor, monkeypatch) -> None:
    """Without a GPU: that codes of one stream are waited for, and compressed anew for another."""
    x, followed = tensor() * 1, []
    streams = {"now": stream_of(7)}
    monkeypatch.setattr(activations, "current_stream", lambda _: streams["now"])
    monkeypatch.setattr(activations, "_wait_for_codes", followed.append)
    kept = cto.torch.compressed_activations(pack16)
    first = kept.pack(x)
    streams["now"] = stream_of(8)
    second = kept.pack(x)
    assert first is not second
    kept.unpack(second)
    assert not followed
    kept.unpack(first)
    assert followed == [first]

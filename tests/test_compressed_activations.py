# SPDX-License-Identifier: MIT
"""PyTorch's saved tensors as codes: every case that frameworks make, on CPU tensors.

`tests/gpu/test_stash.py` has what only a GPU shows.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from functools import partial

import pytest
from late_events import Event

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, ProviderError

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cupy_training_ops.torch import activations, kinds  # noqa: E402
from cupy_training_ops.torch.coding import stream_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small
N = 16_384  # float32 elements that are just not small


def pack16(*_):
    return "pack16"


@pytest.fixture
def tensor(seed):
    """Makes normal tensors, float16's values, so that pack16 gives them back."""
    generator = torch.Generator().manual_seed(seed)

    def made(*shape, gradients=True):
        x = torch.randn(shape or (N,), generator=generator).half().float()
        return x.requires_grad_(gradients)

    return made


@pytest.fixture
def moves(monkeypatch):
    """How often codes were made and read."""
    found = Counter()
    original = kinds.coding

    def counted(name, move):
        def call(*given):
            found[name] += 1
            move(*given)

        return call

    def coding(*given):
        ready = original(*given)
        names = ("encode", "encode_unaligned", "decode")
        return ready._replace(**{name: counted(name, getattr(ready, name)) for name in names})

    monkeypatch.setattr(kinds, "coding", coding)
    monkeypatch.setattr(kinds, "_kinds", weakref.WeakKeyDictionary())
    return found


def gradients(inputs, loss, policy=pack16):
    """Those of a function's sum, and the report."""
    kept = cto.torch.compressed_activations(policy)
    with kept:
        total = loss(*inputs).sum()
    found = torch.autograd.grad(total, inputs)
    return found, kept.report()


def assert_equal(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def assert_as_without(inputs, loss, policy="lossless"):
    """Bit for bit; the report."""
    found, report = gradients(inputs, loss, policy)
    assert_equal(found, torch.autograd.grad(loss(*inputs).sum(), inputs))
    return report


def network(x, w1, w2, scale, bias):
    y = functional.conv2d(x * 1, w1, padding=1)
    y = torch.relu(functional.batch_norm(y, None, None, scale, bias, training=True))
    y = functional.max_pool2d(functional.conv2d(y, w2, padding=1), 2)
    return functional.log_softmax(y.flatten(1), 1) ** 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_lossless_gradients_are_the_same_bits(tensor, layout) -> None:
    x = tensor(8, 4, 32, 32).detach().contiguous(memory_format=layout).requires_grad_()
    weights = [tensor(8, 4, 3, 3), tensor(8, 8, 3, 3), tensor(8), tensor(8)]
    report = assert_as_without([x, *weights], network)
    assert report["tensors"] >= 3
    assert report["held"] == 0
    assert {"parameter", "small"} <= report["passed"].keys()


def test_default_and_small_are_near(tensor) -> None:
    """One step of a layer and a ReLU: with `default` its mask, and so a gradient, is exact."""
    x, w = tensor(128, 256), tensor(256, 256)

    def loss(x, w):
        return torch.relu((x * 1) @ w / 16)

    expected = torch.autograd.grad(loss(x, w).sum(), (x, w))
    for policy, bounds in (("default", (0, 0.015)), ("small", (0.01, 0.02))):
        found, report = gradients([x, w], loss, policy)
        assert report["before"] >= 4 * report["after"]
        for one, other, bound in zip(found, expected, bounds, strict=True):
            assert (one - other).norm() <= bound * other.norm()


def test_a_tensor_that_is_saved_twice_is_compressed_and_decompressed_once(tensor, moves) -> None:
    """A ReLU's result is the next layer's input, there in another shape."""
    x, w = tensor(16, 1024), tensor(16, 32, 32)
    report = assert_as_without([x, w], lambda x, w: w * torch.relu(x).view(16, 32, 32), pack16)
    assert (report["tensors"], report["shared"]) == (1, 1)
    assert moves == {"encode": 1, "decode": 1}


def test_no_more_than_two_decoded_tensors_are_held(tensor, moves) -> None:
    kept, tensors = cto.torch.compressed_activations(pack16), [tensor() * 1 for _ in range(3)]
    saved = [[kept.pack(x) for x in tensors] for _ in range(2)]
    first = [weakref.ref(kept.unpack(each)) for each in saved[0]]
    assert [x() is not None for x in first] == [False, True, True]
    for each, x in zip(saved[1], tensors, strict=True):
        assert torch.equal(kept.unpack(each), x)
    assert [x() is not None for x in first] == [False] * 3
    assert moves == {"encode": 3, "decode": 4}


def test_kernels_are_told_that_an_address_is_unaligned(tensor, moves) -> None:
    kept = cto.torch.compressed_activations(pack16)
    x = (tensor(N + 4) * 1)[1:]
    assert torch.equal(kept.unpack(kept.pack(x)), x)
    assert moves == {"encode_unaligned": 1, "decode": 1}


def test_an_address_that_is_used_again_is_another_tensor(tensor, moves) -> None:
    kept, source, saved, addresses = cto.torch.compressed_activations(pack16), tensor(), [], set()
    for i in range(50):
        x = source * i
        addresses.add(x.data_ptr())
        saved.append(kept.pack(x))
        del x  # the next one may get its memory
    assert len(addresses) < 50
    assert moves["encode"] == 50
    for i, each in enumerate(saved):
        assert torch.allclose(kept.unpack(each), source * i, rtol=1e-3)


def test_a_change_after_saving_leaves_the_gradient_of_what_was_saved(tensor) -> None:
    x = tensor()
    with cto.torch.compressed_activations(pack16):
        y = x * 2
        total = (y * y).sum()
        y.add_(1)
        second = (y * y).sum()  # saved anew
    assert torch.equal(torch.autograd.grad(total, x, retain_graph=True)[0], 8 * x)
    found = torch.autograd.grad(second, x)[0]
    assert torch.allclose(found, 4 * (2 * x + 1), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(N,), (8,)], ids=["leaf", "small"])
def test_a_change_of_what_passed_is_an_error(shape) -> None:
    x = torch.ones(shape, requires_grad=True)
    held = torch.full(shape, 3.0)
    with cto.torch.compressed_activations(pack16):
        total = (x * held).sum()
    held.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .* version 1; exp"):
        total.backward()


def test_a_parameter_that_was_stepped_is_an_error(tensor) -> None:
    x, w = tensor(64, 256), torch.nn.Parameter(tensor(256, 256).detach())
    with cto.torch.compressed_activations():
        total = ((x * 1) @ w.t()).sum()
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("policy", ["default", lambda *_: None], ids=["codes", "passed"])
def test_a_forward_without_a_backward_leaves_nothing(tensor, policy) -> None:
    x = tensor()
    kept = cto.torch.compressed_activations(policy)
    gc.collect()
    gc.disable()
    try:
        with kept:
            y = torch.relu(x * 1).exp()
        gone = weakref.ref(y.untyped_storage())
        del y
        assert gone() is None
        assert kept.report()["held"] == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("policy", ["default", lambda *_: None], ids=["codes", "passed"])
def test_what_is_written_after_it_was_saved_leaves_nothing(tensor, policy) -> None:
    """Plainly such a graph, of which nobody asks the gradients, holds itself."""
    kept = cto.torch.compressed_activations(policy)
    gc.collect()
    gc.disable()
    try:
        with kept:
            x = tensor() * 1
            y = x * tensor()
            x += y
        gone = weakref.ref(x.untyped_storage())
        del x, y
        assert gone() is None
    finally:
        gc.enable()


def test_layouts_come_back(tensor) -> None:
    kept = cto.torch.compressed_activations(pack16)
    x = tensor(2, 8, 32, 32) * 1
    for y in (x, x.transpose(1, 3), x.contiguous(memory_format=torch.channels_last), x[1:]):
        restored = kept.unpack(kept.pack(y))
        assert restored.stride() == y.stride()
        assert torch.equal(restored, y)
    assert kept.report()["tensors"] == 3  # the transposed one has the same memory


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x[:, ::2], "layout"),
        (lambda x: x.expand(2, *x.shape), "layout"),
        (lambda x: x[:2], "small"),
        (lambda x: torch.complex(x, x), "dtype"),
        (lambda x: torch._neg_view(x), "layout"),
        (lambda x: x.to_sparse(), "layout"),
        (lambda x: x.detach().to_sparse(), "leaf"),
        (lambda x: x.log_softmax(1), "log-probabilities"),
        (lambda x: x.log_softmax(1).view(-1).float(), "log-probabilities"),
        (lambda x: x.detach(), "leaf"),
        (lambda x: x.long(), "leaf"),
    ],
)
def test_what_passes_untouched(tensor, change, reason) -> None:
    kept = cto.torch.compressed_activations()
    x = change(tensor(64, 512) * 1)
    saved = kept.pack(x)
    assert kept.report()["passed"].keys() == {reason}
    assert not saved.tensor.requires_grad
    assert kept.unpack(saved).is_sparse or kept.unpack(saved).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("view", [lambda w: w, lambda w: w.t(), lambda w: w.bfloat16().t()])
def test_parameters_their_views_and_casts_pass(tensor, view) -> None:
    kept = cto.torch.compressed_activations()
    kept.pack(view(torch.nn.Parameter(tensor(256, 256).detach())))
    assert kept.report()["passed"].keys() == {"parameter"}


def test_statistics_pass(tensor) -> None:
    """One number a row, from which every gradient of the row is computed."""
    kept = cto.torch.compressed_activations("plain_msfp15")
    with kept:
        y = functional.group_norm(tensor(N // 2, 2, 4) * 1, 2)
    assert kept.report()["passed"]["statistics"] == 2 * 4 * N
    assert kept.report()["tensors"] == 1
    del y


def test_bools_are_packed(tensor) -> None:
    kept = cto.torch.compressed_activations("default")
    seen = []

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x > 0

    mask = Masked.apply(tensor(1, 2 * 65_536))
    seen.append(mask)
    assert torch.equal(kept.unpack(kept.pack(mask)), mask)


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
    found = [None] * 4

    def work(i):
        for _ in range(20):
            with kept:
                total = (torch.relu(inputs[i] * 1) ** 2).exp().sum()
            found[i] = torch.autograd.grad(total, inputs[i])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, slope in zip(inputs, found, strict=True):
        expected = torch.autograd.grad((torch.relu(x * 1) ** 2).exp().sum(), x)[0]
        assert torch.equal(slope, expected)
    assert kept.report()["held"] == 0


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


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "tiny",
            r"policy: expected one of 'lossless', 'default', 'wide', 'small', 'plain_msfp15' or a",
        ),
        (lambda *_: "zip", r"expected the name of a codec \(.*\) or None for 'ExpBackward0', got"),
        (
            lambda *_: "pack1",
            "expected a codec that keeps the values of 'ExpBackward0', got 'pack1'",
        ),
    ],
    ids=["name", "codec", "sign"],
)
def test_a_wrong_policy_is_one_error(tensor, policy, message) -> None:
    with pytest.raises(ArgumentError, match=message), cto.torch.compressed_activations(policy):
        (tensor() * 2).exp()


def test_a_policy_is_told_what_is_saved(tensor) -> None:
    seen = []

    def policy(*given):
        seen.append(given)

    with cto.torch.compressed_activations(policy) as kept:
        torch.relu(tensor(2, N)).exp()
    assert ("ReluBackward0", "float32", (2, N), "value") in seen
    assert kept.report()["passed"]["policy"] >= 2 * 4 * N


def test_importing_the_package_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, cupy_training_ops as cto; cto.ActivationStash; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert found.stdout.strip() == b"False"


def test_the_report_names_what_was_kept(tensor) -> None:
    x = tensor(4, N)
    with cto.torch.compressed_activations("plain_msfp15") as kept:
        y = torch.relu(x).sin().cos()
    report = kept.report()
    assert report["names"] == {
        name: {"tensors": 1, "shared": n, "before": 16 * N, "after": 4 * N}
        for name, n in (("ReluBackward0 msfp15", 1), ("SinBackward0 msfp15", 0))
    }
    assert report["peak"] == report["held"] == report["after"] == 8 * N
    del y
    assert kept.report()["held"] == 0


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
        monkeypatch.setattr(activations, "copied", copied)
    x, w = tensor(64, N // 64), tensor(N // 64, 8)
    kept = cto.torch.compressed_activations(by_what_saves)
    with kept:
        total = (torch.relu(x) @ w).sum()
    report, nbytes = kept.report(), x.nbytes
    row = {"tensors": 1, "shared": 1, "before": nbytes, "after": nbytes // 2}
    assert report["names"] == {"ReluBackward0 pack16": row}
    assert (report["held"], report["after"]) == (nbytes // 2, nbytes // 2)
    assert len(waits) == is_late
    (found,) = torch.autograd.grad(total, w)
    assert torch.equal(found, torch.autograd.grad((torch.relu(x) @ w).sum(), w)[0])


def test_hooks_of_another_stream_follow_it(tensor, monkeypatch) -> None:
    """Without a GPU: that codes of one stream are waited for, and compressed anew for another."""
    x, followed = tensor() * 1, []
    streams = {"now": stream_of(7)}
    monkeypatch.setattr(activations, "current_stream", lambda _: streams["now"])
    monkeypatch.setattr(activations, "_follow", followed.append)
    kept = cto.torch.compressed_activations(pack16)
    first = kept.pack(x)
    streams["now"] = stream_of(8)
    second = kept.pack(x)
    assert first[0] is not second[0]
    kept.unpack(second)
    assert not followed
    kept.unpack(first)
    assert followed == [first[0]]


def test_a_gpus_codec_is_a_launch_over_addresses() -> None:
    """Without a GPU: the kernels, their addresses and the stream, on CuPy's hollow arrays."""
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow_launches
    from cupy_training_ops.torch.coding import coding

    with hollow_launches() as launches:
        ready = coding.__wrapped__("msfp15", "bfloat16", N, 0)
        ready.encode((4096, 8192), stream_of(7))
        ready.encode_unaligned((4098, 8192), stream_of(7))
        ready.decode((8192, 4096), stream_of(0))
    names, arguments = zip(*launches, strict=True)
    assert names == ("gist_pack_msfp15_encoder",) * 2 + ("gist_pack_msfp15_decoder",)
    assert [given[:2] for given in arguments] == [(4096, 8192), (4098, 8192), (8192, 4096)]
    assert [given[-1] for given in arguments] == [7, 7, 0]
    aligned = [bool(given[4]) for given in arguments]
    assert aligned == [True, False, True]
    assert ready.code_nbytes == N


@pytest.fixture
def guarded(monkeypatch):
    """A guarded codec whose launches are listed, and how its scratch memory is made."""
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow_launches
    from cupy_training_ops.torch import coding

    made = {"zeros": [], "empty": []}

    def on_the_host(kind, n, *, dtype, device):
        assert device == 0
        made[kind].append(torch.full((n,), 0, dtype=dtype))
        return made[kind][-1]

    imported, is_capturing = [], []
    monkeypatch.setattr(coding, "cuda_backend", lambda: imported.append("CuPy"))
    for kind in made:
        monkeypatch.setattr(coding.torch, kind, partial(on_the_host, kind))
    monkeypatch.setattr(
        coding.torch.cuda, "is_current_stream_capturing", lambda: bool(is_capturing)
    )
    monkeypatch.setattr(coding, "_ROOMS", {})
    monkeypatch.setattr(coding, "_KEPT", [])
    with hollow_launches() as launches:
        ready = coding.coding.__wrapped__(
            "msfp15_signed", "bfloat16", N, 0, "tiles", (4, N // 16, 4)
        )
        assert imported
        yield ready, launches, made, is_capturing


def scratch_of(given) -> set[int]:
    """Addresses that are none of the arrays'."""
    found = {int(each) for each in given[:-1] if type(each).__name__ == "uint64"}
    return found - {4096, 8192, 12288, 0}


def test_a_guarded_codec_is_launches_over_addresses(guarded) -> None:
    """Calls of a stream share scratch memory, whose zeros are made once."""
    ready, launches, made, _ = guarded
    for stream in (7, 7, 9):
        ready.encode((4096, 8192, 12288), stream_of(stream))
    assert [len(made["zeros"]), len(made["empty"]), len(launches)] == [2, 0, 3]
    for (name, given), room, stream in zip(launches, [0, 0, 1], [7, 7, 9], strict=True):
        memory = made["zeros"][room]
        begin = memory.data_ptr()
        assert scratch_of(given), name
        assert scratch_of(given) <= set(range(begin, begin + memory.nbytes)), name
        assert given[-1] == stream


def test_several_launches_have_scratch_memory_of_their_own(request, monkeypatch) -> None:
    """Between two of them another thread may queue its own, and a Ctrl-C may come."""
    from cupy_training_ops.runtime.launch import ReadyPlan

    monkeypatch.setattr(ReadyPlan, "is_one_launch", False)
    ready, launches, made, _ = request.getfixturevalue("guarded")
    for _ in range(2):
        ready.encode((4096, 8192, 12288), stream_of(7))
    assert [len(made["zeros"]), len(made["empty"])] == [0, 2]
    assert [name == "clear" for name, _ in launches] == [True, False] * 2


def test_a_captured_encoding_has_scratch_memory_of_its_own(guarded) -> None:
    """Whose zeros are queued before it, at each replay."""
    ready, launches, made, is_capturing = guarded
    is_capturing.append(True)
    ready.encode((4096, 8192, 12288), stream_of(7))
    (memory,) = made["empty"]
    (first, cleared), (_, given) = launches
    assert first == "clear"
    assert (cleared[0], cleared[2]) == (memory.data_ptr(), 7)
    assert cleared[1] < memory.nbytes
    assert scratch_of(given) <= set(range(memory.data_ptr(), memory.data_ptr() + memory.nbytes))
    assert not made["zeros"]

# SPDX-License-Identifier: MIT
"""A GPU's codec is launches over addresses: without a GPU, on CuPy's hollow arrays."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")


from cupy_training_ops.torch.coding import stream_of  # noqa: E402

from .cases import N  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


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
    monkeypatch.setattr(coding, "_SCRATCH", {})
    monkeypatch.setattr(coding, "_SCRATCH_TENSORS", [])
    with hollow_launches() as launches:
        ready = coding.coding.__wrapped__(
            "msfp15_signed", "bfloat16", N, 0, "tiles", (4, N // 16, 4)
        )
        assert imported
        yield ready, launches, made, is_capturing


def scratch_of(given) -> set[int]:
    """Addresses that are none of the arrays'."""
    actual = {int(each) for each in given[:-1] if type(each).__name__ == "uint64"}
    return actual - {4096, 8192, 12288, 0}


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
    from cupy_training_ops.device.launch import ReadyPlan

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

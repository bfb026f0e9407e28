# SPDX-License-Identifier: MIT
"""What a context takes of the host, in calls of Python functions: they are no noisy clock."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops.torch import activations, saved  # noqa: E402

PACKAGE = str(Path(cto.__file__).parent)
N_LAYERS = 8


class Good:
    """Numbers of codes that are good enough, there at once."""

    def data_ptr(self) -> int:
        return 0

    def tolist(self) -> list[float]:
        return [0.0, 1.0, 1.0, 0.0]


def nothing(*_: object) -> None:
    """In place of what encodes and decodes."""


@pytest.fixture
def calls(monkeypatch):
    """Counts calls of functions of the package within a step, launches left out."""
    coding, moves = saved.coding, dict.fromkeys(("encode", "encode_unaligned", "decode"), nothing)
    monkeypatch.setattr(saved, "coding", lambda *form: coding(*form)._replace(**moves))
    monkeypatch.setattr(saved, "_forms", weakref.WeakKeyDictionary())
    monkeypatch.setattr(activations, "empty_numbers", lambda *_: Good())

    def counted(forward):
        actual = Counter()

        def note(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                actual[frame.f_code.co_qualname] += 1

        kept = cto.torch.compressed_activations()
        for _ in range(3):  # kinds are known then
            with kept:
                loss = forward()
            loss.backward()
        tensors = kept.report()["tensors"]
        kept.__enter__()
        sys.setprofile(note)
        try:
            loss = forward()
            loss.backward()
        finally:
            sys.setprofile(None)
            kept.__exit__(None, None, None)
        report = kept.report()
        return sum(actual.values()), report["tensors"] - tensors, actual

    return counted


@pytest.mark.filterwarnings("ignore:.* bytes were compressed")
def test_calls_of_a_step(calls) -> None:
    """Of a layer two torch functions, a parameter, a tensor, and the same once more."""
    layers = [torch.nn.Linear(128, 128) for _ in range(N_LAYERS)]
    x = torch.randn(256, 128)

    def forward():
        y = x
        for layer in layers:
            y = torch.relu(layer(y))
        return y.sum()

    n, tensors, actual = calls(forward)
    assert tensors == N_LAYERS
    assert n <= 57 * N_LAYERS, actual.most_common()


@pytest.mark.filterwarnings("ignore:.* bytes were compressed")
def test_calls_for_what_passes(calls) -> None:
    """A parameter, and an operand that stays: of a multiplication they are saved both."""
    weights = [torch.nn.Parameter(torch.ones(256, 128)) for _ in range(N_LAYERS)]
    x = torch.randn(256, 128, requires_grad=True)

    def forward():
        y = x.exp()
        for weight in weights:
            y = y * weight
        return y.sum()

    n, tensors, actual = calls(forward)
    assert tensors == 0
    assert n <= 150, actual.most_common()

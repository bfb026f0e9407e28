# SPDX-License-Identifier: MIT
"""Memory of captured steps: how much there is, and how long it lives."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto

DATA = Path(__file__).parent / "data"
pytestmark = pytest.mark.gpu


def opened(name: str, **options):
    import cupy

    with np.load(DATA / name / "answers.npz") as file:
        return cto.onnx.TrainingSession(DATA / name, cupy, seed=3, **options), dict(file)


def losses(session, answers, steps) -> list[bytes]:
    actual = [session.step(answers["x"][i], answers["labels"][i]) for i in steps]
    return [loss.get().tobytes() for loss in actual]


def test_sizes_that_came_once_have_memory_for_the_largest_alone(monkeypatch) -> None:
    import cupy

    pools = weakref.WeakSet()

    class Pool(cupy.cuda.MemoryPool):
        def __init__(self) -> None:
            super().__init__()
            pools.add(self)

    monkeypatch.setattr(cupy.cuda, "MemoryPool", Pool)
    from cupy_training_ops.onnx.capture import Captures

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 65536] x) => (float[N, 65536] y) { a = Relu(x) y = Softmax(a) }"""
    )
    runs = Captures(cto.onnx.Session(model, cupy), {})
    for n in range(16, 0, -1):
        runs({"x": cupy.ones((n, 65536), np.float32)})
    assert sum(pool.total_bytes() for pool in pools) <= 4 * 16 * 65536 * 4


def test_graphs_one_after_the_other_share_scratch_memory() -> None:
    """Old forms make room for new ones, whose graphs come behind those of the old ones."""
    from cupy_training_ops.device import workspace

    session, answers = opened("cnn_max", graph=True)
    plain, _ = opened("cnn_max")
    x, labels = (np.concatenate(answers[key]) for key in ("x", "labels"))
    sizes = []
    for _ in range(3):
        for n in range(2, 20):
            for _ in range(3):
                pair = [s.step(x[:n], labels[:n]) for s in (session, plain)]
        assert pair[0] == pair[1]
        sizes.append(sum(buffer.nbytes for buffer in workspace._of_graphs))
    assert sizes[0] == sizes[1] == sizes[2]


def test_a_graph_outlives_the_thread_that_captured_it() -> None:
    """Scratch memory of matrix products is a thread's."""
    import cupy

    from cupy_training_ops.onnx import cublas

    session, answers = opened("gpt", graph=True)
    plain, _ = opened("gpt")
    before = len(cublas._of_graphs)
    thread = threading.Thread(target=losses, args=(session, answers, range(3)))
    thread.start()
    thread.join()
    assert len(cublas._of_graphs) == before + 1
    others = [cupy.full(cublas.WORKSPACE // 4, np.nan, np.float32) for _ in range(4)]
    losses(plain, answers, range(3))
    assert losses(session, answers, range(3, 6)) == losses(plain, answers, range(3, 6))
    assert all(bool(cupy.isnan(other).all()) for other in others)

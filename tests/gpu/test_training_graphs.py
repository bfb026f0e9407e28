# SPDX-License-Identifier: MIT
"""Training steps as CUDA graphs: replays equal eager steps, also where one of them is skipped."""

from __future__ import annotations

import numpy as np
import pytest
from digits import train_digits
from runs import Run
from training import N_STEPS, OPTIMIZERS, Training, assert_same

from cupy_training_ops import ProviderError

pytestmark = pytest.mark.gpu


def results(name: str, captured: bool) -> list[np.ndarray]:
    """What ten steps leave, the rate changed on the device and one step skipped for a NaN."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        training = Training(Run("cuda", 0), name, np.random.default_rng(11))
        step = graph_of(training, stream) if captured else training.step
        for i in range(N_STEPS):
            training.prepare(i)
            step()
        stream.synchronize()
        return training.results()


def graph_of(training: Training, stream):
    """A step over its gradients, after a skipped one that compiled kernels and changed nothing."""
    training.gradients[-1].fill(np.nan)
    training.step()
    stream.begin_capture()
    try:
        training.step()
    finally:
        graph = stream.end_capture()
    return lambda: graph.launch(stream)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_replays_are_ten_eager_steps(name) -> None:
    assert_same(results(name, captured=True), results(name, captured=False))


def test_a_first_step_under_capture_is_refused() -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        training = Training(Run("cuda", 0), "Lamb", np.random.default_rng(0))
        stream.synchronize()
        stream.begin_capture()
        try:
            with pytest.raises(ProviderError, match=r"under graph capture needs .* scratch"):
                training.step()
        finally:
            stream.end_capture()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_digits_have_the_same_curve_with_a_graph(name) -> None:
    import cupy

    curves = []
    for graph in (False, True):
        with cupy.cuda.Stream(non_blocking=True):
            curves.append(train_digits.train(cupy, name, 40, seed=1, graph=graph)[0])
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]

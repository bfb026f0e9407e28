# SPDX-License-Identifier: MIT
"""The convolutional network learns its digits, the same ones on every provider."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest
import train_digits
from click.testing import CliRunner

from cupy_training_ops.call import backends

# Found, not imported: that takes a second, which each worker would spend on listing its tests.
ABSENT = [package for package in ("sklearn", "matplotlib") if find_spec(package) is None]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=f"{ABSENT} are in the examples extra")


@pytest.fixture
def called(tmp_path):
    """The script with a plot: what it prints, and the plot."""

    def call(*arguments: str):
        path = tmp_path / "loss.png"
        result = CliRunner().invoke(train_digits.main, [*arguments, "--plot", str(path)])
        assert result.exit_code == 0, result.output
        return result.stdout, path.read_bytes()

    return call


def test_a_short_training(called) -> None:
    printed, png = called("--steps", "40", "--seed", "3", "--device", "cpu", "--json")
    actual = json.loads(printed)
    assert actual["seed"] == 3
    assert actual["device"] == "cpu"
    assert actual["accuracy"] == actual["correct"] / 297 > 0.5
    assert len(actual["losses"]) == 40
    assert np.mean(actual["losses"][-5:]) < 0.6 * actual["losses"][0]
    assert png.startswith(b"\x89PNG\r\n\x1a\n")


def test_what_is_printed(called) -> None:
    printed, _ = called("--steps", "1", "--device", "cpu")
    correct, loss, seconds = printed.splitlines()
    assert correct.endswith(" of 297 held-out images are read correctly")
    assert loss.startswith("loss 2.")
    assert seconds.endswith(" s on cpu")


def test_a_seed_gives_a_curve() -> None:
    curves = [train_digits.train(np, seed, 2).losses for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]


def test_gradients_are_those_of_the_loss() -> None:
    known, _ = train_digits.loaded()
    network = train_digits.Network(np, np.random.default_rng(5))
    x, labels = train_digits.cropped(np, known, slice(20)), known.labels[:20]
    for layer in network.layers:
        network.step(x, labels, 0.0)
        slope, *_ = layer.gradients
        place = np.unravel_index(np.argmax(np.abs(slope)), slope.shape)
        expected, start, losses = slope[place], layer.weight[place], []
        for shift in (1e-2, -1e-2):
            layer.weight[place] = start + shift
            losses.append(float(network.step(x, labels, 0.0)))
        layer.weight[place] = start
        assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(expected, rel=0.02)


def test_the_last_images_are_held_out() -> None:
    known, unknown = train_digits.loaded()
    assert len(known.labels) == 1500
    assert len(unknown.images) == len(unknown.labels) == 297
    flat = {image.tobytes() for image in known.images}
    assert not flat & {image.tobytes() for image in unknown.images}


@pytest.mark.thorough
def test_nine_of_ten_held_out_images_are_read(rng) -> None:
    """From one of five seeds; a GPU has time for all."""
    assert train_digits.share(train_digits.train(np, int(rng.integers(5)), 450)) >= 0.9


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(5))
def test_a_gpu_reads_them_too(seed) -> None:
    import cupy

    assert train_digits.share(train_digits.train(cupy, seed, 450)) >= 0.9
    here, there = (train_digits.train(xp, seed, 20).losses for xp in (np, cupy))
    assert np.abs(np.subtract(here, there)).max() < 1e-4


@pytest.mark.thorough
def test_emulated_steps_are_those_of_the_cpu_provider(anywhere, monkeypatch) -> None:
    """Held-out images are few here: the emulator reads a thousand pixels a millisecond."""
    monkeypatch.setattr(train_digits, "BATCH", 6)
    known, unknown = train_digits.loaded()
    few = train_digits.Digits(*(a[:3] for a in unknown))
    monkeypatch.setattr(train_digits, "loaded", lambda: (known, few))
    losses = train_digits.train(anywhere.xp, 0, 3).losses
    with backends.numpy_runs_on(backends.CPU):
        expected = train_digits.train(np, 0, 3).losses
    assert np.abs(np.subtract(losses, expected)).max() < 1e-4

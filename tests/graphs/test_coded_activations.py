# SPDX-License-Identifier: MIT
"""Activations that wait for the backward part of a graph as codes."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx import activations

DATA = Path(__file__).parent / "data"
GRAPHS = sorted(path.name for path in DATA.iterdir())
ROWS = {"cnn_max": 64, "cnn_global": 192, "transformer": 512}


@pytest.fixture(autouse=True)
def whatever_their_size(monkeypatch) -> None:
    monkeypatch.setattr(activations, "LEAST", 0)


def batch(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs like those of the data, of more rows where the graph has room for them."""
    with np.load(DATA / name / "answers.npz") as file:
        x, labels = file["x"][0], file["labels"][0]
    if name not in ROWS:
        return x, labels
    rows = rng.integers(0, len(x), ROWS[name])
    noise = rng.standard_normal((ROWS[name], *x.shape[1:])).astype(x.dtype)
    return x[rows] + noise, labels[rows]


def both(name: str):
    """A session that codes, and one that does not."""
    return (
        cto.onnx.TrainingSession(DATA / name, seed=1, activations=policy)
        for policy in ("default", None)
    )


ORDER = """
import sys
from cupy_training_ops.onnx import TrainingSession, activations
activations.LEAST = 0
needs_of = activations._needs

def noted(graph, backward):
    needs = needs_of(graph, backward)
    print(list(needs))
    return needs

activations._needs = noted
TrainingSession(sys.argv[1], seed=1, activations="default")
"""


def test_values_are_coded_in_an_order_that_no_hash_decides() -> None:
    command = [sys.executable, "-c", ORDER, str(DATA / "cnn_max")]
    orders = {
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True,
        ).stdout
        for seed in "1234"
    }  # fmt: skip
    assert len(orders) == 1
    assert orders.pop().count(",") > 2


def off(a, b) -> float:
    """How far all gradients together are off, relative to what they are."""
    pairs = [(a[name].astype(np.float64), b[name].astype(np.float64)) for name in b]
    error = sum(((x - y) ** 2).sum() for x, y in pairs)
    return float(np.sqrt(error / sum((y**2).sum() for _, y in pairs)))


@pytest.mark.parametrize("name", GRAPHS)
def test_losses_are_the_same_and_gradients_near(name: str, rng) -> None:
    coded, plain = both(name)
    x, labels = batch(name, rng)
    for _ in range(2):
        assert coded.accumulate(x, labels) == plain.accumulate(x, labels)
    assert off(coded.gradients, plain.gradients) < 0.03
    if name in ROWS:
        assert off(coded.gradients, plain.gradients) > 1e-6, "nothing was coded"
    coded.apply()


@pytest.mark.parametrize("name", GRAPHS)
def test_small_values_go_on_as_they_are(name: str, rng, monkeypatch) -> None:
    monkeypatch.setattr(activations, "LEAST", 1 << 40)
    coded, plain = both(name)
    x, labels = batch(name, rng)
    coded.step(x, labels)
    plain.step(x, labels)
    assert coded.report()["names"] == {}
    for n, parameter in plain.parameters.items():
        np.testing.assert_array_equal(coded.parameters[n], parameter)


def test_two_views_that_go_on_are_not_written_over(rng, monkeypatch) -> None:
    """Each is let go by another gradient, of which the norm's writes over its X."""
    monkeypatch.setattr(activations, "LEAST", 1 << 40)
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[3, 4] x) => (float loss, float[3, 4] p, float[3, 4] q)
        <float loss_grad = {1}, float[4] w = {1, 1, 1, 1}>
        { a = Tanh(x) b = Identity(a) y, m, v = LayerNormalization(a, w) c = Exp(b)
        z = Add(y, c) loss = ReduceSum <keepdims=0> (z) s = Shape(x) e = Expand(loss_grad, s)
        p = com.microsoft.LayerNormalizationGrad(e, a, w, m, v)
        q = com.microsoft.ReluGrad(e, b) }"""
    )
    x = rng.standard_normal((3, 4)).astype(np.float32)
    actual = cto.onnx.Session(proto, activations="default").run({"x": x})
    np.testing.assert_array_equal(actual["q"], np.where(x > 0, 1.0, 0.0))


def bytes_at_the_loss(session, x, labels) -> int:
    """Bytes that a step holds where the forward part ends, beside what a session always has."""
    session.accumulate(x, labels)
    inner, bytes_in_use = session._training, []
    run_step = inner._run_step

    def watched(step, values):
        run_step(step, values)
        if step.node.op_type == "SoftmaxCrossEntropyLoss":
            bytes_in_use.append(tracemalloc.get_traced_memory()[0])

    inner._run_step = watched
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    session.accumulate(x, labels)
    tracemalloc.stop()
    return bytes_in_use[0] - before


@pytest.mark.parametrize(("name", "share"), [("cnn_global", 0.4), ("transformer", 0.5)])
def test_less_is_stored_between_the_parts(name: str, share: float, rng) -> None:
    x, labels = batch(name, rng)
    coded, plain = (bytes_at_the_loss(session, x, labels) for session in both(name))
    assert plain > 300_000
    assert coded < share * plain


def test_what_is_read_as_it_is_stays_so(rng) -> None:
    coded, _ = both("transformer")
    coded.accumulate(*batch("transformer", rng))
    rows = coded.report()["names"]
    needs = {name: row["need"] for name, row in rows.items()}
    assert set(needs.values()) == {"linear", "normalised", "product", "smooth"}
    assert {need for name, need in needs.items() if "up/Add" in name} == {"smooth"}
    assert {need for name, need in needs.items() if "Squeeze" in name} == {"product"}
    for words in ("Softmax", "log_prob", "saved_"):
        assert not [name for name in rows if words in name]
    coded, _ = both("cnn_max")
    coded.accumulate(*batch("cnn_max", rng))
    rows = coded.report()["names"]
    assert not [name for name in rows if "mask" in name or "log_prob" in name]


def test_codes_that_would_be_far_off_are_not_used(rng) -> None:
    """A norm of rows whose mean is far above their deviation sees the error beside the latter."""
    coded, plain = both("transformer")
    for session in (coded, plain):
        session.parameters["embed.bias"][...] = 500
    x, labels = batch("transformer", rng)
    coded.accumulate(x, labels)
    plain.accumulate(x, labels)
    rows = coded.report()["names"]
    assert rows["/embed/Add_output_0"]["codec"] is None
    assert off(coded.gradients, plain.gradients) < 0.03


def test_channels_far_from_zero_are_not_coded_for_a_batch_norm(rng) -> None:
    coded, plain = both("cnn_global")
    x, labels = batch("cnn_global", rng)
    for session in (coded, plain):
        session.accumulate(200 + x, labels)
    rows = coded.report()["names"]
    assert rows["/0/Conv_output_0"]["codec"] is None
    assert off(coded.gradients, plain.gradients) < 0.03


def test_a_step_that_fails_leaves_nothing_behind(rng) -> None:
    coded, plain = both("cnn_max")
    x, labels = batch("cnn_max", rng)
    with pytest.raises(cto.OpError):
        coded.accumulate(x, labels[:-1])
    with pytest.raises(cto.OpError):
        plain.accumulate(x, labels[:-1])
    assert coded.accumulate(x, labels) == plain.accumulate(x, labels)


def test_a_policy_that_is_not_there_is_refused() -> None:
    with pytest.raises(cto.ArgumentError, match="activations: expected one of"):
        cto.onnx.TrainingSession(DATA / "mlp", activations="tiny")
    session = cto.onnx.TrainingSession(DATA / "mlp")
    with pytest.raises(cto.ArgumentError, match="no activations as codes"):
        session.report()

# SPDX-License-Identifier: MIT
"""Where values are, with a device that lends nobody its arrays: what is copied, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx import session

from . import boxes
from .boxes import Box, Device, opened

DATA = Path(__file__).parent / "data"
GRAPHS = sorted(path.name for path in DATA.iterdir())


@pytest.fixture
def device(monkeypatch) -> Device:
    """The device, on which nodes are run by NumPy behind its back."""
    monkeypatch.setattr(session, "node_runners", boxes.runners)
    return Device()


@pytest.mark.parametrize("name", GRAPHS)
def test_a_step_fetches_nothing_and_sends_what_is_fed(name: str, device: Device) -> None:
    trained = cto.onnx.TrainingSession(DATA / name, device, seed=1)
    plain = cto.onnx.TrainingSession(DATA / name, seed=1)
    with np.load(DATA / name / "answers.npz") as file:
        x, labels = file["x"], file["labels"]
    device.sent.clear()
    loss = trained.step(x[0], labels[0])
    assert device.fetched == []
    assert len(device.sent) <= 2 + n_shapes(trained)
    assert opened(loss) == plain.step(x[0], labels[0])
    for name, array in plain.parameters.items():
        np.testing.assert_array_equal(opened(trained.parameters[name]), array)


def n_shapes(trained: Any) -> int:
    """Copies of what is made of shapes and used among arrays, such as a mean's divisor."""
    names = {node.op_type for node in trained._training.graph.nodes}
    return 8 if names & {"Size", "Range", "Concat"} else 0


@pytest.mark.parametrize(
    ("text", "n_fetched"), [("h = com.microsoft.InPlaceAccumulator(x, x)", 1), ("h = Neg(x)", 0)]
)
def test_what_is_computed_on_the_device_is_fetched_where_a_shape_needs_it(
    text: str, n_fetched: int, device: Device
) -> None:
    """A value that the host can compute of what it is fed is not computed on the device."""
    import onnx

    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N] x) => (float[M] y) <int64[1] one = {{1}}, int64[1] t = {{2}}>
        {{ n = NonZero(x) s = Shape(n) m = Slice(s, one, t) {text} a = Abs(h)
        k = Cast <to=7> (a) q = Mul(k, m) y = Expand(x, q) }}"""
    )
    actual = cto.onnx.Session(model, device).run({"x": np.ones(1, np.float32)})
    assert opened(actual["y"]).shape == (2 if n_fetched else 1,)
    assert len(device.fetched) == n_fetched


def host_values(text: str, device: Device, runs: int) -> list[np.ndarray]:
    """What runs of a graph give whose value y is made of the shape of x, on the host."""
    import onnx

    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N] x, float[1] z) => (float[1] y) {{ s = Shape(x) f = Cast <to=1> (s) {text} }}"""
    )
    actual = cto.onnx.Session(model, device)
    feeds = {"x": Box(np.ones(5, np.float32)), "z": Box(np.full(1, 2, np.float32))}
    return [opened(actual.run(feeds)["y"]).copy() for _ in range(runs)]


def test_what_is_sent_again_stays_on_the_device(device: Device) -> None:
    assert host_values("y = Mul(f, z)", device, 3) == [10, 10, 10]
    assert len(device.sent) == 1


@pytest.mark.parametrize(
    "text",
    [
        "y = com.microsoft.InPlaceAccumulator(f, z)",
        "g = Identity(f) y = com.microsoft.InPlaceAccumulator(g, z)",
        "g = Reshape(f, s5) h = com.microsoft.InPlaceAccumulator(g, z) y = Mul(h, z)",
        "l = SequenceConstruct(f, z) n = Constant <value_int = 0> () g = SequenceAt(l, n) "
        "y = com.microsoft.InPlaceAccumulator(g, z)",
    ],
)
def test_what_a_node_updates_is_sent_anew(text: str, device: Device) -> None:
    text = text.replace("s5", "one")
    if "one" in text:
        text = "one = Constant <value_ints = [1]> () " + text
    actual = host_values(text, device, 3)
    assert actual[0] == actual[1] == actual[2]
    assert len(device.sent) == 3


def test_a_list_of_what_is_sent_is_the_callers(device: Device) -> None:
    import onnx

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (seq(float[M]) y, float[K] f)
        { s = Shape(x) f = Cast <to=1> (s) n = Neg(x) y = SequenceConstruct(f, n) }"""
    )
    actual = cto.onnx.Session(model, device)
    for _ in range(3):
        results = actual.run({"x": np.ones(5, np.float32)})
        for box in (results["y"][0], results["f"]):
            assert opened(box) == 5
            box.fill(0)
    assert len(device.sent) == 1 + 3  # and x


@pytest.mark.parametrize("wrong", [None, "images", np.zeros((4, 1, 10, 10), bool)])
def test_what_does_not_fit_never_goes_to_the_device(device: Device, wrong: Any) -> None:
    training = cto.onnx.TrainingSession(DATA / "cnn_max", device)
    sent = len(device.sent)
    with pytest.raises(cto.DtypeError, match="x: expected float32, got"):
        training.accumulate(wrong, np.zeros(4, np.int64))
    assert len(device.sent) == sent


@pytest.mark.parametrize("frozen", [[], ["w"]])
def test_a_parameter_that_the_host_reads_is_that_of_each_step(
    frozen: list[str], device: Device, rng
) -> None:
    """It may be trained, or written by the caller."""
    import onnx

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 5] y)
        <float[1] w = {0.5}, int64[4] pads = {0, 1, 0, 1}>
        { h = Mul(x, w) v = Squeeze(w) y = Pad(h, pads, v) }"""
    )
    options = {"loss": "mse", "optimizer": "SGD", "frozen": frozen}
    if frozen:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "b"))
        model.graph.node[0].input[1] = "b"
    trained, plain = [
        cto.onnx.TrainingSession.from_model(model, xp=xp, **options) for xp in (device, np)
    ]
    x, labels = rng.random((4, 3), np.float32), rng.random((4, 5), np.float32)
    trained.lr = plain.lr = 0.5
    for _ in range(3):
        for _ in range(2):
            assert opened(trained.step(x, labels)) == plain.step(x, labels)
        for array in (opened(trained.parameters["w"]), plain.parameters["w"]):
            array += 1

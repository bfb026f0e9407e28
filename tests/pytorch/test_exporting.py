# SPDX-License-Identifier: MIT
"""Converted models in programs that other tools run: graphs as those of PyTorch's own modules."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from cupy_training_ops.torch import convert, nn  # noqa: E402

theirs = torch.nn


class Classifier(theirs.Module):
    """Each class that convert replaces, but RMS norms, which the old exporter does not know."""

    def __init__(self, *, has_rms_norm: bool) -> None:
        super().__init__()
        self.body = theirs.Sequential(
            theirs.Embedding(9, 16, padding_idx=0),
            theirs.LayerNorm(16),
            theirs.Linear(16, 16),
            theirs.GELU(),
            theirs.RMSNorm(16) if has_rms_norm else theirs.Identity(),
            theirs.Dropout(0.5),
        )
        self.scores, self.shares = theirs.LogSoftmax(-1), theirs.Softmax(-1)
        self.loss = theirs.CrossEntropyLoss(ignore_index=3)

    def forward(self, words, labels):
        hidden = self.body(words)
        return self.scores(hidden), self.shares(hidden), self.loss(hidden, labels)


@pytest.fixture
def pair(seed, labels):
    """A model in evaluation, a converted copy, and inputs."""
    torch.manual_seed(seed)

    def made(*, has_rms_norm: bool = True):
        model = Classifier(has_rms_norm=has_rms_norm).eval()
        converted = copy.deepcopy(model)
        swapped = set(convert(converted).swapped.values())
        assert len(swapped) == 7 + has_rms_norm
        return model, converted, (labels(9, 7), labels(16, 7))

    return made


def calls(graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def assert_same(program, model, inputs) -> None:
    for actual, expected in zip(program(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_are_pytorchs(pair, strict) -> None:
    model, converted, inputs = pair()
    actual, expected = (torch.export.export(m, inputs, strict=strict) for m in (converted, model))
    assert calls(actual.graph) == calls(expected.graph)
    assert not any("cto" in name for name in calls(actual.graph))
    assert_same(actual.module(), model, inputs)


@pytest.mark.filterwarnings("ignore")  # PyTorch would have us trace no more
def test_traced_models_are_pytorchs(pair) -> None:
    model, converted, inputs = pair()
    buffer = io.BytesIO()
    traced = torch.jit.trace(converted, inputs)
    assert "cto::" not in str(traced.inlined_graph)
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    assert_same(torch.jit.load(buffer), model, inputs)


def test_symbolic_traces_are_pytorchs(pair) -> None:
    """Functions in place of modules, as tracers make leaves of PyTorch's own modules alone."""
    model, converted, inputs = pair()
    traced = torch.fx.symbolic_trace(converted)
    assert {"embedding", "layer_norm", "gelu", "rms_norm", "cross_entropy"} <= {
        getattr(node.target, "__name__", "") for node in traced.graph.nodes
    }
    assert_same(traced, model, inputs)
    named = {name for name, _ in traced.named_parameters()}
    assert named == {name for name, _ in model.named_parameters()}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_new", [True, False])
def test_onnx_models_are_pytorchs(pair, is_new) -> None:
    """Both exporters write the operators of the model as it was, and give its results."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    if is_new:
        pytest.importorskip("onnxscript", reason="the new exporter needs it")
    model, converted, inputs = pair(has_rms_norm=is_new)
    written = []
    for each in (converted, model):
        buffer = io.BytesIO()
        torch.onnx.export(each, inputs, buffer, dynamo=is_new, opset_version=18)
        written.append(onnx.load_from_string(buffer.getvalue()))
    operators = [[(n.domain, n.op_type) for n in each.graph.node] for each in written]
    assert operators[0] == operators[1]
    session = runtime.InferenceSession(written[0].SerializeToString())
    names = [each.name for each in session.get_inputs()]
    results = session.run(None, dict(zip(names, [x.numpy() for x in inputs], strict=True)))
    for actual, expected in zip(results, model(*inputs), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected, atol=1e-5, rtol=1e-5)


def test_a_model_is_converted_after_an_export_as_before(pair) -> None:
    _, converted, inputs = pair()
    torch.export.export(converted, inputs, strict=False)
    assert type(converted.body[1]) is nn.LayerNorm
    assert "cross_entropy" in type(converted(*inputs)[2].grad_fn).__name__

# SPDX-License-Identifier: MIT
"""The CPU provider gives the answers of onnxruntime's CPU kernels, where there are any."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, registry
from cupy_training_ops.call.op import Op
from cupy_training_ops.dtypes import dtype_name
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import flat, tolerance
from upstream import control
from upstream.cases import OF_THIS_PACKAGE, SAMPLES, WITHOUT_ORACLE
from upstream.process import Request, UpstreamError

SCHEMAS = Path(__file__).parents[1] / "data" / "upstream_schemas.json"
# What a graph says by its outputs, and an eager call by an attribute; what this package adds.
OURS_ALONE = ("num_outputs", "unbiased")
# Operators whose lists are sequences upstream.
SEQUENCES = ("AdamWOptimizer", "InplaceClipGradNorm", "SGDOptimizerV2")

Slot = tuple[str, Any]


def test_every_operator_is_compared_or_has_a_reason() -> None:
    compared = {sample.op for sample in SAMPLES}
    assert compared.isdisjoint(WITHOUT_ORACLE)
    assert compared | set(WITHOUT_ORACLE) == set(registry.names())


def test_no_operator_of_upstream_is_called_this_packages_own() -> None:
    upstream = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    own = {name for name, reason in WITHOUT_ORACLE.items() if reason == OF_THIS_PACKAGE}
    assert own.isdisjoint({*upstream["schemas"], *upstream["kernels"]})


@pytest.mark.thorough
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_agrees(sample, upstream, rng) -> None:
    assert_agrees(sample, upstream, rng)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 7, 4095])
def test_events_agree(number, upstream, rng) -> None:
    for sample in control.events(number):
        assert_agrees(sample, upstream, rng)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [4096, -2])
def test_events_that_are_refused(number, upstream, rng) -> None:
    """Upstream in its own words, before it waits."""
    for sample in control.events(number):
        _, arrays = inputs = sample.make(rng)
        op = registry.get_op(sample.op)()
        with pytest.raises(ArgumentError, match="EventIdentifier: expected -1 or a number to 4095"):
            op(*inputs)
        slots = list(node_inputs(op, inputs))
        with pytest.raises(UpstreamError, match=f"^{sample.op}: "):
            upstream(request(op, {}, slots, tuple(arrays)), dict(slots))


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_gradient_of_average_pool_is_wrong_in_three_dimensions(rank, upstream, rng) -> None:
    """Upstream's, beside the formula; this package's is right. Once upstream's is, compare it."""
    shape = (2, 3, *rng.integers(5, 8, rank).tolist())
    dy = rng.standard_normal((2, 3, *(n - 1 for n in shape[2:]))).astype(np.float32)
    expected = np.zeros(shape)
    for place in np.ndindex(*dy.shape[2:]):
        window = tuple(slice(i, i + 2) for i in place)
        mean = dy[(..., *place)] / 2**rank
        expected[(..., *window)] += mean.reshape(2, 3, *[1] * rank)
    attributes = {"kernel_shape": (2,) * rank}
    ours = registry.get_op("AveragePoolGrad")(**attributes)(dy, shape)
    assert_matches(ours, expected.astype(np.float32))
    outputs, shapes = {"dX": "float32"}, {"dX": shape}
    asked = Request("AveragePoolGrad", "", attributes, ["dY"], outputs, shapes=shapes)
    (theirs,) = upstream(asked, {"dY": dy})
    differ = np.abs(theirs - expected) > 1e-3
    assert differ.mean() > 0.5 if rank == 3 else not differ.any()


def assert_agrees(sample, upstream, rng) -> None:
    op = registry.get_op(sample.op)(**sample.attributes)
    inputs = sample.make(rng)
    slots = list(node_inputs(op, inputs))
    ours = op(*inputs)
    asked = request(op, sample.attributes, slots, ours)
    theirs = upstream(asked, {name: array for name, array in slots if name})
    found = [array for array in flat(ours) if array is not None]
    for actual, expected in zip(found, theirs, strict=True):
        assert_matches(actual, expected, tolerance(sample, op, expected.dtype))


def node_inputs(op: Op, inputs: Sequence[Any]) -> Iterator[Slot]:
    """Name and copy (accumulators change what they get) of every input; "" for an absent one."""
    for declared, value in zip(op.inputs, inputs, strict=False):
        if declared.variadic:
            yield from ((f"{declared.name}_{i}", item.copy()) for i, item in enumerate(value))
        else:
            yield ("", None) if value is None else (declared.name, np.array(value))


def request(op: Op, attributes: Any, slots: Sequence[Slot], ours: Any) -> Request:
    """The node of an operator's call, with as many outputs as ours, of the same dtypes."""
    shared = {k.rstrip("_"): v for k, v in attributes.items() if k not in OURS_ALONE}
    names = [name for name, _ in slots]
    if op.name not in SEQUENCES:
        found = [array for array in flat(ours) if array is not None]
        outputs = {f"output_{i}": dtype_name(array.dtype) for i, array in enumerate(found)}
        return Request(op.name, op.domain, shared, names, outputs, op.name in control.BETWEEN)
    inputs = [
        [name for name in names if name.startswith(f"{item.name}_")] if item.variadic else item.name
        for item in op.inputs
    ]
    results = ours if len(op.outputs) > 1 else (ours,)
    outputs = {
        f"output_{i}": [dtype_name(x.dtype) for x in r] if isinstance(r, tuple) else str(r.dtype)
        for i, r in enumerate(results)
    }
    return Request(op.name, op.domain, shared, inputs, outputs)


# ---- the process ---------------------------------------------------------------------------------

LOGITS = {"logits": np.ones((3, 5), np.float32), "label": np.full((3, 5), 0.2, np.float32)}
NO_LOG_PROB = Request("SoftmaxCrossEntropy", "com.microsoft", {}, list(LOGITS), {"Y": "float32"})
RELU = Request("ReluGrad", "com.microsoft", {}, ["dY", "X"], {"dX": "float32"})
PAIR = {"dY": np.array([3, 4], np.float32), "X": np.array([-1, 1], np.float32)}


@pytest.mark.thorough
def test_a_crash_is_the_fault_of_its_request(upstream) -> None:
    with pytest.raises(UpstreamError, match=r"^SoftmaxCrossEntropy: the process ended: SIG"):
        upstream(NO_LOG_PROB, LOGITS)
    assert_matches(upstream(RELU, PAIR)[0], np.array([0, 4], np.float32))


@pytest.mark.thorough
def test_a_refused_model_is_the_fault_of_its_request(upstream) -> None:
    with pytest.raises(UpstreamError, match=r"^ReluGrad: .*float16"):
        upstream(replace(RELU, outputs={"dX": "float16"}), PAIR)
    assert_matches(upstream(RELU, PAIR)[0], np.array([0, 4], np.float32))

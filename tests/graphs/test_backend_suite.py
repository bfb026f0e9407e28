# SPDX-License-Identifier: MIT
"""ONNX's own suite for backends, run by its own runner; the numbers that pass may only grow."""

from __future__ import annotations

import json
import re
import unittest
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import cupy_training_ops as cto

COUNTS = Path(__file__).parents[1] / "data" / "onnx_backend_suite.json"
# Cases whose answers are others on purpose.
OTHERWISE = {
    "training_dropout": "masks are drawn by another generator than NumPy's",
    "training_dropout_default": "the same",
    "training_dropout_mask": "the same",
    "training_dropout_default_mask": "the same",
    **{
        f"bernoulli{kind}{form}": "the same"
        for kind in ("", "_double", "_seed")
        for form in ("", "_expanded")
    },
    "resize_downsample_scales_linear_align_corners": "extents are whole, as in ONNX Runtime",
    "resize_downsample_scales_cubic_align_corners": "the same",
    "loop16_seq_none": "the suite's runner compares no sequence that has a scalar in it",
    "attention_4d_causal_fp16": "a unit in the last place of float16, as in ONNX Runtime",
    "attention_4d_causal_fp16_expanded": "the same",
}
REASONS = {  # of refusals, by their words
    "unknown operator": "unknown operator",
    "operator of another opset": "not in opset",
    "types of elements": "of ONNX type|is not among what|expected dtype|types: expected",
    "optional values": "optional",
    "values of attributes": "is not computed here|expected one of|unknown attributes",
}


class Ours(Backend):
    """Sessions over NumPy's arrays. What they refuse is skipped, and noted."""

    refusal: str | None = None

    @classmethod
    def prepare(cls, model: onnx.ModelProto, *_: Any, **__: Any) -> BackendRep:
        try:
            return Opened(cto.onnx.Session(model))
        except cto.OpError as error:
            cls.refuse(error)

    @classmethod
    def refuse(cls, error: cto.OpError) -> None:
        """Another library's error in our words is none of ours."""
        if error.__cause__ is not None:
            raise error
        cls.refusal = str(error)
        raise BackendIsNotSupposedToImplementIt(cls.refusal)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class Opened(BackendRep):
    def __init__(self, session: cto.onnx.Session) -> None:
        self._session = session

    def run(self, inputs: Sequence[Any], **options: Any) -> tuple[Any, ...]:
        feeds = dict(zip(self._session.inputs, inputs, strict=True))
        try:
            return tuple(self._session.run(feeds).values())
        except cto.OpError as error:
            Ours.refuse(error)
            raise


def cases() -> Iterator[unittest.TestCase]:
    """All on the CPU, but for models that would have to be downloaded."""
    for name, group in BackendTest(Ours, __name__).test_cases.items():
        if "RealModel" not in name:
            tests = unittest.defaultTestLoader.loadTestsFromTestCase(group)
            yield from (test for test in tests if test.id().endswith("_cpu"))


def outcome(case: unittest.TestCase) -> tuple[str, str]:
    """What became of a case, and why."""
    Ours.refusal, result = None, unittest.TestResult()
    case.run(result)
    for kind, actual in (("wrong", result.failures), ("error", result.errors)):
        if actual:
            return kind, actual[0][1].strip().splitlines()[-1]
    if Ours.refusal is not None:
        return "refused", reason(Ours.refusal)
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def reason(words: str) -> str:
    return next((name for name, form in REASONS.items() if re.search(form, words)), words)


@pytest.fixture(scope="module")
def suite() -> dict[str, unittest.TestCase]:
    """The cases by their names."""
    return {case.id().rpartition(".test_")[2].removesuffix("_cpu"): case for case in cases()}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_the_suite_for_backends(suite) -> None:
    """No wrong answer and no error of another library's; as many right ones as before, or more."""
    actual = {name: outcome(case) for name, case in suite.items()}
    bad = {n: o for n, o in actual.items() if o[0] in ("wrong", "error") and n not in OTHERWISE}
    assert not bad
    refused = Counter(why for kind, why in actual.values() if kind == "refused")
    passed = sum(kind == "passed" for kind, _ in actual.values())
    assert passed + refused.total() >= len(actual) - len(OTHERWISE)
    known = json.loads(COUNTS.read_text(encoding="utf-8"))
    if onnx.__version__ == known["onnx"]:  # others have more cases, or fewer
        assert passed >= known["passed"]
        assert all(n <= known["refused"].get(why, 0) for why, n in refused.items()), refused


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda x: np.maximum(x, 0), "passed"),
        (lambda x: np.maximum(x, 0) + 1, "wrong"),
        (lambda _: int("a"), "error"),
        (lambda _: wrapped(), "error"),
        (lambda _: refused(), "refused"),
    ],
)
def test_only_refusals_are_counted_as_refused(answer, expected, suite, monkeypatch) -> None:
    class Session:
        inputs = ("x",)

        def __init__(self, model: onnx.ModelProto) -> None:
            pass

        def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
            return {"y": answer(feeds["x"])}

    monkeypatch.setattr(cto.onnx, "Session", Session)
    assert outcome(suite["relu"])[0] == expected


def refused() -> None:
    raise cto.ArgumentError("unknown operator")


def wrapped() -> None:
    """Another library's error in the words of a node."""
    try:
        int("a")
    except ValueError as error:
        raise cto.ArgumentError("node 0") from error

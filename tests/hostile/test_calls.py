# SPDX-License-Identifier: MIT
"""Calls with one wrong argument: the same words on every provider, and nothing is written."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops.call import checks
from cupy_training_ops.testing.samples import all_samples

from .findings import Findings
from .mutations import Call, mutated
from .outcomes import complaints, limited_memory

SAMPLES = [sample for samples in all_samples().values() for sample in samples]
CASES = 2000


def drawn(seed: int, case: int) -> Call:
    return mutated(SAMPLES[case % len(SAMPLES)], np.random.default_rng([seed, case]))


def test_providers_answer_alike(cases, seed) -> None:
    findings = Findings(__file__, seed)
    with limited_memory():
        for case in cases:
            call = drawn(seed, case)
            findings.add(case, str(call), complaints(call))
    findings.assert_none()


@pytest.mark.parametrize("check", ["contiguous", "output"])
def test_a_check_that_is_missing_is_noticed(seed, monkeypatch, check) -> None:
    monkeypatch.setattr(checks, check, lambda *_: None)
    with limited_memory():
        assert any(complaints(drawn(seed, case)) for case in range(CASES))

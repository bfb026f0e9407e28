# SPDX-License-Identifier: MIT
"""Calls with one wrong argument: the same words on every provider, and nothing is written."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.testing.samples import all_samples

from .findings import Findings
from .mutations import mutated
from .outcomes import complaints, limited_memory

SAMPLES = [sample for samples in all_samples().values() for sample in samples]
CASES = 2000


def test_providers_answer_alike(cases, seed) -> None:
    findings = Findings(__file__, seed)
    with limited_memory():
        for case in cases:
            sample = SAMPLES[case % len(SAMPLES)]
            call = mutated(sample, np.random.default_rng([seed, case]))
            findings.add(case, str(call), complaints(call))
    findings.assert_none()

# SPDX-License-Identifier: MIT
"""The measurement of divided optimizers and of buckets runs, with small sizes on the host."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import in_threads, results

pytest.importorskip("cupy", reason="CuPy is in the extras")

from collective_benchmark import bucket_rows, step_rows


def test_steps_are_measured() -> None:
    first, second = results(in_threads(2, lambda group: [*step_rows(np, group, True, 1)]))
    assert [row["case"] for row in first] == [row["case"] for row in second]
    times, ratios = first[:4], first[4:]
    assert all(row["ms"] > 0 for row in times)
    assert ratios[0]["ratio"] == times[1]["ms"] / times[0]["ms"]
    assert ratios[1]["ratio"] == times[3]["ms"] / times[2]["ms"]
    assert ratios[2]["ratio"] == pytest.approx(0.5, abs=0.01)  # of moments, on two ranks


@pytest.mark.thorough
def test_the_overlap_is_measured() -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    actual = results(in_threads(1, lambda group: [*bucket_rows(np, group, True, 1)]))[0]
    assert actual[0]["case"] == "buckets of 10 MB: backward pass"
    for plain, both, alone, hidden in zip(*[iter(actual)] * 4, strict=True):
        expected = 1 - (both["ms"] - plain["ms"]) / alone["ms"]
        assert hidden["ratio"] == expected

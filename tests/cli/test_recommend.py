# SPDX-License-Identifier: MIT
"""The codec that is recommended, held to what was measured; the quality that is asked for."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops.cli import main
from cupy_training_ops.cli.trial import ENOUGH_DB, Quality, recommend
from cupy_training_ops.codecs.fidelity import Fidelity, measure

DIGITS = Path(__file__).parents[2] / "tests" / "data" / "digits_cnn_activations.npz"
SIGNS = ("binarize", "pack1")


@dataclass(frozen=True)
class Made:
    """A codec on an array, as nobody measured it."""

    name: str
    ratio: float
    fidelity: Fidelity


def made(name: str, ratio: float, snr: float | None, **fidelity) -> Made:
    """Of this SNR; None is a codec that keeps signs."""
    none = measure("pack1", np.ones(1), np.ones(1))
    error = None if snr is None else 0.0 if snr == math.inf else 1e-3
    actual = dataclasses.replace(none, max_abs_error=error, snr_db=snr, **fidelity)
    return Made(name, ratio, actual)


SIGN, SMALL, MIDDLE, LARGE, SAME = (
    made("sign", 32, None), made("small", 8, 12.5), made("middle", 4, 32.0),
    made("large", 2, 70.0), made("same", 4, 40.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "asked", "chosen", "reason"),
    [
        ([SIGN, SMALL, MIDDLE, LARGE], 30, "middle", "no larger: small (12.5 dB)"),
        ([LARGE, MIDDLE, SMALL], 10, "small", "ratio 8.0, 12.5 dB; the smallest"),
        ([SMALL, MIDDLE, SAME], 30, "same", "no larger: middle (32.0 dB), small (12.5 dB)"),
        ([SMALL, MIDDLE, LARGE], 60, "large", "no larger: middle (32.0 dB), small (12.5 dB)"),
        ([SMALL, MIDDLE], 60, None, "closest: middle, ratio 4.0, 32.0 dB, asked for at least 60"),
        ([SIGN], 1, None, "nothing tried that keeps values makes it smaller"),
        ([made("as it is", 1, math.inf)], 1, None, "nothing tried that keeps values makes"),
        ([made("exact", 1.5, math.inf), LARGE], 90, "exact", "nothing lost; no larger: large"),
        ([made("over", 8, 50.0, lost=2), MIDDLE], 30, "middle", "no larger: over (2 values lost)"),
        ([made("wrong", 8, 50.0, violations=1), MIDDLE], 30, "middle", "no larger: wrong"),
        ([], 1, None, "nothing tried"),
    ],
)
def test_the_smallest_that_is_good_enough(measured, asked, chosen, reason) -> None:
    for order in (measured, measured[::-1]):
        actual = recommend(order, Quality(min_snr=asked))
        assert actual.codec == chosen
        assert reason in actual.reason


@pytest.mark.parametrize(
    ("x", "y", "quality", "missed"),
    [
        ([1, 2], [1, 2.5], Quality(), None),
        ([1, 2], [1, 2.5], Quality(min_snr=13.0), None),
        ([1, 2], [1, 2.5], Quality(min_snr=13.1), "13.0 dB, asked for at least 13.1"),
        ([1, 2], [1, 2.5], Quality(max_abs=0.5), None),
        ([1, 2], [1, 2.5], Quality(max_abs=0.49), "error 0.5, asked for at most 0.49"),
        ([1, 2], [1, 2], Quality(min_snr=1e9, max_abs=0), None),
        ([0, 0], [0, 0], Quality(min_snr=1e9), None),
        ([0, 0], [0, 1e-9], Quality(min_snr=-1e9), "-inf dB"),
        ([1, 1e6], [1, math.inf], Quality(min_snr=-1e9), "1 finite values became infinite or NaN"),
        ([1e6], [math.inf], Quality(max_abs=1e9), "1 finite values became infinite or NaN"),
        ([1, 2], [1, math.nan], Quality(max_abs=1e9), "1 finite values became infinite or NaN"),
        ([], [], Quality(min_snr=1e9, max_abs=0), None),
    ],
)
def test_what_is_asked_for_is_met_or_missed(x, y, quality, missed) -> None:
    actual = quality.shortfall(measure("pack16", np.array(x, float), np.array(y, float)))
    assert actual == missed if missed is None else missed in actual


def test_a_sign_takes_no_part() -> None:
    of_sign = measure("pack1", np.array([1.0, 5.0]), np.array([1.0, 1.0]))
    assert Quality(min_snr=1e9, max_abs=0).shortfall(of_sign) is None


def of_digits(*arguments: str) -> tuple[int, list[dict]]:
    command = ["roundtrip", str(DIGITS), "--provider", "cpu", "--json", *arguments]
    result = CliRunner().invoke(main, command)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    "asked", [None, *(pytest.param(snr, marks=pytest.mark.thorough) for snr in (20.0, 45.0))]
)
def test_the_recommendations_are_what_the_figures_say(asked) -> None:
    status, lines = of_digits(*([] if asked is None else ["--min-snr", str(asked)]))
    trials = [line for line in lines if line["type"] == "trial" and "ratio" in line]
    enough = ENOUGH_DB if asked is None else asked
    advice = {line["array"]: line for line in lines if line["type"] == "recommendation"}
    assert list(advice) == list(dict.fromkeys(trial["array"] for trial in trials))
    after = 0
    for array, actual in advice.items():
        of_array = [t for t in trials if t["array"] == array]
        values = [t for t in of_array if t["codec"] not in SIGNS and t["ratio"] > 1]
        good = [t for t in values if t["snr_db"] is None or t["snr_db"] >= enough]
        best = max(good, key=lambda t: (t["ratio"], t["snr_db"] or math.inf))
        assert actual["codec"] == best["codec"]
        assert f"ratio {best['ratio']:.1f}, " in actual["reason"]
        for rival in [t for t in values if t["ratio"] >= best["ratio"] and t is not best][:2]:
            assert rival not in good or (rival["snr_db"] or math.inf) <= best["snr_db"]
        after += best["nbytes_after"]
    assert (lines[-1]["type"], lines[-1]["nbytes_after"]) == ("recommended", after)
    missed = [t for t in trials if t["verdict"] == "MISSED"]
    assert missed == [
        t for t in trials
        if asked and t["codec"] not in SIGNS and t["snr_db"] is not None and t["snr_db"] < asked
    ]  # fmt: skip
    assert status == (1 if missed else 0)


def test_the_sample_flags_pack8_on_a_gradient() -> None:
    command = ["roundtrip", str(DIGITS), "--provider", "cpu", "--min-snr", "20"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    *_, gradient = result.stdout.partition("\nconv1_relu_grad  ")
    (row,) = [line for line in gradient.splitlines() if line.startswith("pack8") and "e-" in line]
    assert row.split()[-1] == "MISSED"
    assert "pack8: 12.5 dB, asked for at least 20\n" in gradient

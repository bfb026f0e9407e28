# SPDX-License-Identifier: MIT
"""How many cases a session draws: a tenth by default, all with `-m thorough`, or as it is told."""

from __future__ import annotations

import pytest

PART = 1000  # cases of one test at most


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cases" in metafunc.fixturenames:
        parts = drawn(metafunc.config, metafunc.module.CASES)
        metafunc.parametrize("cases", parts, ids=lambda part: f"{part.start}-{part.stop - 1}")


def drawn(config: pytest.Config, default: int) -> list[object]:
    """Ranges of case numbers; the thorough tier's go on where the default one's end."""
    case, asked = config.getoption("hostile_case"), config.getoption("hostile_cases")
    if case is not None:
        return [range(case, case + 1)]
    if asked is not None:
        return divided(0, asked * default // 2000)
    others = divided(default, 11 * default)
    thorough = [pytest.param(part, marks=pytest.mark.thorough) for part in others]
    return [*divided(0, default), *thorough]


def divided(start: int, stop: int) -> list[range]:
    return [range(i, min(i + PART, stop)) for i in range(start, stop, PART)]

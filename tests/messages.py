# SPDX-License-Identifier: MIT
"""What a worker of pytest-xdist says of a test: its outcome, and what else there is to say.

Six messages of each test, of which four said that nothing had happened, took a twentieth of the
processor time.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

SLOW = 0.005  # seconds: below it --durations hides a phase


class Messages:
    """A plugin of pytest, for its workers alone."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """As pytest's own, with reports at a test's end."""
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if is_news(report):
                item.ihook.pytest_runtest_logreport(report=report)
        return True


def is_news(report: pytest.TestReport) -> bool:
    """Whether a phase is the test itself, or did more than nothing."""
    of_test = report.when == "call" or not report.passed
    return of_test or bool(report.sections) or report.duration >= SLOW

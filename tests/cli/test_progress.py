# SPDX-License-Identifier: MIT
"""The progress bar: on a terminal, after a second, with all that was done before."""

from __future__ import annotations

import io
import sys

import pytest

from cupy_training_ops.cli import terminal


class Terminal(io.StringIO):
    """A stderr that people look at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("second", "shown"), [(0.9, False), (1.0, True)])
@pytest.mark.parametrize("stderr", [Terminal, io.StringIO])
def test_the_bar_comes_after_a_second_and_to_a_terminal(stderr, second, shown, monkeypatch):
    now = [5.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", stderr())
    with terminal.progress_bar(1000, "encoding") as advance:
        advance(300)
        assert not sys.stderr.getvalue()
        now[0] += second
        advance(200)
        advance(500)
    text = sys.stderr.getvalue()
    if shown and stderr is Terminal:
        assert "encoding" in text
        assert "50%" in text
        assert "100%" in text
    else:
        assert text == ""

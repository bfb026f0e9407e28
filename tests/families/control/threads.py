# SPDX-License-Identifier: MIT
"""Arrays, threads and a body that echoes, for tests of control."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from cupy_training_ops import YieldOp

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LIMIT = pytest.mark.timeout(20)  # a thread that hangs is a failure soon
WAITS = {"timeout": 10.0}


def same(results, expected) -> bool:
    return len(results) == len(expected) and all(map(lambda a, b: a is b, results, expected))


def threads_of(*functions) -> list[Exception]:
    """Run them beside each other; what they raised."""
    errors: list[Exception] = []

    def caught(function) -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 15
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return errors


def echo(outputs, attributes):
    """Gives back the gradients that it is sent."""
    gradients = yield YieldOp(**attributes)(outputs)
    return gradients

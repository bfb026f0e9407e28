# SPDX-License-Identifier: MIT
"""What other tests compare with is compared itself: JAX compiled beside JAX that is not."""

from __future__ import annotations

import derivatives
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp

X = np.linspace(-1, 1, 5)


def test_an_oracle_that_compiling_changes_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(derivatives, "is_drawn", lambda: True)
    vjp(jnp.sin, (X,), X)
    compiled = jax.jit
    monkeypatch.setattr(jax, "jit", lambda f: compiled(lambda x, dy: f(x, 1.1 * dy)))
    with pytest.raises(AssertionError, match="JAX under jit"):
        vjp(jnp.sin, (X,), X)


def test_one_test_in_so_many_is_drawn(monkeypatch) -> None:
    drawn = 0
    for i in range(50 * derivatives.REPEATED):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"test_{i}")
        drawn += derivatives.is_drawn()
    assert 25 <= drawn <= 100

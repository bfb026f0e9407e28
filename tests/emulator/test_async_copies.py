# SPDX-License-Identifier: MIT
"""Asynchronous copies: made when they are waited for, and not before."""

import numpy as np
import pytest

from emulator import EmulatorError


def _by_two_groups(load_kernels, x, n, *options):
    y = np.zeros(8, np.float32)
    kernel = load_kernels("async_copies.cu", options).get_function("by_two_groups")
    kernel((1,), (1,), (x, y, np.int64(n)))
    return y


@pytest.mark.parametrize("n", [4, 8])
def test_groups_are_there_when_they_are_waited_for(load_kernels, rng, n):
    """Where nothing exists nothing is read."""
    x = rng.standard_normal(n).astype(np.float32)
    expected = np.concatenate([x, np.zeros(8 - n, np.float32)])
    np.testing.assert_array_equal(_by_two_groups(load_kernels, x, n), expected)


def test_planted_wait_for_one_group_too_few(load_kernels, rng):
    x = rng.standard_normal(8).astype(np.float32)
    y = _by_two_groups(load_kernels, x, 8, "-DCTO_LEFT=2")
    assert np.isnan(y[:4]).all()
    np.testing.assert_array_equal(y[4:], x[4:])


def test_a_fault_in_the_middle_of_a_wait_leaves_nothing_behind(load_kernels, rng):
    """The second group's copy reads beyond the end of x, after the first group's was made."""
    x = rng.standard_normal(8).astype(np.float32)
    with pytest.raises(EmulatorError):
        _by_two_groups(load_kernels, x[:4].copy(), 8, "-DCTO_LEFT=0")
    np.testing.assert_array_equal(_by_two_groups(load_kernels, x, 8), x)

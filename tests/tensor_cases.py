# SPDX-License-Identifier: MIT
"""The kinds of tensors that tests on the host and on a GPU take."""

from __future__ import annotations

import pytest
import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
layouts = pytest.mark.parametrize("layout", [CONTIGUOUS, CHANNELS_LAST], ids=str)
gradients = pytest.mark.parametrize("gradients", [False, True], ids=("plain", "gradients"))


def every_tensor(test):
    """Each type in each layout, with gradients and without."""
    return dtypes(layouts(gradients(test)))

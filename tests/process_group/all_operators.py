# SPDX-License-Identifier: MIT
"""A rank that calls every operator for every type, on NumPy arrays, under whatever launcher."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collective_cases import check_all

import cupy_training_ops as cto

with cto.ProcessGroup() as group:
    sys.stdout.write(f"rank {group.rank}: {check_all(group)} checks, {group._engine.name}\n")

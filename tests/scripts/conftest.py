# SPDX-License-Identifier: MIT
"""The scripts import each other by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

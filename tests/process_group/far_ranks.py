# SPDX-License-Identifier: MIT
"""A rank of one of two machines, `far_ranks.py FOLDER SECONDS`: collectives until all is over.

In the folder it says that it has begun, and at last how and when it ended.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from process_group.moments import work

import cupy_training_ops as cto

FOLDER, SECONDS = Path(sys.argv[1]), float(sys.argv[2])

with cto.ProcessGroup() as group:
    (FOLDER / f"begun-{group.rank}").touch()
    said = f"right, {group.local_rank} of {group.local_size}"
    try:
        work(group, 0, time.monotonic() + SECONDS)
    except cto.GroupError as error:
        said = f"GroupError: {error}"
        raise
    finally:
        (FOLDER / f"ended-{group.rank}").write_text(f"{time.time()} {said}")

# SPDX-License-Identifier: MIT
"""scripts/performance_page.py puts a run's figures where their rows are, and nowhere else."""

from performance_page import filled

PAGE = """NVIDIA of long ago

| case | floor ms | read twice | ms (p20, p80) | of copy rate | peer | its ms | ours / its |
|---|---|---|---|---|---|---|---|
| A[f4] | 1 | | 1 | 1% | | | |
| Gone[f4] | 9 | | 9 | 9% | | | |

| case, called eagerly | ms (p20, p80) | peer | its ms | ours / its |
|---|---|---|---|---|
| A[f4] | 7 | | | |

| case | ms | GB/s |
|---|---|---|
| A[f4] | by hand | 5 |
"""


def record(kind: str, case: str, median: float, **more: object) -> dict[str, object]:
    times = {"median": median, "p20": median - 0.1, "p80": median + 0.1}
    return {"kind": kind, "case": case, "family": "f", "ms": times, "peers": {}, **more}


def test_rows_get_the_figures_of_the_run_and_others_are_named():
    machine = dict.fromkeys(("gpu", "driver", "cuda", "cupy", "torch", "commit", "date"), "X")
    aims = {"floor_ms": 2.0, "floor_again_ms": 3.0, "aim_ms": 2.2, "share": 0.5}
    peers = {"peers": {"slow": {"median": 9.0}, "quick": {"median": 2.0}}, "of_best_peer": 2.0}
    measured = [
        machine | {"kind": "machine", "gpu": "NVIDIA X", "copy_gb_per_s": 4000.0},
        record("case", "A[f4]", 4.0, **aims) | peers,
        record("eager", "A[f4]", 6.0),
        record("case", "New[f4]", 4.0, **aims),
    ]

    text, old, new = filled(PAGE, measured)

    assert (old, new) == (["Gone[f4]"], ["New[f4]"])
    assert text.startswith("NVIDIA X, driver X")
    quick = "| quick | 2.0000 | **2.00** |"
    assert f"| A[f4] | 2.0000 | 3.0000 | **4.0000 (3.9000, 4.1000)** | 50% {quick}" in text
    assert "| A[f4] | 6.0000 (5.9000, 6.1000) |  |  |  |" in text
    assert "| Gone[f4] | 9 | | 9 | 9% | | | |" in text
    assert "| A[f4] | by hand | 5 |" in text

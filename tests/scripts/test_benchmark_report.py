# SPDX-License-Identifier: MIT
"""scripts/benchmark_report.py: a run's records take the place of older ones; pages have all."""

from __future__ import annotations

import benchmark_report
import pytest

MACHINE = {
    "kind": "machine", "gpu": "NVIDIA X", "driver": "1", "cuda": 2, "cupy": "3", "torch": "4",
    "date": "2026-01-02", "copy_gb_per_s": 4000.0,
}  # fmt: skip


def record(case: str, median: float, peers: dict[str, float], family: str = "f") -> dict:
    times = {"median": median, "p20": median - 0.1, "p80": median + 0.1}
    return {
        "kind": "case", "case": case, "family": family, "ms": times, "floor_ms": 2.0,
        "aim_ms": 2.2, "share": 0.5, "peers": {name: {"median": ms} for name, ms in peers.items()},
        "of_best_peer": median / min(peers.values()) if peers else None,
    }  # fmt: skip


OLD = [
    MACHINE | {"commit": "old"},
    record("A[f4]", 4.0, {}),
    record("Gone[f4]", 2.0, {"torch": 4.0}),
    record("Other[f4]", 2.0, {}, "g"),
]
NEW = [
    MACHINE | {"commit": "new"},
    record("A[f4]", 8.0, {"slow": 9.0, "torch quick": 4.0}),
    record("New[f4]", 2.0, {}),
]


def test_a_run_takes_the_place_of_an_older_one() -> None:
    merged, older = benchmark_report.merge(OLD, NEW)
    assert [r.get("case") for r in merged] == [None, "A[f4]", "Gone[f4]", "Other[f4]", "New[f4]"]
    assert merged[1] == NEW[1]
    assert older == ["Gone[f4]", "Other[f4]"]
    assert [r.get("commit") for r in merged] == ["new", None, "old", "old", None]
    again, _ = benchmark_report.merge(merged, [MACHINE | {"commit": "third"}])
    assert [r.get("commit") for r in again] == ["third", "new", "old", "old", "new"]


def test_a_page_has_a_familys_rows_and_says_which_are_older() -> None:
    merged, _ = benchmark_report.merge(OLD, NEW)
    page = "\n".join(benchmark_report.page(merged, "f"))
    row = "| A[f4] | 2.0000 | 2.2000 | **8.0000 (7.9000, 8.1000)** | 50% |"
    assert f"{row} torch quick | 4.0000 | **2.00** |" in page
    assert "Of commit old: Gone[f4]." in page
    assert "Other" not in page
    assert "commit new, 2026-01-02; copy rate 4000 GB/s" in page


def test_means_are_geometric_and_a_family_may_have_no_peers(monkeypatch) -> None:
    merged, _ = benchmark_report.merge(OLD, NEW)
    monkeypatch.setattr(benchmark_report, "records", lambda _: merged)
    f, g, everything = benchmark_report.summary().splitlines()[2:]
    assert f == "| [f](performance/f.md) | 3 | 1.59 | 1.00 | A[f4] 2.00 |"
    assert g == "| [g](performance/g.md) | 1 | 1.00 |  |  |"
    assert everything.startswith("| **all** | 4 | 1.41 | 1.00 |")


def test_committed_records_are_of_one_card_and_consistent() -> None:
    """Times have four digits after the point, of which the smallest are 0.02."""
    machine, *rest = benchmark_report.records(benchmark_report.RECORDS)
    assert machine["gpu"] == "NVIDIA H200"
    names = [(r["kind"], r["case"]) for r in rest]
    assert len(names) == len(set(names)) > 500
    for r in rest:
        if r["peers"]:
            _, ms = benchmark_report.best(r)
            assert r["of_best_peer"] == pytest.approx(r["ms"]["median"] / ms, abs=0.012)
        if r["kind"] == "case":
            assert r["share"] == pytest.approx(r["floor_ms"] / r["ms"]["median"], abs=0.012)

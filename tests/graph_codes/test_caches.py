# SPDX-License-Identifier: MIT
"""Options with codes that are copied and pickled, and PyTorch's caches of what was compiled."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch._guards import TracingContext, tracing  # noqa: E402

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops.torch.graph_codes import partition  # noqa: E402

from .compiled import made, step  # noqa: E402

OPTION = partition.OPTION
SCRIPT = Path(__file__).parent / "cached_steps.py"
SETTINGS = [
    {},
    {"policy": "wide"},
    {"budget": 0.5},
    {"budget": "4MB"},
    {"least": 1, "mode": "reduce-overhead"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_options_are_pickled_with_their_settings(settings):
    codes = cto.torch.activation_codes(**settings)
    again = pickle.loads(pickle.dumps(codes))
    assert type(again) is type(codes)
    ours, other = codes.pop(OPTION), again.pop(OPTION)
    assert again == codes
    assert (other.policy, other.budget, other.least) == (ours.policy, ours.budget, ours.least)
    assert other.uuid() == ours.uuid()


def test_pickled_options_have_a_report_of_their_own(seed):
    codes = cto.torch.activation_codes(least=0)
    model, inputs = made("gelu", seed)
    _, coded = step(model, inputs, codes)
    again = pickle.loads(pickle.dumps(codes))
    assert again.report()["graphs"] == []
    _, same = step(model, inputs, again)
    assert all(torch.equal(coded[name], same[name]) for name in coded)
    assert again.report() == codes.report()


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, dict, lambda codes: codes | {"max_autotune": False}],
    ids=["copy", "deepcopy", "dict", "merged"],
)
def test_copied_options_share_a_report(copied, seed):
    codes = cto.torch.activation_codes(least=0)
    model, inputs = made("gelu", seed)
    step(model, inputs, copied(codes))
    assert len(codes.report()["graphs"]) == 1
    assert copy.copy(codes[OPTION]) is copy.deepcopy(codes[OPTION]) is codes[OPTION]


def test_the_cache_of_whole_models_gets_no_key():
    """Its entries would call no partitioner."""
    codes = cto.torch.activation_codes()
    key, context = codes[OPTION].uuid(), TracingContext(None)
    with tracing(context):
        with pytest.raises(Exception, match="activation_codes") as refused:
            codes[OPTION].uuid()
        assert type(refused.value).__name__ == "BypassFxGraphCache"
        assert pickle.loads(pickle.dumps(codes))[OPTION].least == codes[OPTION].least
        context.aot_graph_name = ["0_forward"]
        assert codes[OPTION].uuid() == key


def test_the_key_of_caches_has_the_sources(monkeypatch, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("# another version\n")
    codes = cto.torch.activation_codes()
    key = codes[OPTION].uuid()
    monkeypatch.setattr(partition, "SOURCES", (*partition.SOURCES, str(other)))
    assert codes[OPTION].uuid() != key


@pytest.mark.thorough
def test_another_process_takes_code_from_the_cache(tmp_path):
    """Options with other settings, or of another version, take no code of each other's, and all
    graphs are in reports."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(SCRIPT)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert "Failed to pickle" not in done.stderr
        runs.append([json.loads(line) for line in done.stdout.splitlines()])
    first, second = runs
    assert [(line["hits"], line["misses"]) for line in first] == [(0, 2)] * 4 + [(2, 0), (0, 2)]
    assert [(line["hits"], line["misses"]) for line in second] == [(2, 0)] * 6
    for line, again in zip(first, second, strict=True):
        assert line["models"] == again["models"] == {"autograd_cache_bypass": 1}
        assert len(again["report"]["graphs"]) == 1
        assert again["report"] == line["report"]
        assert again["gradients"] == line["gradients"]
    assert len({line["gradients"] for line in first}) == 3  # `least` and versions change nothing

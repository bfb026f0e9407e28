# SPDX-License-Identifier: MIT
"""Steps of a model compiled with several options, with PyTorch's caches: `cached_steps.py`.

For each step a line of JSON: hits and misses of the cache of graphs' code, counts of the cache of
whole models, a digest of the gradients, and the report. TORCHINDUCTOR_CACHE_DIR has the caches.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path

import torch
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).parents[2]))

import cupy_training_ops as cto
from cupy_training_ops.torch.graph_codes import partition
from tests.graph_codes.compiled import WIDTH, Layer, normal

SETTINGS = (
    {"least": 0},
    {"least": 1},  # the same graphs
    {"least": 0, "policy": "small"},
    {"least": 0, "budget": 0.3},
    {"least": 0},  # as the first
)


def step(settings: dict[str, object]) -> None:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(3)
    model, codes = Layer(), cto.torch.activation_codes(**settings)
    torch.compile(model, options=codes)(normal(5, 64, WIDTH)).square().sum().backward()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy().tobytes())
    line = {
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "misses": counters["inductor"]["fxgraph_cache_miss"],
        "models": {k: n for k, n in counters["aot_autograd"].items() if "cache" in k},
        "gradients": digest.hexdigest(),
        "report": codes.report(),
    }
    sys.stdout.write(json.dumps(line) + "\n")


def main() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", partition.NAME)
        for settings in SETTINGS:
            step(settings)
        partition.SOURCES = (*partition.SOURCES, __file__)  # as in another version
        step(SETTINGS[0])


if __name__ == "__main__":
    main()

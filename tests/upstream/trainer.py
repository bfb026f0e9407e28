# SPDX-License-Identifier: MIT
"""Trains artifacts in onnxruntime: a script for the Python that has it.

    python trainer.py FOLDER DATA ANSWERS

DATA has each step's inputs, the first axis being the steps: x, and labels unless the loss is an
output. ANSWERS gets losses, and parameters/NAME after the last step. The checkpoint after it is
written as FOLDER/after.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime

# The package itself imports PyTorch, which what trains in it does not need.
package = ModuleType("onnxruntime.training")
package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
sys.modules[package.__name__] = package

from onnxruntime.training import api  # noqa: E402

RATE = 0.015625


def main(folder: Path, data: str, answers: str) -> None:
    with np.load(data) as stored:
        batches = list(zip(*(stored[name] for name in stored.files)))  # noqa: B905 (Python 3.9)
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    models = [str(folder / f"{kind}_model.onnx") for kind in ("training", "eval", "optimizer")]
    module = api.Module(models[0], state, models[1])
    optimizer = api.Optimizer(models[2], module)
    optimizer.set_learning_rate(RATE)
    module.train()
    losses = []
    for batch in batches:
        outputs = module(*batch)
        losses.append(outputs[0] if isinstance(outputs, (list, tuple)) else outputs)
        optimizer.step()
        module.lazy_reset_grad()
    parameters = {f"parameters/{name}": p.data for name, p in state.parameters}
    api.CheckpointState.save_checkpoint(state, str(folder / "after"), include_optimizer_state=True)
    np.savez(answers, losses=np.array(losses), **parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

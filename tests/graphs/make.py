# SPDX-License-Identifier: MIT
"""Writes data/: for each network the artifacts of ONNX Runtime's training, and ten steps' answers.

    python tests/graphs/make.py [NAME...]
    python tests/graphs/make.py example

in an environment with the PINS of upstream.environment, PyTorch 2.13 and onnxscript. A
folder has training_model.onnx, eval_model.onnx, optimizer_model.onnx, checkpoint, and answers.npz:

    x, labels          each step's inputs, the first axis being the steps
    rates              each step's learning rate
    losses             each step's loss, before its update
    gradients/NAME     what each step's backward pass gave, before clipping
    parameters/NAME    after each step's update
    eval               the loss of the eval model after the last step, for the last step's inputs;
                       none where it has a BatchNormalization (see `upstream`)
    source             whose answers these are: PyTorch's (in float64, rounded), or onnxruntime's

Both are asked where both can answer, and have to agree. Of the example there are artifacts alone.
onnxruntime's round in each node: an oracle has to be nearer to the truth than what it judges.
"""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from nets import CASES, EXAMPLE, STEPS, Case
from onnxruntime.training import api, artifacts, onnxblock
from torch import nn
from torch.nn import functional

DATA = Path(__file__).resolve().parent / "data"
EXAMPLES = DATA.parents[2] / "examples" / "onnx_digits"
RATES = np.array([0.01] * 4 + [0.003] * 3 + [0.02] * 3, np.float32)
ADAM_W = {"eps": 1e-6, "weight_decay": 0.01}
FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")
LOSSES = {
    "CrossEntropyLoss": functional.cross_entropy,
    "MSELoss": functional.mse_loss,
    "BCEWithLogitsLoss": functional.binary_cross_entropy_with_logits,
}
Answers = dict[str, Any]


def exported(net: nn.Module, x: torch.Tensor, opset: int) -> onnx.ModelProto:
    """The network as a model, nothing folded or fused, for any size of batch."""
    file = io.BytesIO()
    torch.onnx.export(
        copy.deepcopy(net),
        (x,),
        file,
        dynamo=False,
        opset_version=opset,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["scores"],
        dynamic_axes={"x": {0: "batch"}},
    )
    return onnx.load_model_from_string(file.getvalue())


def write_artifacts(case: Case, net: nn.Module, x: torch.Tensor, folder: Path) -> None:
    model = exported(net, x, case.opset)
    names = [name for name, _ in net.named_parameters()]
    optimizers = {"AdamW": partial(onnxblock.optim.AdamW, **ADAM_W), "SGD": onnxblock.optim.SGD}
    clip = None if case.clip is None else onnxblock.optim.ClipGradNorm(case.clip)
    artifacts.generate_artifacts(
        model,
        requires_grad=[name for name in names if name not in case.frozen],
        frozen_params=[name for name in names if name in case.frozen],
        loss=artifacts.LossType[case.loss],
        optimizer=optimizers[case.optimizer](clip_grad=clip),
        additional_output_names=["scores"] if case.scores else None,
        artifact_directory=folder,
    )


def upstream(case: Case, folder: Path, batches: list[Any]) -> Answers:
    """Ten steps of onnxruntime's; it refuses the eval models with a BatchNormalization it makes."""
    path = {file: str(folder / file) for file in FILES}
    state = api.CheckpointState.load_checkpoint(path["checkpoint"])
    evaluates = "BatchNorm" not in str(case.net())
    evaluation = path["eval_model.onnx"] if evaluates else None
    module = api.Module(path["training_model.onnx"], state, evaluation)
    optimizer = api.Optimizer(path["optimizer_model.onnx"], module)
    trained = [(name, item) for name, item in state.parameters if item.requires_grad]
    steps = []
    for (x, labels), rate in zip(batches, RATES, strict=True):
        module.train()
        loss = first(module(x.numpy(), labels.numpy()))
        gradients = {name: np.array(item.grad) for name, item in trained}
        optimizer.set_learning_rate(float(rate))
        optimizer.step()
        module.lazy_reset_grad()
        steps.append((loss, gradients, {name: np.array(item.data) for name, item in trained}))
    answers = gathered(steps)
    if evaluates:
        module.eval()
        answers["eval"] = np.float32(first(module(*(array.numpy() for array in batches[-1]))))
    return answers


def first(outputs: Any) -> float:
    return float(outputs[0] if isinstance(outputs, tuple) else outputs)


def pytorch(case: Case, net: nn.Module, batches: list[Any], dtype: Any = torch.float64) -> Answers:
    """Ten steps of PyTorch's."""
    net = copy.deepcopy(net).to(dtype).train()
    batches = [tuple(in_type(array, dtype) for array in batch) for batch in batches]
    trained = {n: p for n, p in net.named_parameters() if n not in case.frozen}
    optimizer = {"AdamW": AdamW, "SGD": torch.optim.SGD}[case.optimizer](
        list(trained.values()), 1.0
    )
    steps = []
    for (x, labels), rate in zip(batches, RATES, strict=True):
        optimizer.param_groups[0]["lr"] = float(rate)
        optimizer.zero_grad()
        loss = LOSSES[case.loss](net(x), labels)
        loss.backward()
        gradients = {name: p.grad.numpy().copy() for name, p in trained.items()}
        if case.clip is not None:
            nn.utils.clip_grad_norm_(trained.values(), case.clip)
        optimizer.step()
        now = {name: p.detach().numpy().copy() for name, p in trained.items()}
        steps.append((float(loss), gradients, now))
    x, labels = batches[-1]
    evaluated = float(LOSSES[case.loss](net.eval()(x), labels))
    return gathered(steps) | {"eval": np.float32(evaluated)}


class AdamW(torch.optim.Optimizer):
    """adam_mode 1, which generate_artifacts writes: Hugging Face's, not PyTorch's."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        group = self.param_groups[0]
        rate = group["lr"] * (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for p, (first, second) in zip(group["params"], self.moments, strict=True):
            first.mul_(0.9).add_(p.grad, alpha=0.1)
            second.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            p.sub_(rate * first / (second.sqrt() + ADAM_W["eps"]))
            p.mul_(1 - group["lr"] * ADAM_W["weight_decay"])


def in_type(x: torch.Tensor, dtype: Any) -> torch.Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def gathered(steps: list[Any]) -> Answers:
    """Each array's ten values along a first axis."""
    losses, gradients, parameters = zip(*steps, strict=True)
    return (
        {"losses": np.array(losses, np.float32)}
        | {f"gradients/{n}": np.float32([g[n] for g in gradients]) for n in gradients[0]}
        | {f"parameters/{n}": np.float32([p[n] for p in parameters]) for n in parameters[0]}
    )


def apart(a: Answers, b: Answers) -> dict[str, float]:
    """How far answers are from each other by kind, relative to each array's largest element."""
    worst: dict[str, float] = {}
    for name in a.keys() & b.keys():
        distance = np.abs(a[name] - b[name]).max() / max(np.abs(b[name]).max(), 1e-30)
        kind = name.split("/")[0]
        worst[kind] = max(worst.get(kind, 0.0), float(distance))
    return worst


def drawn(name: str, case: Case) -> tuple[nn.Module, list[Any]]:
    """A network and its batches: the first whose steps rounding to float32 does not part, as Adam
    makes much of a gradient that is nearly 0."""
    for seed in range(1000):
        torch.manual_seed(sum(map(ord, name)) + seed)
        net = case.net()
        batches = [case.batch() for _ in range(STEPS)]
        both = (pytorch(case, net, batches, dtype) for dtype in (torch.float32, torch.float64))
        if case.answers is None or apart(*both)["parameters"] < 5e-7:
            return net, batches
    raise AssertionError(f"{name}: rounding parts all")


def make(name: str, case: Case, folder: Path) -> None:
    net, batches = drawn(name, case)
    folder.mkdir(parents=True, exist_ok=True)
    write_artifacts(case, net, batches[0][0], folder)
    ours = pytorch(case, net, batches)
    theirs = upstream(case, folder, batches) if case.answers != "pytorch" else {}
    if case.answers == "onnxruntime":
        assert max(apart(theirs, ours).values()) < 5e-6, apart(theirs, ours)
        ours = {key: ours[key] for key in theirs}
    places = {"x": 0, "labels": 1}
    np.savez_compressed(
        folder / "answers.npz",
        rates=RATES,
        source=np.array("pytorch" if case.answers else "onnxruntime, of its own random numbers"),
        **{key: np.stack([batch[i].numpy() for batch in batches]) for key, i in places.items()},
        **(ours if case.answers else theirs),
    )


def make_example(folder: Path) -> None:
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    write_artifacts(EXAMPLE, EXAMPLE.net(), EXAMPLE.batch()[0], folder)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        warnings.filterwarnings("ignore")
        os.chdir(tempfile.mkdtemp())  # upstream leaves files behind
        if sys.argv[1] == "example":
            make_example(EXAMPLES)
        else:
            make(sys.argv[1], CASES[sys.argv[1]], DATA / sys.argv[1])
    else:  # each in a process of its own, since upstream counts names in one
        for name in sys.argv[1:] or CASES:
            subprocess.run([sys.executable, Path(__file__).resolve(), name], check=True)

# SPDX-License-Identifier: MIT
"""One row of `memory_map.py`: a model trained one way, in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from training_models import PANELS

import cupy_training_ops as cto

if TYPE_CHECKING:
    from memory_map import Way

STEPS, FEWEST, SECONDS = 25, 5, 12.0  # fewer than 25 where they took longer than that
WARM_UP = 3
ENTRIES = 1 << 17  # of each gradient, drawn at random, that are compared
NAME = "activation_codes"  # begins a warning that nothing is coded
FP8 = {
    "quant_type": "torch.float8_e5m2",
    "use_scaling": True,
    "size_in_mb": 1,
    "exclude_primals": True,
}


class Training:
    """One model, trained one way; held: bytes that wait for the last backward pass."""

    def __init__(self, model: str, way: Way, device: torch.device, tiny: bool) -> None:
        """Make a model of PANELS and its batch, changed as the way says; tiny: small ones."""
        torch.manual_seed(0)
        panel = PANELS[model](tiny)
        self.way, self.device, self.label = way, device, panel.label
        self.has_autocast = panel.dtype == torch.float32
        with device:
            self.model = panel.make().to(panel.dtype)
        self.x, self.target = (each.to(device) for each in panel.data(0))
        if panel.channels_last:
            self.model.to(memory_format=torch.channels_last)
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        if way.is_converted:
            cto.torch.convert(self.model)
        if way.is_checkpointed:
            for block in panel.blocks(self.model):
                _checkpoint(block)
        self.codes = _options(way) if way.is_compiled else None
        loss = functools.partial(_loss, self.model, panel.scores, way.is_converted)
        self.loss = torch.compile(loss, options=self.codes) if way.is_compiled else loss
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        if way.policy is not None:
            activations = cto.torch.compressed_activations(way.policy)
            self.around = lambda: activations
        if way.is_offloaded:
            self.around = functools.partial(
                torch.autograd.graph.save_on_cpu, pin_memory=device.type == "cuda"
            )
        self.held = 0

    def gradients(self) -> Tensor:
        """Make a forward and backward pass; return the loss."""
        before = allocated(self.device)
        with (
            self.around(),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.has_autocast),
        ):
            loss = self.loss(self.x, self.target)
        self.held = allocated(self.device) - before
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        """Update the parameters, and drop their gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> Tensor:
        """Make a forward and backward pass and an update; return the loss before it."""
        loss = self.gradients()
        self.update()
        return loss

    def sampled(self) -> dict[str, Any]:
        """Return ENTRIES entries of each gradient of a matrix or convolution, by parameter."""
        drawn = torch.Generator().manual_seed(1)
        results = {}
        for name, parameter in self.model.named_parameters():
            if parameter.dim() in (2, 4) and parameter.grad is not None:
                at = torch.randint(parameter.numel(), (ENTRIES,), generator=drawn)
                flat = parameter.grad.contiguous().flatten()
                results[name] = flat[at.to(self.device)].float().cpu().numpy()
        return results

    def coded(self) -> dict[str, Any] | None:
        """Return the report of encoded activations without single tensors; None without codes."""
        if self.codes is None:
            return None
        return {name: said for name, said in self.codes.report().items() if name != "graphs"}


def _loss(
    model: nn.Module, scores: Callable[[Any, Tensor], Tensor], ours: bool, x: Tensor, target: Tensor
) -> Tensor:
    """Return the cross entropy of scores(model, x), by this package if `ours`."""
    result = scores(model, x)
    if ours:
        return cto.torch.functional.cross_entropy(result, target, inplace=True)
    return functional.cross_entropy(result.float(), target)


def allocated(device: torch.device) -> int:
    """Return the bytes of tensors on the GPU; 0 for the host, where they are not counted."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def timed_steps(training: Training, n: int) -> list[float]:
    """Return for each of n steps the milliseconds from the previous step's end to its end."""
    if training.device.type != "cuda":
        ends = [time.perf_counter()]
        for _ in range(n):
            training.step()
            ends.append(time.perf_counter())
        return [(b - a) * 1e3 for a, b in itertools.pairwise(ends)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    events[0].record()
    for event in events[1:]:
        training.step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def _checkpoint(block: nn.Module) -> None:
    """Let a block compute its activations again in the backward pass."""
    forward = block.forward

    def again(*arguments: Any, **named: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False, **named)

    block.forward = again


def _options(way: Way) -> Any:
    """Return the options of torch.compile for a way; set PyTorch's global settings."""
    if way.budget is not None:
        torch._functorch.config.activation_memory_budget = way.budget
    if way.is_fp8:
        passes = torch._inductor.config.post_grad_fusion_options
        passes["activation_quantization_aten_pass"] = FP8
    return None if way.codes is None else cto.torch.activation_codes(**way.codes)


def row(model: str, way: Way, tiny: bool, samples: Path, turn: Callable[[], Any]) -> dict[str, Any]:
    """Train a model of PANELS one way; return the figures of its row.

    samples: file for entries of the first gradients. turn: waits until this process may be timed.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    training = Training(model, way, device, tiny)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as warned:
        loss = training.gradients().item()
    first = time.monotonic() - began
    np.savez(samples, **training.sampled())
    training.update()
    training.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    turn()
    start = time.perf_counter()
    for _ in range(1 if tiny else WARM_UP):
        training.step().item()
    each = (time.perf_counter() - start) / WARM_UP
    n = 2 if tiny else max(FEWEST, min(STEPS, int(SECONDS / each)))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = timed_steps(training, n)
    return {
        "label": training.label,
        "loss": loss,
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
        "held_bytes": training.held,
        "least_ms": min(times),
        "median_ms": statistics.median(times),
        "steps": n,
        "first_began": began,
        "first_s": first,
        "graphs": counters["stats"].get("unique_graphs", 0),
        "coded": training.coded(),
        "warned": [str(each.message) for each in warned if NAME in str(each.message)],
    }


def attempted(*arguments: Any) -> dict[str, Any]:
    """Return row(*arguments), or {"error": ...} if it raises."""
    try:
        return row(*arguments)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}

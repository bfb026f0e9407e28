# SPDX-License-Identifier: MIT
"""The host's time of torch calls under compressed activations, beside what any mode and hooks take.

    python scripts/torch_calls.py

Tensors are so small that nothing is encoded: what is left is the noting of consumers and the hooks.
In turns, the least of many runs; on a machine that others use, run it again.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import cupy_training_ops as cto

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "nothing is saved": lambda x, _: x.detach() + 1,
    "small ones are": lambda x, _: x * x,
    "a layer": lambda x, w: functional.linear(x, w),
    "a function of Python": lambda x, _: functional.relu(x),
}


class Empty(TorchFunctionMode):
    """Does nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        return func(*args, **(kwargs or {}))


def microseconds(call: Callable[[], object], n: int = 2000) -> float:
    """The least of some runs."""
    return min(timeit.repeat(call, number=n, repeat=5)) / n * 1e6


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
def main(rounds: int) -> None:
    """Print a row for each call."""
    torch.set_num_threads(1)
    x, w = torch.randn(8, 8, requires_grad=True) * 1, torch.nn.Parameter(torch.randn(8, 8))
    hooks = saved_tensors_hooks(lambda x: x, lambda x: x)
    for name, call in CALLS.items():
        empty, ours = [], []
        for _ in range(rounds):
            with Empty(), hooks:
                empty.append(microseconds(lambda call=call: call(x, w)))
            with cto.torch.compressed_activations():
                ours.append(microseconds(lambda call=call: call(x, w)))
        least, most = min(empty), min(ours)
        click.echo(f"{name:22} empty {least:6.2f} us, ours {most:6.2f} us, {most / least:.2f}")


if __name__ == "__main__":
    main()

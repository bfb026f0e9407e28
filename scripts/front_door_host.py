# SPDX-License-Identifier: MIT
"""Host time of PyTorch's front door without a GPU: tensors of the host, launches left out.

    python3 scripts/front_door_host.py --against ../before

Calls go the way that they go on a GPU, up to the launch, whose place nothing takes; new tensors are
the host's. Microseconds are those of the best of several runs, in turns with the other checkout,
the ratio's percentiles are over all of them. Rows in brackets are PyTorch's own calls, computing
and all, for scale. Time is the processor's: what else the machine does counts little.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import sys
from collections.abc import Callable
from typing import Any

import click
from turns import SERVE, options, print_times, run, serve

GOOD = struct.pack("4f", 0, 1, 1, 0)
Action = Callable[[], Any]


@click.command(help=(__doc__ or "").partition("\n")[0])
@options
def main(**given: Any) -> None:
    """Print microseconds of calls, and their ratio to those of the other checkout."""
    print_times(__file__, lambda checkout: checkout.ask("names"), **given)


# ---- in the process of each checkout -------------------------------------------------------------


def names() -> list[str]:
    """Names of all calls."""
    return list(actions())


@functools.cache
def actions() -> dict[str, Action]:
    """Calls by name; from here on the host's tensors are a GPU's, which is never asked."""
    import torch
    from tensor_backends import HollowTensors, tensors_on

    torch.set_num_threads(1)
    backend = HollowTensors()
    backend.driver.notes = False  # type: ignore[attr-defined]
    FOR_GOOD.enter_context(tensors_on(backend))
    return {**functionals(), **nodes(), **steps(), **compressed()}


def functionals() -> dict[str, Action]:
    """Each functional without gradients, forward with them, and backward."""
    import torch
    from torch.nn import functional as theirs

    from cupy_training_ops.torch import functional as ours

    row, shift, target = torch.ones(64), torch.zeros(64), torch.randint(64, (64,))
    found: dict[str, Action] = {}
    for module, name, given in (
        (ours, "layer_norm", ((64,), row, shift)),
        (ours, "rms_norm", ((64,), row)),
        (ours, "softmax", (-1,)),
        (ours, "gelu", ()),
        (ours, "relu", ()),
        (ours, "dropout", ()),
        (ours, "cross_entropy", (target,)),
        (theirs, "layer_norm", ((64,), row, shift)),
        (theirs, "rms_norm", ((64,), row)),
        (theirs, "gelu", ()),
    ):
        shown = name if module is ours else f"(torch) {name}"
        found |= ways(shown, functools.partial(_called, getattr(module, name), given))
    return found


def _called(function: Any, given: tuple[Any, ...], x: Any) -> Any:
    return function(x, *given)


def ways(name: str, call: Callable[[Any], Any]) -> dict[str, Action]:
    """A call of a small tensor in three ways."""
    import torch

    x, leaf = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    for _ in range(100):  # until calls of either kind are noted
        call(x)
        torch.autograd.grad(y := call(leaf), leaf, torch.ones_like(y), retain_graph=True)
    dy = torch.ones_like(y)
    return {
        name: functools.partial(call, x),
        f"{name}, forward": functools.partial(call, leaf),
        f"{name}, backward": lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True),
    }


def nodes() -> dict[str, Action]:
    """Autograd's time for a node of Python's around nothing."""
    import torch

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return torch.empty_like(x)

        @staticmethod
        def backward(_: Any, dy: Any) -> Any:
            return dy

    return ways("(torch) node around nothing", Node.apply)


def steps() -> dict[str, Action]:
    """A step of an optimizer over a model's parameters."""
    import torch
    from cases.parameters import SHAPES

    import cupy_training_ops as cto

    def made(kind: Any, **given: Any) -> Action:
        some = [torch.nn.Parameter(torch.zeros(min(n, 64))) for n, *_ in SHAPES]
        for parameter in some:
            parameter.grad = torch.zeros_like(parameter)
        step: Action = kind(some, **given).step
        return step

    return {
        "AdamW.step, 292 parameters": made(cto.torch.AdamW),
        "AdamW.step, 8bit": made(cto.torch.AdamW, state="8bit"),
        "AdamW.step, max_norm": made(cto.torch.AdamW, max_norm=1.0),
    }


def compressed() -> dict[str, Action]:
    """Saved tensors' hooks, without what encodes; ten products told of, beside as many that are
    not; steps of a small GPT, whose tensors are not too small here."""
    import torch
    from map_models import gpt

    import cupy_training_ops as cto
    from cupy_training_ops.torch import activations, saved

    def nothing(addresses: Any, _: Any) -> None:
        if len(addresses) == 3:  # what is measured is good
            ctypes.memmove(addresses[2], GOOD, len(GOOD))

    coding = saved.coding
    moves = dict.fromkeys(("encode", "encode_unaligned", "decode"), nothing)
    saved.coding = lambda *form: coding(*form)._replace(**moves)
    saved.SMALL = activations.SMALL = 1024
    always = cto.torch.compressed_activations("plain_msfp15")
    default = cto.torch.compressed_activations()
    made = torch.randn(1 << 16, requires_grad=True) * 2
    parameter, one = torch.nn.Parameter(torch.randn(1 << 16)), torch.ones(1)

    def kept() -> None:
        packed = always.pack(made)
        always._known.clear()  # else it is the same tensor still
        always.unpack(packed)

    def told() -> None:
        with default._thread.mode:
            products()

    def products() -> None:
        for _ in range(10):
            torch.mul(one, one)

    task = gpt(tiny=True, drops=0.1)
    model, (tokens, _) = task.make(), task.data(0)

    def step(context: Any) -> None:
        with context, torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens).sum()
        loss.backward()

    return {
        "(torch) step of a GPT": lambda: step(contextlib.nullcontext()),
        "step of a GPT, compressed": lambda: step(default),
        "pack and unpack": kept,
        "pack and unpack, a parameter": lambda: default.unpack(default.pack(parameter)),
        "(torch) ten products": products,
        "ten products, told of": told,
    }


def microseconds(name: str) -> float:
    """One run's time of a call."""
    return run(actions()[name])


FOR_GOOD = contextlib.ExitStack()


if __name__ == "__main__":
    if SERVE in sys.argv[1:2]:
        serve(names, microseconds)
    else:
        main()

# SPDX-License-Identifier: MIT
"""Host time of calls without a GPU: launches left out.

    python3 scripts/host_time.py --against ../before              of CuPy's arrays, which are hollow
    python3 scripts/host_time.py --tensors --against ../before    of PyTorch's front door

Calls go the way that they go on a GPU, up to the launch, whose place nothing takes; new tensors are
the host's. Microseconds are those of the best of several runs, in turns with the other checkout,
the ratio's percentiles are over all of them. Rows in brackets are PyTorch's own calls, computing
and all, for scale. Time is the processor's: what else the machine does counts little.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from cases.parameters import SHAPES
from markdown_table import head_of, row_of
from turns import HERE, SERVE, Checkout, in_turns, ratios, run, serve

import cupy_training_ops as cto

GOOD = struct.pack("4f", 0, 1, 1, 0)
COMPARED = ("call", "old us", "us", "us / old us (p20, p80)")
FOR_GOOD = contextlib.ExitStack()
Action = Callable[[], Any]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--tensors", is_flag=True, help="Calls of PyTorch's front door.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout, to compare with.",
)
@click.option("--only", default="", help="Only calls whose name contains this.")
@click.option("--runs", type=click.IntRange(2), default=150, show_default=True)
def main(tensors: bool, against: Path | None, only: str, runs: int) -> None:
    """Print microseconds of calls, and their ratio to those of the other checkout."""
    folders = [HERE] if against is None else [against, HERE]
    with contextlib.ExitStack() as stack:
        checkouts = [stack.enter_context(Checkout(folder, __file__)) for folder in folders]
        columns = ("call", "us") if against is None else COMPARED
        click.echo(head_of(columns))
        for name in checkouts[0].ask("names", tensors):
            if only in name:
                result = in_turns(checkouts, runs, "microseconds", tensors, name)
                click.echo(row_of(cells(name, *result)))


def cells(name: str, *runs: list[float]) -> list[str]:
    """Return cells: the best run of each checkout, and the ratio of two with its percentiles."""
    bests = [name, *(f"{min(result):.2f}" for result in runs)]
    return bests if len(runs) == 1 else [*bests, "{:.3f} ({:.3f}, {:.3f})".format(*ratios(*runs))]


# ---- in the process of each checkout -------------------------------------------------------------


def names(tensors: bool) -> list[str]:
    """Return the names of all calls, on tensors or on CuPy's arrays."""
    return list(tensor_calls() if tensors else CALLS)


def microseconds(tensors: bool, name: str) -> float:
    """Return the microseconds of a call in one run."""
    if tensors:
        return run(tensor_calls()[name])
    us = run(array_call(name))
    hollow_arrays()[1].clear()
    return us


@functools.cache
def array_call(name: str) -> Action:
    """Return the call of that name, made at first."""
    return CALLS[name]()


@functools.cache
def hollow_arrays() -> tuple[Callable[..., Any], list[Any]]:
    """Return (maker of hollow arrays, list of launches); from here on calls use no GPU.

    Hollow arrays are CuPy's at invented addresses: see cupy_training_ops.testing.hollow.
    """
    import cupy

    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    try:
        from cupy_training_ops.call import backends
    except ImportError:  # a checkout before 7ec471ac
        from cupy_training_ops.frame import backends
    launches = FOR_GOOD.enter_context(hollow_launches())
    backends.BACKENDS[cupy.ndarray].driver.launch = lambda *_: None  # nor what notes them
    return hollow, launches


def array(*shape: int, dtype: str = "f4") -> Any:
    """A hollow array."""
    return hollow_arrays()[0](shape, dtype)


def arrays(n: int, *shape: int) -> tuple[Any, ...]:
    """Return n hollow arrays of this shape, by default 64 x 64."""
    return tuple(array(*(shape or (64, 64))) for _ in range(n))


def parameters(dtype: str = "f4") -> list[Any]:
    """Return hollow arrays of the 292 parameters of a transformer."""
    return [array(*shape, dtype=dtype) for shape in SHAPES]


def new_scales() -> Action:
    """Return a call with a host value that changes from call to call."""
    op, (x, out), scales = cto.Scale(), arrays(2, 1024), itertools.count(0.5, 2.0**-20)
    return lambda: op(x, next(scales), out=out)


def gather(n_rows: int, n: int, width: int) -> Action:
    """Return a call of many launches and scratch memory: n of n_rows rows of an embedding."""
    shape, indices = (n_rows, width), array(n, dtype="i8")
    return partial(cto.GatherGrad(), shape, indices, array(n, width), out=array(*shape))


def bound_lists() -> Action:
    """Return a bound call of four lists, three written in place; its rate changes each time."""
    bound = momentum()(*(parameters() for _ in range(4)), 0.5)
    rates = itertools.count(0.5, 2.0**-20)
    return lambda: bound(rate=next(rates))


def open_list() -> Action:
    """Return a bound call of four lists; the second is passed anew, other arrays each time."""
    weights, *gradients, first, second = (parameters() for _ in range(5))
    bound, turns = momentum()(weights, ..., first, second, 0.5), itertools.cycle(gradients)
    return lambda: bound(Gs=next(turns))


def momentum() -> Any:
    """Return `bound` of the tests' operator of four lists."""
    from probe.list_probe import ProbeMomentum

    return ProbeMomentum().bound


def adam_step(n_gradients: int) -> Action:
    """Return a step of AdamW with n_gradients lists of gradients in turn."""
    step = cto.AdamW(parameters()).step
    turns = itertools.cycle([parameters() for _ in range(n_gradients)])
    return lambda: step(next(turns), loss_scale=1024.0, max_norm=1.0)


def adam(rate: Any, number: Callable[[int], Any]) -> Action:
    """Return a step of one array; number: makes its step, which changes from call to call."""
    arguments, steps = arrays(4), itertools.count(1)
    return lambda: cto.adam_optimizer(rate, number(next(steps)), *arguments)


def slice_grad() -> Action:
    """Return a call with positions in NumPy's arrays."""
    positions = (np.array([n]) for n in (0, 64, 0, 2))
    return partial(cto.slice_grad, array(32, 64), np.array([64, 64]), *positions)


def conv_grad() -> Action:
    """Return a call over small images."""
    dy, x = arrays(2, 2, 16, 8, 8)
    return partial(cto.conv_grad, dy, x, array(16, 16, 3, 3), pads=[1, 1, 1, 1])


def layer_norm_grad() -> Action:
    """Return a call with the statistics of the forward pass."""
    return partial(cto.layer_normalization_grad, *arrays(2), array(64), *arrays(2, 64, 1))


def loss_call(function: Any) -> Action:
    """Return a call of a loss function over 64 x 64 scores."""
    return partial(function, *arrays(1), array(64, dtype="i8"))


def of_numpy() -> Action:
    """Return a call on the CPU provider, whose time is that of computing, too."""
    return partial(
        cto.relu_grad, *np.random.default_rng(1).standard_normal((2, 64, 64), np.float32)
    )


def with_out(function: Any, n: int = 2, *shape: int, **more: Any) -> Action:
    """Return a call of n arrays with `out`; shape: of each, by default 1024; more: keywords."""
    *inputs, out = arrays(n + 1, *(shape or (1024,)))
    return partial(function, *inputs, out=out, **more)


CALLS: dict[str, Callable[[], Action]] = {
    "GistBinarizeEncoder, out=": lambda: partial(
        cto.GistBinarizeEncoder(), array(1024), out=array(1024, dtype="?")
    ),
    "GeluGrad, out=": lambda: with_out(cto.GeluGrad()),
    "GeluGrad, inputs by name": lambda: with_out(cto.GeluGrad(), 0, X=array(1024), dY=array(1024)),
    "quick_gelu_grad, alpha=": lambda: with_out(cto.quick_gelu_grad, alpha=1.5),
    "GatherGrad, out=": lambda: gather(50_257, 32_768, 1024),
    "Scale, one scale": lambda: partial(cto.Scale(), array(1024), 0.5, out=array(1024)),
    "Scale, a new scale each call": new_scales,
    "MixedPrecisionScale, 292 arrays": lambda: partial(
        cto.MixedPrecisionScale(to="float16"), array(1), parameters(), out=tuple(parameters("f2"))
    ),
    "InPlaceAccumulatorList, 292 pairs": lambda: partial(
        cto.InPlaceAccumulatorList(), parameters(), parameters("f2")
    ),
    "ConcatTraining, 64 arrays": lambda: partial(
        cto.ConcatTraining(axis=1), list(arrays(64, 1024, 1024)), out=(array(1024, 65_536), None)
    ),
    "bound, 4 lists of 292 arrays": bound_lists,
    "bound, one of 4 lists open": open_list,
    "AdamW, a step with the same 292 gradients": lambda: adam_step(1),
    "AdamW, a step with 292 new gradients": lambda: adam_step(3),
    "conv_grad, pads=[...]": conv_grad,
    "dropout, NumPy scalars": lambda: partial(
        cto.dropout, *arrays(1), np.float32(0.1), np.bool_(True), seed=3
    ),
    "adam_optimizer, numbers": lambda: adam(0.001, int),
    "adam_optimizer, NumPy scalars": lambda: adam(np.float32(0.001), np.int64),
    "slice_grad, NumPy positions": slice_grad,
    "GatherGrad, small, out=": lambda: gather(1000, 4096, 64),
    "pad_and_unflatten": lambda: partial(
        cto.pad_and_unflatten, array(50, 64), array(50, dtype="i8"), np.array([8, 16])
    ),
    "layer_normalization_grad": layer_norm_grad,
    "layer_normalization": lambda: partial(cto.layer_normalization, *arrays(1), *arrays(2, 64)),
    "compress, msfp15": lambda: partial(cto.compress, *arrays(1), "msfp15"),
    "decompress, msfp15": lambda: cto.compress(*arrays(1), "msfp15").decompress,
    "softmax_cross_entropy_loss": lambda: loss_call(cto.softmax_cross_entropy_loss),
    "cross_entropy_loss_and_grad": lambda: loss_call(cto.cross_entropy_loss_and_grad),
    "ConcatTraining of 8": lambda: partial(cto.ConcatTraining(axis=0), arrays(8)),
    "sgd_optimizer": lambda: partial(cto.sgd_optimizer, array(1), *arrays(2)),
    "relu_grad": lambda: partial(cto.relu_grad, *arrays(2)),
    "ReluGrad, out=": lambda: with_out(cto.ReluGrad(), 2, 64, 64),
    "ReluGrad, bound": lambda: with_out(cto.ReluGrad().bound, 2, 64, 64)(),
    "relu_grad, NumPy arrays": of_numpy,
}


# ---- tensors -----------------------------------------------------------------------------------


@functools.cache
def tensor_calls() -> dict[str, Action]:
    """Return calls by name; from here on the host's tensors are treated as a GPU's."""
    import torch
    from tensor_backends import HollowTensors, tensors_on

    torch.set_num_threads(1)
    backend = HollowTensors()
    backend.driver.notes = False  # type: ignore[attr-defined]
    FOR_GOOD.enter_context(tensors_on(backend))
    return {**functionals(), **nodes(), **steps(), **compression()}


def functionals() -> dict[str, Action]:
    """Return calls of each functional without gradients, forward with them, and backward."""
    import torch
    from torch.nn import functional as theirs

    from cupy_training_ops.torch import functional as ours

    row, shift, target = torch.ones(64), torch.zeros(64), torch.randint(64, (64,))
    results: dict[str, Action] = {}
    for module, name, arguments in (
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
        results |= ways(shown, partial(_apply, getattr(module, name), arguments))
    return results


def _apply(function: Any, arguments: tuple[Any, ...], x: Any) -> Any:
    return function(x, *arguments)


def ways(name: str, call: Callable[[Any], Any]) -> dict[str, Action]:
    """Return a call of a small tensor without gradients, forward with them, and backward."""
    import torch

    x, leaf = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    for _ in range(100):  # until calls of either kind are noted
        call(x)
        torch.autograd.grad(y := call(leaf), leaf, torch.ones_like(y), retain_graph=True)
    dy = torch.ones_like(y)
    return {
        name: partial(call, x),
        f"{name}, forward": partial(call, leaf),
        f"{name}, backward": lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True),
    }


def nodes() -> dict[str, Action]:
    """Return calls of an autograd function in Python that does nothing."""
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
    """Return steps of optimizers over a model's 292 parameters."""
    import torch

    def step_of(kind: Any, **keywords: Any) -> Action:
        some = [torch.nn.Parameter(torch.zeros(min(n, 64))) for n, *_ in SHAPES]
        for parameter in some:
            parameter.grad = torch.zeros_like(parameter)
        step: Action = kind(some, **keywords).step
        return step

    return {
        "AdamW.step, 292 parameters": step_of(cto.torch.AdamW),
        "AdamW.step, 8bit": step_of(cto.torch.AdamW, state="8bit"),
        "AdamW.step, max_norm": step_of(cto.torch.AdamW, max_norm=1.0),
    }


def compression() -> dict[str, Action]:
    """Return calls of compressed activations, without the encoding itself.

    Pack and unpack of saved tensors; ten products inside and outside the mode that notices them;
    steps of a small GPT, for which SMALL, the least size that is encoded, is lowered.
    """
    import torch
    from training_models import gpt

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
    activation = torch.randn(1 << 16, requires_grad=True) * 2
    parameter, one = torch.nn.Parameter(torch.randn(1 << 16)), torch.ones(1)

    def pack_and_unpack() -> None:
        packed = always.pack(activation)
        always._known.clear()  # else it is the same tensor still
        always.unpack(packed)

    def products_in_mode() -> None:
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
        "pack and unpack": pack_and_unpack,
        "pack and unpack, a parameter": lambda: default.unpack(default.pack(parameter)),
        "(torch) ten products": products,
        "ten products, told of": products_in_mode,
    }


if __name__ == "__main__":
    if SERVE in sys.argv[1:2]:
        serve(names, microseconds)
    else:
        main()

# SPDX-License-Identifier: MIT
"""Host time of calls on hollow CuPy arrays: without a GPU, launches left out.

    python3 scripts/host_time.py --against ../before

Microseconds are those of the best of several runs, in turns with the other checkout, the ratio's
percentiles are over all of them. Time is the processor's: what else the machine does counts little.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import click
import numpy as np
from cases.parameters import SHAPES
from turns import SERVE, options, print_times, run, serve

import cupy_training_ops as cto

Action = Callable[[], Any]


@click.command()
@options
def main(**given: Any) -> None:
    """Print microseconds of calls, and their ratio to those of the other checkout."""
    print_times(__file__, lambda _: CALLS, **given)


# ---- in the process of each checkout -------------------------------------------------------------


def array(*shape: int, dtype: str = "f4") -> Any:
    """A hollow array."""
    return hollow_arrays()[0](shape, dtype)


def arrays(n: int, *shape: int) -> tuple[Any, ...]:
    """So many, small and square where nothing else is said."""
    return tuple(array(*(shape or (64, 64))) for _ in range(n))


def parameters(dtype: str = "f4") -> list[Any]:
    """The 292 parameters of a transformer."""
    return [array(*shape, dtype=dtype) for shape in SHAPES]


def new_scales() -> Action:
    """A host value that changes from call to call."""
    op, (x, out), scales = cto.Scale(), arrays(2, 1024), itertools.count(0.5, 2.0**-20)
    return lambda: op(x, next(scales), out=out)


def gather(n_rows: int, n: int, width: int) -> Action:
    """Many launches and scratch memory."""
    shape, indices = (n_rows, width), array(n, dtype="i8")
    return partial(cto.GatherGrad(), shape, indices, array(n, width), out=array(*shape))


def bound_lists() -> Action:
    """Four lists, three of them written in place, bound: the rate changes from call to call."""
    bound = momentum()(*(parameters() for _ in range(4)), 0.5)
    rates = itertools.count(0.5, 2.0**-20)
    return lambda: bound(rate=next(rates))


def open_list() -> Action:
    """The same with the second list given at each call, of arrays that are not the last call's."""
    weights, *gradients, first, second = (parameters() for _ in range(5))
    bound, turns = momentum()(weights, ..., first, second, 0.5), itertools.cycle(gradients)
    return lambda: bound(Gs=next(turns))


def momentum() -> Any:
    """Binder of the operator of four lists that the tests of calls have."""
    from probe.list_probe import ProbeMomentum

    return ProbeMomentum().bound


def adam_step(n_gradients: int) -> Action:
    """Norm and update; with several lists of gradients each step has others than the one before."""
    step = cto.AdamW(parameters()).step
    turns = itertools.cycle([parameters() for _ in range(n_gradients)])
    return lambda: step(next(turns), loss_scale=1024.0, max_norm=1.0)


def adam(rate: Any, number: Callable[[int], Any]) -> Action:
    """A step of one array, whose number changes from call to call."""
    given, steps = arrays(4), itertools.count(1)
    return lambda: cto.adam_optimizer(rate, number(next(steps)), *given)


def slice_grad() -> Action:
    """Positions in NumPy's arrays."""
    positions = (np.array([n]) for n in (0, 64, 0, 2))
    return partial(cto.slice_grad, array(32, 64), np.array([64, 64]), *positions)


def conv_grad() -> Action:
    """Small images."""
    dy, x = arrays(2, 2, 16, 8, 8)
    return partial(cto.conv_grad, dy, x, array(16, 16, 3, 3), pads=[1, 1, 1, 1])


def layer_norm_grad() -> Action:
    """Statistics come from the forward pass."""
    return partial(cto.layer_normalization_grad, *arrays(2), array(64), *arrays(2, 64, 1))


def labelled(function: Any) -> Action:
    """A loss."""
    return partial(function, *arrays(1), array(64, dtype="i8"))


def of_numpy() -> Action:
    """On the CPU provider, computing and all."""
    return partial(
        cto.relu_grad, *np.random.default_rng(1).standard_normal((2, 64, 64), np.float32)
    )


def with_out(function: Any, n: int = 2, *shape: int, **more: Any) -> Action:
    """A call of so many arrays into another."""
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
    "softmax_cross_entropy_loss": lambda: labelled(cto.softmax_cross_entropy_loss),
    "cross_entropy_loss_and_grad": lambda: labelled(cto.cross_entropy_loss_and_grad),
    "ConcatTraining of 8": lambda: partial(cto.ConcatTraining(axis=0), arrays(8)),
    "sgd_optimizer": lambda: partial(cto.sgd_optimizer, array(1), *arrays(2)),
    "relu_grad": lambda: partial(cto.relu_grad, *arrays(2)),
    "ReluGrad, out=": lambda: with_out(cto.ReluGrad(), 2, 64, 64),
    "ReluGrad, bound": lambda: with_out(cto.ReluGrad().bound, 2, 64, 64)(),
    "relu_grad, NumPy arrays": of_numpy,
}


def microseconds(name: str) -> float:
    """One run's time of a call."""
    us = run(call(name))
    hollow_arrays()[1].clear()
    return us


@functools.cache
def call(name: str) -> Action:
    """The call of that name."""
    return CALLS[name]()


@functools.cache
def hollow_arrays() -> tuple[Callable[..., Any], list[Any]]:
    """Maker of hollow arrays, and the launches; from here on CuPy's arrays are such."""
    import cupy

    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    try:
        from cupy_training_ops.call import backends
    except ImportError:  # a checkout before 7ec471ac
        from cupy_training_ops.frame import backends
    launches = FOR_GOOD.enter_context(hollow_launches())
    backends.BACKENDS[cupy.ndarray].driver.launch = lambda *_: None  # nor what notes them
    return hollow, launches


FOR_GOOD = ExitStack()


if __name__ == "__main__":
    if SERVE in sys.argv[1:2]:
        serve(microseconds)
    else:
        main()

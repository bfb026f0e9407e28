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
import time
import timeit
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click
from cases.calls import CASES, Arrays, Case
from turns import SERVE, options, print_times, serve

SECONDS = 0.005  # of a run
Action = Callable[[], Any]


@click.command()
@options
def main(**given: Any) -> None:
    """Print microseconds of calls, and their ratio to those of the other checkout."""
    print_times(__file__, lambda _: ACTIONS, **given)


# ---- in the process of each checkout -------------------------------------------------------------

Maker = Callable[[Any, Any], Action]  # from get_op and what makes a hollow array of shape and dtype


def binarize(get_op: Any, array: Any) -> Action:
    """An element-wise call."""
    op, x, out = get_op("GistBinarizeEncoder")(), array((1024,), "f4"), array((1024,), "?")
    return lambda: op(x, out=out)


def by_position(get_op: Any, array: Any) -> Action:
    """Two arrays."""
    op, dy, x, out = get_op("GeluGrad")(), *(array((1024,), "f4") for _ in range(3))
    return lambda: op(dy, x, out=out)


def by_name(get_op: Any, array: Any) -> Action:
    """The same by their names; by position in a checkout that has no names."""
    op, dy, x, out = get_op("GeluGrad")(), *(array((1024,), "f4") for _ in range(3))
    try:
        op(X=x, dY=dy, out=out)
    except TypeError:
        return lambda: op(dy, x, out=out)
    return lambda: op(X=x, dY=dy, out=out)


def as_function(_get_op: Any, array: Any) -> Action:
    """The operator as a function, with an attribute."""
    import cupy_training_ops as cto

    dy, x, out = (array((1024,), "f4") for _ in range(3))
    return lambda: cto.quick_gelu_grad(dy, x, alpha=1.5, out=out)


def gather(get_op: Any, array: Any) -> Action:
    """Many launches and scratch memory, at the size of a language model's embedding."""
    op, shape = get_op("GatherGrad")(), (50_257, 1024)
    indices, dy, out = array((32_768,), "i8"), array((32_768, 1024), "f4"), array(shape, "f4")
    return lambda: op(shape, indices, dy, out=out)


def one_scale(get_op: Any, array: Any) -> Action:
    """A host value that stays."""
    op, x, out = get_op("Scale")(), array((1024,), "f4"), array((1024,), "f4")
    return lambda: op(x, 0.5, out=out)


def new_scales(get_op: Any, array: Any) -> Action:
    """A host value that changes from call to call."""
    op, x, out = get_op("Scale")(), array((1024,), "f4"), array((1024,), "f4")
    scales = itertools.count(0.5, 2.0**-20)
    return lambda: op(x, next(scales), out=out)


def scaled_list(get_op: Any, array: Any) -> Action:
    """A list with a list of outputs."""
    op, scale = get_op("MixedPrecisionScale")(to="float16"), array((1,), "f4")
    xs = parameters(array, "f4")
    out = tuple(parameters(array, "f2"))
    return lambda: op(scale, xs, out=out)


def accumulated_lists(get_op: Any, array: Any) -> Action:
    """Two lists, one of which is written in place."""
    op = get_op("InPlaceAccumulatorList")()
    sums, values = parameters(array, "f4"), parameters(array, "f2")
    return lambda: op(sums, values)


def bound_lists(_get_op: Any, array: Any) -> Action:
    """Four lists, three of them written in place, bound: the rate changes from call to call."""
    bound = momentum()(*(parameters(array, "f4") for _ in range(4)), 0.5)
    rates = itertools.count(0.5, 2.0**-20)
    return lambda: bound(rate=next(rates))


def open_list(_get_op: Any, array: Any) -> Action:
    """The same with the second list given at each call, of arrays that are not the last call's."""
    weights, *gradients, first, second = (parameters(array, "f4") for _ in range(5))
    bound = momentum()(weights, ..., first, second, 0.5)
    turns = itertools.cycle(gradients)
    return lambda: bound(Gs=next(turns))


def momentum() -> Any:
    """What binds the operator of four lists that the tests of calls have."""
    from probe.list_probe import ProbeMomentum

    return ProbeMomentum().bound


def same_gradients(_get_op: Any, array: Any) -> Action:
    """A whole step: norm and update."""
    step, gradients = adam_w(array), parameters(array, "f4")
    return lambda: step(gradients, loss_scale=1024.0, max_norm=1.0)


def new_gradients(_get_op: Any, array: Any) -> Action:
    """The same with arrays that are not those of the step before."""
    step, turns = adam_w(array), itertools.cycle([parameters(array, "f4") for _ in range(3)])
    return lambda: step(next(turns), loss_scale=1024.0, max_norm=1.0)


def adam_w(array: Any) -> Any:
    """The step of an optimizer over the parameters."""
    import cupy_training_ops as cto

    return cto.AdamW(parameters(array, "f4")).step


def joined(get_op: Any, array: Any) -> Action:
    """A list with one output."""
    op, xs = get_op("ConcatTraining")(axis=1), [array((1024, 1024), "f4") for _ in range(64)]
    out = array((1024, 64 * 1024), "f4"), None
    return lambda: op(xs, out=out)


def parameters(array: Any, dtype: str) -> list[Any]:
    """The 292 parameters of a transformer."""
    from cases.parameters import SHAPES

    return [array(shape, dtype) for shape in SHAPES]


ACTIONS: dict[str, Maker] = {
    "GistBinarizeEncoder, out=": binarize,
    "GeluGrad, out=": by_position,
    "GeluGrad, inputs by name": by_name,
    "quick_gelu_grad, alpha=": as_function,
    "GatherGrad, out=": gather,
    "Scale, one scale": one_scale,
    "Scale, a new scale each call": new_scales,
    "MixedPrecisionScale, 292 arrays": scaled_list,
    "InPlaceAccumulatorList, 292 pairs": accumulated_lists,
    "ConcatTraining, 64 arrays": joined,
    "bound, 4 lists of 292 arrays": bound_lists,
    "bound, one of 4 lists open": open_list,
    "AdamW, a step with the same 292 gradients": same_gradients,
    "AdamW, a step with 292 new gradients": new_gradients,
}


def as_written(case: Case, _get_op: Any, array: Any) -> Action:
    """A call as its users write it."""
    return case.make(Arrays(array))


ACTIONS |= {
    name: functools.partial(as_written, case)
    for name, case in CASES.items()
    if not case.takes_tensors
}


def microseconds(name: str) -> float:
    """One run's time of a call."""
    timer, calls, launches = prepared(name)
    us = timer.timeit(calls) / calls * 1e6
    launches.clear()
    return us


@functools.cache
def prepared(name: str) -> tuple[timeit.Timer, int, list[Any]]:
    """What times a call, the calls of a run, and the list in which launches are noted."""
    from cupy_training_ops import get_op

    array, launches = hollow_arrays()
    timer = timeit.Timer(ACTIONS[name](get_op, array), timer=time.thread_time)
    timer.timeit(10)  # plans, and fills caches
    launches.clear()
    return timer, max(5, int(SECONDS / timer.timeit(10) * 10)), launches


@functools.cache
def hollow_arrays() -> tuple[Callable[..., Any], list[Any]]:
    """What makes hollow arrays, and what is launched; from here on CuPy's arrays are such."""
    import cupy

    try:
        from cupy_training_ops.call import backends
    except ImportError:  # an older checkout
        from cupy_training_ops.frame import backends
    try:
        from cupy_training_ops.testing.hollow import hollow, hollow_launches
    except ImportError:  # an older checkout has them in its tests
        import test_hollow as old

        old.arrays.BACKENDS[cupy.ndarray] = old.HOLLOW
        return old.hollow, old.HOLLOW.launches
    launches = FOR_GOOD.enter_context(hollow_launches())
    driver = getattr(backends.BACKENDS[cupy.ndarray], "driver", None)
    if driver is not None:  # an older checkout has none
        driver.launch = lambda *_: None  # nor what notes them
    return hollow, launches


FOR_GOOD = ExitStack()


if __name__ == "__main__":
    if SERVE in sys.argv[1:2]:
        serve(microseconds)
    else:
        main()

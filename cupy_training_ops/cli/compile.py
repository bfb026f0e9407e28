# SPDX-License-Identifier: MIT
"""`compile`: warm the kernel cache for this GPU, or check that kernels compile for others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click

from ..device import compiler
from ..device.compiler import kernel, slot_options
from ..errors import CompileError
from ..testing.idle import Module, modules
from .errors import CHECK_FAILED
from .machine import require_gpu
from .parameter_types import chosen_samples, op_option
from .processes import Attempts, Outcome, workers
from .terminal import progress


@click.command("compile")
@op_option
@click.option(
    "--arch",
    "architectures",
    multiple=True,
    type=click.Choice([*compiler.ARCHITECTURES, "all"]),
    help="Only check that the kernels compile for this architecture (90 is sm_90), or for all "
    "that this NVRTC knows; needs no GPU, fills no cache. May be given more than once.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Compile in so many processes. Each takes the memory of a CUDA context on the GPU.",
)
def compile_kernels(names: tuple[str, ...], architectures: tuple[str, ...], jobs: int) -> None:
    """Compile every kernel for every type, so that no call waits.

    The kernels go into CuPy's disk cache; CUPY_CACHE_DIR says where that is. Exit code 1 if one
    does not compile, 3 if there is no GPU and no --arch.
    """
    samples = itertools.chain.from_iterable(chosen_samples(names).values())
    with workers(jobs) as attempts:
        failures = (
            _check(samples, architectures, attempts) if architectures else _warm(samples, attempts)
        )
    for failure in failures:
        click.echo(failure)
    if failures:
        raise click.exceptions.Exit(CHECK_FAILED)


def _warm(samples: Iterable[Any], attempts: Attempts) -> list[str]:
    """Compile for the current GPU through the cache."""
    cupy = require_gpu()
    compiler.require_writable_cache()
    from ..device.cuda import BACKEND

    index = cupy.cuda.runtime.getDevice()
    target = f"sm_{cupy.cuda.Device(index).compute_capability}"
    wanted = modules(samples, BACKEND.device(index))
    return _failures(wanted, target, partial(attempts, partial(_compile_cached, index)))


def _check(samples: Iterable[Any], architectures: tuple[str, ...], attempts: Attempts) -> list[str]:
    """Compile for architectures of which no GPU needs to be here."""
    supported = compiler.supported_architectures()
    listed = list(samples)
    failures = []
    for architecture in supported if "all" in architectures else architectures:
        attempt = partial(attempts, partial(_compiles, architecture))
        wanted = modules(listed, compiler.device_of(architecture))
        failures += _failures(wanted, f"sm_{architecture}", attempt)
    return failures


def _failures(
    wanted: list[Module], target: str, attempt: Callable[[list[Module]], Iterable[Outcome]]
) -> list[str]:
    """Compile modules; the messages of those that failed."""
    start = time.perf_counter()
    # The longest source takes longest; what is begun last should not be what ends last.
    outcomes = attempt(sorted(wanted, key=lambda module: len(module.source.code), reverse=True))
    with progress(outcomes, target, lambda outcome: outcome[0].label, len(wanted)) as steps:
        failures = [f"{module.label}: {failure}" for module, failure in steps if failure]
    count = sum(len(module.symbols) for module in wanted)
    click.echo(
        f"{target}: {count} kernels in {len(wanted)} modules, {len(failures)} modules failed, "
        f"{time.perf_counter() - start:.1f} s"
    )
    return failures


def _compile_cached(index: int, module: Module) -> str | None:
    """Compile and load as a call on this GPU does; the error in words, or None."""
    from ..device.cuda import BACKEND

    try:
        with BACKEND.on(index):
            for symbol in module.symbols:
                kernel(BACKEND, module.source, module.slots, symbol, index)
    except CompileError as error:
        return str(error)
    return None


def _compiles(architecture: str, module: Module) -> str | None:
    """Compile without the cache; the error in words, or None."""
    try:
        compiler.compile_for(module.source, slot_options(module.slots), architecture)
    except CompileError as error:
        return str(error)
    return None

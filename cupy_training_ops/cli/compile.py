# SPDX-License-Identifier: MIT
"""`compile`: warm the kernel cache for this GPU, or check that kernels compile for others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from ..errors import CompileError
from ..plan import Device
from ..runtime import offline
from ..runtime.compiler import kernel, slot_options
from ..testing.idle import Module, modules
from .errors import CHECK_FAILED
from .progress import progress
from .provider import require_gpu
from .sampling import chosen_samples, op_option

MULTIPROCESSORS = 132  # of the device planned for where there is none; no plan's types depend on it


@click.command("compile")
@op_option
@click.option(
    "--arch",
    "architectures",
    multiple=True,
    type=click.Choice([*offline.ARCHITECTURES, "all"]),
    help="Only check that the kernels compile for this architecture (90 is sm_90), or for all "
    "that this NVRTC knows; needs no GPU, fills no cache. May be given more than once.",
)
def compile_kernels(names: tuple[str, ...], architectures: tuple[str, ...]) -> None:
    """Compile every kernel for every type, so that no call waits.

    The kernels go into CuPy's disk cache; CUPY_CACHE_DIR says where that is. Exit code 1 if one
    does not compile, 3 if there is no GPU and no --arch.
    """
    samples = itertools.chain.from_iterable(chosen_samples(names).values())
    failures = _check(samples, architectures) if architectures else _warm(samples)
    for failure in failures:
        click.echo(failure)
    if failures:
        raise click.exceptions.Exit(CHECK_FAILED)


def _warm(samples: Iterable[Any]) -> list[str]:
    """Compile for the current GPU through the cache."""
    cupy = require_gpu()
    from ..runtime.cuda import BACKEND

    index = cupy.cuda.runtime.getDevice()

    def compiled(module: Module) -> None:
        for symbol in module.symbols:
            kernel(BACKEND, module.source, module.slots, symbol, index)

    wanted = modules(samples, BACKEND.device(index))
    return _compiled(wanted, compiled, f"sm_{cupy.cuda.Device(index).compute_capability}")


def _check(samples: Iterable[Any], architectures: tuple[str, ...]) -> list[str]:
    """Compile for architectures that need not be here."""
    supported = offline.supported_architectures()
    listed = list(samples)
    failures = []
    for architecture in supported if "all" in architectures else architectures:
        device = Device(MULTIPROCESSORS, (int(architecture[:-1]), int(architecture[-1])))

        def compiled(module: Module, architecture: str = architecture) -> None:
            offline.compile_for(module.source, slot_options(module.slots), architecture)

        failures += _compiled(modules(listed, device), compiled, f"sm_{architecture}")
    return failures


def _compiled(wanted: list[Module], compiled: Callable[[Module], None], target: str) -> list[str]:
    """Compile one module after the other; the messages of those that did not."""
    failures = []
    start = time.perf_counter()
    with progress(wanted, target, lambda module: module.label) as steps:
        for module in steps:
            try:
                compiled(module)
            except CompileError as error:
                failures.append(str(error))
    count = sum(len(module.symbols) for module in wanted)
    click.echo(
        f"{target}: {count} kernels in {len(wanted)} modules, {len(failures)} modules failed, "
        f"{time.perf_counter() - start:.1f} s"
    )
    return failures

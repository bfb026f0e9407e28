# SPDX-License-Identifier: MIT
"""Operators: `ops` lists and describes them, `verify` and `compile` try all on this machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
import numpy as np

from ..call.backends import to_host
from ..call.op import Op
from ..declare.schema import REQUIRED, Input, Spec, kind
from ..declare.type_rows import TypeRows, combinations
from ..device import compiler
from ..device.compiler import kernel, slot_options
from ..dtypes import dtype_name
from ..errors import CompileError, OpError
from ..machine import processor
from ..registry import PROVIDERS, REGISTRY, Registration, get_op, providers, registrations
from ..samples import Sample
from ..testing.compare import assert_matches, poison
from ..testing.idle import Module, modules
from ..testing.samples import blank, flat, mapped_outputs, placed_inputs, tolerance
from .errors import CHECK_FAILED
from .machine import computing, require_gpu
from .parameter_types import OperatorName, chosen_samples, op_option, operator
from .processes import Attempts, Outcome, workers
from .terminal import JsonLines, align, fit_to_terminal, json_option, progress


@click.command()
@click.argument("name", required=False, type=OperatorName())
@click.option("--opset", type=click.IntRange(1), help="The operator that serves this opset.")
@json_option
def ops(name: str | None, opset: int | None, as_json: bool) -> None:
    """List the operators, or print the help text of one.

    NAME is the registered one or its function's: GistPack1Encoder, gist_pack1_encoder.
    """
    if name is None and opset is not None:
        raise click.UsageError("--opset goes with the NAME of an operator")
    if as_json:
        _print_json(None if name is None else operator(name, opset))
        return
    lines = _table() if name is None else _help_lines(operator(name, opset))
    for line in lines:
        for fitting in fit_to_terminal(line):
            click.echo(fitting)


def _table() -> list[str]:
    """Return lines of a table of all operators, sorted by name."""
    heading = ("operator", "family", "domain", "opset", "types", "formula")
    rows = [_row(REGISTRY[key]) for key in sorted(REGISTRY, key=lambda key: key[1:])]
    return align([heading, *rows], left=6)


def _row(cls: type[Op]) -> tuple[str, ...]:
    types = str(len(combinations(cls.types)))
    return (cls.name, cls.family, cls.domain, _opset(cls), types, _doc(cls).splitlines()[0])


def _help_lines(cls: type[Op]) -> Iterator[str]:
    yield f"{cls.name}  {cls.domain}, opset {_opset(cls)}, family {cls.family}"
    yield from ("", *_doc(cls).splitlines())


def _print_json(only: type[Op] | None) -> None:
    """Print a JSON object for each operator and version, or for `only` this one."""
    why_not = {name: why or None for name, why in providers().items()}
    lines = JsonLines("ops", processor(), with_cuda=True, providers=why_not)
    for registered in registrations():
        if only in (None, registered.op):
            lines.write("registration", **_registration(registered))


def _registration(registered: Registration) -> dict[str, Any]:
    """Return the JSON fields of a registered operator: docs/cli.md describes them."""
    cls, upstream = registered.op, registered.upstream
    types = cls.types
    rows = types.rows if isinstance(types, TypeRows) else ()
    free = types.free if isinstance(types, TypeRows) else types
    return {
        "operator": cls.name,
        "function": cls.function_name,
        "family": cls.family,
        "domain": cls.domain,
        "since": cls.since,
        "until": cls.until,
        "formula": _doc(cls).splitlines()[0],
        "inputs": [_of_input(item) for item in cls.inputs],
        "outputs": [
            {"name": o.name, "type": o.type, "memory": o.memory, "list": o.variadic}
            for o in cls.outputs
        ],
        "attributes": [
            {"name": a.name, "takes": kind(a.convert), "required": a.default is REQUIRED}
            for a in cls.attributes
        ],
        "type_rows": [{v: dtype_name(dtype) for v, dtype in row.items()} for row in rows],
        "types": {v: list(map(dtype_name, dtypes)) for v, dtypes in free.items()},
        "is_upstream": upstream is not None,
        "upstream_types": [list(map(dtype_name, row)) for row in upstream or ()],
        "providers": list(PROVIDERS),
    }


def _of_input(item: Input) -> dict[str, Any]:
    about = {"name": item.name, "type": item.type, "memory": item.memory}
    return about | {"optional": item.optional, "list": item.variadic}


def _opset(cls: type[Op]) -> str:
    """Return the opsets that an operator serves: "1-12" or "13+"."""
    return f"{cls.since}-{cls.until}" if cls.until else f"{cls.since}+"


def _doc(cls: type[Op]) -> str:
    return cls.__doc__ or ""


# ---- verify -------------------------------------------------------------------------------------


@dataclass
class Verified:
    """Result of `verify` for one operator."""

    op: str
    passed: int = 0  # number of samples
    failures: list[str] = field(default_factory=list)  # "sample: error"


@click.command()
@op_option
@json_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the data.")
def verify(names: tuple[str, ...], as_json: bool, seed: int) -> None:
    """Compare every operator on the GPU with the CPU provider.

    Each runs its samples, through the instances that its function shares. Integer outputs and the
    Gist codecs must be equal bit for bit, sums within the tolerance of their dtype. Outputs and
    scratch memory are filled with a pattern first, so that an element nobody writes shows, or one
    that is read before. Exit code 1 if a sample fails, 3 if there is no GPU.
    """
    samples = chosen_samples(names)
    xp = require_gpu()
    lines = JsonLines("verify", computing(xp), True, seed=seed) if as_json else None
    outcomes = []
    with progress(samples.items(), "operators", lambda item: item[0]) as steps:
        for name, of_op in steps:
            outcomes.append(_verify_samples(name, of_op, seed, xp))
            if lines:
                lines.write("operator", **_fields(outcomes[-1]))
    if not as_json:
        _report(outcomes)
    if any(outcome.failures for outcome in outcomes):
        raise click.exceptions.Exit(CHECK_FAILED)


def _fields(outcome: Verified) -> dict[str, Any]:
    """Return the JSON fields of an operator's result."""
    failed = {"failed": len(outcome.failures), "failures": outcome.failures}
    return {"operator": outcome.op, "passed": outcome.passed, **failed}


def _report(outcomes: Sequence[Verified]) -> None:
    """Print a table of outcomes, the first failure of each operator, and the sums."""
    rows = [(o.op, str(o.passed), str(len(o.failures))) for o in outcomes]
    for line in align([("operator", "passed", "failed"), *rows]):
        click.echo(line)
    for outcome in outcomes:
        if outcome.failures:
            click.echo(f"{outcome.op}: first failure: {outcome.failures[0]}")
    passed, failed = sum(o.passed for o in outcomes), sum(len(o.failures) for o in outcomes)
    click.echo(f"{len(outcomes)} operators, {passed} samples passed, {failed} failed")


def _verify_samples(name: str, samples: Sequence[Sample], seed: int, xp: Any) -> Verified:
    """Compare all samples of the operator `name` on GPU and CPU; seed: of inputs. xp: CuPy."""
    outcome = Verified(name)
    for sample in samples:
        failure = mismatch(sample, seed, xp)
        if failure is None:
            outcome.passed += 1
        else:
            outcome.failures.append(f"{sample.id}: {failure}")
    return outcome


def mismatch(sample: Sample, seed: int, xp: Any) -> str | None:
    """Describe how a sample's results in `xp` differ from the CPU provider's; None if they do not.

    seed: of the inputs. Outputs and scratch memory of the call in `xp` are poisoned first.
    """
    op = get_op(sample.op).shared(**sample.attributes)
    inputs = sample.make(np.random.default_rng(seed))
    try:
        expected = op(*placed_inputs(op, inputs, 0, np))
        place = sample.offset_of_out
        out = None if op.no_out else _targets(op, inputs, expected, place, xp)
        op.workspaces.poison()
        actual = op(*placed_inputs(op, inputs, sample.offset, xp), out=out)
        results = flat(expected)
        rows = zip(flat(actual), results, sample.slacks(inputs, len(results)), strict=True)
        for got, wanted, slack in (row for row in rows if row[1] is not None):
            pair = sample.comparable(to_host(got)), sample.comparable(wanted)
            assert_matches(*pair, tolerance(sample, op, wanted.dtype), slack)
        if left := op.workspaces.count_left():
            return f"{left} bytes of scratch memory that is to be zero were not left so"
    except (OpError, AssertionError, RuntimeError) as error:  # CUDA's errors are RuntimeErrors
        return str(error)
    return None


def _targets(op: Op, inputs: Sequence[Any], expected: Any, offset: int, xp: Any) -> tuple[Any, ...]:
    """Return `out=` for results like `expected`: a poisoned array in `xp` for each on the device.

    inputs: of the call. offset: elements off a 16-byte boundary.
    """

    def poisoned_like(array: Any) -> Any:
        return poison(blank(Spec(array.shape, array.dtype), offset, xp))

    return mapped_outputs(op, inputs, expected, poisoned_like)


# ---- compile ------------------------------------------------------------------------------------


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
    """Compile the samples' kernels for the current GPU into the cache; return error messages.

    attempts: calls a function for many items, in several processes.
    """
    cupy = require_gpu()
    compiler.require_writable_cache()
    from ..device.cuda import BACKEND

    index = cupy.cuda.runtime.getDevice()
    target = f"sm_{cupy.cuda.Device(index).compute_capability}"
    wanted = modules(samples, BACKEND.device(index))
    return _failures(wanted, target, partial(attempts, partial(_compile_cached, index)))


def _check(samples: Iterable[Any], architectures: tuple[str, ...], attempts: Attempts) -> list[str]:
    """Compile the samples' kernels for each architecture, without a GPU; return error messages.

    architectures: numbers such as "90", or "all". attempts: calls a function for many items, in
    several processes.
    """
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
    """Compile the `wanted` modules, print a line with their number; return errors' messages.

    target: such as "sm_90", for the line. attempt: compiles modules, yields (module, error or None)
    as each is done.
    """
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
    """Compile and load a module as a call on GPU `index` does; return an error message or None."""
    from ..device.cuda import BACKEND

    try:
        with BACKEND.on(index):
            for symbol in module.symbols:
                kernel(BACKEND, module.source, module.slots, symbol, index)
    except CompileError as error:
        return str(error)
    return None


def _compiles(architecture: str, module: Module) -> str | None:
    """Compile a module for an architecture without the cache; return an error message or None."""
    try:
        compiler.compile_for(module.source, slot_options(module.slots), architecture)
    except CompileError as error:
        return str(error)
    return None

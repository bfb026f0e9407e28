# SPDX-License-Identifier: MIT
"""What a call comes to, and what the providers owe each other about it."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from foreign import Foreign

import cupy_training_ops as cto
from cupy_training_ops.call.backends import numpy_runs_on
from cupy_training_ops.device.streams import EVENTS
from cupy_training_ops.errors import OpError
from cupy_training_ops.families.collective.samples import ALONE
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.idle import IdleBackend
from cupy_training_ops.testing.samples import as_tuple, flat, placed_inputs

from .mutations import REFUSED, SAME, Call, arrays_in, expected_results

IDLE = IdleBackend(Device(132, (9, 0), 227 * 1024))
LONGEST_MESSAGE = 1000
MOST_SECONDS = 5  # of the processor; the slowest sample takes a tenth of one
MEMORY = 2**32  # bytes that a case may map beside what is there


class Outcome(NamedTuple):
    """ok, refused by one of the package's errors, short of memory, or a fault's name."""

    kind: str
    text: str
    results: tuple[Any, ...] = ()


def complaints(call: Call) -> list[str]:
    """What is wrong with how the two providers take a call."""
    memory = [(a, bytes(a.tobytes())) for a in memory_of(call)]
    with numpy_runs_on(IDLE):
        idle, idle_seconds = outcome(call)
    actual = [f"idle kernels: {wrong}" for wrong in changed(memory, set())]
    cpu, cpu_seconds = outcome(call)
    actual += changed(memory, written_by(call) if cpu.kind == "ok" else set())
    actual += [*of_outcome(call, cpu), *apart(cpu, idle)]
    if max(idle_seconds, cpu_seconds) > MOST_SECONDS:
        actual.append(f"takes {max(idle_seconds, cpu_seconds):.0f} s of the processor")
    return actual


def outcome(call: Call) -> tuple[Outcome, float]:
    """The call as it ends, and seconds of the processor."""
    EVENTS.renew()  # each call finds none recorded
    since = time.process_time()
    try:
        results = tuple(memory_in(as_tuple(WAYS[call.way](call))))
        ended = Outcome("ok", str([described(r) for r in results]), results)
    except OpError as error:
        alone = error.__cause__ is None and (error.__suppress_context__ or not error.__context__)
        kind = "refused" if alone or call.op.runs_functions else "shows two tracebacks"
        ended = Outcome(kind, f"{type(error).__name__}: {error}")
    except MemoryError:
        ended = Outcome("short of memory", "")
    except Exception as error:
        ended = Outcome("leaked", f"{type(error).__name__}: {error}")
    return ended, time.process_time() - since


def of_outcome(call: Call, cpu: Outcome) -> Iterator[str]:
    """What is wrong with the CPU provider's outcome alone."""
    if cpu.kind in ("leaked", "shows two tracebacks"):
        yield f"{cpu.kind}: {cpu.text}"
    if cpu.kind == "refused":
        if len(cpu.text) > LONGEST_MESSAGE or "\n" in cpu.text:
            yield f"says {len(cpu.text)} characters, or several lines: {cpu.text[:200]!r}"
        if not cpu.text.partition(": ")[2].startswith(f"{call.op.name}: "):
            yield f"does not name the operator: {cpu.text}"
    if cpu.kind == "ok" and call.expected == SAME:
        yield from other_results(cpu.results, expected_results(call.sample))
    if cpu.kind == "ok" and call.expected == REFUSED:
        yield f"takes what it should refuse: {call.change}"


def other_results(results: tuple[Any, ...], expected: tuple[Any, ...]) -> Iterator[str]:
    for result, wanted in zip(flat(results), flat(expected), strict=True):
        try:
            if wanted is not None:
                assert_matches(np.asarray(result), wanted)
        except AssertionError as error:
            yield f"another result: {error}"


def apart(cpu: Outcome, idle: Outcome) -> Iterator[str]:
    """Where the providers differ in outcome or words, but for what only one of them has."""
    if "short of memory" in (cpu.kind, idle.kind):
        return
    if cpu.text.endswith("an array to write to, got a read-only one"):  # a GPU's array never is
        return
    if ": workspace: expected a uint8 array" in idle.text:  # the CPU provider needs none
        return
    if (cpu.kind, cpu.text) != (idle.kind, idle.text.replace("idle device 0", "the host")):
        yield f"CPU provider: {cpu.kind} {cpu.text} | idle kernels: {idle.kind} {idle.text}"


def memory_in(results: tuple[Any, ...]) -> Iterator[Any]:
    """The results, with the array of NumPy's in place of one that lends its own."""
    for result in results:
        if isinstance(result, tuple):
            yield tuple(memory_in(result))
        else:
            yield result.array if isinstance(result, Foreign) else result


def described(result: Any) -> str:
    if isinstance(result, tuple):
        return str([described(item) for item in result])
    return "None" if result is None else f"{type(result).__name__} {result.dtype} {result.shape}"


# ---- ways to call --------------------------------------------------------------------------------


def keywords(call: Call) -> dict[str, Any]:
    return {"out": call.out, "outputs": call.outputs, "workspace": call.workspace}


def by_class(call: Call) -> Any:
    return call.op(**call.attributes)(*call.inputs, **keywords(call))


def by_function(call: Call) -> Any:
    call.op._shared.clear()  # a case does not depend on those before
    ALONE.instances.clear()
    function = getattr(cto, call.op.function_name)
    return function(*call.inputs, **call.attributes, **keywords(call))


def by_keywords(call: Call) -> Any:
    """The first half of the inputs by their positions, the others by their names."""
    names = [declared.name for declared in call.op.inputs]
    half = len(names) // 2
    named = dict(zip(names[half:], call.inputs[half:], strict=False))
    rest = call.inputs[len(names) :]
    return call.op(**call.attributes)(*call.inputs[:half], *rest, **named, **keywords(call))


def after_the_sample(call: Call) -> Any:
    """By an instance that knows the sample's own call, if that has its attributes."""
    op, sample = call.op(**call.attributes), call.sample
    with contextlib.suppress(OpError):
        op(*placed_inputs(op, sample.make(np.random.default_rng(0)), sample.offset, np))
    return op(*call.inputs, **keywords(call))


def bound(call: Call) -> Any:
    return call.op(**call.attributes).bound(*call.inputs, **keywords(call))()


WAYS: dict[str, Callable[[Call], Any]] = {
    "class": by_class,
    "function": by_function,
    "keywords": by_keywords,
    "after": after_the_sample,
    "bound": bound,
}


# ---- memory --------------------------------------------------------------------------------------


def memory_of(call: Call) -> list[np.ndarray]:
    """The memory behind every array of a call, once."""
    arrays = arrays_in([call.inputs, call.out, call.workspace])
    owners = {id(owner): owner for owner in map(owner_of, arrays)}
    return [owner for owner in owners.values() if owner.dtype != object]


def owner_of(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def changed(memory: list[tuple[np.ndarray, bytes]], written: set[int]) -> list[str]:
    return [
        f"wrote to an array of {array.dtype} {array.shape}"
        for array, before in memory
        if id(array) not in written and array.tobytes() != before
    ]


def written_by(call: Call) -> set[int]:
    """The memory that a successful call may write to."""
    aliased = {output.aliases for output in call.op.outputs}
    inputs = [
        value
        for declared, value in zip(call.op.inputs, call.inputs, strict=False)
        if declared.name in aliased or declared.updated
    ]
    return {id(owner_of(array)) for array in arrays_in([inputs, call.out, call.workspace])}


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """What is mapped beyond MEMORY raises MemoryError, instead of ending the process."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(pages) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

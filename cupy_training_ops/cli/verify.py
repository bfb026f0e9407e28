# SPDX-License-Identifier: MIT
"""`verify`: every operator's samples on this machine's GPU against the CPU provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np

from ..call.backends import to_host
from ..call.op import Op
from ..declare.schema import Spec
from ..errors import OpError
from ..registry import get_op
from ..samples import Sample
from ..testing.compare import assert_matches, poison
from ..testing.samples import blank, flat, mapped_outputs, placed_inputs, tolerance
from .errors import CHECK_FAILED
from .machine import computing, require_gpu
from .parameter_types import chosen_samples, op_option
from .terminal import JsonLines, align, json_option, progress


@dataclass
class Outcome:
    """How many samples of one operator matched, and what was wrong with the others."""

    op: str
    passed: int = 0
    failures: list[str] = field(default_factory=list)


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
            outcomes.append(_outcome(name, of_op, seed, xp))
            if lines:
                lines.write("operator", **_fields(outcomes[-1]))
    if not as_json:
        _report(outcomes)
    if any(outcome.failures for outcome in outcomes):
        raise click.exceptions.Exit(CHECK_FAILED)


def _fields(outcome: Outcome) -> dict[str, Any]:
    failed = {"failed": len(outcome.failures), "failures": outcome.failures}
    return {"operator": outcome.op, "passed": outcome.passed, **failed}


def _report(outcomes: Sequence[Outcome]) -> None:
    rows = [(o.op, str(o.passed), str(len(o.failures))) for o in outcomes]
    for line in align([("operator", "passed", "failed"), *rows]):
        click.echo(line)
    for outcome in outcomes:
        if outcome.failures:
            click.echo(f"{outcome.op}: first failure: {outcome.failures[0]}")
    passed, failed = sum(o.passed for o in outcomes), sum(len(o.failures) for o in outcomes)
    click.echo(f"{len(outcomes)} operators, {passed} samples passed, {failed} failed")


def _outcome(name: str, samples: Sequence[Sample], seed: int, xp: Any) -> Outcome:
    outcome = Outcome(name)
    for sample in samples:
        failure = mismatch(sample, seed, xp)
        if failure is None:
            outcome.passed += 1
        else:
            outcome.failures.append(f"{sample.id}: {failure}")
    return outcome


def mismatch(sample: Sample, seed: int, xp: Any) -> str | None:
    """The words for where a sample's results in `xp` differ from the CPU provider's; or None."""
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
    """A poisoned array for each result on the device."""

    def poisoned_like(array: Any) -> Any:
        return poison(blank(Spec(array.shape, array.dtype), offset, xp))

    return mapped_outputs(op, inputs, expected, poisoned_like)

# SPDX-License-Identifier: MIT
"""What `outputs=` leaves out: it does not come back, and is updated where it always is."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import get_op
from cupy_training_ops.registry import names
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import all_samples

UPDATING = [name for name in names() if any(output.aliases for output in get_op(name).outputs)]
SAMPLES = {(s.op, s.types): s for name in UPDATING for s in reversed(all_samples()[name])}.values()


def arrays_of(op, arguments, name):
    """What was given for an input, as a list."""
    value = next(v for item, v in zip(op.inputs, arguments, strict=False) if item.name == name)
    result = value if isinstance(value, list) else [value]
    return [item for item in result if hasattr(item, "dtype") and hasattr(item, "shape")]


def updated(op, run, arguments) -> dict[str, list]:
    """The arrays that outputs replace, by the outputs' names, as they are now."""
    declared = {item.name for item, _ in zip(op.inputs, arguments, strict=False)}
    return {
        output.name: [run.host(array).copy() for array in arrays_of(op, arguments, output.aliases)]
        for output in op.outputs
        if output.aliases in declared
    }


def nothing(value) -> bool:
    """Whether a result holds no array."""
    return all(map(nothing, value)) if isinstance(value, tuple) else value is None


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_what_is_not_asked_for_is_updated_all_the_same(sample: Sample, anywhere, rng) -> None:
    op, inputs = get_op(sample.op)(**sample.attributes), sample.make(rng)
    whole, without = (anywhere.place_inputs(op, inputs, sample.offset) for _ in range(2))
    before = updated(op, anywhere, without)
    op(*whole)
    assert nothing(op(*without, outputs=()))
    after, expected = updated(op, anywhere, without), updated(op, anywhere, whole)
    for output in op.outputs:
        unchanged = before if output.on_request else expected
        for actual, wanted in zip(
            after.get(output.name, ()), unchanged.get(output.name, ()), strict=True
        ):
            assert_matches(actual, wanted, 0)


@pytest.mark.parametrize("name", ["AdamWOptimizer", "InPlaceAccumulatorV2", "SGDOptimizerV2"])
def test_a_flag_alone_comes_back_and_the_rest_is_updated(name, anywhere, rng) -> None:
    """Upstream's training graphs name the flag, and nothing else."""
    sample = next(s for s in all_samples()[name] if s.label.endswith("ordinary"))
    op, inputs = get_op(name)(**sample.attributes), sample.make(rng)
    whole, flagged = (anywhere.place_inputs(op, inputs) for _ in range(2))
    op(*whole)
    flag, *rest = op(*flagged, outputs=(op.outputs[0].name,))
    assert flag is not None
    assert nothing(tuple(rest))
    before, after = (
        updated(op, anywhere, anywhere.place_inputs(op, inputs)),
        updated(op, anywhere, flagged),
    )
    for output, expected in updated(op, anywhere, whole).items():
        if output == op.outputs[0].name:
            continue
        assert any(
            (old != new).any() for old, new in zip(before[output], after[output], strict=True)
        )
        for actual, wanted in zip(after[output], expected, strict=True):
            assert_matches(actual, wanted, 0)


def test_bound_calls_update_and_return_alike(anywhere, rng) -> None:
    op = get_op("InPlaceAccumulatorV2")()
    buffer, value = (anywhere.place(rng.standard_normal(300).astype("f4")) for _ in range(2))
    expected = anywhere.host(buffer) + 2 * anywhere.host(value)
    bound = op.bound(buffer, value, outputs=("updated_flag",))
    for _ in range(2):
        flag, nothing_else = bound()
        assert (flag.tolist(), nothing_else) == ([True], None)
    assert_matches(anywhere.host(buffer), expected)
    assert get_op("ZeroGradient")().bound(buffer, value, outputs=())() is None
    assert not anywhere.host(buffer).any()


def test_out_says_where_to_update(anywhere) -> None:
    """An array of its own for an output that is asked for leaves the input alone."""
    arrays = ([1.0, 2.0], [3.0, 4.0], [0.0, 0.0])
    buffer, value, out = (anywhere.place(np.array(x, np.float32)) for x in arrays)
    op, keywords = get_op("InPlaceAccumulatorV2")(), {"out": (None, out)}
    op(buffer, value, outputs=("accumulation_buffer_out",), **keywords)
    assert anywhere.host(buffer).tolist() == [1, 2]
    assert anywhere.host(out).tolist() == [4, 6]
    with pytest.raises(cto.ArgumentError, match=r"out \(accumulation_buffer_out\): expected None"):
        op(buffer, value, outputs=("updated_flag",), **keywords)
    assert anywhere.host(buffer).tolist() == [1, 2]


def test_help_says_what_is_updated_on_request_alone() -> None:
    text = " ".join((get_op("AdamOptimizer").__doc__ or "").split())
    assert "written into weights where there is no out=, if outputs= names it" in text
    assert "written into moment_1 where there is no out=" in text
    assert "written into moment_1 where there is no out=, if" not in text

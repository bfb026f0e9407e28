# SPDX-License-Identifier: MIT
"""What first calls of the benchmark's convolutions compile."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="the cases make CuPy arrays")
import first_calls
from cases import conv


@pytest.mark.parametrize("architecture", first_calls.ARCHITECTURES)
def test_a_first_call_compiles_few_modules(architecture) -> None:
    """One for what multiplies, and another where a bias is summed for itself, or where X's gradient
    has other tiles than W's; with the channels last a third where they are copied for these, or
    where groups have one channel."""
    found = {call: len(call.modules(architecture)) for call in first_calls.calls()}
    assert len(found) == len(first_calls.OPS) * len(first_calls.ALL_TYPES) * 21 * 2
    many = [call for call, n in found.items() if n > 2]
    layers = {call.layer for call in many if call.layer.group < call.layer.channels}
    assert layers <= {conv.LAYERS[0]}
    assert all(call.last for call in many)
    assert max(found.values()) <= 3


def test_times_are_of_the_longest_module_and_of_all(monkeypatch) -> None:
    layer = conv.LAYERS[0]
    call = first_calls.First("ConvGrad", layer, "f2", last=False)
    modules = sorted(call.modules("90"))
    seconds = dict(zip(modules, [(0.5, 1.0), (0.25, 2.0)], strict=True))
    monkeypatch.setattr(first_calls, "seconds", lambda _, module: seconds[module])
    count, threads, one_core = first_calls.times(call, "90")
    assert count == 2
    assert 2.25 <= threads < 2.75
    assert one_core == pytest.approx(threads + 1)

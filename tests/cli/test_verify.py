# SPDX-License-Identifier: MIT
"""`verify`: passes where both providers agree, and finds one planted difference."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops import get_op
from cupy_training_ops.cli import machine, main, operators
from cupy_training_ops.device.workspace import Workspaces
from cupy_training_ops.registry import names
from cupy_training_ops.testing.samples import all_samples, sampled_operators

OP = "GistPack8Encoder"


class StandIn:
    """An array library that is not NumPy by name, in the place of CuPy."""

    empty = staticmethod(np.empty)
    asarray = staticmethod(np.asarray)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that computes as the CPU does."""
    monkeypatch.setattr(operators, "require_gpu", lambda: StandIn)


def call(*arguments):
    result = CliRunner().invoke(main, ["verify", *arguments])
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return result


@pytest.mark.usefixtures("gpu")
def test_agreement_passes_every_sample_of_every_operator():
    result = call()
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[0] for line in lines[1:-1]] == list(all_samples())
    assert set(all_samples()) == set(names())
    assert all(failed == "0" for _, _, failed in lines[1:-1])
    assert [name for name, passed, _ in lines[1:-1] if int(passed)] == sampled_operators()


@pytest.mark.usefixtures("gpu")
def test_one_wrong_value_fails_the_operator_it_is_in(monkeypatch, seed):
    right = operators.placed_inputs

    def wrong(op, inputs, offset, xp):
        placed = right(op, inputs, offset, xp)
        if xp is StandIn and op.name == OP and placed[0].size > 1000:
            placed[0].flat[-1] = -1.25 if placed[0].flat[-1] > 0 else 1.25
        return placed

    monkeypatch.setattr(operators, "placed_inputs", wrong)
    result = call("--seed", str(seed))
    assert result.exit_code == 1
    (failure,) = (line for line in result.stdout.splitlines() if "first failure" in line)
    assert failure.startswith(f"{OP}: first failure: {OP}-float32-ordinary: 1 of 1024 elements")
    large = sum(
        np.prod(s.make(np.random.default_rng(0))[0].shape) > 1000 for s in all_samples()[OP]
    )
    assert result.stdout.splitlines()[-1].endswith(f"passed, {large} failed")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["ReluGrad", "GistPack16Decoder", "TanhGrad"])
def test_a_tiny_error_fails_an_exact_operator_and_no_other(monkeypatch, name):
    def one_bit_off(array):
        off = array.copy()
        if array.dtype == np.float32:
            off.view(np.uint32)[...] ^= np.isfinite(array)
        return off

    monkeypatch.setattr(operators, "to_host", one_bit_off)
    exact = get_op(name).bitwise_exact
    assert exact == (name != "TanhGrad")
    result = call("--op", name)
    assert result.exit_code == int(exact)
    assert (f"{name}: first failure: {name}-float32-" in result.stdout) == exact


@pytest.mark.usefixtures("gpu")
def test_an_output_that_is_not_written_fails(monkeypatch):
    class Lazy:
        """An operator that leaves the caller's output as it is."""

        def __init__(self, **attributes):
            self._op = get_op(OP)(**attributes)

        shared = classmethod(lambda cls, **attributes: cls(**attributes))

        def __getattr__(self, name):
            return getattr(self._op, name)

        def __call__(self, *inputs, out=None):
            return self._op(*inputs) if out is None else out

    monkeypatch.setattr(operators, "get_op", lambda _: Lazy)
    result = call("--op", OP)
    empty = sum("empty" in sample.label for sample in all_samples()[OP])
    assert f"{empty} samples passed" in result.stdout
    assert result.exit_code == 1


@pytest.mark.usefixtures("gpu")
def test_a_call_that_raises_fails_and_the_rest_goes_on(monkeypatch):
    def broken(_):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(operators, "poison", broken)
    result = call("--op", OP, "--op", "GistPack1Encoder")
    assert result.exit_code == 1
    assert result.stdout.count("illegal memory access") == 2
    assert result.stdout.splitlines()[-1].startswith("2 operators, 0 samples passed")


def test_without_a_gpu_it_is_exit_code_3(monkeypatch):
    monkeypatch.setattr(machine, "why_no_gpu", lambda: "none in here")
    result = call()
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("Error: no GPU: none in here")


def test_an_unknown_operator_is_bad_input():
    result = call("--op", "Frobnicate")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


@pytest.mark.gpu
def test_this_gpu_passes():
    result = call()
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("gpu")
def test_calls_go_through_shared_instances_whose_scratch_memory_is_poisoned(monkeypatch):
    poisoned = []
    monkeypatch.setattr(Workspaces, "poison", lambda workspaces: poisoned.append(workspaces))
    assert call("--op", OP).exit_code == 0
    assert len(poisoned) == len(all_samples()[OP])
    assert {id(workspaces) for workspaces in poisoned} == {id(get_op(OP).shared().workspaces)}

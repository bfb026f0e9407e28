# SPDX-License-Identifier: MIT
"""Codes of activations in compiled graphs: what comes back, and that Inductor knows each step."""

from __future__ import annotations

import operator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

import torch._inductor.lowering as inductor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from cupy_training_ops.torch.graph_codes.formats import (  # noqa: E402
    BITS,
    INT4,
    INT4_SIGNED,
    INT8,
    INT8_SIGNED,
    centre_of,
)
from cupy_training_ops.torch.graph_codes.rewrite import record  # noqa: E402

SCALED = {INT8: 127, INT8_SIGNED: 127, INT4: 7, INT4_SIGNED: 7}
MOST = {INT8: 0.006, INT8_SIGNED: 0.006, INT4: 0.11, INT4_SIGNED: 0.16}  # of normal numbers


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("chosen", SCALED, ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_errors_are_at_most_half_a_step_of_each_tile(chosen, dtype, seed):
    sizes = torch.exp(3 * normal(seed + 1, 16, 1)).clamp_max(1e4)  # else some overflow in float16
    x = (normal(seed, 16, 128) * sizes).to(dtype)
    y = chosen.decode(*chosen.encode(x))
    wide = x.float()
    steps = wide.view(16, 4, 32).abs().amax(-1, keepdim=True) / SCALED[chosen]
    share = 1 if "signed" in chosen.name else 0.5
    # a scale is rounded to 8 bits, so the largest number of a tile is off by a 256th
    bound = (share + SCALED[chosen] / 256) * steps * 1.01
    assert ((y - wide).view(16, 4, 32).abs() <= bound).all()
    many = normal(seed + 2, 256, 128).to(dtype)
    error = (chosen.decode(*chosen.encode(many)) - many.float()).norm()
    assert error <= MOST[chosen] * many.float().norm()


@pytest.mark.parametrize("chosen", [INT8_SIGNED, INT4_SIGNED], ids=lambda chosen: chosen.name)
def test_signs_and_zeros_stay(chosen, seed):
    x = normal(seed, 8, 64) ** 9  # most are far below a step
    x[:, ::5] = 0
    assert torch.equal(chosen.decode(*chosen.encode(x)).sign(), x.sign())


@pytest.mark.parametrize("chosen", SCALED, ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_seen_and_other_tiles_are_not_touched(chosen, value, seed):
    x = normal(seed, 2, 64)
    plain = chosen.decode(*chosen.encode(x))
    x[0, 3] = value
    y = chosen.decode(*chosen.encode(x))
    assert not y[0, 3].isfinite()
    assert torch.equal(y[0, 32:], plain[0, 32:])
    assert torch.equal(y[1], plain[1])


@pytest.mark.parametrize("chosen", SCALED, ids=lambda chosen: chosen.name)
def test_tiny_and_huge_tiles(chosen):
    x = torch.tensor([0.0, 1e-38, 3e38]).repeat_interleave(32)
    y = chosen.decode(*chosen.encode(x))
    assert (y[:32] == 0).all()
    assert (y[32:64].abs() <= 1e-30).all()
    assert torch.allclose(y[64:], x[64:], rtol=0.01)


def test_bits_are_exact(seed):
    x = normal(seed, 3, 5, 40) > 0
    assert torch.equal(BITS.decode(*BITS.encode(x)), x)


@pytest.mark.parametrize("chosen", [*SCALED, BITS], ids=lambda chosen: chosen.name)
def test_bytes_are_as_announced(chosen, seed):
    x = normal(seed, 4, 64)
    parts = chosen.encode(x > 0 if chosen is BITS else x)
    assert sum(part.nbytes for part in parts) == chosen.nbytes(x.numel())


@pytest.mark.parametrize("chosen", [*SCALED, BITS], ids=lambda chosen: chosen.name)
def test_inductor_lowers_each_operator_itself(chosen):
    """One that it calls instead cuts an encoder into kernels with float32 between them."""
    graph = torch.fx.Graph()
    x, output = graph.placeholder("x"), graph.output(())
    with FakeTensorMode():
        x.meta["val"] = torch.empty(4, 64, dtype=torch.bool if chosen is BITS else torch.bfloat16)
    parts = record(graph, output, chosen.encode, x)
    record(graph, output, chosen.decode, *parts)
    if chosen is not BITS:
        record(graph, output, lambda value: centre_of(value, 0), x)
    called = {node.target for node in graph.nodes if node.op == "call_function"}
    assert called
    assert called - {operator.getitem} <= inductor.lowerings.keys()
    assert not {target for target in called if target in inductor.fallbacks}


@pytest.mark.parametrize("extent", [1, 63, 64, 1000])
def test_centres_are_near_means_and_finite(extent, seed):
    x = normal(seed, 2, extent, 32) + 100 * normal(seed + 1, 2, 1, 32)
    centre = centre_of(x.bfloat16(), 1)
    assert centre.shape == (2, 1, 32)
    assert centre.dtype is torch.float32
    assert ((centre - x.mean(1, keepdim=True)).abs() <= 6 / min(extent, 64) ** 0.5 + 0.5).all()
    expected = centre_of(x, 1)
    expected[0, 0, 0] = expected[1, 0, 1] = 0
    x[0, 0, 0], x[1, 0, 1] = float("inf"), float("nan")
    assert torch.equal(centre_of(x, 1), expected)


def test_one_large_place_does_not_move_the_centre_of_small_ones(seed):
    """With the mean as centre each of the others would be off as numbers of 1,000 / 64 are."""
    x = normal(seed, 2, 64, 32)
    x[:, 5] *= 1000
    centre = centre_of(x, 1)
    decoded = INT8.decode(*INT8.encode(x - centre)) + centre
    others = torch.arange(64) != 5
    error = (decoded - x)[:, others].norm() / x[:, others].norm()
    assert 0 < error <= 0.01
    assert (centre_of(x + 3000, 1) - 3000).abs().max() <= 100

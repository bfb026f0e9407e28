# SPDX-License-Identifier: MIT
"""A block's input under activation checkpointing: kept by named policies, coded where a function
says so."""

from __future__ import annotations

import contextlib

import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from .cases import assert_equal  # noqa: E402

ROWS, WIDTH, BLOCKS = 128, 256, 3
NBYTES = 4 * ROWS * WIDTH
MODES = pytest.mark.parametrize("reentrant", [False, True])
pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")


def block(activation):
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), activation, nn.Linear(WIDTH, WIDTH)
    )


def step(context, reentrant, activation=nn.GELU):
    """Of weights; no block's input is saved by anything but checkpointing."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(block(activation()) for _ in range(BLOCKS))
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with context:
        y = x + 1
        for each in blocks:
            y = y + checkpoint(each, y, use_reentrant=reentrant)
    (y * torch.randn_like(y)).sum().backward()
    return [parameter.grad for parameter in blocks.parameters()]


def of_blocks(codec):
    def policy(*_, consumer):
        return codec if consumer == "checkpoint" else None

    return policy


def errors(coded, plain):
    return [
        float((a - b).norm() / b.norm()) for a, b in zip(coded, plain, strict=True) if a.dim() > 1
    ]


@MODES
@pytest.mark.parametrize("policy", ["default", "wide"])
def test_named_policies_keep_a_blocks_input(policy, reentrant) -> None:
    """A block that is run again has signs, softmax or whatever is in it: nobody answers for it."""
    context = cto.torch.compressed_activations(policy)
    actual = step(context, reentrant)
    assert_equal(actual, step(contextlib.nullcontext(), reentrant))
    report = context.report()
    assert report["untouched"]["checkpoint"] == BLOCKS * NBYTES
    assert report["tensors"] == 0


@MODES
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("codec", "limit", "held"), [("int8_signed", 0.01, 0.27), ("pack16", 5e-4, 0.5)]
)
def test_a_function_codes_a_blocks_input(codec, limit, held, check, reentrant) -> None:
    context = cto.torch.compressed_activations(of_blocks(codec), check=check)
    coded = step(context, reentrant)
    plain = step(contextlib.nullcontext(), reentrant)
    assert max(errors(coded, plain)) <= limit
    report = context.report()
    assert report["tensors"] == BLOCKS
    assert report["before"] == BLOCKS * NBYTES
    assert report["peak"] <= held * BLOCKS * NBYTES
    assert report["held"] == 0
    assert set(report["consumers"]) == {f"checkpoint {codec}"}


def test_a_lossless_blocks_input_is_equal_to_the_bit() -> None:
    coded = step(cto.torch.compressed_activations(of_blocks("sparse")), False)
    assert_equal(coded, step(contextlib.nullcontext(), False))


def test_a_custom_function_in_a_block_is_unknown() -> None:
    """Also where checkpointing is not far up the stack."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(_, dy):
            return 2 * dy

    told = []

    def policy(*_, consumer):
        told.append(consumer)

    def inner(x):
        with cto.torch.compressed_activations(policy):
            return Doubled.apply(x * 1)

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    checkpoint(inner, x * 1, use_reentrant=False).sum().backward()
    assert "" in told
    assert "checkpoint" not in told

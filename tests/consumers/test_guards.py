# SPDX-License-Identifier: MIT
"""What is too far off its original is not kept as codes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional  # noqa: E402

from cupy_training_ops.activations.error_check import ErrorCheck  # noqa: E402
from cupy_training_ops.torch import error_checks, saved  # noqa: E402

from .calls import NBYTES, SHAPE, codecs, run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


def test_a_large_mean_is_not_compressed(tensor, weight) -> None:
    x = tensor()
    for far, lacks in ((0, {}), (100, {"matmul tiles": 1})):
        _, report = run("default", lambda x, w, far=far: (x + far) @ w, x, weight)
        assert report["failed"] == lacks
        assert report["passed"].get("guard", 0) == NBYTES * bool(lacks)


@pytest.mark.parametrize(
    "way", [lambda y: y, lambda y: y.view(SHAPE) + 0.5, lambda y: y[:, None, :]]
)
def test_a_batch_norm_does_not_see_means_of_features(tensor, weight, way) -> None:
    """Tiles deviate; features do not beside their means."""
    far = 100 * tensor(128).detach()

    def function(x, w, norm):
        y = way((x + far) @ w).reshape(SHAPE)
        return functional.batch_norm(y, None, None, training=True) if norm else y * 2

    inputs = tensor(), weight
    (_, plain) = torch.autograd.grad((function(*inputs, True) ** 3).sum(), inputs)
    (_, actual), report = run("default", lambda x, w: function(x, w, True) ** 3, *inputs)
    assert report["failed"]["matmul features"] == 1
    assert (actual - plain).norm() <= 1e-4 * plain.norm()
    assert run("default", lambda x, w: function(x, w, False), *inputs)[1]["failed"] == {}


@pytest.mark.parametrize("way", ["one after the other", "one inside"])
def test_a_batch_norm_is_seen_behind_another_statement(tensor, weight, way) -> None:
    """The product is saved in one `with` statement, the norm's input in a later one."""
    far, context = 100 * tensor(128).detach(), cto.torch.compressed_activations()
    inputs = tensor(), weight
    outer = context if way == "one inside" else nullcontext()
    with outer:
        with context:
            if way == "one inside":
                torch.relu(inputs[0] * 1)
            y = (inputs[0] + far) @ inputs[1]
        with context:
            total = (functional.batch_norm(y, None, None, training=True) ** 3).sum()
    actual = torch.autograd.grad(total, weight)[0]
    y = (inputs[0] + far) @ inputs[1]
    total = (functional.batch_norm(y, None, None, training=True) ** 3).sum()
    plain = torch.autograd.grad(total, weight)[0]
    assert context.report()["failed"]["matmul features"] == 1
    assert (actual - plain).norm() <= 1e-4 * plain.norm()


def test_of_many_products_the_newest_are_remembered(tensor, weight, monkeypatch) -> None:
    """A norm is near the last products before it, however many there were before them."""
    monkeypatch.setattr(error_checks, "MANY", 4)
    far = 100 * tensor(128).detach()

    def function(x, w, n):
        parts = [((x + far) * (1 + i)) @ w for i in range(n)]
        y = (x + far) @ w + (x - far) @ w
        return functional.batch_norm(y, None, None, training=True) ** 3 + 0 * sum(parts)

    for n in range(6):
        _, report = run("default", lambda x, w, n=n: function(x, w, n), tensor(), weight)
        assert report["failed"]["matmul features"] == 2


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_16_bits_have_a_range(tensor, scale) -> None:
    x = tensor()
    (actual,), report = run("default", lambda x: functional.silu(x * scale), x)
    assert torch.equal(actual, torch.autograd.grad(functional.silu(x * scale).sum(), x)[0])
    assert report["failed"] == {"silu range": 1}


def test_no_infinity_that_was_none(tensor) -> None:
    x = tensor()
    far = torch.zeros(SHAPE)
    far[3, 5] = 7e4
    actual, _ = run("default", lambda x: functional.gelu(x + far), x)
    assert actual[0].isfinite().all()


def test_operands_are_decided_together(tensor) -> None:
    """What one is rounded by is multiplied by the means of the other."""
    x, y = tensor(4, 4, 64, 32), tensor(4, 4, 64, 32)
    _, report = run(
        "default",
        lambda x, y: functional.scaled_dot_product_attention(x * 1, y + 100, x * 2),
        *(x, y),
    )
    assert codecs(report) == {}


@pytest.mark.parametrize(
    ("shape", "order", "groups", "runs", "expected"),
    [
        ((4, 6), (0, 1), (1,), 0, (4, 6, 1)),
        ((4, 6), (0, 1), (0,), 0, (1, 4, 6)),
        ((4, 6), (1, 0), (1,), 0, (1, 6, 4)),
        ((2, 3, 4, 5), (0, 1, 2, 3), (1,), 0, (2, 3, 20)),
        ((2, 3, 4, 5), (0, 2, 3, 1), (1,), 0, (40, 3, 1)),
        ((2, 3, 4, 5), (0, 1, 2, 3), (0, 1), 0, (1, 6, 20)),
        ((2, 3, 4, 5), (0, 2, 3, 1), (0, 1), 0, None),
        ((2, 6, 4, 5), (0, 1, 2, 3), (), 3, (1, 6, 40)),
        ((2, 6, 4, 5), (0, 2, 3, 1), (), 3, None),
        ((2, 3), (0, 1), (), 0, None),
    ],
)
def test_groups_as_they_lie_in_memory(shape, order, groups, runs, expected) -> None:
    assert saved.grouping_of(shape, order, groups, runs) == expected


def test_nan_is_beyond_every_limit() -> None:
    nan = float("nan")
    for numbers in ([nan, 1, 1, 0], [0, nan, 1, 0], [float("inf"), 0, 0, float("inf")]):
        assert not ErrorCheck("tiles", "", (1, 1, 1)).within(numbers)[0]
    assert not ErrorCheck("range", "").within([nan, 1, 0])[0]
    assert ErrorCheck("tiles", "", (1, 1, 1)).within([0, 0, 0, 0]) == (True, True, True)

# SPDX-License-Identifier: MIT
"""Tensors whose rows lie apart: slices of wider ones, and what Inductor pads in compiled code."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch._inductor import config, metrics  # noqa: E402
from torch._inductor.fx_passes import pad_mm  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import functional  # noqa: E402

from .test_operators import FORWARDS, OTHERS, door, forwards, others, overload  # noqa: E402

CLASSES = 1037  # padded to 1,040 for a product, and more for what is fused
CUTS = {
    "columns": lambda y: y[:, :9],
    "columns in the middle": lambda y: y[:, 2:11],
    "every other": lambda y: y[::2, 1::3],
    "transposed": lambda y: y.t(),
    "images": lambda y: y.view(4, 4, 12)[:, :, 1:8],
    "channels last": lambda y: y.view(4, 4, 12).transpose(1, 2),
    "negative": torch._neg_view,
}


def apart(x):
    """The same numbers as a slice of a wider tensor."""
    if not (isinstance(x, torch.Tensor) and x.dim()):
        return x
    wide = x.detach().new_full((*x.shape[:-1], x.shape[-1] + 3), 1)
    wide[..., 1:-2] = x.detach()
    return wide[..., 1:-2].requires_grad_(x.requires_grad)


@pytest.mark.parametrize("way", ["door", "dispatcher"])
@pytest.mark.parametrize("case", FORWARDS + OTHERS)
def test_every_operator_takes_rows_that_lie_apart(leaf, labels, case, way) -> None:
    function = door(case) if way == "door" else overload(case)
    given = (forwards if case in FORWARDS else others)(leaf, labels)[case]
    gapped = [apart(x) for x in given]
    expected, actual = function(*given), function(*gapped)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    if case.endswith("cross_entropy_"):
        torch.testing.assert_close(gapped[0], given[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_loss_in_place_of_a_slice_is_pytorchs(leaf, cut, reduction) -> None:
    """Also what the scores hold then, and the rest of the memory that they are a slice of."""
    x = leaf(16, 12)
    results = []
    for function in (functional, torch.nn.functional):
        whole = x * 2
        y = CUTS[cut](whole)
        target = torch.arange(y.numel() // y.shape[1]).view(y.shape[0], *y.shape[2:]) % y.shape[1]
        if function is functional:
            loss = function.cross_entropy(y, target, reduction=reduction, inplace=True)
        else:
            loss = function.cross_entropy(y, target, reduction=reduction)
            (dy,) = torch.autograd.grad(loss.sum(), y, retain_graph=True)
            y.data.copy_(dy)
        torch.manual_seed(0)
        slope = torch.rand_like(loss)
        results.append((loss, whole, *torch.autograd.grad(loss, x, slope)))
    torch.testing.assert_close(*results)


def test_expanded_scores_are_not_overwritten(leaf, labels) -> None:
    y = leaf(1, 16) * 2
    before = y.detach().clone()
    with pytest.raises(ArgumentError, match=r"cross_entropy: input: .*strides \(0, 1\)"):
        functional.cross_entropy(y.expand(8, 16), labels(16, 8), inplace=True)
    assert torch.equal(y, before)


@pytest.fixture
def padding(monkeypatch):
    """Inductor pads products and what it fuses as on a GPU."""
    monkeypatch.setattr(pad_mm, "check_device", lambda *_: True)
    monkeypatch.setattr(pad_mm, "has_triton", lambda: True)
    torch._dynamo.reset()
    with config.patch(
        disable_padding_cpu=False,
        padding_stride_threshold=8,
        force_shape_pad=True,
        fx_graph_cache=False,
    ):
        metrics.reset()
        yield
    torch._dynamo.reset()


def heads(x, weight, target, loss):
    """Losses of scores that come in all ways from a product, as models and their users cut them."""
    n, classes = target.numel(), len(weight)
    flat, products = target.flatten(), [(x * i) @ weight.t() for i in range(1, 6)]
    rows = [product.flatten(0, 1) for product in products]
    yield loss(rows[0], flat)
    yield loss((products[1] * 0.5).view(n, classes), flat)
    yield loss(rows[2][:-3], flat[:-3])
    yield loss((products[2] * 1.5)[1], target[1])
    yield loss(products[3][:, :-1].reshape(-1, classes), target[:, 1:].flatten())
    yield loss(rows[4][:, 8:], flat.clamp(8) - 8)


def in_place(scores, target):
    return functional.cross_entropy(scores, target, inplace=True)


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself
@pytest.mark.usefixtures("padding")
@pytest.mark.parametrize(
    "is_broken",
    [pytest.param(False, id="whole", marks=pytest.mark.thorough), pytest.param(True, id="broken")],
)
def test_compiled_losses_in_place_of_padded_scores(leaf, labels, is_broken) -> None:
    """Broken: the scores go out of one graph, padded, and into another."""
    x, weight = (leaf(*shape, dtype=torch.float32) for shape in ((3, 6, 16), (CLASSES, 16)))
    target = labels(CLASSES, 3, 6)

    def of_all(loss):
        return sum(heads(x, weight, target, loss))

    def of_one(loss):
        scores = x @ weight.t()
        torch._dynamo.graph_break()
        return loss(scores.flatten(0, 1), target.flatten())

    function = of_one if is_broken else of_all
    compiled = torch.compile(function, dynamic=False, fullgraph=not is_broken)
    loss, codes = run_and_get_code(lambda: compiled(in_place))
    assert "1040" in codes[0]
    assert is_broken or metrics.num_comprehensive_padding
    expected = function(torch.nn.functional.cross_entropy)
    torch.testing.assert_close(loss, expected)
    actual = torch.autograd.grad(loss, (x, weight))
    gradients = torch.autograd.grad(expected, (x, weight))
    torch.testing.assert_close(actual, gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself
@pytest.mark.usefixtures("padding")
def test_every_function_of_padded_rows_compiled(leaf, labels) -> None:
    shapes = (4, 6, 16), (CLASSES, 16), (CLASSES,), (CLASSES,)
    leaves = x, weight, row, bias = [leaf(*shape, dtype=torch.float32) for shape in shapes]
    indices = labels(24, 4, 6)

    def function():
        y = x @ weight.t()
        parts = [
            functional.layer_norm(y, (CLASSES,), row, bias),
            functional.rms_norm(y * 2, (CLASSES,), row),
            functional.gelu(y + 1, bias=row),
            functional.gelu(y, "tanh"),
            functional.relu(y - 1),
            functional.softmax(y * 3, -1),
            functional.log_softmax(y, 1),
            functional.dropout(y, bias=row, residual=y * 2) * 0,  # draws are others
            functional.embedding(indices, (y * 2).flatten(0, 1)),
        ]
        total = sum((part * (y * 5).sin()).sum() for part in parts)
        return total + functional.linear_cross_entropy(y, (weight @ weight.t()) * 0.1, indices)

    compiled = torch.compile(function, dynamic=False)
    loss, codes = run_and_get_code(compiled)
    assert "1040" in codes[0]
    assert metrics.num_comprehensive_padding
    expected = function()
    torch.testing.assert_close(loss, expected, atol=1e-3, rtol=1e-4)
    actual = torch.autograd.grad(loss, leaves)
    gradients = torch.autograd.grad(expected, leaves)
    torch.testing.assert_close(actual, gradients, atol=1e-2, rtol=1e-3)

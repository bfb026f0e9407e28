# SPDX-License-Identifier: MIT
"""Cases that Liger-Kernel tests its losses and norms with, against PyTorch in float64.

Shapes, scales, ignored targets, reductions, options, types and tolerances are its; the vocabulary
of large ones is cut in the default tier, and on a GPU all run.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional as theirs  # noqa: E402

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import functional, nn  # noqa: E402

HALF, FULL = torch.bfloat16, torch.float32
# Rows and classes; of the first the quick tier has a twentieth of the classes.
SHAPES = [(2 * 13, 32_000 // 20), (3 * 41, 1237)]
LARGE = (3 * 423, 32_000)
TYPES = [(HALF, 1e-2, 5e-2), (FULL, 1e-6, 1e-4)]
IGNORED = [-100, 0, 42]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("device", DEVICES),
]
of_types = pytest.mark.parametrize(("dtype", "atol", "rtol"), TYPES)
of_scales = pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
of_reductions = pytest.mark.parametrize("reduction", ["mean", "sum"])


def rows_of(seed, shape, scale, ignored, device):
    """Scores of a scale in float64, and targets of which up to a half are ignored."""
    generator = torch.Generator().manual_seed(seed)
    n, n_classes = shape
    scores = scale * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    target = torch.randint(n_classes, (n,), generator=generator)
    n_ignored = int(torch.randint(1, n // 2, (), generator=generator))
    target[torch.randperm(n, generator=generator)[:n_ignored]] = ignored
    return scores.to(device), target.to(device)


def exact_loss(
    scores,
    target,
    weight=None,
    *,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    lse_square_scale=0.0,
    softcap=None,
):
    """The loss by PyTorch's parts, and its z-loss."""
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    named = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    losses = theirs.cross_entropy(scores, target, weight, reduction="none", **named)
    counts = (target != ignore_index).to(losses.dtype)
    if weight is not None:
        counts = counts * weight[target.clamp(min=0)]
    z_losses = counts * lse_square_scale * scores.logsumexp(1).square()
    if reduction == "none":
        return losses + z_losses, z_losses
    by = counts.sum() if reduction == "mean" else 1
    return (losses + z_losses).sum() / by, z_losses.sum() / by


def check_loss(seed, device, shape, scale, ignored, dtype, atol, rtol, *, weight=None, **named):
    """Loss, z-loss, accuracy, predictions and gradients of rows of scores, of a scaled loss."""
    scores, target = rows_of(seed, shape, scale, ignored, device)
    scores = scores.to(dtype).requires_grad_()
    exact = scores.detach().double().requires_grad_()
    wide = None if weight is None else weight.to(dtype).double()
    named["ignore_index"] = ignored
    returned = {f"return_{name}": True for name in ("z_loss", "token_accuracy", "predicted_tokens")}
    cto.torch.fallbacks(reset=True)
    of_classes = None if weight is None else weight.to(dtype)
    actual = functional.cross_entropy(scores, target, of_classes, **named)
    measured = functional.cross_entropy(scores, target, of_classes, **named, **returned)
    assert not cto.torch.fallbacks()
    expected, z_loss = exact_loss(exact, target, wide, **named)
    near = {"atol": atol, "rtol": rtol, "check_dtype": False}
    for loss in (actual, measured.loss):
        torch.testing.assert_close(loss, expected, **near)
        (gradient,) = torch.autograd.grad((loss * 1.5).sum(), scores)  # not the last layer
        (wanted,) = torch.autograd.grad((expected * 1.5).sum(), exact, retain_graph=True)
        torch.testing.assert_close(gradient, wanted, **near)
    torch.testing.assert_close(measured.z_loss, z_loss, **near)
    counts = target != ignored
    predicted = exact.argmax(1)
    assert torch.equal(measured.predicted_tokens, torch.where(counts, predicted, -1))
    right = (predicted == target) & counts
    share = right.float() if actual.dim() else right.sum() / counts.sum()
    torch.testing.assert_close(measured.token_accuracy, share)
    with torch.no_grad():  # forward only
        torch.testing.assert_close(
            functional.cross_entropy(scores, target, of_classes, **named), actual
        )


@of_types
@of_scales
@of_reductions
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses(seed, device, shape, scale, reduction, dtype, atol, rtol) -> None:
    for ignored in IGNORED:
        given = (seed, device, shape, scale, ignored, dtype, atol, rtol)
        check_loss(*given, reduction=reduction)


@of_types
@pytest.mark.parametrize(
    "named",
    [
        {"label_smoothing": 0.1},
        {"lse_square_scale": 1e-4},
        {"lse_square_scale": 1e-5, "label_smoothing": 0.1},
        {"softcap": 30.0},
        {"softcap": 40.0, "label_smoothing": 0.1, "lse_square_scale": 1e-4},
    ],
    ids=str,
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", ["plain", "weights", "ones"])
def test_losses_with_terms(seed, device, named, reduction, weighted, dtype, atol, rtol) -> None:
    """Weights of classes smooth their labels, as in PyTorch; a z-loss has the row's weight."""
    weight = None
    if weighted != "plain":
        generator = torch.Generator().manual_seed(seed)
        weight = torch.rand(1237, generator=generator, dtype=torch.float64)
        weight = (weight if weighted == "weights" else torch.ones_like(weight)).to(device)
    given = (seed, device, SHAPES[1], 1.0, -100, dtype, atol, rtol)
    check_loss(*given, weight=weight, reduction=reduction, **named)


@pytest.mark.thorough
@of_types
def test_losses_of_a_whole_vocabulary(seed, device, dtype, atol, rtol) -> None:
    check_loss(seed, device, LARGE, 1.0, -100, dtype, atol, rtol, softcap=30.0, label_smoothing=0.1)


@pytest.mark.parametrize("n_right", [0, 5, 26])
def test_accuracy_of_known_predictions(device, n_right) -> None:
    """None, some and all right; ignored rows do not count; all ignored are 0."""
    target = torch.arange(26, device=device) % 7
    right = torch.arange(26, device=device) < n_right
    scores = theirs.one_hot(torch.where(right, target, (target + 1) % 7), 9).float()
    actual = functional.cross_entropy(scores, target, return_token_accuracy=True)
    assert actual.z_loss is None
    assert actual.predicted_tokens is None
    torch.testing.assert_close(float(actual.token_accuracy), n_right / 26)
    target[:5] = -100
    actual = functional.cross_entropy(scores, target, return_token_accuracy=True)
    torch.testing.assert_close(float(actual.token_accuracy), max(n_right - 5, 0) / 21)
    target[:] = -1
    named = {"ignore_index": -1, "return_token_accuracy": True}
    assert float(functional.cross_entropy(scores, target, **named).token_accuracy) == 0


def test_a_large_loss_of_half_is_summed_wide(seed, device) -> None:
    """The sum of 16-bit losses is rounded once."""
    scores, target = rows_of(seed, (2048, 64), 10.0, -100, device)
    scores = scores.to(HALF)
    exact = theirs.cross_entropy(scores.double(), target)
    actual = functional.cross_entropy(scores, target)
    assert abs(float(actual) - float(exact)) <= 2**-8 * float(exact)


def test_what_is_measured_of_what_has_no_classes_is_refused(device) -> None:
    scores = torch.zeros(4, 6, device=device)
    for options in ({"return_z_loss": True}, {"return_predicted_tokens": True}):
        with pytest.raises(ArgumentError, match="target: expected classes, where z-loss"):
            functional.cross_entropy(scores, scores.softmax(1), **options)
    target = torch.zeros(4, dtype=torch.long, device=device)
    with pytest.raises(ArgumentError, match="inplace: expected False where measures"):
        functional.cross_entropy(scores, target, inplace=True, return_z_loss=True)


# ---- the loss of a layer -------------------------------------------------------------------------


@of_types
@of_reductions
@pytest.mark.parametrize(
    ("label_smoothing", "ignored", "lse_square_scale", "softcap"),
    [(0, -100, 0, None), (0.1, 42, 1e-5, 30.0), (0, 42, 1e-4, None)],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_losses_of_layers(
    seed,
    device,
    dtype,
    atol,
    rtol,
    reduction,
    label_smoothing,
    ignored,
    lse_square_scale,
    softcap,
    weighted,
) -> None:
    """As a module with a bias, of 4 x 47 rows, 31 features and 123 classes."""
    features, n_classes = 31, 123
    _, target = rows_of(seed, (4 * 47, n_classes), 1.0, ignored, device)
    generator = torch.Generator().manual_seed(seed)

    def made(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)

    of_classes = made(n_classes).abs() if weighted else None
    named = {
        "reduction": reduction,
        "ignore_index": ignored,
        "label_smoothing": label_smoothing,
        "lse_square_scale": lse_square_scale,
        "softcap": softcap,
    }
    layer = nn.LinearCrossEntropyLoss(
        *(features, n_classes),
        bias=True,
        device=device,
        dtype=dtype,
        weight=of_classes,
        **named,
        return_z_loss=True,
        return_token_accuracy=True,
    )
    with torch.no_grad():
        layer.linear.weight.copy_(made(n_classes, features) / 4)
    hidden = made(4 * 47, features).requires_grad_()
    sources = hidden, *layer.parameters()
    exact = [x.detach().double().requires_grad_() for x in sources]
    actual = layer(hidden, target)
    scores = theirs.linear(*exact)
    wide = None if of_classes is None else of_classes.double()
    expected, z_loss = exact_loss(scores, target, wide, **named)
    near = {"rtol": rtol, "check_dtype": False}
    torch.testing.assert_close(actual.loss, expected, atol=atol, **near)
    torch.testing.assert_close(actual.z_loss, z_loss, atol=atol, **near)
    gradients, wanted = (
        torch.autograd.grad(y, x) for y, x in ((actual.loss, sources), (expected, exact))
    )
    for gradient, one in zip(gradients, wanted, strict=True):
        bound = max(atol, (2e-2 if dtype == HALF else 1e-5) * float(one.abs().max()))
        torch.testing.assert_close(gradient, one, atol=bound, **near)
    if dtype == FULL:
        counts = target != ignored
        right = ((scores.argmax(1) == target) & counts).sum() / counts.sum()
        torch.testing.assert_close(actual.token_accuracy, right.float(), check_dtype=False)


@pytest.mark.parametrize("dtype", [HALF, torch.float16])
def test_losses_of_layers_under_autocast(seed, device, dtype) -> None:
    """Parameters are float32, the product is in 16 bits, the loss float32."""
    _, target = rows_of(seed, (64, 96), 1.0, -100, device)
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(n, 32, generator=generator).to(device) for n in (64, 96))
    weight.requires_grad_()
    with torch.autocast(device, dtype=dtype):
        loss = functional.linear_cross_entropy(hidden, weight, target)
    expected = theirs.cross_entropy(theirs.linear(hidden, weight), target)
    assert loss.dtype == FULL
    torch.testing.assert_close(loss, expected, atol=1e-2, rtol=1e-2)
    loss.backward()
    assert weight.grad.dtype == FULL


# ---- norms ---------------------------------------------------------------------------------------

OF_NORMS = [(2, 8, 64), (4, 16, 128), (1, 1, 1023), (3, 7, 256), (1, 64, 2048), (5, 123, 123)]


@of_types
@pytest.mark.parametrize("shape", OF_NORMS, ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "rms_norm of weight + 1"])
def test_norms(seed, device, shape, name, dtype, atol, rtol) -> None:
    """Casts of Llama and of Gemma, whose weight has an offset of 1, are within the bound."""
    generator = torch.Generator().manual_seed(seed)
    x, dy = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        for _ in range(2)
    )
    n, is_layer = shape[-1], name == "layer_norm"
    parameters = [
        torch.randn(n, generator=generator, dtype=torch.float64).to(device, dtype)
        for _ in range(1 + is_layer)
    ]
    leaves = [y.requires_grad_() for y in (x, *parameters)]
    exact = [y.detach().double().requires_grad_() for y in leaves]

    def norm(module, x, weight, *bias):
        weight = weight + 1 if "1" in name else weight
        return getattr(module, name.partition(" ")[0])(x, (n,), weight, *bias, eps=1e-6)

    actual, expected = norm(functional, *leaves), norm(theirs, *exact)
    near = {"rtol": rtol, "check_dtype": False}
    torch.testing.assert_close(
        actual, expected, atol=max(atol, 2e-2 if dtype == HALF else 1e-5), **near
    )
    gradients = (
        torch.autograd.grad(actual, leaves, dy),
        torch.autograd.grad(expected, exact, dy.double()),
    )
    for gradient, wanted in zip(*gradients, strict=True):
        size = float(wanted.abs().max())
        torch.testing.assert_close(
            gradient, wanted, atol=(2e-2 if dtype == HALF else 1e-5) * max(size, 1), **near
        )

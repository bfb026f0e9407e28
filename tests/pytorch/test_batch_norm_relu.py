# SPDX-License-Identifier: MIT
"""Batch norm, residual and relu as one, beside PyTorch's functions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional as theirs  # noqa: E402

import cupy_training_ops.torch as cto  # noqa: E402
from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch.functional import batch_norm_relu  # noqa: E402

SHAPES = ((6, 3), (4, 3, 5), (3, 4, 5, 6), (2, 3, 2, 3, 4))
compiled = pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself


def reference(x, mean, var, weight=None, bias=None, momentum=0.1, eps=1e-5, residual=None):
    y = theirs.batch_norm(x, mean, var, weight, bias, True, momentum, eps)
    return torch.relu(y if residual is None else y + residual)


def ours(x, mean, var, weight=None, bias=None, momentum=0.1, eps=1e-5, residual=None):
    return batch_norm_relu(x, mean, var, weight, bias, True, momentum, eps, residual=residual)


def results(function, x, others, dy, is_last=False, momentum=0.1):
    """The result, the running statistics after it, and gradients of all."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in others.items()}
    x = x.detach().clone().requires_grad_()
    images = {"x": x, **{n: leaves.pop(n) for n in ("residual",) if n in leaves}}
    channels = x.shape[1]
    running = x.new_full((channels,), 0.5), x.new_full((channels,), 2)
    laid = {name: last(image) if is_last else image for name, image in images.items()}
    y = function(laid.pop("x"), *running, momentum=momentum, **leaves, **laid)
    gradients = torch.autograd.grad(y, (*images.values(), *leaves.values()), dy)
    return y, *running, *gradients


def last(x):
    """Return x with the channels last in memory, where PyTorch has such a layout."""
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=kinds.get(x.dim(), torch.contiguous_format))


@pytest.fixture
def others(leaf):
    def made(shape, *names):
        kinds = {"weight": shape[1:2], "bias": shape[1:2], "residual": shape}
        return {name: leaf(*kinds[name]) for name in names}

    return made


NAMES = ((), ("weight", "bias"), ("residual",), ("weight", "bias", "residual"))


@pytest.mark.parametrize("names", NAMES, ids="-".join)
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_statistics_and_gradients_are_pytorchs(leaf, others, shape, is_last, names) -> None:
    x, dy, given = leaf(*shape), leaf(*shape, gradients=False), others(shape, *names)
    cto.fallbacks(reset=True)
    for _ in range(3):  # the next ones go straight to the launches
        actual = results(ours, x, given, dy, is_last)
        expected = results(reference, x, given, dy, is_last)
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert actual[0].stride() == expected[0].stride()
    assert cto.fallbacks() == {}


@pytest.mark.parametrize("names", NAMES, ids="-".join)
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
@pytest.mark.usefixtures("emulated")
def test_the_same_on_emulated_kernels(leaf, others, is_last, names) -> None:
    shape = (3, 8, 5, 6)
    x, dy, given = leaf(*shape), leaf(*shape, gradients=False), others(shape, *names)
    x, dy = x.detach().float(), dy.float()
    given = {name: value.detach().float() for name, value in given.items()}
    expected = results(reference, x, given, dy, is_last)
    for _ in range(3):
        for a, b in zip(results(ours, x, given, dy, is_last), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_weight", [None, torch.float32])
def test_two_byte_types_beside_float64(leaf, others, kind, of_weight) -> None:
    shape = (4, 8, 6, 6)
    x, dy = leaf(*shape, dtype=kind), leaf(*shape, dtype=kind, gradients=False)
    given = others(shape, "weight", "bias", "residual")
    given = {
        n: v.detach().to(kind if n == "residual" else of_weight or kind) for n, v in given.items()
    }

    def of_floats(x, mean, var, **named):
        return ours(x, mean.float(), var.float(), **named)

    y, _, _, *gradients = results(of_floats, x, given, dy)
    wide = {name: value.double() for name, value in given.items()}
    exact, _, _, *expected = results(reference, x.double(), wide, dy.double())
    spacing = torch.finfo(kind).eps
    torch.testing.assert_close(y.double(), exact, rtol=spacing, atol=spacing)
    passes = (exact.abs() > 4 * spacing) | (exact == 0)
    for a, b in zip(gradients[:1], expected[:1], strict=True):
        off = ((a.double() - b).abs() * passes).amax()
        assert off < 40 * spacing


def test_relus_gradient_passes_at_nan(leaf) -> None:
    x, residual = leaf(4, 3, 5), leaf(4, 3, 5)
    with torch.no_grad():
        residual[1, 2, 3] = torch.nan
    ones = torch.ones(4, 3, 5, dtype=torch.float64)
    actual = results(ours, x, {"residual": residual}, ones)
    expected = results(reference, x, {"residual": residual}, ones)
    assert actual[4][1, 2, 3] == 1
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("momentum", [0.0, 0.25, 1.0])
def test_momentums(leaf, momentum) -> None:
    x, dy = leaf(4, 3, 5), leaf(4, 3, 5, gradients=False)
    pairs = zip(
        results(ours, x, {}, dy, momentum=momentum),
        results(reference, x, {}, dy, momentum=momentum),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_running_statistics_that_another_call_saved_may_change(leaf) -> None:
    """As in PyTorch, which updates them without a new version: here between evaluation and grad."""
    x, running = leaf(4, 3, 5), (torch.zeros(3).double(), torch.ones(3).double())
    y = theirs.batch_norm(x, *running)
    for gradients in (True, False, True):
        batch_norm_relu(leaf(4, 3, 5, gradients=gradients), *running, training=True)
    assert (running[0] != 0).all()
    y.sum().backward()


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        ({"training": False}, "batch_norm_relu: training"),
        ({"residual": torch.ones(1, 3, 1, dtype=torch.float64)}, "batch_norm_relu: residual"),
        ({"residual": torch.ones(4, 3, 5)}, "batch_norm_relu: residual"),
        ({"momentum": 2.0}, "batch_norm_relu: momentum"),
        ({"momentum": True}, None),
    ],
)
def test_what_no_kernel_computes_is_pytorchs_and_counted(leaf, change, counted) -> None:
    x = leaf(4, 3, 5)
    statistics = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    theirs_too = [s.clone() for s in statistics]
    cto.fallbacks(reset=True)
    named = {"training": True, "momentum": 0.1, **change}
    y = batch_norm_relu(x, *statistics, **named)
    residual = named.pop("residual", 0)
    expected = torch.relu(theirs.batch_norm(x, *theirs_too, **named) + residual)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(statistics, theirs_too)
    assert [*cto.fallbacks()] == ([counted] if counted else [])


@pytest.mark.parametrize("change", [{"momentum": None}, {"momentum": "1"}, {"eps": -1.0}, {"x": 0}])
def test_what_pytorch_refuses_is_refused(leaf, change) -> None:
    x = leaf(1, 3) if "x" in change else leaf(4, 3)
    named = {name: value for name, value in change.items() if name != "x"}
    statistics = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    with pytest.raises(ArgumentError, match=r"batch_norm_relu|BatchNormRelu"):
        batch_norm_relu(x, *statistics, training=True, **named)
    assert (statistics[0] == 0).all()


CALLS = {
    "columns apart": lambda leaf: (leaf(3, 8, 5)[:, ::2], None),
    "transposed": lambda leaf: (leaf(4, 5, 3).permute(2, 0, 1), None),
    "expanded residual": lambda leaf: (leaf(3, 4, 5), leaf(1, 4, 1).expand(3, 4, 5)),
    "residual with channels first": lambda leaf: (last(leaf(3, 4, 5, 6)), leaf(3, 4, 5, 6)),
    "residual with channels last": lambda leaf: (leaf(3, 4, 5, 6), last(leaf(3, 4, 5, 6))),
    "one pixel": lambda leaf: (last(leaf(5, 4, 1, 1)), None),
    "empty": lambda leaf: (leaf(0, 4, 5), None),
    "a number as residual": lambda leaf: (leaf(3, 4, 5), 2.0),
}


@pytest.mark.parametrize("call", CALLS)
def test_tensors_that_lie_otherwise(leaf, call) -> None:
    """Their gradients too, of a gradient that is expanded."""
    x, residual = CALLS[call](leaf)
    pairs = []
    for function in (ours, reference):
        running = [torch.zeros(4, dtype=torch.float64), torch.ones(8, dtype=torch.float64)[::2]]
        y = function(x, *running, residual=residual)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        pairs.append((y, gradient, *running))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert pairs[0][0].stride() == pairs[1][0].stride()


def test_an_input_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match="batch_norm_relu: input: expected a tensor, got"):
        batch_norm_relu([1.0], None, None, training=True)


def test_a_result_that_was_overwritten_has_no_gradient(leaf) -> None:
    x = leaf(3, 4, 5)
    y = batch_norm_relu(x, None, None, training=True)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@compiled
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
def test_compiled_is_eager_without_a_break(leaf, others, is_last, backend) -> None:
    if backend == "inductor" and is_last:
        pytest.skip("one compilation by a C++ compiler is enough")
    shape = (3, 4, 5, 6)
    x, dy = leaf(*shape), leaf(*shape, gradients=False)
    given = others(shape, "weight", "bias", "residual")
    function = torch.compile(ours, fullgraph=True, backend=backend, dynamic=False)
    pairs = zip(
        results(function, x, given, dy, is_last), results(ours, x, given, dy, is_last), strict=True
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        assert a.stride() == b.stride()


def test_opcheck(leaf) -> None:
    x, y, vector = leaf(3, 4, 5, 6), leaf(3, 4, 5, 6), leaf(4)
    statistics = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    operator = torch.ops.cto.batch_norm_relu.default
    for image in (x, last(x.detach()).requires_grad_()):
        torch.library.opcheck(operator, (image, vector, vector.detach(), y, *statistics, 0.1, 1e-5))
    torch.library.opcheck(operator, (x, None, None, None, None, None, 0.1, 1e-5))

# SPDX-License-Identifier: MIT
"""Who saves a tensor decides how it is kept, and what stays unknown."""

from __future__ import annotations

import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from cupy_training_ops.torch import modes  # noqa: E402

from .calls import NBYTES, SHAPE, codecs, rule, run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small

SIGNED = "msfp15_signed"
IMAGE = (8, 16, 16, 16)
FILTERS = nn.Parameter(torch.randn(16, 16, 3, 3, generator=torch.Generator().manual_seed(0)))
SQUARE = nn.Parameter(torch.randn(128, 128, generator=torch.Generator().manual_seed(0)))

RULES = {
    "linear": (SHAPE, lambda x: functional.linear(x, SQUARE), rule("linear", SIGNED)),
    "linear by name": (
        SHAPE,
        lambda x: functional.linear(input=x, weight=SQUARE),
        rule("linear", SIGNED),
    ),
    "matmul": (SHAPE, lambda x: x @ SQUARE, rule("matmul", SIGNED)),
    "from the left": ((128, 256), lambda x: SQUARE @ x, rule("matmul", SIGNED)),
    "a view of a parameter": (SHAPE, lambda x: x.mm(SQUARE.t()), rule("mm", SIGNED)),
    "einsum": (SHAPE, lambda x: torch.einsum("ij,jk->ik", x, SQUARE), rule("einsum", SIGNED)),
    "addmm": (SHAPE, lambda x: torch.addmm(SQUARE[0], x, SQUARE), rule("addmm", SIGNED)),
    "convolution": (IMAGE, lambda x: functional.conv2d(x, FILTERS), rule("conv2d", SIGNED)),
    "transposed": (
        IMAGE,
        lambda x: functional.conv_transpose2d(x, FILTERS),
        rule("conv_transpose2d", SIGNED),
    ),
    "relu": (SHAPE, torch.relu, rule("relu", SIGNED)),
    "relu in place": (SHAPE, lambda x: torch.relu_(x), rule("relu", SIGNED)),
    "leaky": (SHAPE, functional.leaky_relu, rule("leaky_relu", SIGNED)),
    "pool": (IMAGE, lambda x: functional.max_pool2d(x, 2), rule("max_pool2d", SIGNED)),
    "layer norm": (SHAPE, lambda x: functional.layer_norm(x, (128,)), rule("layer_norm", SIGNED)),
    "rms norm": (SHAPE, lambda x: functional.rms_norm(x, (128,)), rule("rms_norm", SIGNED)),
    "batch norm": (
        IMAGE,
        lambda x: functional.batch_norm(x, None, None, training=True),
        rule("batch_norm", SIGNED),
    ),
    "group norm": (IMAGE, lambda x: functional.group_norm(x, 4), rule("group_norm", SIGNED)),
    "instance norm": (IMAGE, functional.instance_norm, rule("instance_norm", SIGNED)),
    "gelu": (SHAPE, functional.gelu, rule("gelu", "pack16")),
    "silu": (SHAPE, functional.silu, rule("silu", "pack16")),
    "a product of activations": (SHAPE, lambda x: x @ x.mT, rule("matmul", "pack16")),
    "attention": (
        (4, 4, 32, 64),
        lambda x: functional.scaled_dot_product_attention(x, 2 * x, 3 * x),
        {"scaled_dot_product_attention pack16": 4},
    ),
}
EXACT = {
    "softmax": lambda x: x.softmax(1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "multiplication": lambda x: x * x.roll(1, 0),
    "division": lambda x: x / (x.abs() + 1),
    "logarithm": lambda x: (x.abs() + 1).log(),
    "power": lambda x: x**3,
    "root": lambda x: (x.abs() + 1).sqrt(),
    "variance": lambda x: x.var(1),
    "elu": functional.elu,
}


@pytest.mark.parametrize("name", RULES)
def test_the_consumer_decides(tensor, name) -> None:
    shape, function, expected = RULES[name]
    _, report = run("default", lambda x: function(x * 1), tensor(*shape))
    assert codecs(report) == expected


@pytest.mark.parametrize("name", EXACT)
def test_others_are_untouched(tensor, name) -> None:
    x = tensor()
    (actual,), report = run("default", lambda x: EXACT[name](x * 1), x)
    assert torch.equal(actual, torch.autograd.grad(EXACT[name](x * 1).sum(), x)[0])
    assert codecs(report) == {}
    assert sum(report["untouched"].values()) == report["passed"]["exact"] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_16_bits_smooth_functions_are_untouched_but_wide(tensor, dtype) -> None:
    x = tensor(256, 256).to(dtype)
    assert codecs(run("default", lambda x: functional.gelu(x * 1), x)[1]) == {}
    assert codecs(run("wide", lambda x: functional.gelu(x * 1), x)[1]) == rule("gelu", SIGNED)


def test_a_product_with_made_weights_is_one_of_activations(tensor, weight) -> None:
    """Of a parametrized layer: its weight is no parameter."""
    _, report = run("default", lambda x, w: (x * 1) @ (w * 2), tensor(), weight)
    assert codecs(report) == {"matmul pack16": 2}


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return 3 * slope * x**2


class Other(TorchFunctionMode):
    """Calls something else under a function's name."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.gelu:
            return args[0].exp()
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


def scripted(x):
    return torch.jit.script(nn.GELU())(x * 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: Cube.apply(x * 1),
        scripted,
        lambda x: torch.ops.aten.gelu(x * 1),
        lambda x: functional.gelu((x * 1).as_subclass(Subclass)).as_subclass(torch.Tensor),
    ],
    ids=["custom", "scripted", "operator", "subclass"],
)
def test_who_is_not_known_has_it_exactly(tensor, function) -> None:
    x = tensor()
    (actual,), report = run("default", function, x)
    assert torch.equal(actual, torch.autograd.grad(function(x).sum(), x)[0])
    assert codecs(report) == {}
    assert report["passed"].keys() & {"unknown", "subclass", "exact"}


def test_a_mode_below_may_call_what_it_likes(tensor) -> None:
    x = tensor()
    with Other():
        (actual,), report = run("default", lambda x: functional.gelu(x * 1), x)
    assert torch.equal(actual, x.exp())
    assert codecs(report) == {}


def test_a_function_of_python_is_looked_through(tensor) -> None:
    layer = nn.MultiheadAttention(128, 4, batch_first=True)
    x = tensor(4, 64, 128)
    _, report = run("default", lambda x: layer(x * 1, x * 1, x * 1)[0], x)
    assert "linear msfp15_signed" in codecs(report)
    assert modes.body(functional.multi_head_attention_forward).__kwdefaults__ is None


def test_functions_that_a_library_replaced_are_called(tensor, monkeypatch) -> None:
    """Also after calls of those before."""
    layer, x, calls = nn.MultiheadAttention(128, 4, batch_first=True), tensor(4, 64, 128), []
    attention = functional.scaled_dot_product_attention

    def replaced(*arguments, **named):
        calls.append(arguments)
        return attention(*arguments, **named)

    for n in range(3):
        run("default", lambda x: layer(x * 1, x * 1, x * 1, need_weights=False)[0], x)
        assert len(calls) == n
        monkeypatch.setattr(functional, "scaled_dot_product_attention", replaced)


# ---- the stricter rule ---------------------------------------------------------------------------


def both(first, second):
    def function(x, w):
        y = x * 1
        return first(y, w).sum() + second(y, w).sum()

    return function


SAVERS = {
    "linear": (lambda y, w: y @ w, 0),
    "gelu": (lambda y, _: functional.gelu(y), 1),
    "multiplication": (lambda y, _: y * y.detach().clone().roll(1).requires_grad_(), 2),
}


@pytest.mark.parametrize("first", SAVERS)
@pytest.mark.parametrize("second", SAVERS)
def test_of_two_consumers_the_stricter_rule_holds(tensor, weight, first, second) -> None:
    (a, rank), (b, other) = SAVERS[first], SAVERS[second]
    inputs = tensor(), weight
    _, report = run("default", both(a, b), *inputs)
    bytes_held = {0: NBYTES // 4, 1: NBYTES // 2, 2: 0}[max(rank, other)]
    assert report["after"] == bytes_held
    assert report["held"] == 0
    assert report["passed"].get("exact", 0) == (NBYTES if max(rank, other) == 2 else 0)


def test_after_a_stricter_consumer_all_gradients_are_exact(tensor, weight) -> None:
    inputs, function = (tensor(), weight), both(SAVERS["linear"][0], lambda y, _: y.exp().log())
    actual, _ = run(
        "default", lambda x, w: both(lambda y, w: y @ w, lambda y, _: y**3)(x, w), *inputs
    )
    expected = torch.autograd.grad(
        both(lambda y, w: y @ w, lambda y, _: y**3)(*inputs).sum(), inputs
    )
    assert all(map(torch.equal, actual, expected))
    assert function is not None


def test_a_stricter_consumer_of_what_was_written_is_an_error_as_without(tensor, weight) -> None:
    x = tensor()
    with cto.torch.compressed_activations():
        y = x * 1
        total = (y @ weight).sum() + (y * y).sum()
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()

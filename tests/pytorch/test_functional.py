# SPDX-License-Identifier: MIT
"""Functions by PyTorch's names, beside PyTorch's own: eager, compiled, exported."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional as theirs  # noqa: E402

from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import functional  # noqa: E402

from .pairs import pairs, with_gradients  # noqa: E402

CASES = list(pairs(lambda *shape, **_: torch.zeros(shape), lambda _, *shape: torch.zeros(shape)))
compiled = pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself


def assert_all_close(actual, expected, tolerance=1e-10) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_pytorchs(leaf, labels, case) -> None:
    ours, expected, leaves = pairs(leaf, labels)[case]
    assert_all_close(with_gradients(ours, leaves), with_gradients(expected, leaves))
    with torch.no_grad():
        assert_all_close([ours(*leaves)], [expected(*leaves)])


@pytest.mark.filterwarnings("ignore")  # of its loop
@pytest.mark.parametrize("case", CASES)
def test_gradients_come_as_a_batch(leaf, labels, case) -> None:
    """As `torch.autograd.functional.jacobian` and `torch.autograd.grad(is_grads_batched=True)`."""
    ours, _, leaves = pairs(leaf, labels)[case]
    y = ours(*leaves)
    dys = torch.stack([y.detach() + i for i in range(3)])
    actual = torch.autograd.grad(y, leaves, dys, retain_graph=True, is_grads_batched=True)
    loop = [torch.autograd.grad(y, leaves, dy, retain_graph=True) for dy in dys]
    assert_all_close(actual, map(torch.stack, zip(*loop, strict=True)))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_tensors_without_data_have_results_without_data(leaf, labels, case, gradients) -> None:
    def at(device):
        def made(*shape, gradients=gradients, **given):
            return leaf(*shape, **given).detach().to(device).requires_grad_(gradients)

        ours, _, leaves = pairs(made, lambda n, *shape: labels(n, *shape).to(device))[case]
        return with_gradients(ours, leaves) if gradients else [ours(*leaves)]

    for actual, like in zip(at("meta"), at("cpu"), strict=True):
        assert actual.is_meta
        assert (actual.shape, actual.dtype) == (like.shape, like.dtype)


def test_dropout_without_data() -> None:
    x = torch.zeros(4, 6, device="meta", requires_grad=True)
    functional.dropout(x, bias=x[0], residual=x).sum().backward()
    assert x.grad.is_meta


@compiled
@pytest.mark.parametrize("case", CASES)
def test_compiled_is_eager(leaf, labels, case) -> None:
    ours, _, leaves = pairs(leaf, labels)[case]
    actual = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=False)
    assert_all_close(with_gradients(actual, leaves), with_gradients(ours, leaves))


@compiled
def test_a_model_of_all_of_them_through_inductor(leaf, labels) -> None:
    """One graph, since each takes a C++ compiler its time; dynamic shapes, and a second size."""
    table, row, weight = leaf(16, 8, dtype=torch.float32), leaf(8), leaf(16, 8)
    row, weight = (x.detach().float().requires_grad_() for x in (row, weight))

    def model(indices, target, table, row, weight):
        x = functional.embedding(indices, table, 3)
        x = functional.layer_norm(functional.rms_norm(x, (8,), row), (8,), row, row)
        x = functional.relu(functional.gelu(x, bias=row)) + functional.softmax(x, -1)
        loss = functional.linear_cross_entropy(x, weight, target)
        scores = functional.log_softmax(x @ weight.t(), -1).flatten(0, 1)
        more = functional.cross_entropy(scores * 2, target.flatten(), inplace=True)
        return loss + more + functional.cross_entropy(scores, target.flatten(), row.new_ones(16))

    actual = torch.compile(model, fullgraph=True, dynamic=True)
    for n in (3, 5):
        inputs = labels(16, n, 4), labels(16, n, 4)
        results = []
        for function in (actual, model):
            loss = function(*inputs, table, row, weight)
            results.append([loss, *torch.autograd.grad(loss, (table, row, weight))])
        assert_all_close(*results, tolerance=1e-5)


@pytest.mark.parametrize("strict", [True, False])
@compiled
def test_what_is_exported_takes_other_sizes(leaf, labels, strict) -> None:
    """Of all functionals."""
    table, row, weight = leaf(16, 8), leaf(8), leaf(16, 8)

    class Model(torch.nn.Module):
        def forward(self, indices, target):
            x = functional.embedding(indices, table, 3)
            x = functional.layer_norm(functional.rms_norm(x, (8,), row), (8,), row, row)
            x = functional.relu(functional.gelu(x, bias=row)) + functional.softmax(x, -1)
            loss = functional.linear_cross_entropy(x, weight, target)
            scores = functional.log_softmax(x @ weight.t(), -1).flatten(0, 1)
            return loss, functional.cross_entropy(scores, target.flatten()), functional.dropout(x)

    def given(n):
        return labels(16, n, 4), labels(16, n, 4)

    sizes = [{0: torch.export.Dim("n", min=2)}] * 2
    actual = torch.export.export(Model(), given(5), dynamic_shapes=sizes, strict=strict)
    calls = {str(node.target) for node in actual.graph.nodes}
    names = "embedding layer_norm rms_norm gelu softmax log_softmax bitmask_dropout"
    assert {f"cto.{name}.default" for name in names.split()} <= calls
    inputs = given(3)
    (*results, dropped), (*expected, other) = actual.module()(*inputs), Model()(*inputs)
    torch.testing.assert_close(results, expected, atol=1e-12, rtol=0)
    kept = (dropped != 0) & (other != 0)  # masks are drawn anew
    torch.testing.assert_close(dropped[kept], other[kept], atol=1e-12, rtol=0)
    assert dropped.shape == other.shape
    assert not torch.equal(dropped, other)


def test_traces_see_the_operators(leaf) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = leaf(5, 16, gradients=False)
    traced = make_fx(lambda x: functional.softmax(x, -1))(x)
    assert "cto.softmax.default" in traced.code
    assert torch.equal(traced(x + 1), functional.softmax(x + 1, -1))


def test_modes_and_subclasses_see_the_operators(leaf) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Named(torch.Tensor):
        pass

    x = leaf(5, 16, gradients=False)
    with Watching():
        functional.softmax(x, -1)
    assert "cto.softmax.default" in seen
    assert isinstance(functional.softmax(x.as_subclass(Named), -1), Named)


# ---- dropout -------------------------------------------------------------------------------------


def test_dropout_keeps_a_share_and_scales_it(leaf) -> None:
    x, p = leaf(64, 64), 0.3
    y = functional.dropout(x, p)
    kept = y != 0
    assert abs(kept.double().mean() - (1 - p)) < 0.05  # 6 standard deviations
    torch.testing.assert_close(y[kept], x[kept] / (1 - p))
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    torch.testing.assert_close(dx, kept.double() / (1 - p))


def test_dropout_adds_bias_and_residual(leaf) -> None:
    x, bias, residual = leaf(64, 64), leaf(64), leaf(64, 64)
    state = torch.get_rng_state()
    y = functional.dropout(x, 0.5, bias=bias, residual=residual)
    torch.set_rng_state(state)
    kept = functional.dropout(torch.ones_like(x), 0.5) != 0
    torch.testing.assert_close(y, torch.where(kept, 2 * (x + bias), 0.0) + residual)
    dx, dbias, dresidual = torch.autograd.grad(y, (x, bias, residual), torch.ones_like(y))
    assert torch.equal(dx, 2.0 * kept)
    assert torch.equal(dbias, (2.0 * kept).sum(0))
    assert torch.equal(dresidual, torch.ones_like(y))


def test_seeds_are_pytorchs(leaf) -> None:
    x = leaf(64, 64, gradients=False)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(functional.dropout(x))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(functional.dropout(x), functional.dropout(x))


@compiled
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_dropout_draws_anew_and_keeps_its_mask(leaf, backend) -> None:
    """Inductor draws seeds of its own from PyTorch's generator: others than eager calls do."""
    x = leaf(64, 64)
    actual = torch.compile(lambda x: functional.dropout(x), fullgraph=True, backend=backend)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(actual(x))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    (dx,) = torch.autograd.grad(draws[2], x, torch.ones_like(x))
    assert torch.equal(dx != 0, draws[2] != 0)


def test_nodes_are_named_after_operators(leaf) -> None:
    x = leaf(4, 8)
    actual = [functional.layer_norm(x, (8,)), functional.gelu(x), functional.softmax(x, -1)]
    names = ["layer_norm", "gelu", "softmax"]
    assert [y.grad_fn.name() for y in actual] == [f"{name}Backward" for name in names]


def test_a_checkpointed_dropout_draws_the_same_mask(leaf) -> None:
    from torch.utils.checkpoint import checkpoint

    x = leaf(64, 64)
    y = checkpoint(lambda x: functional.dropout(x), x, use_reentrant=False)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(x))
    assert torch.equal(dx != 0, y != 0)


def test_dropout_of_nothing_and_of_all(leaf) -> None:
    x, residual = leaf(4, 6), leaf(4, 6)
    assert functional.dropout(x, 0.0) is x
    assert functional.dropout(x, 0.5, training=False) is x
    assert torch.equal(functional.dropout(x, 1.0, residual=residual), residual)
    with pytest.raises(ArgumentError, match=r"dropout: p: expected a number from 0 to 1, got 1\.5"):
        functional.dropout(x, 1.5)


# ---- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax", "gelu"])
def test_halves_are_computed_in_float32(leaf, labels, name) -> None:
    ours, expected, leaves = pairs(leaf, labels)[name]
    halves = [x.detach().bfloat16().requires_grad_() for x in leaves]
    exact = with_gradients(expected, [x.detach().double().requires_grad_() for x in halves])
    for a, b in zip(with_gradients(ours, halves), exact, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.double(), b, atol=3e-2, rtol=3e-2)


def test_epsilon_of_rms_norm_is_pytorchs() -> None:
    x = torch.full((2, 16), 1e-4, dtype=torch.bfloat16)
    actual, expected = functional.rms_norm(x, (16,)), theirs.rms_norm(x, (16,))
    torch.testing.assert_close(actual, expected, atol=0, rtol=1e-2)


def test_a_loss_under_autocast_is_float32(leaf, labels) -> None:
    x, w, target = leaf(8, 16, dtype=torch.float32), leaf(32, 16).float(), labels(32, 8)
    w = w.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        scores = theirs.linear(x, w)
        loss = functional.cross_entropy(scores, target)
        chunked = functional.linear_cross_entropy(x, w, target)
    assert scores.dtype == torch.bfloat16
    assert loss.dtype == chunked.dtype == torch.float32
    loss.backward()
    expected = w.grad.clone()
    w.grad = None
    chunked.backward()
    torch.testing.assert_close(w.grad, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("is_dense", [False, True])
def test_autocast_leaves_float64_as_it_is(leaf, labels, is_dense, reduction) -> None:
    layer = leaf(8, 16), leaf(9, 16)
    target = leaf(8, 9, gradients=False).softmax(1) if is_dense else labels(9, 8)
    with torch.autocast("cpu", torch.bfloat16):
        scores = theirs.linear(*layer)
        expected = theirs.cross_entropy(scores, target, reduction=reduction)
        whole = functional.cross_entropy(scores, target, reduction=reduction)
        chunked = functional.linear_cross_entropy(*layer, target, reduction=reduction)
    for loss in (whole, chunked):
        torch.testing.assert_close(loss, expected)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="dtype"):
        functional.linear_cross_entropy(layer[0], layer[1].float(), target)  # as PyTorch's linear


# ---- what is odd about tensors -------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if "in place" not in case])
def test_views_that_negate_are_the_numbers_that_they_show(leaf, labels, case) -> None:
    """PyTorch's dispatcher makes tensors of them; the shorter way past it does, too."""
    ours, expected, leaves = pairs(leaf, labels)[case]
    turned = [torch._neg_view(-x.detach()).requires_grad_() for x in leaves]
    dy = torch._neg_view(-expected(*leaves).detach())
    actual, wanted = (
        [y := function(*given), *torch.autograd.grad(y, given, dy)]
        for function, given in ((ours, turned), (expected, leaves))
    )
    assert_all_close(actual, wanted)


@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (2, 0, 3)])
def test_gradients_of_a_bias_without_elements(leaf, shape) -> None:
    x, bias = leaf(*shape), leaf(shape[-1])
    for y in (functional.gelu(x, bias=bias), functional.dropout(x, 0.5, bias=bias)):
        dx, dbias = torch.autograd.grad(y, (x, bias), torch.ones_like(y))
        assert dx.shape == shape
        assert torch.equal(dbias, torch.zeros_like(bias))


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 5), (2, 3, 0), (0, 1)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"return_z_loss": True}, {}])
def test_a_loss_of_no_rows(leaf, shape, reduction, options) -> None:
    x, target = leaf(*shape), torch.zeros((shape[0], *shape[2:]), dtype=torch.int64)
    for y in (x, x.detach()):
        result = functional.cross_entropy(y, target, reduction=reduction, **options)
        for each in result[:2] if options.get("return_z_loss") else (result,):
            assert each.shape == (target.shape if reduction == "none" else ())
            assert each.sum() == 0
    loss = functional.cross_entropy(x, target, **options)
    loss = loss[0] if options.get("return_z_loss") else loss
    assert torch.autograd.grad(loss, x)[0].shape == shape


def test_predictions_inside_of_derivatives_are_those_outside(leaf) -> None:
    """-1 where softmax is NaN, and where the target is ignored."""
    x, target = leaf(5, 7).detach(), torch.tensor([0, 1, -100, 3, 4])
    x[0, 2], x[1, 3], x[3], x[4, 0] = torch.nan, torch.inf, -torch.inf, -torch.inf

    def predict(x):
        result = functional.cross_entropy(x, target, return_predicted_tokens=True)
        return result.loss, result.predicted_tokens

    expected = predict(x)[1]
    assert expected[:4].tolist() == [-1] * 4
    assert expected[4] == x[4].argmax()
    assert torch.equal(torch.func.grad(predict, has_aux=True)(x)[1], expected)


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("weight", [1.0] * 5, "a tensor"),
        ("ignore_index", None, "an integer"),
        ("label_smoothing", -0.1, "a number from 0 to 1"),
        ("label_smoothing", torch.nan, "a number from 0 to 1"),
        pytest.param(
            "label_smoothing", 10**400, "a number from 0 to 1", id="large label_smoothing"
        ),
        pytest.param(
            "lse_square_scale",
            10**400,
            "a finite number of at least 0",
            id="large lse_square_scale",
        ),
        pytest.param("softcap", 10**400, "a finite number of at least 0", id="large softcap"),
    ],
)
def test_arguments_that_no_loss_has(leaf, labels, is_dense, name, value, expected) -> None:
    target = leaf(8, 5).softmax(1).detach() if is_dense else labels(5, 8)
    with pytest.raises(ArgumentError, match=f"cross_entropy: {name}: expected {expected}, got"):
        functional.cross_entropy(leaf(8, 5), target, **{name: value})


def test_an_index_to_ignore_that_is_none_of_probabilities(leaf) -> None:
    x = leaf(8, 5)
    with pytest.raises(ArgumentError, match="ignore_index: expected a negative number"):
        functional.cross_entropy(x, x.softmax(1), ignore_index="a")

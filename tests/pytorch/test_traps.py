# SPDX-License-Identifier: MIT
"""What PyTorch's own checks of an operator do not see: writing, views, graphs of gradients."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from cupy_training_ops import ArgumentError, OpError  # noqa: E402
from cupy_training_ops.torch import convert, functional, ops  # noqa: E402


@pytest.fixture
def scores(leaf):
    """A leaf, and scores that are made of it."""
    x = leaf(8, 16)
    return x, x * 2


@pytest.mark.parametrize("way", ["door", "dispatcher"])
def test_writing_raises_the_version(leaf, labels, way) -> None:
    x = leaf(8, 16, gradients=False)
    function = ops.DOORS["cross_entropy_"] if way == "door" else torch.ops.cto.cross_entropy_
    before = x._version
    function(x, labels(16, 8))
    assert x._version > before


def test_what_another_operation_saved_is_not_overwritten_unseen(leaf, labels) -> None:
    saved = leaf(8, 16, dtype=torch.float32).exp()  # its gradient is made of its result
    loss = functional.cross_entropy(saved, labels(16, 8), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself
def test_what_another_operation_saved_is_not_overwritten_in_a_compiled_region(leaf, labels) -> None:
    def loss(x, target):
        return functional.cross_entropy(x.exp(), target, inplace=True)

    compiled = torch.compile(loss, backend="aot_eager")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        compiled(leaf(8, 16, dtype=torch.float32), labels(16, 8)).backward()


@pytest.mark.filterwarnings("ignore")  # vmap warns of its loop
@pytest.mark.parametrize("name", ["cross_entropy", "linear_cross_entropy"])
def test_vmap_over_tensors_that_require_gradients(leaf, labels, name) -> None:
    x, weight, target = leaf(3, 8, 16), leaf(4, 16), labels(4, 3, 8)

    def loss(x, target):
        if name == "cross_entropy":
            return functional.cross_entropy(x @ weight.t(), target)
        return functional.linear_cross_entropy(x, weight, target)

    leaves = x, weight
    found = torch.autograd.grad(torch.vmap(loss)(x, target).sum(), leaves)
    whole = torch.nn.functional.cross_entropy((x @ weight.t()).flatten(0, 1), target.flatten())
    torch.testing.assert_close(found, torch.autograd.grad(3 * whole, leaves))


def test_the_gradient_that_took_the_place_is_not_overwritten_unseen(scores, labels) -> None:
    _, y = scores
    loss = functional.cross_entropy(y, labels(16, 8), inplace=True)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_leaf_is_not_overwritten(leaf, labels) -> None:
    x = leaf(8, 16)
    before = x.detach().clone()
    for given in (x, x.view(2, 4, 16).flatten(0, 1)):
        with pytest.raises(ArgumentError, match=r"cross_entropy: input: .*a leaf"):
            functional.cross_entropy(given, labels(16, 8), inplace=True)
    with pytest.raises(ArgumentError, match=r"cto::cross_entropy_: .*overwritten"):
        torch.ops.cto.cross_entropy_(x, labels(16, 8))
    assert torch.equal(x, before)


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_leafs_view_is_not_overwritten_in_a_compiled_region(leaf, labels, is_inside) -> None:
    """Whether it is made there or given."""
    x, target = leaf(8, 16), labels(16, 8)
    before = x.detach().clone()

    def view(x):
        return x.view(2, 4, 16).flatten(0, 1)

    def loss(x):
        return functional.cross_entropy(view(x) if is_inside else x, target, inplace=True)

    compiled = torch.compile(loss, backend="aot_eager")
    with pytest.raises(RuntimeError, match="a leaf, or its view"):
        compiled(x if is_inside else view(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("cut", ["whole", "flatten", "rows"])
@pytest.mark.parametrize("other", ["scores", "base", "view"])
def test_scores_that_are_used_again_are_refused_in_words(leaf, labels, cut, other) -> None:
    """What is computed of them is of their gradient, whichever view of the memory it takes."""
    x = leaf(2, 4, 16)
    whole = x.view(8, 16) * 2 if cut == "whole" else x * 2
    given = {
        "whole": lambda: whole,
        "flatten": lambda: whole.flatten(0, 1),
        "rows": lambda: whole.view(8, 16)[2:],
    }
    y = given[cut]()
    loss = functional.cross_entropy(y, labels(16, len(y)), inplace=True)
    again = {"scores": y, "base": whole, "view": whole.view(-1)[:100]}[other]
    with pytest.raises(ArgumentError, match=r"cross_entropy: input: .*nothing else"):
        (loss + again.square().sum()).backward()


@pytest.mark.parametrize("is_view", [False, True])
def test_scores_that_retain_their_gradient_are_not_overwritten(scores, labels, is_view) -> None:
    _, y = scores
    y.retain_grad()
    with pytest.raises(ArgumentError, match="retain their gradient"):
        functional.cross_entropy(y.view(8, 16) if is_view else y, labels(16, 8), inplace=True)


def test_gradients_of_scores_that_were_overwritten_are_refused(leaf, labels) -> None:
    """By PyTorch: they are no longer what the loss is of."""
    y = leaf(2, 4, 16) * 2
    view = y.flatten(0, 1)
    loss = functional.cross_entropy(view, labels(16, 8), inplace=True)
    for scores in (y, view):
        with pytest.raises(RuntimeError, match="not have been used in the graph"):
            torch.autograd.grad(loss, scores, retain_graph=True)


def test_without_gradients_nothing_is_overwritten(scores, labels) -> None:
    x, y = scores
    with torch.no_grad():
        functional.cross_entropy(y, labels(16, 8), inplace=True)
    assert torch.equal(y, x * 2)


def test_the_gradient_is_where_the_scores_were(scores, labels) -> None:
    """No memory of their size is beside them, backward neither."""
    x, y = scores
    seen = []
    y.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    functional.cross_entropy(y, labels(16, 8), inplace=True).backward()
    assert seen == [y.data_ptr()]
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("inplace", [False, True])
def test_another_backward_pass_finds_the_same(scores, labels, inplace) -> None:
    """A graph that is kept keeps its gradient, which else is scaled in its own memory."""
    x, y = scores
    loss = functional.cross_entropy(y, labels(16, 8), inplace=inplace)
    first, second = (torch.autograd.grad(3 * loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "named",
    [{}, {"inplace": True}, {"label_smoothing": 0.1}, {"return_z_loss": True}],
    ids=lambda named: "".join(named),
)
def test_a_loss_is_divided_in_place(scores, labels, named) -> None:
    """As by loops that accumulate gradients."""
    x, y = scores
    target = labels(16, 8)
    loss = functional.cross_entropy(y, target, **named)
    loss = loss if isinstance(loss, torch.Tensor) else loss.loss
    loss /= 4
    smoothing = named.get("label_smoothing", 0.0)
    expected = torch.nn.functional.cross_entropy(x * 2, target, label_smoothing=smoothing) / 4
    torch.testing.assert_close(loss, expected)
    (found,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(found, torch.autograd.grad(expected, x)[0])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_results_of_few_elements_are_written_in_place(leaf, dtype, shape) -> None:
    x = leaf(*shape).detach().to(dtype).requires_grad_()
    results = functional.gelu(x), torch.nn.functional.gelu(x)
    for y in results:
        y /= 4
    assert [y.stride() for y in results] == [x.stride()] * 2
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in results))


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_scaled_in_their_own_memory(leaf, labels, dtype, scale) -> None:
    """Also by 1, where nothing is written; the version says that they may have been."""
    x, target = leaf(8, 16).detach().to(dtype).requires_grad_(), labels(16, 8)
    (expected,) = torch.autograd.grad(
        torch.nn.functional.cross_entropy(x.double(), target) * scale, x
    )
    (functional.cross_entropy(x, target) * scale).backward()
    torch.testing.assert_close(x.grad, expected, atol=1e-2, rtol=1e-2)


_LOSSES = {
    "scores": lambda x, w, t: functional.cross_entropy(x @ w.t(), t),
    "smoothed": lambda x, w, t: functional.cross_entropy(x @ w.t(), t, label_smoothing=0.1),
    "layer": functional.linear_cross_entropy,
    "float64": lambda *layer: functional.linear_cross_entropy(*layer, dtype=torch.float64),
}


@pytest.mark.parametrize("way", ["retained", "compiled", "last"])
@pytest.mark.parametrize("loss", _LOSSES)
def test_a_scale_beyond_float16_scales_gradients_of_float16(leaf, labels, loss, way) -> None:
    """A GradScaler begins at 65536, and scales losses of float32, as under autocast."""
    x, w = (leaf(8, n).detach().half().requires_grad_() for n in (16, 16))
    target, compute = labels(8, 8), _LOSSES[loss]

    def of_scores(x, w):
        with torch.autocast("cpu", torch.float16):
            return compute(x, w, target)

    if way == "compiled":
        torch._dynamo.reset()
        of_scores = torch.compile(of_scores, backend="aot_eager", fullgraph=True)
    scaled = of_scores(x, w) * 65536
    actual = torch.autograd.grad(scaled, (x, w), retain_graph=way == "retained")
    expected = torch.autograd.grad(of_scores(x, w) * 16, (x, w))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double() / 4096, b.double(), atol=1e-2, rtol=1e-2)


def _of_scores(**options):
    return lambda x, w, t: functional.cross_entropy((x @ w.t()) * 1, t, **options)


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself
@pytest.mark.parametrize("way", ["retained", "compiled", "last"])
@pytest.mark.parametrize(
    ("loss", "exact"),
    [
        (_of_scores(), {}),
        (_of_scores(inplace=True), {}),
        (_of_scores(weight=torch.ones(256).half()), {}),
        (_of_scores(label_smoothing=1e-5), {"label_smoothing": 1e-5}),
        (lambda x, w, t: _of_scores()(x, w, torch.nn.functional.one_hot(t, 256).half()), {}),
        (functional.linear_cross_entropy, {}),
        (lambda x, w, t: functional.linear_cross_entropy(x, w, t, reduction="sum") / len(t), {}),
    ],
    ids=["scores", "in place", "weighted", "smoothed", "probabilities", "layer", "sum"],
)
def test_a_scale_saves_small_gradients_of_float16(leaf, loss, exact, way) -> None:
    """All gradients of the hidden rows come from classes whose softmax, 4e-6, is 1e-9 divided by
    the number of rows: less than float16 has, but not times the scale of a GradScaler."""
    hidden = 1 + leaf(4096, 16).detach() / 100
    weight = -0.78 + leaf(256, 16).detach() / 100
    weight[0] = 0.0
    layer = [x.half().requires_grad_() for x in (hidden, weight)]
    target = torch.zeros(4096, dtype=torch.int64)

    def ours(hidden, weight):
        with torch.autocast("cpu", torch.float16):
            return loss(hidden, weight, target)

    if way == "compiled":
        torch._dynamo.reset()
        ours = torch.compile(ours, backend="aot_eager", fullgraph=True)
    results = torch.autograd.grad(ours(*layer) * 65536, layer, retain_graph=way == "retained")
    wide = [x.detach().double().requires_grad_() for x in layer]
    wanted = torch.nn.functional.cross_entropy(wide[0] @ wide[1].t(), target, **exact)
    for a, b in zip(results, torch.autograd.grad(wanted * 65536, wide), strict=True):
        assert ((a - b).abs().amax(1) <= 2e-2 * b.abs().amax(1)).all()


_OPPOSED = torch.tensor([-1.0, 1.0]).reshape(2, 1, 1)  # of two classes


def _of_one_row(x, value, **terms):
    """Return the loss of one row, whose first score is larger by value, against its second."""
    larger = value * torch.nn.functional.one_hot(torch.zeros(1, dtype=torch.int64), x.shape[1])
    return functional.cross_entropy(x + larger.to(x.dtype), torch.ones(1).long(), **terms)


def _of_counts(x):
    counts = torch.zeros_like(x)
    counts[:, 0] = 500.0
    return functional.cross_entropy(x, counts, reduction="sum")


def _of_large_rows(x, w):
    sizes = torch.ones(64, 1, dtype=x.dtype)
    sizes[:8] = 4.0
    target = torch.zeros(64, dtype=torch.int64)
    layer = (x / 64 + 10) * sizes, w / 64 - _OPPOSED[:, 0].to(w.dtype)
    return functional.linear_cross_entropy(*layer, target, lse_square_scale=0.15)


@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        (lambda x: _of_one_row(x, 16000.0, lse_square_scale=1e-3), [(1, 4)]),
        (lambda x: _of_one_row(x, 30000.0, lse_square_scale=0.5), [(1, 4)]),
        (_of_counts, [(2, 4)]),
        (
            lambda x, w: functional.linear_cross_entropy(
                x / 8, w / 64 + _OPPOSED.to(w.dtype), torch.zeros(4, 40, dtype=torch.int64)
            ),
            [(4, 8), (2, 40, 8)],
        ),
        (_of_large_rows, [(64, 16), (2, 16)]),
        (
            lambda x, w: (
                functional.linear_cross_entropy(
                    x / 8192, w / 8192, torch.zeros(64, dtype=torch.int64)
                )
                * 2.0**24
            ),
            [(64, 16), (4, 16)],
        ),
        (
            lambda x, w: functional.linear_cross_entropy(
                x * 256, w / 2**14, torch.zeros(4096, dtype=torch.int64), reduction="sum"
            ),
            [(4096, 16), (4, 16)],
        ),
    ],
    ids=[
        *("z-loss", "large z-loss", "probabilities", "positions"),
        *("layer's z-loss", "small layer", "small weight"),
    ],
)
def test_gradients_of_float16_have_room_for_the_scale_they_wait_with(leaf, loss, shapes) -> None:
    """None overflows, or is lost, that would not without it."""
    layer = [leaf(*shape).detach().half().requires_grad_() for shape in shapes]
    with torch.autocast("cpu", torch.float16):
        results = torch.autograd.grad(loss(*layer), layer)
    wide = [x.detach().double().requires_grad_() for x in layer]
    for a, b in zip(results, torch.autograd.grad(loss(*wide), wide), strict=True):
        assert (a - b).norm() <= 2e-2 * b.norm()


@pytest.mark.parametrize("inplace", [False, True])
def test_a_graph_of_the_gradient_is_refused(scores, labels, inplace) -> None:
    x, y = scores
    loss = functional.cross_entropy(y, labels(16, 8), inplace=inplace)
    with pytest.raises(ArgumentError, match="create_graph: expected False"):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch scripts functions for it
@pytest.mark.parametrize("inplace", [False, True])
def test_derivatives_of_torch_func_and_forward_mode_are_pytorchs(leaf, labels, inplace) -> None:
    """Scores are not overwritten there, and torch.vmap refuses that they are."""
    weight, target, x = leaf(16), labels(16, 8), leaf(8, 16, gradients=False)

    def of(function, **named):
        return lambda x: function(x * weight, target, **named)

    loss = of(functional.cross_entropy, inplace=inplace)
    expected = of(torch.nn.functional.cross_entropy)
    for derivative in (torch.func.grad, torch.func.hessian, torch.func.jacfwd):
        torch.testing.assert_close(derivative(loss)(x), derivative(expected)(x))
    tangents = (x,), (torch.ones_like(x),)
    torch.testing.assert_close(torch.func.jvp(loss, *tangents), torch.func.jvp(expected, *tangents))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        torch.testing.assert_close(loss(dual), expected(dual))
    if inplace:
        with pytest.raises(ArgumentError, match=r"inplace: expected False inside torch\.vmap"):
            torch.vmap(loss)(torch.stack([x, x]))


@pytest.mark.parametrize("cut", ["flatten", "rows"])
def test_views_are_accepted(leaf, labels, cut) -> None:
    x, target = leaf(2, 4, 16), labels(16, 8)
    whole = x * 2
    view = whole.flatten(0, 1) if cut == "flatten" else whole.view(8, 16)[2:]
    target = target[: len(view)]
    expected = torch.nn.functional.cross_entropy(view.detach(), target)
    loss = functional.cross_entropy(view, target, inplace=True)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert (x.grad.view(8, 16)[:2] == 0).all() == (cut == "rows")


def test_weights_of_classes_have_no_gradient(scores, labels, leaf) -> None:
    """PyTorch refuses it for classes, by a RuntimeError."""
    _, y = scores
    weight, target = leaf(16), labels(16, 8)
    message = r"weight: expected a tensor that requires no gradient.*PyTorch: .*nll_loss"
    with pytest.raises(RuntimeError, match=message) as refused:
        functional.cross_entropy(y, target, weight)
    assert isinstance(refused.value, ArgumentError)
    loss, _ = torch.ops.cto.cross_entropy(y, target, weight)
    with pytest.raises(ArgumentError, match="weight: expected a tensor that requires no gradient"):
        loss.backward()


def test_labels_out_of_range_and_no_rows(leaf) -> None:
    """PyTorch refuses the first, which on a GPU ends the process, and gives NaN for the second."""
    x = leaf(2, 16)
    assert functional.cross_entropy(x, torch.tensor([16, 1])).isnan()
    assert functional.cross_entropy(x, torch.tensor([-100, -100])) == 0


def test_gradients_of_sums_are_expanded(leaf) -> None:
    """Strides of 0 are no kernel's."""
    x = leaf(4, 6)
    functional.softmax(x, 0).sum().backward()
    functional.layer_norm(x, (6,)).t().sum().backward()
    functional.gelu(x).expand(3, 4, 6).sum().backward()
    functional.relu(x).sum(0).sum().backward()
    assert x.grad.isfinite().all()


def test_saved_tensors_are_seen_by_hooks(leaf) -> None:
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        functional.layer_norm(leaf(4, 6), (6,), leaf(6)).sum().backward()
    assert {tuple(x.shape) for x in packed} == {(4, 6), (6,), (2, 4, 1)}  # both statistics


@pytest.mark.parametrize("name", ["functional", "nn", "ops"])
def test_results_under_inference_mode(leaf, name) -> None:
    import cupy_training_ops.torch as door

    x = leaf(4, 6)
    calls = {
        "functional": lambda: door.functional.softmax(x, -1),
        "nn": lambda: door.nn.Softmax(-1)(x),
        "ops": lambda: door.ops.softmax(x, -1),
    }
    with torch.inference_mode():
        y = calls[name]()
    assert y.is_inference()
    torch.testing.assert_close(y, torch.softmax(x.detach(), -1))


def test_errors_are_pickled_and_the_packages(leaf) -> None:
    with pytest.raises(OpError) as refused:
        functional.rms_norm(leaf(4, 6), (5,))
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


# ---- beside compressed_activations ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_compiled_after_activations_were_compressed(leaf) -> None:
    """torch.compile leaves the package alone from then on, but looks through the front door."""
    import cupy_training_ops.torch as door

    x = leaf(64, 512, dtype=torch.float32)
    compiled = torch.compile(
        lambda x: functional.layer_norm(x, (512,)), fullgraph=True, backend="aot_eager"
    )
    with door.compressed_activations("default"):
        expected = functional.layer_norm(x, (512,))
        found = compiled(x)
    torch.testing.assert_close(found, expected)
    (dx,) = torch.autograd.grad(found.square().sum(), x)
    torch.testing.assert_close(dx, torch.autograd.grad(expected.square().sum(), x)[0])


@pytest.mark.filterwarnings("ignore")  # little is compressed
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "gelu", "softmax"])
def test_compressed_activations_know_who_saves_what(leaf, name) -> None:
    """As of PyTorch's own functions: norms take codes, gelu more exact ones, softmax none."""
    import cupy_training_ops.torch as door

    x = leaf(64, 512, dtype=torch.float32)

    def compute(module):
        rest = {"layer_norm": ((512,),), "rms_norm": ((512,),), "softmax": (-1,)}.get(name, ())
        with door.compressed_activations("default") as activations:
            y = getattr(module, name)(x * 1.0, *rest)
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        found = activations.report()["consumers"]
        return dx, {k: (v["tensors"], v["before"], v["after"]) for k, v in found.items()}

    (ours, consumers), (theirs, expected) = map(compute, (functional, torch.nn.functional))
    assert consumers == expected
    assert bool(consumers) == (name != "softmax")
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


X = torch.ones(4, 8)
WRONG = [
    (lambda: functional.layer_norm(None, (8,)), "cto::layer_norm: input: expected a dense tensor"),
    (lambda: functional.layer_norm([1.0], (8,)), "cto::layer_norm: input: expected a dense tensor"),
    (lambda: functional.layer_norm(X, 8), "layer_norm: normalized_shape: expected a list of int"),
    (lambda: functional.layer_norm(X, (8,), 1.0), "layer_norm: weight: expected a dense tensor"),
    (lambda: functional.softmax("x", 0), "cto::softmax: input: expected a dense tensor, got 'x'"),
    (lambda: functional.gelu(X.to_sparse()), "cto::gelu: input: .* got one of layout torch.sparse"),
    (lambda: functional.dropout(X, "much"), "dropout: p: expected a number from 0 to 1, got 'mu"),
    (lambda: functional.dropout(X, None), "dropout: p: expected a number from 0 to 1, got None"),
    (
        lambda: functional.linear_cross_entropy(X, torch.ones(10, 7), torch.ones(4).long()),
        r"linear_cross_entropy: linear_weight: expected shape \(classes, \.\.\., 8\), .* \(10, 7\)",
    ),
    (lambda: functional.layer_norm(X, (8.0,)), r"normalized_shape: .* integers, got \(8\.0,\)"),
    (lambda: functional.relu(3), "relu: input: expected a tensor, got 3"),
    (lambda: functional.rms_norm(3, (8,)), "cto::rms_norm: input: expected a dense tensor, got 3"),
    (lambda: functional.rms_norm(X.int(), (8,)), "X: expected dtype float32, .* got int32"),
    (lambda: functional.softmax(3, 0, dtype=X.dtype), "softmax: input: expected a tensor, got 3"),
    (
        lambda: functional.log_softmax(3, 0, dtype=X.dtype),
        "log_softmax: input: expected a tensor, got 3",
    ),
    (lambda: functional.dropout(3), "dropout: input: expected a tensor, got 3"),
    (lambda: functional.dropout(X, bias=3), "dropout: bias: expected a tensor, got 3"),
    (lambda: functional.dropout(X, 0, residual=3), "dropout: residual: expected a tensor, got 3"),
    (lambda: functional.embedding(X.int(), 3, 0), "embedding: weight: expected a tensor, got 3"),
    (lambda: functional.cross_entropy(3, X), "cross_entropy: input: expected a tensor, got 3"),
    (
        lambda: functional.linear_cross_entropy(X, X, None),
        "linear_cross_entropy: target: expected a tensor, got None",
    ),
    (
        lambda: functional.linear_cross_entropy(X, X, torch.ones(4).long(), linear_bias=X[0]),
        r"entropy: linear_bias: expected shape \(4,\), as the classes, got shape \(8,\)",
    ),
    (lambda: convert(None), "convert: model: expected a torch.nn.Module .*, got None"),
    (lambda: convert(torch.nn.GELU), "convert: model: expected a torch.nn.Module .* <class"),
    (lambda: convert(torch.nn.GELU(), skip="GELU"), "convert: skip: .*, got one, 'GELU': write"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_is_no_tensor_no_shape_or_no_model_is_refused_in_words(case) -> None:
    call, message = WRONG[case]
    with pytest.raises(OpError, match=message):
        call()


@pytest.mark.filterwarnings("ignore")  # PyTorch would have us trace no more
def test_a_model_that_python_does_not_run_is_refused() -> None:
    model = torch.jit.trace(torch.nn.Sequential(torch.nn.GELU()), X)
    with pytest.raises(ArgumentError, match=r"convert: model: expected .* that Python runs, got a"):
        convert(model)

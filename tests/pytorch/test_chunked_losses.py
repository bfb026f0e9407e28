# SPDX-License-Identifier: MIT
"""The loss of a linear layer, whose scores are there in chunks."""

from __future__ import annotations

import functools
import weakref

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional as theirs  # noqa: E402

from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import functional  # noqa: E402
from cupy_training_ops.torch.ops import layer_sums, linear_losses  # noqa: E402

from .pairs import with_gradients  # noqa: E402
from .test_functional import assert_all_close  # noqa: E402

small = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 128 rows of 256 classes."""
    monkeypatch.setattr(layer_sums, "CHUNK_NBYTES", 128 * 256 * 2)


@small
def test_chunks_cover_all_rows(rng) -> None:
    for n_rows in (1, 127, 128, 129, *map(int, rng.integers(1, 5000, 20))):
        actual = list(layer_sums.chunks(n_rows, 512))
        assert [row for rows in actual for row in range(n_rows)[rows]] == list(range(n_rows))
        assert max(rows.stop - rows.start for rows in actual) <= 256
    assert not list(layer_sums.chunks(0, 512))


@pytest.mark.parametrize(
    ("mib", "expected"),
    [(256, 1), (257, 2), (500, 2), (1187, 2), (1279, 2), (1280, 3), (1570, 3), (4096, 8)],
)
def test_chunks_have_nearly_512_mib(mib, expected) -> None:
    """The number is the nearest, but at least two from 256 MiB on: none has more than 640."""
    actual = list(layer_sums.chunks(mib << 10, 1 << 10))
    assert len(actual) == expected
    assert max(rows.stop - rows.start for rows in actual) <= 640 << 10


@small
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_chunks_give_the_whole_loss(leaf, labels, reduction) -> None:
    hidden, weight, bias, target = leaf(700, 24), leaf(256, 24), leaf(256), labels(256, 700)
    target[::3] = 7
    given = {"ignore_index": 7, "reduction": reduction}

    def chunked(hidden, weight, bias):
        return functional.linear_cross_entropy(hidden, weight, target, linear_bias=bias, **given)

    def whole(hidden, weight, bias):
        return theirs.cross_entropy(theirs.linear(hidden, weight, bias), target, **given)

    leaves = hidden, weight, bias
    assert_all_close(with_gradients(chunked, leaves), with_gradients(whole, leaves))
    with torch.no_grad():
        assert_all_close([chunked(*leaves)], [whole(*leaves)])


@small
@pytest.mark.parametrize("n", [256, 384, 1280])  # two, three and ten chunks
def test_sums_over_chunks_are_as_near_as_one_product(leaf, labels, n) -> None:
    """The error of the weight's gradient in bfloat16 is at most 1.5 times that of no chunks."""
    target = labels(256, n)
    hidden, weight = (
        x.detach().bfloat16().requires_grad_() for x in (leaf(n, 64), leaf(256, 64) / 8)
    )

    def chunked(hidden, weight):
        return functional.linear_cross_entropy(hidden, weight, target)

    def whole(hidden, weight):
        return theirs.cross_entropy(theirs.linear(hidden, weight), target)

    exact = with_gradients(whole, [x.detach().double().requires_grad_() for x in (hidden, weight)])
    results = with_gradients(chunked, (hidden, weight)), with_gradients(whole, (hidden, weight))
    errors = [(dw.double() / loss.double() - exact[2] / exact[0]).norm() for loss, _, dw in results]
    assert errors[0] <= 1.5 * errors[1]


@pytest.mark.parametrize("size", [1e3, 1e6, 1e8, 1e20])
@pytest.mark.parametrize("is_ignored", [True, False])
@pytest.mark.parametrize("n", [64, 640], ids=["one chunk", "chunks"])
@small
def test_one_large_row_costs_others_no_accuracy(leaf, labels, n, is_ignored, size) -> None:
    """Also of classes whose gradient it adds nothing to, beside PyTorch's own error."""
    hidden, weight, target = leaf(n, 32).detach(), leaf(256, 32).detach() / 6, labels(256, n)
    hidden[3] *= size
    hidden, weight = (x.bfloat16().requires_grad_() for x in (hidden, weight))
    target[3] = -100 if is_ignored else target[3]

    def whole(hidden, weight):
        return theirs.cross_entropy(theirs.linear(hidden, weight), target)

    def chunked(hidden, weight):
        return functional.linear_cross_entropy(hidden, weight, target)

    exact = with_gradients(whole, [x.detach().double().requires_grad_() for x in (hidden, weight)])
    actual, other = (
        with_gradients(chunked, (hidden, weight)),
        with_gradients(whole, (hidden, weight)),
    )
    # The gradient of a loss is multiplied by that loss, as a bfloat16 number, whose own error is of
    # the row's two largest scores.
    (exact_loss, _, exact_dw), *results = exact, actual, other
    unit = exact_dw / exact_loss
    errors = [(dw.double() / loss.double() - unit).norm(dim=1) for loss, _, dw in results]
    assert (errors[0] / unit.norm(dim=1)).median() <= 1.5 * (errors[1] / unit.norm(dim=1)).median()


@small
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_of_16_bits_whose_class_is_in_every_row(leaf, dtype) -> None:
    """Its gradient, summed before it is divided, is past the range of float16."""
    target = torch.zeros(700, dtype=torch.int64)
    leaves = [
        x.detach().to(dtype).requires_grad_() for x in (leaf(700, 24), leaf(256, 24) / 8, leaf(256))
    ]

    def chunked(hidden, weight, bias):
        return functional.linear_cross_entropy(hidden, weight, target, linear_bias=bias)

    def whole(hidden, weight, bias):
        return theirs.cross_entropy(theirs.linear(hidden, weight, bias), target)

    loss, *_, actual = with_gradients(chunked, leaves)
    exact_loss, *_, exact = with_gradients(
        whole, [x.detach().double().requires_grad_() for x in leaves]
    )
    assert (actual / loss.double() - exact / exact_loss).norm() <= 4e-3 * (
        exact / exact_loss
    ).norm()


@small
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("of_hidden", "of_weight"), [(100, 0.01), (1e-4, 100), (1e3, 1e-3)])
def test_layers_of_16_bits_large_and_small(leaf, dtype, of_hidden, of_weight) -> None:
    """One column is that large in every row; a sum of it is past the range of float16."""
    target = torch.zeros(900, dtype=torch.int64)
    hidden, weight = leaf(900, 24).detach() * of_hidden, leaf(256, 24).detach() * of_weight
    hidden[:, 0] = of_hidden
    leaves = [x.to(dtype).requires_grad_() for x in (hidden, weight)]

    def chunked(hidden, weight):
        return functional.linear_cross_entropy(hidden, weight, target)

    def whole(hidden, weight):
        return theirs.cross_entropy(theirs.linear(hidden, weight), target)

    _, *actual = with_gradients(chunked, leaves)
    _, *exact = with_gradients(whole, [x.detach().double().requires_grad_() for x in leaves])
    for a, b in zip(actual, exact, strict=True):
        assert (a - b).norm() <= 2e-2 * b.norm()


@small
@pytest.mark.parametrize("gradients", [False, True])
def test_scores_of_one_chunk_are_there_at_a_time(leaf, labels, monkeypatch, gradients) -> None:
    made = []

    def linear(*given):
        assert all(scores() is None for scores in made)
        scores = theirs.linear(*given)
        made.append(weakref.ref(scores))
        return scores

    monkeypatch.setattr(linear_losses, "linear", linear)
    hidden, weight = leaf(700, 24, gradients=gradients), leaf(256, 24, gradients=gradients)
    functional.linear_cross_entropy(hidden, weight, labels(256, 700))
    assert len(made) > 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("extents", [(0, 3, 4), (24, 0, 4), (24, 3, 0)])
def test_a_layer_without_elements(leaf, labels, dtype, reduction, extents) -> None:
    """The mean of no row that counts is 0; PyTorch's is NaN."""
    n_rows, n_classes, n_features = extents
    shapes = (n_rows, n_features), (n_classes, n_features), (n_classes,)
    leaves = [leaf(*shape, dtype=dtype) for shape in shapes]
    class_weight = leaf(n_classes, dtype=dtype, gradients=False).abs()
    target = labels(n_classes, n_rows) if n_classes else torch.full((n_rows,), -100)
    named = {"weight": class_weight, "reduction": reduction}

    def chunked(x, weight, bias):
        return functional.linear_cross_entropy(x, weight, target, linear_bias=bias, **named)

    def whole(x, weight, bias):
        return theirs.cross_entropy(theirs.linear(x, weight, bias), target, **named).nan_to_num()

    def results(loss, leaves):
        return [y := loss(*leaves), *torch.autograd.grad(y.sum(), leaves)]

    actual = results(chunked, leaves)
    named["weight"] = class_weight.double()
    expected = results(whole, [x.detach().double().requires_grad_() for x in leaves])
    error = torch.finfo(dtype).eps * max(2 * n_rows, 4)  # each row's gradient is rounded
    assert_all_close(actual, [x.to(dtype) for x in expected], error)


def test_gradients_that_are_not_wanted_are_not_made(leaf, labels) -> None:
    hidden, weight = leaf(8, 16, gradients=False), leaf(32, 16)
    functional.linear_cross_entropy(hidden, weight, labels(32, 8)).backward()
    assert hidden.grad is None
    assert weight.grad.shape == weight.shape


def test_what_it_does_not_serve_is_refused_in_words(leaf, labels) -> None:
    hidden, weight, target = leaf(8, 16), leaf(32, 16), labels(32, 8)
    with pytest.raises(ArgumentError, match="reduction: expected 'mean', 'sum' or 'none', got"):
        functional.linear_cross_entropy(hidden, weight, target, reduction="all")
    with pytest.raises(ArgumentError, match=r"target: expected shape \(8,\)"):
        functional.linear_cross_entropy(hidden, weight, target[:4])
    with pytest.raises(ArgumentError, match="padding_idx: expected an index from -32 to 31"):
        functional.embedding(target, weight, 32)
    with pytest.raises(ArgumentError, match=r"Scale: expected shape \(16,\)"):
        functional.layer_norm(hidden, (16,), weight)
    with pytest.raises(
        ArgumentError, match=r"rms_norm: input: expected a shape that ends in \(8,\)"
    ):
        functional.rms_norm(hidden, (8,))
    with pytest.raises(ArgumentError, match="approximate: expected 'none' or 'tanh', got 'erf'"):
        functional.gelu(hidden, "erf")


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, "float32", float])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_dtype_of_no_loss_is_refused(leaf, labels, dtype, reduction) -> None:
    """An integer would round the loss, and have no gradient."""
    given = leaf(8, 16), leaf(32, 16), labels(32, 8)
    with pytest.raises(ArgumentError, match="dtype: expected a floating-point dtype"):
        functional.linear_cross_entropy(*given, reduction=reduction, dtype=dtype)


@pytest.mark.parametrize("name", ["linear_weight", "target", "linear_bias", "weight"])
def test_tensors_elsewhere_are_refused(leaf, labels, name) -> None:
    """Each by its name: a weight without data is no weight."""
    given = {"linear_weight": leaf(32, 16), "target": labels(32, 8)}
    given |= {"linear_bias": leaf(32), "weight": leaf(32, gradients=False)}
    with pytest.raises(ArgumentError, match=f"{name}: expected device cpu, got meta"):
        functional.linear_cross_entropy(leaf(8, 16), **given | {name: given[name].to("meta")})


@pytest.mark.parametrize("shape", [(2, 5), (), (3,)])
@pytest.mark.parametrize("way", ["probabilities", "derivative", "measures"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_of_several_dimensions_where_all_scores_are_there(
    leaf, labels, shape, way, reduction
) -> None:
    """With as many classes as one of them, which was taken for the classes."""
    hidden, weight = leaf(*shape, 16), leaf(5, 16)
    target = labels(5, *shape)
    if way == "probabilities":
        target = leaf(*shape, 5).softmax(-1).detach().requires_grad_()
    options = {"lse_square_scale": 0.1, "reduction": reduction}

    def total(hidden):
        measured = {"return_z_loss": True} if way == "measures" else {}
        loss = functional.linear_cross_entropy(hidden, weight, target, **options, **measured)
        loss = loss.loss if measured else loss
        assert loss.shape == (shape if reduction == "none" else ())
        return loss.square().sum()

    def expected(hidden):
        scores = hidden.reshape(-1, 16) @ weight.t()
        rows = target.reshape(-1, 5) if way == "probabilities" else target.reshape(-1)
        losses = theirs.cross_entropy(scores, rows, reduction="none")
        losses = losses + 0.1 * scores.logsumexp(1).square()
        whole = {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]
        return whole.square().sum()

    torch.testing.assert_close(total(hidden), expected(hidden))
    gradient = torch.autograd.grad(expected(hidden), hidden)[0]
    if way == "probabilities":
        actual = torch.autograd.grad(total(hidden), hidden)[0]
    else:
        actual = torch.func.grad(total)(hidden.detach())
    torch.testing.assert_close(actual, gradient)


def test_kinds_of_tensors_that_no_loss_has(leaf, labels) -> None:
    hidden, weight, target = leaf(8, 16), leaf(32, 16), labels(32, 8)
    complex_weight = torch.ones(32, dtype=torch.complex64)
    with pytest.raises(ArgumentError, match="dtype: expected floating-point numbers"):
        functional.linear_cross_entropy(hidden, weight, target, weight=complex_weight)
    shares = torch.eye(32, dtype=torch.float64)[target].to_sparse()
    if not hasattr(theirs, "linear_cross_entropy"):  # before PyTorch 2.13
        with pytest.raises(ArgumentError, match="layout: expected dense tensors"):
            functional.linear_cross_entropy(hidden, weight, shares)
        return
    loss = functional.linear_cross_entropy(hidden, weight, shares)
    torch.testing.assert_close(loss, theirs.cross_entropy(hidden @ weight.t(), target))


@small
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_weights_of_classes_large_and_small(leaf, labels, dtype, reduction, size) -> None:
    """Beside PyTorch's own error in the same type; what float16 has no room for is left out."""
    hidden, weight, target = leaf(700, 24), leaf(256, 24).detach() / 5, labels(256, 700)
    leaves = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight)]
    of_classes = (leaf(256).detach().abs() + 0.1) * size
    if dtype == torch.float16 and (reduction == "none" or size < 1):
        of_classes = of_classes / size

    def chunked(hidden, weight):
        given = {"weight": of_classes.to(hidden.dtype), "reduction": reduction}
        return functional.linear_cross_entropy(hidden, weight, target, **given)

    def whole(hidden, weight):
        given = {"weight": of_classes.to(hidden.dtype), "reduction": reduction}
        return theirs.cross_entropy(theirs.linear(hidden, weight), target, **given)

    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact, actual = (
        [y := function(*given), *torch.autograd.grad(y.sum(), given)]
        for function, given in ((whole, wide), (chunked, leaves))
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for a, b in zip(actual, exact, strict=True):
        assert (a - b).norm() <= tolerance * b.norm()


@small
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_terms_over_chunks(leaf, dtype, reduction) -> None:
    """Every row has one class, whose sums are large, and a z-loss that multiplies gradients."""
    target = torch.zeros(700, dtype=torch.int64)
    target[::5] = -100
    leaves = [x.detach().to(dtype).requires_grad_() for x in (leaf(700, 24), leaf(256, 24))]

    def whole(hidden, weight):
        scores = 20 * torch.tanh(theirs.linear(hidden, weight) / 20)
        losses = theirs.cross_entropy(scores, target, label_smoothing=0.2, reduction="none")
        counts = target != -100
        losses = losses + torch.where(counts, 0.5 * scores.logsumexp(1).square(), 0)
        return losses if reduction == "none" else losses.sum() / counts.sum()

    def chunked(hidden, weight):
        terms = {"label_smoothing": 0.2, "lse_square_scale": 0.5, "softcap": 20.0}
        return functional.linear_cross_entropy(hidden, weight, target, reduction=reduction, **terms)

    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact, actual = (
        [y := function(*given), *torch.autograd.grad(y.sum(), given)]
        for function, given in ((whole, wide), (chunked, leaves))
    )
    for a, b in zip(actual, exact, strict=True):
        assert (a - b).norm() <= (1e-10 if dtype == torch.float64 else 2e-2) * b.norm()


@small
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_a_large_z_loss_fit(leaf, dtype) -> None:
    """Each row's gradient of one class is 16, in the same direction."""
    target = torch.zeros(700, dtype=torch.int64)
    hidden, weight = torch.ones(700, 24), leaf(256, 24).detach() / 100
    weight[1] = 0.65
    leaves = [x.to(dtype).requires_grad_() for x in (hidden, weight)]
    functional.linear_cross_entropy(*leaves, target, lse_square_scale=0.5).backward()
    wide = [x.detach().double().requires_grad_() for x in leaves]
    scores = theirs.linear(*wide)
    (theirs.cross_entropy(scores, target) + 0.5 * scores.logsumexp(1).square().mean()).backward()
    for a, b in zip(leaves, wide, strict=True):
        assert (a.grad - b.grad).norm() <= 2e-2 * b.grad.norm()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_an_index_to_ignore_that_is_none_is_refused(leaf, labels, reduction) -> None:
    """As a reduction where the earlier form had the index."""
    expected = "linear_cross_entropy: ignore_index: expected an integer or None, got 'sum'"
    with pytest.raises(ArgumentError, match=expected):
        functional.linear_cross_entropy(
            leaf(5, 3), leaf(7, 3), labels(7, 5), ignore_index="sum", reduction=reduction
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_pytorchs_options_bound_the_rows_of_a_chunk(leaf, labels, monkeypatch, reduction) -> None:
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):  # before PyTorch 2.13
        pytest.skip("this PyTorch has no options")
    rows, hidden, weight, target = [], leaf(700, 24), leaf(256, 24), labels(256, 700)

    def linear(hidden, *others):
        rows.append(len(hidden))
        return theirs.linear(hidden, *others)

    def chunked(hidden, weight, **options):
        named = {"options": torch.nn.LinearCrossEntropyOptions(**options)} if options else {}
        return functional.linear_cross_entropy(hidden, weight, target, reduction=reduction, **named)

    whole = with_gradients(chunked, (hidden, weight))
    monkeypatch.setattr(linear_losses, "linear", linear)
    bounded = functools.partial(chunked, batch_chunk_size=300)
    assert_all_close(with_gradients(bounded, (hidden, weight)), whole)
    passes = 1 + (reduction == "none")  # each row's scores are computed again
    assert rows == [300, 300, 100] * passes
    compiled = torch.compile(bounded, backend="aot_eager", fullgraph=True)
    assert_all_close(with_gradients(compiled, (hidden, weight)), whole)


def test_rows_that_are_added_last_are_bounded_too(leaf, labels, monkeypatch) -> None:
    rows = []

    def linear(hidden, *others):
        rows.append(len(hidden))
        return theirs.linear(hidden, *others)

    monkeypatch.setattr(linear_losses, "linear", linear)
    hidden, weight = (leaf(*shape).detach().bfloat16() for shape in ((900, 8), (16, 8)))
    inputs = (hidden.requires_grad_(), weight.requires_grad_(), labels(16, 900))
    arguments = (None, -100, "mean", None, (True, True, False), None, 0.0, 0.0, 0.0)
    torch.ops.cto.linear_cross_entropy(*inputs, *arguments, 7)
    assert max(rows) == 7
    with pytest.raises(ArgumentError, match="chunk_rows: expected 0 or more, got -1"):
        torch.ops.cto.linear_cross_entropy(*inputs, *arguments, -1)


@pytest.fixture
def widths(monkeypatch):
    """The widths of the scores that chunks compute."""
    results = []

    def linear(hidden, *others):
        scores = theirs.linear(hidden, *others)
        results.append(scores.shape[1])
        return scores

    monkeypatch.setattr(linear_losses, "linear", linear)
    return results


@small
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n_classes", [1, 250, 257])
def test_added_classes_change_nothing(
    leaf, labels, rng, widths, n_classes, dtype, reduction
) -> None:
    """Beside PyTorch's losses of the same rounded numbers in float64."""
    dtype = getattr(torch, dtype)
    shapes = (300, 24), (n_classes, 24), (n_classes,)
    leaves = [leaf(*shape).detach().to(dtype).requires_grad_() for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    target, ignored = labels(n_classes, 300), int(rng.integers(n_classes, n_classes + 9))
    target[::3] = ignored
    class_weight = torch.from_numpy(rng.uniform(0.5, 2, n_classes)).to(dtype)
    slope = torch.from_numpy(rng.uniform(-1, 1, 300 if reduction == "none" else ()))
    slope /= 100 if reduction == "sum" else 1  # so that float16 has their gradients
    named = {"ignore_index": ignored, "reduction": reduction}

    def ours(hidden, weight, bias):
        loss = functional.linear_cross_entropy(
            hidden, weight, target, linear_bias=bias, weight=class_weight, **named
        )
        return loss * slope.to(loss.dtype)

    def whole(hidden, weight, bias):
        scores = theirs.linear(hidden, weight, bias)
        return theirs.cross_entropy(scores, target, class_weight.double(), **named) * slope

    results = with_gradients(ours, leaves)
    itemsize = leaves[0].element_size()
    assert set(widths) == {-(-n_classes * itemsize // 16) * 16 // itemsize}
    assert [x.shape for x in results[1:]] == [x.shape for x in leaves]
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}
    for result, expected in zip(results, with_gradients(whole, exact), strict=True):
        error = (result.double() - expected).norm()
        assert error <= bound[dtype] * expected.norm() + 1e-9


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_weight_of_no_rows_class_may_be_anything(leaf, labels, dtype, value, reduction) -> None:
    """As 1 / 0, where weights are 1 over the number of rows that a class has."""
    dtype = getattr(torch, dtype)
    leaves = [leaf(*shape).detach().to(dtype).requires_grad_() for shape in ((40, 5), (17, 5))]
    target, class_weight, results = labels(16, 40), torch.ones(17), []
    for class_weight[16] in (value, 0):
        named = {"weight": class_weight.clone(), "reduction": reduction}
        loss = functools.partial(functional.linear_cross_entropy, target=target, **named)
        results.append(with_gradients(loss, leaves))
    assert all(x.isfinite().all() and torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ignored", [2**32 - 100, 2**33 + 5, -(2**40)])
def test_an_index_beyond_labels_of_32_bits_ignores_none(
    leaf, labels, dtype, ignored, reduction
) -> None:
    """Losses are those of labels of 64 bits, also if a label is its lowest 32 bits."""
    dtype = getattr(torch, dtype)
    leaves = [leaf(*shape).detach().to(dtype).requires_grad_() for shape in ((40, 5), (17, 5))]
    target, results = labels(17, 40).int(), []
    target[0] = torch.tensor(ignored).int()
    named = {"weight": torch.arange(1, 18) / 8, "return_token_accuracy": True}
    named |= {"reduction": reduction, "ignore_index": ignored}
    for each in (target, target.long()):
        measured = functional.linear_cross_entropy(*leaves, each, **named)
        gradients = torch.autograd.grad(measured.loss.sum(), leaves)
        results.append((measured.loss, measured.token_accuracy, *gradients))
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("label", [250, 251, 252, 10**6, -1])
@pytest.mark.parametrize("ignored", [-100, 251, 252])
def test_labels_among_added_classes_make_the_loss_nan(leaf, labels, widths, label, ignored) -> None:
    hidden, weight, target = leaf(20, 24), leaf(250, 24), labels(250, 20)
    target[7] = label
    named = {"ignore_index": ignored, "reduction": "none"}
    losses = functional.linear_cross_entropy(hidden.float(), weight.float(), target, **named)
    assert set(widths) == {252}
    expected = [i for i in range(20) if i == 7 and label != ignored]
    assert losses.isnan().nonzero().flatten().tolist() == expected
    assert losses[7] == 0 or label != ignored


@pytest.mark.parametrize("terms", [{"label_smoothing": 0.1}, {"softcap": 5.0}])
def test_terms_in_which_added_classes_would_count_have_none(leaf, labels, widths, terms) -> None:
    layer = leaf(20, 24).float(), leaf(250, 24).float()
    functional.linear_cross_entropy(*layer, labels(250, 20), **terms)
    assert set(widths) == {250}


def test_measures_know_no_added_class(leaf, labels, widths) -> None:
    """All scores are far below 0, and those of added classes would be 0."""
    hidden, weight = leaf(20, 24).abs().float(), -leaf(250, 24).abs().float() - 1
    target = labels(250, 20)
    named = {"lse_square_scale": 0.1, "return_predicted_tokens": True, "return_z_loss": True}
    result = functional.linear_cross_entropy(hidden, weight, target, **named)
    scores = theirs.linear(hidden, weight)
    assert 252 in widths
    assert torch.equal(result.predicted_tokens, scores.argmax(1))
    expected = 0.1 * scores.double().logsumexp(1).square().mean()
    assert abs(result.z_loss - expected) <= 1e-5 * expected


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_mean_of_rows_of_no_weight_is_0(leaf, labels, smoothing) -> None:
    leaves, target = (leaf(6, 4), leaf(3, 4)), labels(2, 6)
    named = {"weight": torch.tensor([0.0, 0, 1], dtype=torch.float64), "label_smoothing": smoothing}
    chunked = with_gradients(
        lambda x, w: functional.linear_cross_entropy(x, w, target, **named), leaves
    )
    whole = with_gradients(
        lambda x, w: functional.cross_entropy(theirs.linear(x, w), target, **named), leaves
    )
    for results in (chunked, whole):
        assert all(not each.any() for each in results)


def test_derivatives_of_functions_take_options(leaf, labels) -> None:
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):  # before PyTorch 2.13
        pytest.skip("this PyTorch has no options")
    x, weight, target = leaf(9, 4), leaf(5, 4), labels(5, 9)
    loss = functools.partial(functional.linear_cross_entropy, linear_weight=weight, target=target)
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=4)
    actual = torch.func.grad(functools.partial(loss, options=options))(x.detach())
    torch.testing.assert_close(actual, torch.func.grad(loss)(x.detach()))

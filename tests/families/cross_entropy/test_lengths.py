# SPDX-License-Identifier: MIT
"""Losses of every length, axis and type, what they keep in memory, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from references import computed

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, dtype_name
from cupy_training_ops.families.softmax.samples import logits
from cupy_training_ops.registry import FAMILIES
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.idle import modules
from cupy_training_ops.testing.samples import all_samples

from .calls import BOTH, GRADIENT, H200, LABELS, LOSS, call, reductions

# ---- every length, axis and type -----------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "n_classes", [1, 31, 33, 1023, 1024, 1025, 2047, 2048, 2049, 131_072], ids=str
)
def test_numbers_of_classes(run, rng, n_classes, offset) -> None:
    x = logits(rng, (2, n_classes), BFLOAT16)
    labels = rng.integers(0, n_classes, 2)
    op = get_op(BOTH)(reduction="sum")
    expected = computed(op, x, labels)
    found = op(run.place(x, offset), run.place(labels))
    for actual, wanted in zip(found, expected, strict=True):
        assert_matches(run.host(actual), wanted)
    outputs = get_op(LOSS)(output_type="float32")(run.place(x, offset), run.place(labels))
    wanted = computed(get_op(LOSS)(output_type=FLOAT32), x, labels)
    for pair in zip(map(run.host, outputs), wanted, strict=True):
        assert_matches(*pair)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=dtype_name)
@pytest.mark.parametrize("n_classes", [77, 264])
def test_every_place_of_a_label(run, rng, n_classes, dtype) -> None:
    """Before the vectors of a row, in each of them and behind; one thread writes it."""
    x, labels = logits(rng, (n_classes, n_classes), dtype), np.arange(n_classes)
    found = call(run, BOTH, x, labels, reduction="none")
    for actual, wanted in zip(
        found, computed(get_op(BOTH)(reduction="none"), x, labels), strict=True
    ):
        assert_matches(actual, wanted)


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 3, 4), (2, 70, 129)])
def test_the_bias_has_the_layout_of_the_scores(run, rng, shape) -> None:
    """Upstream adds it in the layout of its transposed copy."""
    log_prob, labels = logits(rng, shape, FLOAT16), rng.integers(0, 5, (2, *shape[2:]))
    bias, dy = logits(rng, shape, FLOAT32), np.ones((), FLOAT16)
    inputs = (dy, log_prob, labels, None, None)
    plain, added = (call(run, GRADIENT, *inputs, b, output_type="float32")[0] for b in (None, bias))
    assert_matches(added, plain + bias)


def test_float64_is_float64_throughout(run, rng) -> None:
    x = 1e4 * rng.choice([-1, 1], (5, 70)) + rng.standard_normal((5, 70))
    labels = rng.integers(0, 70, 5)
    found = call(run, LOSS, x, labels)
    for actual, expected in zip(found, computed(get_op(LOSS)(), x, labels), strict=True):
        assert (np.abs(actual - expected) <= 1e-12 * (1 + np.abs(expected))).all()


def test_the_mean_of_many_small_losses(run) -> None:
    """Each divided by 30,000 and rounded to float16, as upstream does, they would be 0."""
    n, loss = 30_000, 0.01
    x = np.zeros((n, 2), FLOAT16)
    x[:, 1] = math.log(math.exp(loss) - 1)
    found, _ = call(run, LOSS, x, np.zeros(n, np.int64))
    assert abs(float(found) - loss) < 1e-3


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=dtype_name)
@pytest.mark.parametrize(
    ("dy", "weight", "rows"),
    [(3e38, 4, 4), (3e38, 3e38, 1), (2, 3e38, 1), (-3e38, 1000, 9), (1e-30, 1e-30, 3), (1, 1, 5)],
    ids=str,
)
def test_slopes_near_the_ends_of_the_range(run, rng, dy, weight, rows, dtype) -> None:
    """What is divided afterwards may be beyond the range in between."""
    x, labels = np.full((rows, 37), -np.log(37), dtype), rng.integers(0, 37, rows)
    weights = np.full(37, weight, dtype)
    given = (np.array(dy, dtype), x, labels, weights)
    (gradient,) = call(run, GRADIENT, *given)
    expected = computed(get_op(GRADIENT)(), *given)
    size = np.abs(expected.astype(np.float64)).max()
    assert np.isfinite(size)
    assert size >= abs(dy) / rows / 2
    scaled = (a.astype(np.float64) / size for a in (gradient, expected))
    np.testing.assert_allclose(*scaled, atol=1e-6 if dtype == FLOAT32 else 1e-2)


@pytest.mark.parametrize("rows", [4, 300, 5000])
@pytest.mark.parametrize("name", [LOSS, BOTH, "SparseSoftmaxCrossEntropy"])
def test_the_mean_of_losses_whose_sum_is_beyond_the_range(run, name, rows) -> None:
    x = np.zeros((rows, 3), FLOAT32)
    x[:, 1] = 3e38
    loss, _ = call(run, name, x, np.zeros(rows, np.int64))
    assert abs(float(loss) / 3e38 - 1) < 1e-6


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=dtype_name)
@pytest.mark.parametrize("name", [LOSS, BOTH, "SparseSoftmaxCrossEntropy"])
def test_weights_whose_sum_is_beyond_the_range(run, rng, name, dtype) -> None:
    """So are the weighted losses of rows; their mean is that of weights of size 1."""
    shape, scale = (300, 7), 2.0**127
    x, labels = logits(rng, shape, dtype), rng.integers(0, 7, 300)
    small = rng.uniform(1, 1.9, 300 if name.startswith("Sparse") else 7).astype(dtype)
    large = (small.astype(np.float64) * scale).astype(dtype)
    for found, expected in zip(
        *(call(run, name, x, labels, w) for w in (large, small)), strict=True
    ):
        assert_matches(found, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_slope_of_weights_whose_sum_is_beyond_the_range(run, rng, reduction) -> None:
    """No number of them is subnormal: a GPU's arithmetic flushes those."""
    x, labels = logits(rng, (50, 7), FLOAT32), rng.integers(0, 7, 50)
    dy = np.array(rng.uniform(1, 2, 50 if reduction == "none" else ()), FLOAT32)
    small, by = rng.uniform(2, 3.8, 7).astype(FLOAT32), FLOAT32.type(2.0**126)
    large, small_dy = (call(run, GRADIENT, dy / k, x, labels, small * w, reduction=reduction)[0]
                       for w, k in ((by, 1 if reduction == "mean" else by), (1, 1)))  # fmt: skip
    assert_matches(large, small_dy)
    assert np.abs(large).max() > 1e-3


def test_the_mean_of_dense_losses_whose_sum_is_beyond_the_range(run) -> None:
    x, target = np.zeros((70, 3), FLOAT32), np.zeros((70, 3), FLOAT32)
    x[:, 1], target[:, 0] = 3e38, 1
    loss, _ = call(run, "SoftmaxCrossEntropy", x, target)
    assert abs(float(loss) / 3e38 - 1) < 1e-6


# ---- memory --------------------------------------------------------------------------------------


def workspace(name: str, *specs, **attributes) -> int:
    op = get_op(name)(**attributes)
    results = op.infer(*specs)
    return op.plan(H200, *specs, *results).workspace_nbytes


@reductions
@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_scratch_memory_is_a_number_a_row(dtype, reduction) -> None:
    for rows in (1, 8192, 1_000_000):
        scores, labels = Spec((rows, 131_072), dtype), Spec((rows,), INT64)
        weights = Spec((131_072,), dtype)
        for name, more in ((LOSS, (7,)), (BOTH, (7, None)), ("SoftmaxCrossEntropyLoss", ())):
            nbytes = workspace(name, scores, labels, weights, *more, reduction=reduction)
            assert nbytes <= 64 * 1024 + 16 * rows
        dense = workspace("SoftmaxCrossEntropy", scores, scores, reduction=reduction)
        assert dense <= 64 * 1024 + 16 * rows


def test_log_probabilities_that_are_not_asked_for_are_not_made(run, scores) -> None:
    loss, log_prob = call(run, LOSS, scores, LABELS, outputs=("output",))
    assert log_prob is None
    assert_matches(loss, call(run, LOSS, scores, LABELS)[0])
    with launch_log() as log:
        none, log_prob = call(run, LOSS, scores, LABELS, outputs=("log_prob",))
    assert none is None
    assert len(log) == 1
    assert_matches(log_prob, call(run, LOSS, scores, LABELS)[1])


@pytest.mark.parametrize("shape", [(6, 37), (2, 5003), (3, 50, 7), (2, 20_003)])
def test_the_gradient_may_be_written_over_the_scores(anywhere, rng, shape) -> None:
    x, labels = logits(rng, shape, FLOAT32), rng.integers(0, shape[1], (shape[0], *shape[2:]))
    expected = computed(get_op(BOTH)(), x, labels, None, None, 8.0)
    placed = anywhere.place(x)
    loss, gradient = get_op(BOTH)()(
        placed, anywhere.place(labels), None, None, 8.0, out=(None, placed)
    )
    assert gradient is placed
    assert_matches(anywhere.host(loss), expected[0])
    assert_matches(anywhere.host(placed), expected[1])


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=dtype_name)
def test_a_gradient_may_be_written_over_log_prob_and_bias(anywhere, rng, dtype) -> None:
    log_prob, bias = (logits(rng, (5, 1025), dtype) for _ in range(2))
    labels, dy = rng.integers(0, 1025, 5), np.ones((), dtype)
    (expected,) = call(anywhere, GRADIENT, dy, log_prob, labels, None, None, bias)
    for i in (1, 5):
        placed = [None if a is None else anywhere.place(a)
                  for a in (dy, log_prob, labels, None, None, bias)]  # fmt: skip
        get_op(GRADIENT)()(*placed, out=placed[i])
        assert_matches(anywhere.host(placed[i]), expected, 0)


def test_the_loss_scale_changes_without_another_plan(run, scores) -> None:
    op = get_op(BOTH)()
    arrays = [run.place(scores), run.place(LABELS)]
    first = run.host(op(*arrays, None, None, 1.0)[1]).copy()
    for scale in (2.0, 1024.0):
        assert_matches(run.host(op(*arrays, None, None, scale)[1]), first * np.float32(scale))
    assert len(op._remembered) == 1


def test_at_most_30_compilations_for_one_architecture() -> None:
    found = [
        module
        for family in ("softmax", "cross_entropy")
        for module in modules([s for name in FAMILIES[family] for s in all_samples()[name]], H200)
    ]
    assert {m.source.name for m in found} == {"softmax", "cross_entropy"}
    assert len(found) <= 30


def fixed(run) -> list[bytes]:
    rng = np.random.default_rng(5)
    x, labels = logits(rng, (3000, 40), FLOAT32), rng.integers(0, 40, 3000)
    weights = rng.uniform(0, 1, 40).astype(FLOAT32)
    return [array.tobytes() for array in call(run, BOTH, x, labels, weights, 3)]


def test_the_order_of_threads_changes_no_bit(in_every_order) -> None:
    first, *others = in_every_order(fixed)
    assert all(other == first for other in others)


# ---- bad input -----------------------------------------------------------------------------------

X, DY = np.zeros((4, 5), FLOAT32), np.zeros((), FLOAT32)
WEIGHTS = np.ones(5, FLOAT32)
WRONG = [
    (LOSS, (X, np.zeros(4, FLOAT32)), {}, DtypeError, "labels: expected dtype int64, int32"),
    (LOSS, (X, np.zeros(5, int)), {}, ArgumentError, r"labels: expected shape \(4,\)"),
    (LOSS, (X, LABELS[:4], WEIGHTS[:4]), {}, ArgumentError, r"weights: expected shape \(5,\)"),
    (LOSS, (X, LABELS[:4], WEIGHTS.astype(FLOAT16)), {}, DtypeError, "weights: expected dtype"),
    (LOSS, (X, LABELS[:4], None, 1.5), {}, ArgumentError, "ignore_index: expected an integer"),
    (LOSS, (X, LABELS[:4], None, (1, 2)), {}, ArgumentError, "ignore_index: expected an integer"),
    (LOSS, (X[0], LABELS[:1]), {}, ArgumentError, r"scores: expected shape \(N, C, ...\)"),
    (LOSS, (DY, LABELS[:1]), {}, ArgumentError, r"scores: expected shape \(N, C, ...\)"),
    (LOSS, (X, LABELS[:4]), {"output_type": "int64"}, DtypeError, "output_type: expected float32"),
    (LOSS, (X, LABELS[:4]), {"output_type": "float64"}, DtypeError, "types: expected such as"),
    (LOSS, (X, LABELS[:4]), {"reduction": "max"}, ArgumentError, "reduction: expected one of"),
    ("SoftmaxCrossEntropyLoss", (X, LABELS[:4]), {"ignore_index": "1"}, ArgumentError,
     "ignore_index: expected an integer"),
    ("SparseSoftmaxCrossEntropy", (DY, LABELS[:1]), {}, ArgumentError,
     "logits: expected rank 1 or more, got shape"),
    ("SparseSoftmaxCrossEntropy", (X, LABELS[:4], WEIGHTS), {}, ArgumentError,
     r"weight: expected shape \(4,\), as label"),
    ("SoftmaxCrossEntropy", (DY, DY), {}, ArgumentError, "logits: expected arrays of at least"),
    ("SoftmaxCrossEntropy", (X, X[0]), {}, ArgumentError, r"label: expected shape \(4, 5\)"),
    (GRADIENT, (X, X, LABELS[:4]), {}, ArgumentError, "dY: expected one element for mean"),
    (GRADIENT, (DY, X, LABELS[:4]), {"reduction": "none"}, ArgumentError,
     r"dY: expected shape \(4,\), as the labels"),
    (GRADIENT, (DY, X, LABELS[:4], None, None, X[0]), {}, ArgumentError,
     r"bias: expected shape \(4, 5\), as log_prob"),
    (GRADIENT, (DY, X, LABELS[:4], None, None, X.astype(np.float16)), {}, ArgumentError,
     "bias: expected float32, as d_logits, got float16"),
    ("SoftmaxCrossEntropyGrad", (X, X, X), {}, ArgumentError, "dY: expected one element for mean"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "attributes", "error", "message"), WRONG)
def test_bad_input_is_named(anywhere, name, inputs, attributes, error, message) -> None:
    with pytest.raises(error, match=f"^{name}: {message}"):
        call(anywhere, name, *inputs, **attributes)


def test_an_output_over_another_is_refused(anywhere) -> None:
    out = anywhere.place(np.zeros((4, 5), FLOAT32))
    scores, labels = anywhere.place(X), anywhere.place(LABELS[:4])
    op = get_op(LOSS)(reduction="none")
    with pytest.raises(ArgumentError, match="expected memory of its own"):
        op(scores, labels, out=(out.reshape(-1)[2:6], out))
    with pytest.raises(ArgumentError, match="expected memory of its own"):
        op(scores, labels, out=(None, scores))
    assert not anywhere.host(out).any()
    assert anywhere.host(scores).tobytes() == X.astype(FLOAT64).astype(FLOAT32).tobytes()

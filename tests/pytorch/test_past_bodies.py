# SPDX-License-Identifier: MIT
"""Calls like one before, which go past an operator's body, on emulated kernels or none."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, tensors_on  # noqa: E402
from torch.nn import functional as theirs  # noqa: E402

from cupy_training_ops.torch import functional, ops  # noqa: E402
from cupy_training_ops.torch.ops import elementwise, launching, rows  # noqa: E402


class Body:
    """A body whose calls are counted."""

    n_calls = 0

    def __init__(self, body) -> None:
        self.body = body

    def __call__(self, *given):
        self.n_calls += 1
        return self.body(*given)


def is_gone_past(body, arguments) -> bool:
    """Return True if the next call of a kind leaves the body out, with the results of the first."""
    counted, tensors = Body(body), tuple(x for x in arguments if isinstance(x, torch.Tensor))
    expected, run = launching.trace(counted, arguments, launching.EVERY)
    torch.testing.assert_close(run(arguments, tensors), expected)
    return counted.n_calls == 1


def test_the_next_call_does_not_come_to_the_body(made) -> None:
    """The first result alone is another kind than all of them."""
    row = made(64)
    given, body = ((64,), row, None, 1e-5), Body(rows._layer_norm)
    with tensors_on(HollowTensors()) as backend:
        runs = [
            launching.trace(body, (made(4, 64), *given), which)[1]
            for which in (launching.FIRST, launching.EVERY)
        ]
        n_launches, x = len(backend.launches), made(4, 64)
        first, every = (run((x, *given), (x, row)) for run in runs)
        assert len(backend.launches) == n_launches + 2
    assert body.n_calls == 2
    assert tuple(first.shape) == (4, 64)
    assert [tuple(y.shape) for y in every] == [(4, 64), (4, 1), (4, 1)]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("form", ["rows", "gaps"])
def test_the_bits_of_relu_come_with_it(made, form) -> None:
    """Whether it was called before or not, and with gaps; the first result alone, too."""
    x, door = made(16, 40) if form == "rows" else made(16, 40).t(), ops.DOORS["relu"]
    for _ in range(4):
        y, bits = door.every(x)
        for actual in (y, door.first(x)):
            torch.testing.assert_close(actual, torch.relu(x))
        flat = x.contiguous().flatten().numpy(force=True)
        numbers = bits.view(torch.uint8).numpy(force=True)
        assert (np.unpackbits(numbers, bitorder="big")[: flat.size] == (flat > 0)).all()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("gelu", ()),
        ("relu", ()),
        ("softmax", (-1,)),
        ("log_softmax", (-1,)),
        ("layer_norm", ((40,),)),
        ("rms_norm", ((40,), None, 0.5)),
        ("cross_entropy", (torch.arange(16),)),
    ],
)
def test_tensors_that_begin_where_no_vector_does_go_the_longer_way(
    made, name, given, records
) -> None:
    """After calls whose tensors are like them, but for their addresses."""
    for n in range(20):
        x = made(16 * 40 + n // 19)[n // 19 :].view(16, 40).requires_grad_(records)
        assert (x.data_ptr() % 16 != 0) == (n == 19)
        actual, expected = (getattr(module, name)(x, *given) for module in (functional, theirs))
        torch.testing.assert_close(actual, expected)
        if records and n > 17:
            dy = made(*actual.shape)
            pairs = (torch.autograd.grad(y, x, dy) for y in (actual, expected))
            torch.testing.assert_close(*pairs, atol=2e-5, rtol=2e-5)


@pytest.mark.usefixtures("emulated")
def test_a_tensor_that_is_given_twice_is_two_arguments(made) -> None:
    x, row = made(5, 24), made(24)
    for weight, bias in ((row, row), (made(24), made(24)), (row, made(24)), (row, row)):
        expected = theirs.layer_norm(x, (24,), weight, bias)
        torch.testing.assert_close(functional.layer_norm(x, (24,), weight, bias), expected)


@pytest.mark.usefixtures("emulated")
def test_calls_of_all_kinds_in_any_order(made, labels, seed) -> None:
    """Each argument that a kind depends on changes what comes."""
    x, rows = made(5, 24), [made(24) for _ in range(2)]
    target, weights = labels(24, 5), made(24).abs()
    calls = [
        *[("softmax", x, dim) for dim in (0, 1, -1)],
        *[("gelu", x, how) for how in ("none", "tanh")],
        *[("rms_norm", x, (24,), row, eps) for row in (*rows, None) for eps in (1e-5, 0.5)],
        *[("layer_norm", x, (24,), *pair, 0.1) for pair in ((rows[0], None), (None, None), rows)],
        *[
            ("cross_entropy", x, target, w, ignored, how)
            for w in (weights, None)
            for ignored, how in ((-100, "mean"), (int(target[0]), "mean"), (-100, "none"))
        ],
    ]

    def computed(call, module):
        name, *given = call
        if name == "cross_entropy":
            *given, ignored, how = given
            named = {"ignore_index": ignored, "reduction": how}
            return getattr(module, name)(*given, **named)
        if name == "gelu":
            return module.gelu(given[0], approximate=given[1])
        return getattr(module, name)(*given)

    order = random.Random(seed)
    for call in order.sample(calls * 3, 3 * len(calls)):
        x.copy_(made(5, 24))
        torch.testing.assert_close(computed(call, functional), computed(call, theirs))


@pytest.mark.usefixtures("emulated")
def test_what_a_body_makes_is_no_argument(made) -> None:
    """A weight that is left out is made anew, and so is one with gaps."""
    x = made(5, 24)
    for weight in (None, made(48)[::2]):
        for _ in range(3):
            actual = functional.rms_norm(x, (24,), weight, 1e-5)
            torch.testing.assert_close(actual, theirs.rms_norm(x, (24,), weight, 1e-5))
        assert not is_gone_past(rows._rms_norm, (x, (24,), weight, 1e-5))
    assert is_gone_past(rows._rms_norm, (x, (24,), made(24), 1e-5))


@pytest.mark.usefixtures("emulated")
def test_rows_of_padding_have_no_gradient_in_any_call(made, labels) -> None:
    """Only without them is a call its launches alone."""
    for padding in (None, 2):
        for _ in range(4):
            table, indices, dy = made(7, 8).requires_grad_(), labels(7, 3, 5), made(3, 5, 8)
            actual, expected = (
                torch.autograd.grad(module.embedding(indices, table, padding), table, dy)
                for module in (functional, theirs)
            )
            torch.testing.assert_close(actual, expected)
    assert is_gone_past(rows._embedding_backward, (dy, indices, 7, -1))
    assert not is_gone_past(rows._embedding_backward, (dy, indices, 7, 2))


@pytest.mark.parametrize("mask", [(True, False, True), (False, True, False), (True, True, True)])
@pytest.mark.usefixtures("emulated")
def test_gradients_that_are_wanted(made, mask) -> None:
    given = [made(5, 24), made(24), made(24)]
    for tensor, is_wanted in zip(given, mask, strict=True):
        tensor.requires_grad_(is_wanted)
    wanted = [tensor for tensor in given if tensor.requires_grad]
    for _ in range(3):
        dy = made(5, 24)
        x, *rows = given
        actual, expected = (
            torch.autograd.grad(module.layer_norm(x, (24,), *rows), wanted, dy)
            for module in (functional, theirs)
        )
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("mask", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", ["swiglu", "geglu"])
@pytest.mark.usefixtures("emulated")
def test_of_a_gate_and_a_value_only_gradients_that_are_wanted(
    made, monkeypatch, name, mask
) -> None:
    activation = theirs.silu if name == "swiglu" else partial(theirs.gelu, approximate="tanh")
    masks, leaves = [], [made(5, 24).requires_grad_(is_wanted) for is_wanted in mask]
    wanted = [tensor for tensor in leaves if tensor.requires_grad]

    def noting(run, op, inputs, mask):
        masks.append(mask)
        return launching.of_mask(run, op, inputs, mask)

    monkeypatch.setattr(elementwise, "of_mask", noting)
    for _ in range(3):
        dy = made(5, 24)
        gradients = torch.autograd.grad(getattr(functional, name)(*leaves), wanted, dy)
        expected = torch.autograd.grad(activation(leaves[0]) * leaves[1], wanted, dy)
        torch.testing.assert_close(gradients, expected, atol=2e-5, rtol=2e-5)
    assert set(masks) == {mask}


def test_a_residual_alone_has_the_gradient_itself(made, monkeypatch) -> None:
    monkeypatch.delitem(elementwise.DOORS, "bitmask_dropout_backward")
    residual, dy = made(5, 24).requires_grad_(), made(5, 24)
    y = functional.dropout(made(5, 24), residual=residual)
    assert torch.equal(torch.autograd.grad(y, residual, dy)[0], dy)


@pytest.mark.parametrize("n_rows", [5, 8])
@pytest.mark.usefixtures("emulated")
def test_statistics_of_autograd_are_one_tensor_where_slices_are_aligned(made, n_rows) -> None:
    """In the first call, too, which learns what the next ones run; batches of gradients are taken
    apart."""
    rows, saved = (made(24).requires_grad_(), made(24).requires_grad_()), []
    for _ in range(4):
        x, dy = made(n_rows, 24).requires_grad_(), made(n_rows, 24)
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            y = functional.layer_norm(x, (24,), *rows)
        given = (x, *rows)
        expected = torch.autograd.grad(theirs.layer_norm(x, (24,), *rows), given, dy)
        actual = torch.autograd.grad(y, given, dy, retain_graph=True)
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)
        assert len(saved) == (3 if n_rows == 8 else 4)
    batch = torch.stack([dy, made(n_rows, 24)])
    each = [torch.autograd.grad(y, given, one, retain_graph=True) for one in batch]
    actual = torch.autograd.grad(y, given, batch, is_grads_batched=True)
    for both in zip(actual, *each, strict=True):
        torch.testing.assert_close(both[0], torch.stack(both[1:]), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("case", ["rows", "gaps"])
@pytest.mark.usefixtures("emulated")
def test_a_checkpointed_region_keeps_as_much_when_it_is_run_again(made, case) -> None:
    """The first of the calls is one of a new kind, or none that is remembered."""
    from torch.utils.checkpoint import checkpoint

    x, row = made(8, 40).requires_grad_(), made(40)
    given = x if case == "rows" else made(40, 8).requires_grad_()

    def region(z):
        z = z if case == "rows" else z.t()
        return functional.layer_norm(z, (40,), row).square().sum()

    (actual,) = torch.autograd.grad(checkpoint(region, given, use_reentrant=False), given)
    z = given if case == "rows" else given.t()
    y = theirs.layer_norm(z, (40,), row).square().sum()
    torch.testing.assert_close(actual, torch.autograd.grad(y, given)[0], atol=1e-4, rtol=1e-4)


def test_slices_are_known_by_the_one_tensor_that_they_are_of() -> None:
    whole, other = torch.arange(12.0).view(3, 4), torch.zeros(4)
    actual = launching._slice_of
    assert actual(whole[1], [other, whole]) == (1, 16)
    assert actual(whole[1], [whole, whole]) is None
    assert actual(whole[1], [other, whole[0]]) is None
    assert actual(whole[:, 1], [whole]) is None
    assert actual(whole[:0], [whole]) is None
    assert actual(whole[1].clone(), [whole]) is None
    assert actual(16, [whole]) is None


def test_kinds_that_are_remembered_are_bounded(made, monkeypatch) -> None:
    monkeypatch.setattr(launching, "_MANY", 4)
    monkeypatch.setattr(launching, "_ready", {})
    with tensors_on(HollowTensors()):
        for n in range(1, 30):
            functional.softmax(made(n, 64), -1)
            assert 1 <= len(launching._ready) <= 4


@pytest.mark.usefixtures("emulated")
def test_calls_in_inference_mode(made) -> None:
    x, row = made(5, 24), made(24)
    expected = theirs.rms_norm(x, (24,), row, 0.25)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(functional.rms_norm(x, (24,), row, 0.25), expected)
    torch.testing.assert_close(functional.rms_norm(x, (24,), row, 0.25), expected)
    assert functional.dropout(x, 0.5).requires_grad is False


def test_dropouts_of_several_ratios_in_turns(made, emulation, monkeypatch) -> None:
    """Seeds are numbers of each call, ratios those of a kind."""
    x, dy = made(8, 40), made(8, 40)
    ratios = [0.25, 0.5, 0.25, 0.75, 0.5, 0.25]

    def computed():
        torch.manual_seed(5)
        actual = [functional.dropout(x, p) for p in ratios]
        leaf = x.clone().requires_grad_()
        kept = [functional.dropout(leaf, p) for p in ratios]
        return [*actual, *kept, *(torch.autograd.grad(y, leaf, dy)[0] for y in kept)]

    expected = computed()
    with emulation():
        actual = computed()
        computed()  # so that each kind was called twice
        monkeypatch.setattr(ops.DOORS["bitmask_dropout"]._first, "_body", None)
        again = computed()
    for a, b, c in zip(actual, again, expected, strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)
    assert not torch.equal(actual[0], actual[2])


def test_a_state_in_a_tensor_is_that_of_each_call(made, emulation) -> None:
    """Its numbers are read anew, and a call that gives a tuple takes its own."""
    x, door = made(8, 40), ops.DOORS["bitmask_dropout"]
    states = [torch.tensor([seed, 0]) for seed in (1, 2, 1, 3)] + [(4, 0), (5, 0)]
    expected = [door.first(x, None, None, 0.5, state) for state in states]
    with emulation():
        actual = [door.first(x, None, None, 0.5, state) for state in states]
    torch.testing.assert_close(actual, expected)

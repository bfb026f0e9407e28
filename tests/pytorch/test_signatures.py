# SPDX-License-Identifier: MIT
"""Arguments of functions and modules are PyTorch's, and what no kernel computes goes there."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch.nn import functional as theirs  # noqa: E402

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import functional, nn  # noqa: E402

from .pairs import PYTORCHS, with_gradients  # noqa: E402

NEW = {"linear_cross_entropy"}  # in PyTorch 2.13
NEW_MODULES = {"LinearCrossEntropyLoss"}
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def parameters(function) -> list[tuple[str, object, bool]]:
    """Names, defaults, and which are by name alone; of a built-in function from its help."""
    try:
        actual = inspect.signature(function).parameters.values()
    except ValueError:
        listed = re.search(r"\((.*?)\) -> Tensor", function.__doc__)[1].split(",")
        pairs = [each.split("=") for each in listed]
        return [
            (name.strip(), eval(value[0]) if value else inspect.Parameter.empty, False)
            for name, *value in pairs
        ]
    return [(p.name, p.default, p.kind is KEYWORD) for p in actual]


@pytest.mark.parametrize("name", PYTORCHS)
def test_arguments_are_pytorchs(name) -> None:
    """By order, names and defaults; further ones are by name alone."""
    if name in NEW and not hasattr(theirs, name):
        pytest.skip(f"this PyTorch has no {name}")
    actual, expected = parameters(getattr(functional, name)), parameters(getattr(theirs, name))
    assert actual[: len(expected)] == expected
    assert all(is_keyword for *_, is_keyword in actual[len(expected) :])


@pytest.mark.parametrize("name", nn.__all__)
def test_arguments_of_modules_are_pytorchs(name) -> None:
    """Losses take further ones by name alone, those of the functions."""
    if name in NEW_MODULES and not hasattr(torch.nn, name):
        pytest.skip(f"this PyTorch has no {name}")
    ours, expected = getattr(nn, name), getattr(torch.nn, name)
    if name.endswith("Loss"):
        actual, wanted = (parameters(cls.__init__) for cls in (ours, expected))
        assert actual[: len(wanted)] == wanted
        assert all(is_keyword for *_, is_keyword in actual[len(wanted) : -1])
        with pytest.raises(TypeError, match="unexpected keyword argument 'soft'"):
            ours(*((4, 4) if "Linear" in name else ()), soft=1)
    else:
        assert inspect.signature(ours.__init__) == inspect.signature(expected.__init__)
    assert list(inspect.signature(ours.forward).parameters) == list(
        inspect.signature(expected.forward).parameters
    )


@pytest.fixture
def calls(leaf, labels):
    """Calls that no kernel computes, by what is counted: function, its tensors, other arguments."""
    x, table = leaf(8, 16), leaf(32, 16)
    spots, shares = labels(32, 4), leaf(8, 16, gradients=False).softmax(1)
    weight = leaf(16)
    return {
        "relu: inplace": (lambda f, x: f.relu(x * 1, inplace=True), (x,)),
        "dropout: inplace": (lambda f, x: f.dropout(x * 1, 0.5, False, True), (x,)),
        "embedding: max_norm": (lambda f, w: f.embedding(spots, w * 1, max_norm=1.0), (table,)),
        "embedding: scale_grad_by_freq": (
            lambda f, w: f.embedding(spots, w, None, None, 2.0, True),
            (table,),
        ),
        "cross_entropy: weight": (
            lambda f, x, w: f.cross_entropy(x, shares, w, label_smoothing=0.1),
            (x, weight),
        ),
        "softmax: input": (lambda f, x: f.softmax(x.sum(), 0), (x,)),
        "log_softmax: input": (lambda f, x: f.log_softmax(x.sum(), 0), (x,)),
        "layer_norm: eps": (lambda f, x: f.layer_norm(x, (16,), eps=-1e-3), (x,)),
        "linear_cross_entropy: weight": (
            lambda f, x, w, of_classes: linear_loss(f, x, w, shares, of_classes),
            (x, leaf(16, 16), weight),
        ),
    }


def linear_loss(functions, x, weight, target, of_classes):
    """The loss of a layer; of PyTorch before 2.13 by its parts."""
    if hasattr(functions, "linear_cross_entropy"):
        return functions.linear_cross_entropy(x, weight, target, weight=of_classes)
    return functions.cross_entropy(functions.linear(x, weight), target, of_classes)


def test_what_no_kernel_computes_is_pytorchs_and_counted(calls) -> None:
    for name, (function, leaves) in calls.items():
        cto.torch.fallbacks(reset=True)
        actual = with_gradients(lambda *x, f=function: f(functional, *x), leaves)
        counted = cto.torch.fallbacks(reset=True)
        expected = with_gradients(lambda *x, f=function: f(theirs, *x), leaves)
        torch.testing.assert_close(actual, expected, atol=0, rtol=0)
        function_name = name.partition(":")[0]
        assert [key.partition(":")[0] for key in counted] == [function_name], name
        assert list(counted.values()) == [1]


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself
def test_compiled_calls_that_no_kernel_computes_are_counted_once(calls) -> None:
    for name, (function, leaves) in calls.items():
        torch.compiler.reset()
        compiled = torch.compile(
            lambda *x, f=function: f(functional, *x), fullgraph=True, backend="aot_eager"
        )
        cto.torch.fallbacks(reset=True)
        for _ in range(2):
            actual = with_gradients(compiled, leaves)
        assert cto.torch.fallbacks(reset=True) == {name: 1}
        expected = with_gradients(lambda *x, f=function: f(theirs, *x), leaves)
        torch.testing.assert_close(actual, expected)


def test_kernels_compute_without_a_count(leaf, labels) -> None:
    x, target = leaf(8, 16), labels(16, 8)
    cto.torch.fallbacks(reset=True)
    functional.cross_entropy(x, target, None, None, 3, None, "sum", 0.1, softcap=5.0)
    functional.linear_cross_entropy(x, leaf(16, 16), target, label_smoothing=0.1)
    assert cto.torch.fallbacks() == {}


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize(("size_average", "reduce"), [(False, None), (None, False), (True, True)])
def test_reductions_of_old_are_pytorchs(leaf, labels, size_average, reduce) -> None:
    x, target = leaf(8, 16), labels(16, 8)
    actual, expected = (
        f.cross_entropy(x, target, None, size_average, -100, reduce) for f in (functional, theirs)
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_dimension_that_is_left_out_is_pytorchs(leaf, name, dim) -> None:
    """Its warning too, which is of the caller's line."""
    x = leaf(*range(2, 2 + dim))
    for module in (functional, theirs):
        with pytest.warns(UserWarning, match="Implicit dimension choice") as caught:
            actual = getattr(module, name)(x)
        assert caught[0].filename == __file__
        torch.testing.assert_close(actual, getattr(torch, name)(x, 0 if dim in (1, 3) else 1))
    modules = {"softmax": nn.Softmax, "log_softmax": nn.LogSoftmax}
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        torch.testing.assert_close(modules[name]()(x), actual)


def test_deprecated_forms_warn(leaf, labels) -> None:
    x, table, bias, target = leaf(8, 16), leaf(32, 16), leaf(32), labels(32, 8)
    target[0] = 3
    expected = functional.linear_cross_entropy(
        x, table, target, linear_bias=bias, ignore_index=3, reduction="sum"
    )
    for given, named in (
        ((x, table, target, bias, 3, "sum"), {}),
        ((x, table, target), {"bias": bias, "ignore_index": 3, "reduction": "sum"}),
    ):
        with pytest.warns(DeprecationWarning, match="linear_cross_entropy"):
            actual = functional.linear_cross_entropy(*given, **named)
        torch.testing.assert_close(actual, expected)
    with pytest.warns(DeprecationWarning, match="linear_cross_entropy"):
        actual = functional.linear_cross_entropy(hidden=x, weight=table, target=target)
    torch.testing.assert_close(actual, functional.linear_cross_entropy(x, table, target))
    with pytest.warns(DeprecationWarning, match="softmax"):
        assert functional.softmax(x.half(), 1, torch.float32).dtype == torch.float32
    deprecated = pytest.warns(DeprecationWarning, match="linear_cross_entropy")
    with deprecated, pytest.raises(ArgumentError, match="one value, got two"):
        functional.linear_cross_entropy(x, table, target, bias, linear_bias=bias)


def test_errors_are_of_both_types(leaf) -> None:
    x = leaf(4, 6)
    for error, call in (
        (RuntimeError, lambda: functional.layer_norm(x, (5,))),
        (IndexError, lambda: functional.softmax(x, 3)),
        (TypeError, lambda: functional.layer_norm(x, "6")),
        (ValueError, lambda: functional.cross_entropy(x, x[:, 0].long(), reduction="all")),
    ):
        with pytest.raises(error, match="; PyTorch: ") as raised:
            call()
        assert isinstance(raised.value, ArgumentError)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_terms_are_refused_in_words(leaf, labels) -> None:
    x, target = leaf(8, 16), labels(16, 8)
    cases = [{"softcap": -1.0}, {"lse_square_scale": float("nan")}, {"label_smoothing": "a"}]
    cases += [{"label_smoothing": None}, {"lse_square_scale": None}]
    # A tensor would be read back, and its gradient lost.
    cases += [{"softcap": torch.tensor(v)} for v in (30.0, [30.0], [1.0, 2.0])]
    cases += [{"label_smoothing": torch.tensor(v)} for v in ([0.1], [0.1, 0.2])]
    cases += [{"label_smoothing": torch.tensor(0.1, requires_grad=True)}]
    for named in cases:
        (name,) = named
        for function, given in (
            (functional.cross_entropy, (x, target)),
            (functional.linear_cross_entropy, (x, leaf(16, 16), target)),
        ):
            message = f"{function.__name__}: {name}: expected a (finite )?number"
            with pytest.raises(ArgumentError, match=message):
                function(*given, **named)
    with pytest.raises(ArgumentError, match="options: expected None or"):
        functional.linear_cross_entropy(x, leaf(16, 16), target, options=3)
    smoothing = torch.tensor(0.25)  # PyTorch reads one of rank 0
    expected = functional.cross_entropy(x, target, label_smoothing=0.25)
    assert functional.cross_entropy(x, target, label_smoothing=smoothing) == expected
    with pytest.raises(ArgumentError, match="inplace: expected False with a bias or residual"):
        functional.dropout(x, inplace=True, bias=x[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("of_classes", [True, False])
def test_pytorchs_parts_are_the_kernels(leaf, labels, reduction, of_classes) -> None:
    """A z-loss and a cap where PyTorch computes the loss, against probabilities."""
    x, target = leaf(8, 16), labels(16, 8)
    terms = {"lse_square_scale": 0.01, "softcap": 2.0, "reduction": reduction}
    shares = theirs.one_hot(target, 16).double()
    expected = functional.cross_entropy(x, target, **terms)
    torch.testing.assert_close(functional.cross_entropy(x, shares, **terms), expected)
    if of_classes:
        weight = torch.ones(16, dtype=torch.float64)
        actual = functional.cross_entropy(x, target, weight, label_smoothing=0.1, **terms)
        expected = functional.cross_entropy(x, target, label_smoothing=0.1, **terms)
        torch.testing.assert_close(actual, expected)

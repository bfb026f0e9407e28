# SPDX-License-Identifier: MIT
"""Every operator of the namespace `cto`: PyTorch's own checks, and derivatives by differences."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import ops  # noqa: E402
from cupy_training_ops.torch.ops import elementwise  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch.compile's own making

STATE = torch.tensor([3, 5])
TERMS = (0.1, 0.01, 2.0)  # label smoothing, z-loss, cap
CODECS = [codec.name for codec in elementwise.FIXED_SIZE]


def forwards(leaf, labels):
    """Arguments of operators that have a derivative: several cases each, by a name of each."""
    x, row, other = leaf(4, 6), leaf(6), leaf(4, 6)
    target, classes = labels(6, 4), leaf(6, gradients=False).abs()
    image, spots = leaf(2, 6, 3), labels(6, 2, 3)
    angles = leaf(1, 4, 6, gradients=False), leaf(1, 4, 6, gradients=False)
    ignoring = torch.where(torch.arange(4) == 1, -100, target)
    loss = (None, "mean", None)
    shares, image_shares = (
        leaf(*shape, gradients=False).softmax(1) for shape in ((4, 6), (2, 6, 3))
    )
    return {
        "rms_norm": (x, (6,), row, 1e-5),
        "rms_norm plain": (x, (4, 6)),
        "layer_norm": (x, (6,), row, leaf(6), 1e-5),
        "layer_norm plain": (x, (6,)),
        "layer_norm of a matrix": (leaf(2, 4, 6), (4, 6), leaf(4, 6), leaf(4, 6)),
        "batch_norm_relu": (x, row, leaf(6), other, None, None),
        "batch_norm_relu running": (
            *(leaf(3, 4, 2), None, None, None),
            *(leaf(4, gradients=False), leaf(4, gradients=False).abs(), 0.2, 1e-3),
        ),
        "gelu": (x,),
        "gelu tanh": (x, None, "tanh"),
        "gelu bias": (x, row),
        "gelu bias tanh": (x, row, "tanh"),
        "quick_gelu": (x, 1.0),
        "swiglu": (x, other),
        "swiglu_halves": (x,),
        "geglu": (x, other),
        "rotary": (leaf(2, 3, 4, 6), *angles),
        "rotary heads last": (leaf(3, 4, 2, 6), *angles[:1] * 2, True),
        "rotary_backward": (leaf(2, 4, 1, 6), *angles[1:] * 2, True),
        "relu": (x,),
        "softmax": (x, -1),
        "softmax first": (image, 0),
        "log_softmax": (x, 1),
        "dropout": (x, None, None, 0.5, STATE),
        "dropout bias": (x, row, other, 0.3, STATE),
        "bitmask_dropout": (x, None, other, 0.5, STATE),
        "bitmask_dropout bias": (x, other, None, 0.3, STATE),
        "embedding": (leaf(6, 3), labels(6, 2, 4)),
        "cross_entropy": (x, ignoring),
        "cross_entropy weighted": (x, ignoring, classes, -100, "sum"),
        "cross_entropy rows": (image, spots, None, 2, "none"),
        "regularized_cross_entropy": (x, ignoring, None, -100, "mean", None, *TERMS),
        "regularized_cross_entropy rows": (image, spots, classes, 2, "none", None, 0.0, *TERMS[1:]),
        "measured_cross_entropy": (x, ignoring, classes, -100, "mean", None, *TERMS),
        "dense_cross_entropy": (x, shares, classes, "mean", None, *TERMS),
        "dense_cross_entropy rows": (image, image_shares, None, "none", None, 0.0, *TERMS[1:]),
        "dense_cross_entropy_of_targets": (
            *(x, shares.clone().requires_grad_(), classes, "sum", None),
            *TERMS,
        ),
        "measured_linear_cross_entropy": (
            *(x, leaf(9, 6), labels(9, 4), leaf(9), -100, "mean", None, [True] * 3, None),
            *TERMS,
        ),
        "measured_linear_cross_entropy_rows": (
            *(x, leaf(9, 6), labels(9, 4), leaf(9), 2, None, None),
            *TERMS,
        ),
        "linear_cross_entropy of shares": (
            *(x, leaf(6, 6), shares, None, -100, "mean", None, [True, True, False], classes),
            *TERMS,
        ),
        "linear_cross_entropy_rows of shares": (
            *(x, leaf(6, 6), shares, None, -100, None, classes),
            *TERMS,
        ),
        "linear_cross_entropy weighted": (
            *(x, leaf(12, 6), spots[:, :2].repeat(2, 1), None, 2, "sum", None),
            *([True, True, False], classes, 0.0, *TERMS[1:]),
        ),
        "linear_cross_entropy_rows": (
            *(x, leaf(9, 6), labels(9, 4), leaf(9), 2, None, None),
            *(*TERMS, 3),
        ),
        "linear_cross_entropy": (x, leaf(9, 6), labels(9, 4), leaf(9), -100, *loss[1:], [True] * 3),
    }


def others(leaf, labels):
    """Arguments of operators without one."""
    dy, x, row = (leaf(*shape, gradients=False) for shape in ((4, 6), (4, 6), (6,)))
    column, target = x[:, :1].contiguous(), labels(6, 4)
    actual = {
        "rms_norm_backward": (dy, x, (6,), row, column, (True, True)),
        "layer_norm_backward": (dy, x, (6,), row, column, column, (True, False, True)),
        "layer_norm_backward_of_pair": (
            *(dy, x, (6,), row, torch.stack([column, column + 1])),
            (True, False, True),
        ),
        "batch_norm_relu_backward": (dy, x, x.abs(), row, row, row, (True, True, False, True)),
        "gelu_backward": (dy, x, row, "tanh"),
        "quick_gelu_backward": (dy, x),
        "swiglu_backward": (dy, x, x + 1),
        "swiglu_halves_backward": (dy, torch.cat((x, x + 1), -1)),
        "geglu_backward": (dy, x, x + 1),
        "relu_backward": (dy, torch.ops.cto.encode_pack1(x)),
        "softmax_backward": (dy, x, 0),
        "log_softmax_backward": (dy, x, -1),
        "dropout_backward": (dy, x > 0, 0.5),
        "bitmask_dropout_backward": (dy, torch.tensor([1234567], dtype=torch.int32), 0.5),
        "embedding_backward": (dy, target, 9, 3),
        "cross_entropy_loss": (x, target),
        "cross_entropy_": (x.clone(), target),
        "regularized_cross_entropy_loss": (x, target, None, -100, "sum", None, *TERMS),
        "regularized_cross_entropy_": (x.clone(), target, None, -100, "mean", None, *TERMS),
        "measured_cross_entropy_loss": (x, target, None, -100, "sum", None, *TERMS),
        "dense_cross_entropy_loss": (x, x.softmax(1), None, "none", None, *TERMS),
        "linear_cross_entropy_rows_backward": (
            *(row[:4], x, leaf(9, 6, gradients=False), labels(9, 4), None, -100, None),
            *(*TERMS, 3, (True, True, False)),
        ),
        "overwritten": (x,),
    }
    for name in CODECS:
        plain = labels(16, 3, 5) if name == "index4" else leaf(3, 5, gradients=False).float()
        code = getattr(torch.ops.cto, f"encode_{name}")(plain)
        actual[f"encode_{name}"] = (plain,)
        actual[f"decode_{name}"] = (code, (3, 5), plain.dtype)
    return actual


def names(cases) -> list[str]:
    """Those of cases, whose tensors do not matter."""

    def tensor(*shape, **_):
        return torch.zeros(shape, dtype=torch.float64)

    return list(cases(tensor, lambda _, *shape: torch.zeros(shape, dtype=torch.int64)))


FORWARDS, OTHERS = names(forwards), names(others)
LOSSES = [case for case in FORWARDS if "cross_entropy" in case]
LINEAR = [case for case in FORWARDS if case.startswith("rotary")]


def overload(case: str):
    return getattr(torch.ops.cto, case.partition(" ")[0]).default


def door(case: str):
    return ops.DOORS[case.partition(" ")[0]]


def test_every_operator_has_a_case() -> None:
    assert {name.partition(" ")[0] for name in (*FORWARDS, *OTHERS)} == set(ops.DOORS)


@pytest.mark.parametrize("case", FORWARDS + OTHERS)
def test_pytorch_takes_it_for_an_operator(leaf, labels, case) -> None:
    arguments = (forwards if case in FORWARDS else others)(leaf, labels)[case]
    torch.library.opcheck(overload(case), arguments)


@pytest.mark.parametrize("case", LOSSES)
def test_gradients_that_a_loss_returns_stay_as_they_are(leaf, labels, case) -> None:
    """In float16 they wait with a scale, which the backward pass divides by: elsewhere."""
    arguments = [
        x.detach().half().requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in forwards(leaf, labels)[case]
    ]
    results = overload(case)(*arguments)
    loss, *others = results if isinstance(results, tuple) else (results,)
    copies = [x.clone() for x in others]
    (2 * loss).sum().backward()
    assert all(map(torch.equal, others, copies))
    torch.library.opcheck(overload(case), arguments)


@pytest.mark.parametrize("way", ["door", "dispatcher"])
@pytest.mark.parametrize("case", FORWARDS)
def test_derivatives_are_those_of_differences(leaf, labels, case, way) -> None:
    arguments = list(forwards(leaf, labels)[case])
    function = door(case) if way == "door" else overload(case)
    places = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.requires_grad]

    def of_leaves(*leaves):
        for place, value in zip(places, leaves, strict=True):
            arguments[place] = value
        results = function(*arguments)
        return results[0] if isinstance(results, tuple) else results

    assert torch.autograd.gradcheck(of_leaves, [arguments[place] for place in places])


@pytest.mark.parametrize("case", [case for case in FORWARDS if case not in LINEAR])
def test_a_second_derivative_is_refused_in_words(leaf, labels, case) -> None:
    arguments = forwards(leaf, labels)[case]
    results = door(case)(*arguments)
    y = results[0] if isinstance(results, tuple) else results

    def differentiate_twice():
        (dx,) = torch.autograd.grad(y.square().sum(), arguments[0], create_graph=True)
        dx.square().sum().backward()

    with pytest.raises(ArgumentError, match=r"cto::.*(create_graph|derivative)"):
        differentiate_twice()


@pytest.mark.parametrize("way", ["door", "dispatcher"])
@pytest.mark.parametrize("case", LINEAR)
def test_rotations_are_differentiated_twice(leaf, labels, case, way) -> None:
    x, *rest = forwards(leaf, labels)[case]
    function = door(case) if way == "door" else overload(case)
    assert torch.autograd.gradgradcheck(lambda x: function(x, *rest), [x])


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_gradients_of_angles_are_refused_in_words(leaf, name) -> None:
    x, cos, sin = leaf(1, 2, 3, 4), leaf(1, 3, 4), leaf(1, 3, 4, gradients=False)
    arguments = (x, cos, sin) if name == "cos" else (x, sin, cos)
    with pytest.raises(ArgumentError, match=f"cto::rotary: {name}: expected .* no gradient"):
        door("rotary")(*arguments).sum().backward()


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("heads_last", [False, True])
def test_a_gradient_is_rotated_in_the_layout_it_has(
    leaf, monkeypatch, heads_last, is_swapped
) -> None:
    """Without a copy: what comes in has no gaps."""
    backward, noted = door("rotary_backward"), []

    def noting(dy, *others):
        noted.append((dy.is_contiguous(), others[-1]))
        return every(dy, *others)

    every = backward.every
    monkeypatch.setattr(backward, "every", noting)
    shape = (2, 3, 4, 6)
    angles = [leaf(1, shape[1 if heads_last else 2], 6, gradients=False) for _ in range(2)]
    x = leaf(*shape)
    y = door("rotary")(x, *angles, heads_last)
    dy = leaf(*shape, gradients=False)
    if is_swapped:
        dy = dy.transpose(1, 2).contiguous().transpose(1, 2)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert noted == [(True, heads_last is not is_swapped)]
    assert dx.stride() == dy.stride()
    torch.testing.assert_close(dx, every(dy.contiguous(), *angles, heads_last), atol=0, rtol=0)


@pytest.mark.parametrize("case", FORWARDS)
def test_forward_mode_is_refused_in_words(leaf, labels, case) -> None:
    x, *rest = forwards(leaf, labels)[case]
    rest = [a.detach() if isinstance(a, torch.Tensor) else a for a in rest]
    with pytest.raises(ArgumentError, match=r"cto::.*reverse-mode"):
        torch.func.jvp(lambda x: door(case)(x, *rest), (x.detach(),), (torch.ones_like(x),))


@pytest.mark.parametrize("case", FORWARDS + OTHERS)
def test_a_batch_is_a_loop(leaf, labels, case) -> None:
    """Of every operator, but for the one that writes: that is refused."""
    given = (forwards if case in FORWARDS else others)(leaf, labels)[case]
    x, *rest = [a.detach() if isinstance(a, torch.Tensor) else a for a in given]
    batch = torch.stack([x, x.roll(1, 0), x] if x.is_floating_point() else [x] * 3)
    actual = torch.vmap(lambda x: door(case)(x, *rest))
    if case.endswith("cross_entropy_"):
        with pytest.raises(RuntimeError, match=f"Batching rule not implemented for cto::{case}"):
            actual(batch)
        return
    results, loop = actual(batch), [door(case)(x, *rest) for x in batch]
    if not isinstance(results, tuple):
        results, loop = (results,), [(one,) for one in loop]
    for i, result in enumerate(results):
        expected = torch.stack([one[i] for one in loop]).view(result.dtype)  # int32 for uint32
        torch.testing.assert_close(result, expected, atol=0, rtol=0, equal_nan=True)


def test_gradients_inside_torch_func_are_refused_in_words(leaf) -> None:
    x = leaf(4, 6, gradients=False)
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(lambda x: ops.DOORS["softmax"](x, -1).sum())(x)


def test_operators_are_registered_once_and_stay() -> None:
    """Also where the modules are imported again: one more registration would be refused."""
    code = (
        "import sys, gc, torch\n"
        "for _ in range(2):\n"
        "    from cupy_training_ops.torch import ops\n"
        "    for name in [n for n in sys.modules if n.startswith('cupy_training_ops')]:\n"
        "        del sys.modules[name]\n"
        "    del ops; gc.collect()\n"
        "print(torch.ops.cto.softmax(torch.zeros(2), -1).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["[0.5,", "0.5]"], done.stderr


def test_a_forked_child_has_the_operators() -> None:
    code = (
        "import os, torch\n"
        "from cupy_training_ops.torch import functional\n"
        "child = os.fork()\n"
        "found = functional.softmax(torch.zeros(2), -1)\n"
        "assert found.equal(torch.ops.cto.softmax(torch.zeros(2), -1))\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_front_door_registers_nothing() -> None:
    code = (
        "import sys, cupy_training_ops.torch\n"
        "found = [n for n in sys.modules if n.startswith('cupy_training_ops.torch.')]\n"
        "assert not {'functional', 'nn', 'ops'} & {n.split('.')[2] for n in found}, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_door_knows_the_defaults_of_its_schema() -> None:
    x, quick_gelu = torch.linspace(-2, 2, 6), door("quick_gelu")
    assert quick_gelu(x).equal(quick_gelu(x, 1.702))
    assert not quick_gelu(x).equal(quick_gelu(x, 1.0))

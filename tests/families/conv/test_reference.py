# SPDX-License-Identifier: MIT
"""The convolution oracle against finite differences, JAX and the laws of convolutions."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from derivatives import finite_differences

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.conv import reference as cpu
from cupy_training_ops.families.conv.extents import Attributes, Convolution
from cupy_training_ops.families.conv.samples import CALLS, NAMES, ORDINARY, TRANSPOSED, inputs
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)  # drawn alike for the file
GRADIENTS = ("ConvGrad", "ConvTransposeGrad")
SMALL = [
    call
    for call in (*CALLS, *ORDINARY, *TRANSPOSED)
    if call.label not in ("ordinary", "large", "empty")
]


# ---- finite differences --------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("call", SMALL, ids=lambda call: call.label)
def test_gradients_are_finite_differences(rng, name, call) -> None:
    if call in TRANSPOSED and name == "ConvGrad":
        pytest.skip("an option of transposed convolutions")
    dy, x, w = inputs(rng, name, call.convolution(name), FLOAT64)
    op = get_op(name.removesuffix("Grad"))(**call.attributes)
    actual = get_op(name)(**call.attributes)(dy, x, w)
    bias = np.zeros(dy.shape[1])
    primals = [x, w, bias]
    for place, gradient in enumerate(actual):
        some = rng.permutation(gradient.size)[:12]

        def forward(part, place=place, some=some):
            moved = [p.copy() for p in primals]
            moved[place].reshape(-1)[some] = part
            return op(*moved)

        expected = finite_differences(forward, primals[place].reshape(-1)[some], dy)
        assert_matches(gradient.reshape(-1)[some], expected, 1e-9)


# ---- JAX -----------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A convolution, and the attributes of the operators."""

    convolution: Convolution
    attributes: dict[str, Any]
    ends: tuple[int, ...]  # pads behind the image
    left: dict[str, Any]  # output_padding: elements at the end that no kernel reaches


def drawn(rng: np.random.Generator) -> Case:
    """Channels are multiples of nothing, kernels reach 7, pads differ."""
    rank = int(rng.integers(1, 4))
    kernel = several(rng, 1, (8, 6, 4)[rank - 1], rank)
    strides, dilations = several(rng, 1, 4, rank), several(rng, 1, 4, rank)
    pads = several(rng, 0, 4, 2 * rank)
    group = int(rng.choice([1] * 9 + [2, 3, 5]))  # JAX compiles several in three times as long
    channels, filters = (group * int(n) for n in rng.integers(1, 4, 2))
    ends = pads[rank:]
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    rooms = [r - b - e for r, b, e in zip(reaches, pads, ends, strict=False)]
    image = [max(1, room) + int(rng.integers(5)) for room in rooms]
    left = [(n - room) % s for n, room, s in zip(image, rooms, strides, strict=True)]
    given = {"group": group, "strides": strides, "dilations": dilations, "pads": pads}
    shapes = (int(rng.integers(1, 4)), channels, *image), (filters, channels // group, *kernel)
    actual = Attributes("drawn", **given).convolution(*shapes)
    return Case(actual, given, ends, {"output_padding": tuple(left)})


def several(rng: np.random.Generator, low: int, high: int, n: int) -> tuple[int, ...]:
    return tuple(map(int, rng.integers(low, high, n)))


def arrays(rng: np.random.Generator, c: Convolution) -> list[np.ndarray]:
    """X, W and Y."""
    return [rng.standard_normal(shape) for shape in (c.x_shape, c.w_shape, c.y_shape)]


def with_gradients(forward, *arrays: np.ndarray) -> list[np.ndarray]:
    """The result for all arrays but the last, which is its gradient, and their gradients."""

    def both(*arrays):
        *primals, dy = arrays
        y, backward = jax.vjp(forward, *primals)
        return y, *backward(dy)

    # That pass ends the process over some kernels of one element whose images are padded.
    options = {"xla_disable_hlo_passes": "algsimp"}
    return [np.asarray(array) for array in jax.jit(both, compiler_options=options)(*arrays)]


def check_against_jax(rng, case: Case) -> None:
    """The transposed one is what Conv gives for the gradient of X."""
    c = case.convolution
    x, w, dy = arrays(rng, c)

    def forward(x, w):
        pads = list(zip(c.pads, case.ends, strict=True))
        groups = {"rhs_dilation": c.dilations, "feature_group_count": c.group}
        return jax.lax.conv_general_dilated(x, w, c.strides, pads, **groups)

    y, dx, dw = with_gradients(forward, x, w, dy)
    back = case.attributes | case.left
    actual = (
        cto.conv(x, w, **case.attributes),
        *cto.conv_grad(dy, x, w, **case.attributes, outputs=("dX", "dW"))[:2],
        cto.conv_transpose(dy, w, **back),
        *cto.conv_transpose_grad(x, dy, w, **back)[:2],
    )
    bound = 1e-14 * np.sqrt(x.size + dy.size + w.size)
    for ours, theirs in zip(actual, (y, dx, dw, dx, y, dw), strict=True):
        assert_matches(ours, theirs, bound)


@pytest.mark.parametrize("number", range(12))
def test_four_operators_are_jax(seed, number) -> None:
    rng = np.random.default_rng((seed, number))
    check_against_jax(rng, drawn(rng))


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(12))
def test_jax_over_three_hundred_cases(seed, part) -> None:
    rng = np.random.default_rng((seed, 1000 + part))
    for _ in range(25):
        check_against_jax(rng, drawn(rng))


def test_a_transposed_convolution_is_one_of_spread_elements(rng) -> None:
    """Its other definition: zeros between the elements of X, and the mirrored kernel."""
    case = drawn(rng)
    c = case.convolution
    dy, w, x = (array for array in reversed(arrays(rng, c)))

    def forward(x, w):
        mirrored = w[(..., *[slice(None, None, -1)] * c.rank)]
        parts = mirrored.reshape(c.group, c.group_filters, c.group_channels, *c.kernel)
        kernel = parts.swapaxes(1, 2).reshape(c.channels, c.group_filters, *c.kernel)
        each = zip(c.kernel, c.dilations, c.pads, case.ends, *case.left.values(), strict=True)
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (1,) * c.rank,
            [((k - 1) * d - p, (k - 1) * d - end + left) for k, d, p, end, left in each],
            lhs_dilation=c.strides,
            rhs_dilation=c.dilations,
            feature_group_count=c.group,
        )

    y, dx, dw = with_gradients(forward, dy, w, x)
    attributes = case.attributes | case.left
    assert_matches(cto.conv_transpose(dy, w, **attributes), y)
    actual = cto.conv_transpose_grad(x, dy, w, **attributes)
    assert_matches(actual[0], dx)
    assert_matches(actual[1], dw)
    assert_matches(actual[2], x.sum((0, *range(2, x.ndim))))


# ---- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(8))
def test_a_convolution_and_the_transposed_one_are_adjoint(seed, number) -> None:
    rng = np.random.default_rng((seed, number))
    case = drawn(rng)
    x, w, y = arrays(rng, case.convolution)
    forward = cto.conv(x, w, **case.attributes)
    back = cto.conv_transpose(y, w, **case.attributes, **case.left)
    scale = np.linalg.norm(forward) * np.linalg.norm(y) + 1
    assert abs((forward * y).sum() - (x * back).sum()) <= 1e-12 * scale


@floats
def test_what_no_output_reads_has_no_gradient(anywhere, rng, dtype) -> None:
    """Even where all that is read is infinite."""
    x = np.ones((2, 3, 11, 8), dtype)
    w = rng.integers(1, 5, (4, 3, 2, 3)).astype(dtype)
    dy = rng.integers(1, 5, (2, 4, 3, 2)).astype(dtype)
    op = get_op("ConvGrad")(strides=(4, 5))
    dx = anywhere.host(op(*map(anywhere.place, (dy, x, w)), outputs=("dX",))[0])
    read = np.zeros(x.shape[2:], bool)
    for row in (0, 1, 4, 5, 8, 9):
        read[row, [0, 1, 2, 5, 6, 7]] = True
    assert (dx[:, :, read] > 0).all()
    assert dx[:, :, ~read].tobytes() == bytes(dx[:, :, ~read].nbytes)


@floats
@pytest.mark.parametrize("name", NAMES)
def test_sums_are_rounded_once(anywhere, rng, name, dtype) -> None:
    """Sums of small integers are exact in float32, and too large for float16 and bfloat16."""
    call = next(call for call in CALLS if call.label == "misaligned")
    c = call.convolution(name)
    given = inputs(rng, name, c, FLOAT64)
    given = [np.rint(20 * array) for array in given]
    exact = get_op(name)(**call.attributes)(*given)
    op = get_op(name)(**call.attributes)
    actual = op(*[anywhere.place(array.astype(dtype)) for array in given])
    pairs = zip(actual, exact, strict=True) if type(exact) is tuple else [(actual, exact)]
    for ours, wanted in pairs:
        assert_matches(anywhere.host(ours), wanted.astype(dtype), 0)


@pytest.mark.parametrize("name", NAMES)
def test_pieces_make_no_difference(monkeypatch, rng, name) -> None:
    for call in SMALL:
        if call in TRANSPOSED and "Transpose" not in name:
            continue
        given = inputs(rng, name, call.convolution(name), FLOAT64)
        op = get_op(name)(**call.attributes)
        whole = op(*given)
        for piece in (1, 100, 1000):
            monkeypatch.setattr(cpu, "_PIECE", piece)
            actual = op(*given)
            pairs = zip(actual, whole, strict=True) if type(whole) is tuple else [(actual, whole)]
            for ours, wanted in pairs:
                assert_matches(ours, wanted)
        monkeypatch.undo()


def test_memory_is_bounded(rng) -> None:
    """X unfolded would take 75 MB."""
    x, w = rng.standard_normal((1, 32, 256, 256), FLOAT32), np.ones((4, 32, 3, 3), FLOAT32)
    tracemalloc.start()
    dy = cto.conv(x, w, pads=(1, 1, 1, 1))
    cto.conv_grad(dy, x, w, pads=(1, 1, 1, 1))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * x.nbytes


@pytest.mark.parametrize(
    ("shape", "filters", "group"), [((8, 64, 56, 56), 64, 1), ((8, 512, 28, 28), 512, 512)]
)
def test_a_gradient_takes_a_second(rng, shape, filters, group) -> None:
    """On two cores; here twice as long is let pass, as the machine may be busy."""
    x = rng.standard_normal(shape, FLOAT32)
    w = rng.standard_normal((filters, shape[1] // group, 3, 3), FLOAT32)
    op = get_op("ConvGrad")(pads=(1, 1, 1, 1), group=group)
    start = time.thread_time()  # not of the threads of the matrix product, which wait busily
    op(x, x, w)
    assert time.thread_time() - start < 4


@pytest.mark.parametrize(
    ("shape", "attributes", "extents"),
    [
        ((0, 4, 6, 5), {}, (4, 3)),
        ((2, 4, 0, 3), {"pads": (1, 0, 2, 0)}, (1, 1)),
        ((2, 4, 0, 3), {"auto_pad": "SAME_UPPER"}, (0, 3)),
    ],
)
@floats
def test_nothing_to_compute(anywhere, shape, attributes, extents, dtype) -> None:
    """An empty batch, an empty extent, and one that makes an empty Y."""
    x, w, b = (np.ones(s, dtype) for s in (shape, (6, 2, 3, 3), 6))
    attributes = {"group": 2, **attributes}
    y = get_op("Conv")(**attributes)(*map(anywhere.place, (x, w, b)))
    assert anywhere.host(y).tolist() == np.ones((shape[0], 6, *extents)).tolist()
    dx, dw, db = get_op("ConvGrad")(**attributes)(y, *map(anywhere.place, (x, w)))
    assert anywhere.host(dx).tolist() == np.zeros(shape).tolist()
    assert not anywhere.host(dw).any()
    assert anywhere.host(db).tolist() == [anywhere.host(y).size / 6] * 6


@floats
def test_nothing_to_compute_of_a_transposed_one(anywhere, dtype) -> None:
    """Y of an empty X is the bias."""
    x, w, b = (np.ones(s, dtype) for s in ((2, 6, 0), (6, 2, 3), 4))
    y = get_op("ConvTranspose")(group=2)(*map(anywhere.place, (x, w, b)))
    assert anywhere.host(y).tolist() == np.ones((2, 4, 2)).tolist()
    dx, dw, db = get_op("ConvTransposeGrad")(group=2)(y, *map(anywhere.place, (x, w)))
    assert anywhere.host(dx).shape == x.shape
    assert not anywhere.host(dw).any()
    assert anywhere.host(db).tolist() == [4] * 4


# ---- bad input -----------------------------------------------------------------------------------

X, W = (2, 4, 7, 6), (6, 2, 3, 2)
DY = (2, 6, 5, 5)
GIVEN = {
    "Conv": [X, W, (6,)],
    "ConvGrad": [DY, X, W],
    "ConvTranspose": [DY, W, (4,)],
    "ConvTransposeGrad": [X, DY, W],
}
FAULTS = [  # operator, place, shape, attributes, message
    ("Conv", 0, (2, 4), {}, "X: expected batch, channels and 1 to 3 spatial dimensions"),
    ("Conv", 0, (2, 4, 7, 6, 5, 5), {}, "X: expected batch, channels and 1 to 3 spatial"),
    ("Conv", 0, (2, 5, 7, 6), {}, "X: expected 4 channels, as W and group say"),
    ("Conv", 0, (2, 4, 2, 6), {}, r"X: expected .* kernel over \(3, 2\) elements fits into"),
    ("Conv", 0, (2, 4, 0, 6), {}, r"X: expected .* kernel over \(3, 2\) elements fits into"),
    ("Conv", 1, (6, 2, 3), {}, "W: expected rank 4, as X"),
    ("Conv", 1, (6, 2, 0, 2), {}, "W: expected extents of at least 1"),
    ("Conv", 1, (5, 2, 3, 2), {}, "W: expected filters in 2 equal groups"),
    ("Conv", 2, (5,), {}, r"B: expected shape \(6,\), got shape \(5,\)"),
    ("Conv", 2, (1, 6), {}, r"B: expected shape \(6,\)"),
    ("Conv", 0, X, {"dilations": (4, 1)}, r"X: expected .* kernel over \(9, 2\) elements"),
    ("Conv", 0, X, {"dilations": (1,)}, r"dilations: expected 2 integers, got \(1,\)"),
    ("Conv", 0, X, {"strides": (1, 1, 1)}, "strides: expected 2 integers"),
    ("Conv", 0, X, {"pads": (1, 1)}, "pads: expected 4 integers"),
    ("Conv", 0, X, {"kernel_shape": (2, 3)}, r"kernel_shape: expected \(3, 2\), as W"),
    (
        "Conv",
        0,
        X,
        {"auto_pad": "VALID", "pads": (0, 0, 1, 0)},
        r"pads: expected none beside auto_pad VALID, got \(0, 0, 1, 0\)",
    ),
    ("ConvGrad", 0, (2, 6, 5, 6), {}, r"dY: expected shape \(2, 6, 5, 5\), that of Y"),
    ("ConvGrad", 0, (1, 6, 5, 5), {}, "dY: expected shape"),
    ("ConvGrad", 0, (2, 6, 25), {}, "dY: expected shape"),
    ("ConvGrad", 1, (2, 5, 7, 6), {}, "X: expected 4 channels"),
    ("ConvGrad", 2, (6, 4, 3, 2), {}, "X: expected 8 channels"),
    ("ConvTranspose", 0, (2, 5, 5, 5), {}, "X: expected 6 channels, as W"),
    ("ConvTranspose", 1, (5, 2, 3, 2), {}, "W: expected channels in 2 equal groups"),
    ("ConvTranspose", 2, (6,), {}, r"B: expected shape \(4,\)"),
    ("ConvTranspose", 0, DY, {"pads": (4, 0, 4, 0)}, "X: expected pads and extents"),
    (
        "ConvTranspose",
        0,
        DY,
        {"output_padding": (0, 1)},
        r"output_padding: expected less than stride or dilation along each axis, got \(0, 1\)",
    ),
    ("ConvTranspose", 0, DY, {"output_shape": (7,)}, "output_shape: expected 2 integers"),
    ("ConvTransposeGrad", 0, (2, 4, 7, 7), {}, r"dY: expected shape \(2, 4, 7, 6\), that of Y"),
    ("ConvTransposeGrad", 1, (2, 5, 5, 5), {}, "X: expected 6 channels, as W"),
]


@pytest.mark.parametrize(("name", "place", "shape", "attributes", "message"), FAULTS)
def test_bad_input(anywhere, name, place, shape, attributes, message) -> None:
    shapes = list(GIVEN[name])
    shapes[place] = shape
    given = [anywhere.place(np.ones(s, FLOAT32)) for s in shapes]
    out = tuple(anywhere.place(np.full(s, 7, FLOAT32)) for s in outputs_of(name))
    with pytest.raises(ArgumentError, match=f"^{name}: {message}"):
        get_op(name)(group=2, **attributes)(*given, out=out if len(out) > 1 else out[0])
    assert all((anywhere.host(array) == 7).all() for array in out)


def outputs_of(name: str) -> list[tuple[int, ...]]:
    """The shapes that are right."""
    dy, x, w = GIVEN["ConvTransposeGrad" if "Transpose" in name else "ConvGrad"]
    return [x, w, dy[1:2]] if name.endswith("Grad") else [dy]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_arrays_of_another_type(anywhere, name, place) -> None:
    given = [np.ones(shape, FLOAT32) for shape in GIVEN[name]]
    given[place] = given[place].astype(FLOAT16)
    declared = get_op(name).inputs[max(place, 1)].name
    with pytest.raises(DtypeError, match=f"^{name}: {declared}: expected dtype float"):
        get_op(name)(group=2)(*map(anywhere.place, given))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"pads": (0, -1)}, r"pads: expected at least 0 and less than 2\^31, got \(0, -1\)"),
        ({"strides": (1, 0)}, "strides: expected at least 1"),
        ({"dilations": (2**31,)}, r"dilations: expected at least 1 and less than 2\^31"),
        ({"kernel_shape": (0,)}, "kernel_shape: expected at least 1"),
        ({"group": 0}, "group: expected at least 1"),
        ({"auto_pad": "SAME"}, "auto_pad: expected one of"),
        ({"allow_tf32": 2}, "allow_tf32: expected a bool"),
    ],
)
def test_bad_attributes(name, attributes, message) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: {message}"):
        get_op(name)(**attributes)

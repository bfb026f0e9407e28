# SPDX-License-Identifier: MIT
"""Convolutions on kernels: which gradients cost what, scratch memory, transposed ones, order."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.conv import plan_variants
from cupy_training_ops.families.conv.reference import conv_grad
from cupy_training_ops.families.conv.samples import CALLS, inputs
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches, poison, tolerance_of

DEVICES = (Device(80, (7, 0)), Device(132, (9, 0), 227 * 1024))
GRADIENTS = ("ConvGrad", "ConvTransposeGrad")
MOST_SCRATCH = 64 * 2**20
STAGED = ("conv__stage", "conv__staged")

# shape of X, filters, kernel, stride, group
LAYERS = (
    ((64, 3, 224, 224), 64, 7, 2, 1),
    ((64, 64, 56, 56), 64, 3, 1, 1),
    ((64, 256, 56, 56), 64, 1, 1, 1),
    ((64, 512, 7, 7), 512, 3, 1, 1),
    ((64, 512, 28, 28), 512, 3, 1, 512),
    ((1, 8192, 8, 8), 8192, 3, 1, 1),
    ((1, 4096, 4096), 1024, 9, 1, 1),
    ((2, 16, 2**13, 2**13), 16, 3, 1, 1),
    ((8, 32, 32, 32, 32), 64, 3, 2, 2),
    ((2, 512, 2**12), 512, 2**12 - 1, 1, 512),
)

FEW_FILTERS = ((64, 3, 224, 224), 60, 7, 2, 1)

gradients = pytest.mark.parametrize("name", GRADIENTS)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


def planned(name: str, device: Device, layer, wanted: str, dtype=FLOAT16):
    """The plan of a layer's gradient; `wanted` are the outputs' last letters."""
    shape, filters, extent, stride, group = layer
    rank = len(shape) - 2
    attributes = {
        "strides": (stride,) * rank,
        "pads": (extent // 2,) * (2 * rank),
        "group": group,
    }
    w = (filters, shape[1] // group, *[extent] * rank)
    actual = [n // stride for n in shape[2:]]
    x, y = Spec(shape, dtype), Spec((shape[0], filters, *actual), dtype)
    if name == "ConvTransposeGrad":
        x, y = y, x
        attributes["output_shape"] = y.shape[2:]
        del attributes["pads"]
    op = get_op(name)(**attributes)
    given = (y, x, Spec(w, dtype))
    results = op.infer(*given)
    kept = [r if o.name[1] in wanted else None for o, r in zip(op.outputs, results, strict=True)]
    return op.plan(device, *given, *kept)


def blocks_of(plan) -> tuple[int, int]:
    """Blocks of the launch over staged arrays: those of an image, and of weights."""
    (actual,) = (step for step in plan.steps if step.symbol == "conv__staged")
    weights = actual.args[6]
    return actual.config.grid[0] - weights, weights


def symbols(plan) -> list[str]:
    """Kernels in the order of their launches."""
    return [step.symbol for step in plan.steps]


@gradients
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("device", DEVICES, ids=["7.0", "9.0"])
def test_scratch_memory_is_bounded(name, device, layer) -> None:
    """Staged X and dY are as large as these, and more by their padding."""
    for dtype in FLOATS:
        plan = planned(name, device, layer, "XWB", dtype)
        shape, filters, _, stride, _ = layer
        elements = math.prod(shape) + math.prod(shape) // shape[1] * filters // stride**2
        most = 2.5 * elements * dtype.itemsize if "conv__stage" in symbols(plan) else 0
        assert plan.workspace_nbytes <= max(MOST_SCRATCH, most)


def test_scratch_memory_of_a_million_depthwise_filters_is_bounded() -> None:
    layer = ((1, 2**20, 8, 8), 2**20, 3, 1, 2**20)
    assert planned("ConvGrad", DEVICES[1], layer, "W").workspace_nbytes <= MOST_SCRATCH // 2


@gradients
@pytest.mark.parametrize("layer", LAYERS[:5], ids=str)
def test_a_gradient_that_is_not_wanted_costs_nothing(name, layer) -> None:
    """Results together launch what each does alone; but dW's launches sum dB of a Conv, and
    staged arrays are read by blocks of one launch."""
    alone = {one: symbols(planned(name, DEVICES[1], layer, one)) for one in "XWB"}
    *_, group = layer
    by_weight = name == "ConvGrad"
    if alone["X"][:2] == [*STAGED]:
        assert blocks_of(planned(name, DEVICES[1], layer, "X"))[1] == 0
        images, weights = blocks_of(planned(name, DEVICES[1], layer, "W"))
        assert (images, weights) == (0, blocks_of(planned(name, DEVICES[1], layer, "XW"))[1])
        assert symbols(planned(name, DEVICES[1], layer, "XW")) == [*STAGED, "conv__staged_total"]
        return
    if alone["X"] == ["conv__stage", "conv__direct_image"]:
        actual = symbols(planned(name, DEVICES[1], layer, "XWB"))
        assert actual == [*alone["X"], "conv__direct_weight", "conv__direct_total"]
        return
    for wanted in ("XWB", "XW", "XB", "WB"):
        actual = symbols(planned(name, DEVICES[1], layer, wanted))
        is_joined = by_weight and "W" in wanted
        launching = wanted.replace("B", "") if is_joined else wanted
        last = ["conv__total"] if is_joined and "B" in wanted and group > 1 else []  # depthwise
        assert actual == [*(symbol for one in launching for symbol in alone[one]), *last]


def test_the_gradient_of_a_bias_alone_reads_no_x() -> None:
    """Its blocks have tiles of rows alone; float32 is summed by blocks that stage."""
    for layer, dtype, kernels in (
        (LAYERS[0], FLOAT16, ("stage", "direct_weight", "total")),
        (FEW_FILTERS, FLOAT16, ("weight_y_lines", "total")),
        (LAYERS[1], FLOAT16, ("stage", "staged", "total")),
        (LAYERS[1], FLOAT32, ("stage", "total")),
    ):
        actual = planned("ConvGrad", DEVICES[1], layer, "B", dtype)
        assert symbols(actual)[: len(kernels)] == [f"conv__{kernel}" for kernel in kernels]
    _, step, _ = planned("ConvGrad", DEVICES[1], LAYERS[0], "B").steps
    assert step.args[2] is None  # no sums of W
    step, _ = planned("ConvGrad", DEVICES[1], FEW_FILTERS, "B").steps
    layout = step.args[-1]
    assert (layout["channels"], layout["padded_channels"], layout["tiles"]) == (0, 0, 1)
    stage, step, _ = planned("ConvGrad", DEVICES[1], LAYERS[1], "B").steps
    assert stage.args[-1]["x"]["blocks"] == stage.args[-1]["w"]["blocks"] == 0
    assert step.args[0] is step.args[1]  # dY in the place of X: addresses of it are computed
    assert step.args[3] is None  # no sums of W
    assert step.args[-2]["column_tiles"] == 1


@floats
@gradients
@pytest.mark.parametrize("label", ["odd", "depthwise-strided", "depthwise-wide"])
def test_each_gradient_alone_is_what_it_is_among_others(anywhere, rng, name, dtype, label) -> None:
    call = next(call for call in CALLS if call.label == label)
    given = [anywhere.place(a) for a in inputs(rng, name, call.convolution(name), dtype)]
    op = get_op(name)(**call.attributes)
    every = op(*given)
    for n in (1, 2):
        for wanted in itertools.combinations(("dX", "dW", "dB"), n):
            actual = op(*given, outputs=wanted)
            for output, ours, other in zip(op.outputs, actual, every, strict=True):
                assert (ours is not None) == (output.name in wanted)
                if ours is not None:
                    assert_matches(anywhere.host(ours), anywhere.host(other), 0)


@floats
def test_transposed_kernels_are_the_gradients(run, rng, dtype) -> None:
    """ConvTranspose is ConvGrad's dX, dX of ConvTransposeGrad is Conv, bit for bit."""
    call = next(call for call in CALLS if call.label == "pointwise-strided")
    c = call.convolution("Conv")
    dy, x, w = (run.place(a) for a in inputs(rng, "ConvGrad", c, dtype))
    back = {**call.attributes, "output_shape": c.image}
    dx, _, _ = get_op("ConvGrad")(**call.attributes)(dy, x, w)
    slope, _, _ = get_op("ConvTransposeGrad")(**back)(x, dy, w)
    y = get_op("Conv")(**call.attributes)(x, w)
    pairs = ((get_op("ConvTranspose")(**back)(dy, w), dx), (slope, y))
    for ours, other in pairs:
        assert_matches(run.host(ours), run.host(other), 0)


@pytest.mark.thorough  # three orders, of a type that is not drawn
def test_thread_order_makes_no_difference(in_every_order, rng) -> None:
    call = next(call for call in CALLS if call.label == "odd")
    given = inputs(rng, "ConvGrad", call.convolution("ConvGrad"), FLOAT32)
    op = get_op("ConvGrad")(**call.attributes)

    def bits(run) -> list[bytes]:
        return [run.host(a).tobytes() for a in op(*map(run.place, given))]

    first, *others = in_every_order(bits)
    assert all(other == first for other in others)


@floats
@gradients
def test_scratch_memory_is_used_again(anywhere, rng, name, dtype) -> None:
    """A second call finds what the first one left; outputs are poisoned."""
    call = next(call for call in CALLS if call.label == "depthwise")
    given = [anywhere.place(a) for a in inputs(rng, name, call.convolution(name), dtype)]
    op = get_op(name)(**call.attributes)
    first = op(*given)
    out = tuple(poison(anywhere.place(np.empty_like(anywhere.host(a)))) for a in first)
    for ours, other in zip(op(*given, out=out), first, strict=True):
        assert_matches(anywhere.host(ours), anywhere.host(other), 0)


def test_patches_that_meet_nowhere_are_written_where_they_lie(anywhere, rng) -> None:
    """Residues of a stride read one position each, as in a 1 x 1 convolution, and vectors of it."""
    x = rng.standard_normal((2, 2, 8, 16), np.float32).astype(FLOAT16)
    w = rng.standard_normal((10, 2, 2, 2), np.float32).astype(FLOAT16)
    dy = rng.standard_normal((2, 10, 4, 4), np.float32).astype(FLOAT16)
    given = (anywhere.place(a) for a in (dy, x, w))
    dx, *_ = get_op("ConvGrad")(strides=(2, 4))(*given, outputs=("dX",))
    patches = np.einsum("nmij,mckl->ncikjl", *(a.astype(FLOAT32) for a in (dy, w)))
    wide = np.zeros((2, 2, 4, 2, 4, 4), FLOAT32)
    wide[..., :2] = patches
    assert_matches(anywhere.host(dx), wide.reshape(x.shape).astype(FLOAT16))


# ---- groups of one channel whose rows are read once for all taps ---------------------------------

# X, filters, the kernel's extent, pads: sums of several parts, odd lines, two filters of a group,
# outputs that read pads alone, pads of all parities, rows that begin far above the image.
WALKED = (
    ((2, 2, 64, 40), 2, 3, (1, 1, 1, 1)),
    ((1, 3, 9, 13), 3, 5, (2, 2, 2, 2)),
    ((2, 2, 6, 7), 4, 3, (0, 1, 0, 0)),
    ((1, 2, 5, 14), 2, 5, (6, 7, 6, 6)),
    ((2, 2, 11, 6), 2, 5, (1, 0, 4, 3)),
    ((1, 4, 4, 10), 4, 3, (4, 0, 3, 2)),
    ((2, 3, 5, 3), 3, 3, (9, 8, 7, 6)),
    ((1, 2, 2, 1), 2, 5, (11, 8, 9, 10)),
)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize(("shape", "filters", "extent", "pads"), WALKED, ids=str)
def test_walks_down_rows_are_exact_sums(anywhere, rng, shape, filters, extent, pads, dtype) -> None:
    """Beside float64; each gradient alone has the bits that it has among others."""
    how = {"group": shape[1], "pads": pads}
    x = rng.standard_normal(shape).astype(dtype)
    w = rng.standard_normal((filters, 1, extent, extent)).astype(dtype)
    b = rng.standard_normal(filters).astype(dtype)
    doubles = [a.astype(FLOAT64) for a in (x, w, b)]
    y = get_op("Conv")(**how)(*map(anywhere.place, (x, w, b)))
    exact = get_op("Conv")(**how)(*doubles)
    assert_matches(anywhere.host(y), exact.astype(dtype), tolerance_of(dtype, extent**2))
    dy = rng.standard_normal(exact.shape).astype(dtype)
    op, given = get_op("ConvGrad")(**how), [anywhere.place(a) for a in (dy, x, w)]
    with launch_log() as steps:
        actual = op(*given)
    walked = any("planes" in step.symbol for step in steps)
    assert not steps or walked == (extent == 3 or dtype != FLOAT64)
    expected = op(dy.astype(FLOAT64), *doubles[:2])
    bound = tolerance_of(dtype, dy.size // filters)
    for ours, other in zip(actual, expected, strict=True):
        assert_matches(anywhere.host(ours), other.astype(dtype), bound)
    for place, output in enumerate(op.outputs):
        alone = op(*given, outputs=(output.name,))[place]
        assert anywhere.host(alone).tobytes() == anywhere.host(actual[place]).tobytes()


@pytest.mark.parametrize("extent", [3, 5])
def test_an_infinite_column_beside_the_outputs_reaches_no_sum(anywhere, extent) -> None:
    """Lines of Y end within a strip: what X has beside them is not multiplied by 0."""
    x, w = np.zeros((1, 1, 8, 8 + extent), FLOAT16), np.zeros((1, 1, extent, extent), FLOAT16)
    op = get_op("ConvGrad")()
    dy = np.ones((1, 1, 9 - extent, 9), FLOAT16)
    x[..., -1] = np.inf
    given = [anywhere.place(a) for a in (dy, x, w)]
    _, dw, _ = op(*given, outputs=("dW",))
    expected = np.zeros_like(w)
    expected[..., -1] = np.inf
    assert_matches(anywhere.host(dw), expected)


# ---- 1 x 1 convolutions of floats whose lines tensor cores multiply as they lie ------------------

# X and filters: tiles that end within an image, rows and a sum that fill no tile, more
# columns than one, parts of a sum over several images; and groups.
SHAPES = (
    ((3, 20, 10, 10), 24, 1),
    ((2, 70, 4, 9), 130, 1),
    ((40, 136, 2, 2), 17, 1),
    ((2, 48, 6, 6), 96, 2),
    ((1, 16, 4), 16, 1),
)
REST = {"auto_pad": "NOTSET", "dilations": None, "kernel_shape": None, "pads": None}
REST |= {"strides": None, "allow_tf32": True}
CUT = 2e-3  # of a product's sum of magnitudes: both factors have 10 bits


@pytest.fixture(params=[64, 128])
def lines_of(request, run, monkeypatch):
    """Calls an operator whose lines are in tiles of so many rows: results, and kernels that ran."""
    monkeypatch.setitem(plan_variants.COST, request.param, 0)

    def call(op, *arrays):
        with launch_log() as steps:
            actual = op(*arrays)
        rows = {step.slots["ROWS"] for step in steps if step.symbol.endswith("_lines")}
        assert run.on_gpu or rows <= {str(request.param)}  # 12.0 has 64 alone
        return actual, [step.symbol for step in steps]

    return call


@pytest.mark.parametrize(("shape", "filters", "group"), SHAPES, ids=str)
def test_lines_of_floats_are_multiplied_as_they_lie(
    run, rng, lines_of, shape, filters, group
) -> None:
    """dX, dW and dB, together and alone; dB is a sum of floats that are not cut."""
    x = rng.standard_normal(shape).astype(FLOAT32)
    w = rng.standard_normal((filters, shape[1] // group, *(1 for _ in shape[2:]))).astype(FLOAT32)
    dy = rng.standard_normal((shape[0], filters, *shape[2:])).astype(FLOAT32)
    op = get_op("ConvGrad")(allow_tf32=True, group=group)
    given = [run.place(a) for a in (dy, x, w)]
    actual, symbols = lines_of(op, *given)
    assert {"conv__image_lines", "conv__weight_lines"} <= set(symbols)
    assert not {"conv__stage", "conv__channel_sums"} & set(symbols)
    doubles = [a.astype(FLOAT64) for a in (dy, x, w)]
    expected = conv_grad(*doubles, group=group, **REST)
    magnitudes = conv_grad(*map(abs, doubles), group=group, **REST)
    for ours, exact, most in zip(actual[:2], expected, magnitudes, strict=False):
        assert np.all(abs(run.host(ours) - exact) <= CUT * most)
    assert_matches(run.host(actual[2]), expected[2].astype(FLOAT32), 1e-5)
    for place, output in enumerate(op.outputs):
        alone = op(*given, outputs=(output.name,))[place]
        assert run.host(alone).tobytes() == run.host(actual[place]).tobytes()


def test_forward_lines_have_a_bias(run, rng, lines_of) -> None:
    x = rng.standard_normal((3, 40, 6, 10)).astype(FLOAT32)
    w = rng.standard_normal((70, 40, 1, 1)).astype(FLOAT32)
    b = rng.standard_normal(70).astype(FLOAT32)
    op = get_op("Conv")(allow_tf32=True)
    actual, symbols = lines_of(op, *map(run.place, (x, w, b)))
    assert symbols == ["conv__pack", "conv__image_lines"]
    exact = np.einsum("nchw,mc->nmhw", x.astype(FLOAT64), w[:, :, 0, 0].astype(FLOAT64))
    most = np.einsum("nchw,mc->nmhw", abs(x), abs(w[:, :, 0, 0]))
    assert np.all(abs(run.host(actual) - (exact + b[:, None, None])) <= CUT * most)

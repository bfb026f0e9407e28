# SPDX-License-Identifier: MIT
"""Gradients of operators that make, join, split and index arrays.

y = x[places]      x_grad[places] += y_grad, zero elsewhere

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .rules import INT64, UNDEFINED, ZERO, Site, Term, gradient

ZERO |= {"ConstantOfShape", "EyeLike", "NonZero", "Shape", "Size"}
UNDEFINED["Unique"] = "which elements are equal changes from place to place"


@gradient("Flatten", "Reshape", "Squeeze", "Unsqueeze")
def same_elements(site: Site) -> Sequence[Term | None]:
    """dx = dy in the shape of x."""
    return [site.reshape_like(site.dy, site.inputs[0])]


@gradient("Transpose")
def transpose(site: Site) -> Sequence[Term | None]:
    """dx = dy transposed back, by the inverse of `perm`; without `perm` by reversed axes again."""
    perm = site.attribute("perm", None)
    if perm is None:
        return [site.op("Transpose", site.dy)]
    back = sorted(range(len(perm)), key=lambda axis: perm[axis])
    return [site.op("Transpose", site.dy, perm=tuple(back))]


@gradient("DepthToSpace")
def depth_to_space(site: Site) -> Sequence[Term | None]:
    """dx = SpaceToDepth of dy; in mode CRD, which that lacks, (n, c, h b, w b) is reshaped to
    (n, c, h, b, w, b) and transposed to (n, c, b, b, h, w)."""
    b, x = site.attribute("blocksize", 1), site.inputs[0]
    if site.attribute("mode", "DCR") == "DCR":
        return [site.op("SpaceToDepth", site.dy, blocksize=b)]
    apart = site.reshape(site.dy, (x, 0), (site.dy, 1), (x, 2), b, (x, 3), b)
    moved = site.op("Transpose", apart, perm=(0, 1, 3, 5, 2, 4))
    return [site.reshape_like(moved, x)]


@gradient("SpaceToDepth")
def space_to_depth(site: Site) -> Sequence[Term | None]:
    """dx = DepthToSpace of dy."""
    mode = site.attribute("mode", "DCR")
    return [site.op("DepthToSpace", site.dy, blocksize=site.attribute("blocksize", 1), mode=mode)]


# ---- parts ---------------------------------------------------------------------------------------


@gradient("Concat")
def concat(site: Site) -> Sequence[Term | None]:
    """dx_i = part i of dy, split by the inputs' extents along the axis."""
    axis = site.attribute("axis", 0)
    if len(site.inputs) == 1:
        return [site.dy]
    lengths = site.dims(*((x, axis) for x in site.inputs))
    return site.ops(len(site.inputs), "Split", site.dy, lengths, axis=axis)


@gradient("Split")
def split(site: Site) -> Sequence[Term | None]:
    """dx = dy_0, dy_1, ... concatenated, zeros for outputs without a gradient."""
    parts = [
        site.zeros(site.extra_output(i, site.dtype(site.inputs[0]))) if dy is None else dy
        for i, dy in enumerate(site.dys)
    ]
    return [site.op("Concat", *parts, axis=site.attribute("axis", 0))]


@gradient("Slice")
def slice_(site: Site) -> Sequence[Term | None]:
    """dx[slice] = dy, zero elsewhere."""
    x, *bounds = site.inputs
    return [site.own("SliceGrad", site.dy, site.shape(x), *bounds)]


@gradient("CenterCropPad")
def center_crop_pad(site: Site) -> Sequence[Term | None]:
    """dx = dy, padded where x was cut, and cut where it was padded."""
    shape, axes = site.shape(site.inputs[0]), site.attribute("axes", None)
    if axes is None:
        return [site.op("CenterCropPad", site.dy, shape)]
    own = site.op("Gather", shape, site.ints(*axes))
    return [site.op("CenterCropPad", site.dy, own, axes=axes)]


@gradient("Compress")
def compress(site: Site) -> Sequence[Term | None]:
    """dx = dy at the indices where the condition is true, zero elsewhere."""
    x, condition = site.inputs
    places = site.op("Squeeze", site.op("NonZero", condition, dtype=INT64), site.ints(0))
    axis = site.attribute("axis", None)
    if axis is not None:
        return [site.own("GatherGrad", site.shape(x), places, site.dy, axis=axis, like=x)]
    size = site.op("Unsqueeze", site.op("Size", x, dtype=INT64), site.ints(0))
    flat = site.own("GatherGrad", size, places, site.dy, axis=0, like=x)
    return [site.reshape_like(flat, x)]


@gradient("Trilu")
def trilu(site: Site) -> Sequence[Term | None]:
    """dx = the same triangle of dy, zero elsewhere."""
    upper = site.attribute("upper", 1)
    return [site.op("Trilu", site.dy, *site.inputs[1:], upper=upper)]


@gradient("ReverseSequence")
def reverse_sequence(site: Site) -> Sequence[Term | None]:
    """dx = dy, reversed again."""
    return [site.op("ReverseSequence", site.dy, site.inputs[1], **site.node.attributes)]


@gradient("Tile")
def tile(site: Site) -> Sequence[Term | None]:
    """dx = the sum of dy's tiles: dy reshaped to (r_0, n_0, r_1, n_1, ...), summed over the r.

    r: repeats, n: x's extents.
    """
    x, repeats = site.inputs
    rank = site.rank(x)
    if not rank:
        return [site.dy]
    rows = (site.op("Unsqueeze", each, site.ints(1)) for each in (repeats, site.shape(x)))
    shape = site.op("Reshape", site.op("Concat", *rows, axis=1, dtype=INT64), site.ints(-1))
    apart = site.op("Reshape", site.dy, shape, allowzero=1)
    return [site.op("ReduceSum", apart, site.ints(*range(0, 2 * rank, 2)), keepdims=0)]


@gradient("Pad")
def pad(site: Site) -> Sequence[Term | None]:
    """Mode "constant": dx = dy without the pads; dvalue = the sum of dy in the pads.

    Other modes: dx[source of an element] += dy.
    """
    x, pads, value, axes = (*site.inputs, None, None)[:4]
    mode = site.attribute("mode", "constant")
    if mode != "constant":
        return [_pad_with_elements(site, mode, x, pads, axes)]
    back = site.op("Neg", pads)
    dx = site.op("Pad", site.dy, back, *([None, axes] if axes else []))
    if value is None or not site.wanted[2]:
        return [dx]
    rest = site.op("ReduceSum", site.dy, keepdims=0) - site.op("ReduceSum", dx, keepdims=0)
    return [dx, None, site.reshape_like(rest, value)]


def _pad_with_elements(site: Site, mode: str, x: Term, pads: Term, axes: Term | None) -> Term:
    """Return dx[places] += dy, axis by axis; places: 0, 1, ..., n - 1 padded in the same way.

    axes: those that `pads` (all begins, then all ends) are of; None for all of x.
    """
    chosen = range(site.rank(x)) if axes is None else site.known(axes, "axes")
    dx, known = site.dy, site.value(pads)
    k = len(chosen)
    for i, axis in enumerate(map(int, chosen)):
        if known is not None and not known[[i, i + k]].any():  # begin and end: no pads
            continue
        n = site.dims((x, axis))
        own = site.op("Gather", pads, site.ints(i, i + k))
        places = site.op("Pad", site.count_up(site.op("Squeeze", n, site.ints(0))), own, mode=mode)
        dx = site.add_along(dx, places, axis, n)
    return dx


# ---- elements by index ---------------------------------------------------------------------------


@gradient("Gather")
def gather(site: Site) -> Sequence[Term | None]:
    """y = x[index] along an axis: dx[index] += dy."""
    x, indices = site.inputs
    axis = site.attribute("axis", 0)
    return [site.own("GatherGrad", site.shape(x), indices, site.dy, axis=axis, like=x)]


@gradient("GatherElements")
def gather_elements(site: Site) -> Sequence[Term | None]:
    """dx[.., index, ..] += dy."""
    x, indices = site.inputs
    axis = site.attribute("axis", 0)
    return [site.own("GatherElementsGrad", site.dy, site.shape(x), indices, axis=axis)]


@gradient("GatherND")
def gather_nd(site: Site) -> Sequence[Term | None]:
    """y = x[tuple of indices]: dx[tuple of indices] += dy."""
    x, indices = site.inputs
    n = site.attribute("batch_dims", 0)
    return [site.own("GatherNDGrad", site.shape(x), indices, site.dy, batch_dims=n, like=x)]


@gradient("TopK")
def top_k(site: Site) -> Sequence[Term | None]:
    """dx = dy at the indices of the k chosen elements (output 1), zero elsewhere."""
    axis, x = site.attribute("axis", -1), site.inputs[0]
    places = site.extra_output(1, INT64)
    return [site.own("GatherElementsGrad", site.dy, site.shape(x), places, axis=axis)]


@gradient("OneHot")
def one_hot(site: Site) -> Sequence[Term | None]:
    """values are [off, on]: d_off = sum of dy where y is off, d_on where it is on."""
    indices, depth, values = site.inputs
    dtype, axis = site.dtype(values), site.attribute("axis", -1)
    sums = []
    for pair in ((1, 0), (0, 1)):  # OneHot with these as [off, on] marks the elements to sum
        chosen = site.constant(np.array(pair, dtype))
        places = site.op("OneHot", indices, depth, chosen, axis=axis, dtype=dtype)
        each = site.op("ReduceSum", site.dy * places, keepdims=0)
        sums.append(site.op("Unsqueeze", each, site.ints(0)))
    return [None, None, site.op("Concat", *sums, axis=0)]


@gradient("Range")
def range_(site: Site) -> Sequence[Term | None]:
    """y_i = start + i delta: d_start = sum of dy, d_delta = sum of i dy."""
    start, _, delta = site.inputs
    d_start = d_delta = None
    if site.wanted[0]:
        d_start = site.reshape_like(site.op("ReduceSum", site.dy, keepdims=0), start)
    if site.wanted[2]:
        i = site.cast(site.count_up(site.op("Size", site.dy, dtype=INT64)), site.dtype(delta))
        d_delta = site.reshape_like(site.op("ReduceSum", site.dy * i, keepdims=0), delta)
    return [d_start, None, d_delta]


# ---- scatters ------------------------------------------------------------------------------------


class _Scatter:
    """Gathers and scatters by the indices (input 1) of a ScatterElements or ScatterND node."""

    def __init__(self, site: Site) -> None:
        self._site, self._indices = site, site.inputs[1]
        self._suffix = "ND" if site.node.op_type == "ScatterND" else "Elements"
        axis = {} if self._suffix == "ND" else {"axis": site.attribute("axis", 0)}
        self._axis = axis

    def read(self, x: Term) -> Term:
        """Return the elements of x at the node's indices, in the shape of its updates."""
        return self._site.op(f"Gather{self._suffix}", x, self._indices, **self._axis)

    def write(self, x: Term, updates: Term, reduction: str) -> Term:
        """Return x with updates at the indices; reduction: how they combine, as ONNX names it."""
        options = self._axis | ({} if reduction == "none" else {"reduction": reduction})
        return self._site.op(f"Scatter{self._suffix}", x, self._indices, updates, **options)


@gradient("ScatterElements", "ScatterND")
def scatter(site: Site) -> Sequence[Term | None]:
    """Gradients of x and of the updates u, by `reduction`.

    none: dx = dy, but 0 at the indices; du = dy there. add: dx = dy, du = dy at the indices.
    mul: each factor's is dy times the other factors. max, min: the largest or smallest share dy.
    """
    updates = site.inputs[2]
    dy, at, reduction = site.dy, _Scatter(site), site.attribute("reduction", "none")
    if reduction == "mul":
        return _of_product(site, at)
    if reduction in ("max", "min"):
        return _of_extremes(site, at)
    dx = dy
    if reduction == "none" and site.wanted[0]:
        dx = at.write(dy, site.zeros(updates), "none")
    return [dx, None, at.read(dy) if site.wanted[2] else None]


def _of_product(site: Site, at: _Scatter) -> Sequence[Term | None]:
    """y is the product of x and all updates u of an element: d_factor = dy times the others.

    at: reads and writes at the node's indices.
    p = the product of all factors that are not 0, n = how many are 0: the product of the others is
    p / factor (p itself for a factor of 0) where no other one is 0, else 0.
    """
    x, _, updates = site.inputs
    is_zero = [site.compare("Equal", each, 0) for each in (x, updates)]
    pairs = zip(is_zero, (x, updates), strict=True)
    factors = [site.choose(where, 1, each) for where, each in pairs]
    zeros = [site.cast(where, site.dtype(x)) for where in is_zero]
    product, n = (
        at.write(factors[0], factors[1], "mul"),
        at.write(zeros[0], zeros[1], "add"),
    )
    dx = site.dy * product / factors[0]
    du = at.read(site.dy * product) / factors[1]
    return [
        site.choose(site.compare("Equal", n, zeros[0]), dx, 0),
        None,
        site.choose(site.compare("Equal", at.read(n), zeros[1]), du, 0),
    ]


def _of_extremes(site: Site, at: _Scatter) -> Sequence[Term | None]:
    """y is the max or min of x and all updates of an element: those that equal y share dy.

    at: reads and writes at the node's indices.
    """
    x, _, updates = site.inputs
    y = site.outputs[0]
    dtype = site.dtype(x)
    own = site.cast(site.compare("Equal", x, y), dtype)
    others = site.cast(site.compare("Equal", updates, at.read(y)), dtype)
    part = site.dy / at.write(own, others, "add")
    return [part * own, None, at.read(part) * others]

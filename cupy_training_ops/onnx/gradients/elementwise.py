# SPDX-License-Identifier: MIT
"""Gradients of element-wise operators, with NumPy's broadcasting of their inputs.

A gradient of 0 is chosen (Where), not multiplied by 0, which would make NaN of an infinity.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .rules import MICROSOFT, RULES, ZERO, Rule, Site, Term, gradient
from .writer import is_real

ZERO |= {"Ceil", "Floor", "Round", "Sign", "Not", "IsInf", "IsNaN", "BitwiseNot"}
ZERO |= {"And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
ZERO |= {"BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Bernoulli", "Hardmax"}
ZERO |= {"RandomNormalLike", "RandomUniformLike", "EyeLike", "ConstantOfShape"}

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

# dx of y = f(x), as formulas of dy, x and y.
FORMULAS: dict[str, Callable[[Site, Term, Term, Term], Term]] = {
    "Abs": lambda site, dy, x, y: dy * site.op("Sign", x),
    "Acos": lambda site, dy, x, y: -(dy / site.op("Sqrt", (1 - x) * (1 + x))),
    "Acosh": lambda site, dy, x, y: dy / site.op("Sinh", y),
    "Asin": lambda site, dy, x, y: dy / site.op("Sqrt", (1 - x) * (1 + x)),
    "Asinh": lambda site, dy, x, y: dy / site.op("Cosh", y),
    "Atan": lambda site, dy, x, y: dy / (x * x + 1),
    "Atanh": lambda site, dy, x, y: dy / ((1 - x) * (1 + x)),
    "Cos": lambda site, dy, x, y: -(dy * site.op("Sin", x)),
    "Cosh": lambda site, dy, x, y: dy * site.op("Sinh", x),
    "Erf": lambda site, dy, x, y: dy * (site.op("Exp", -(x * x)) * (2 / math.sqrt(math.pi))),
    "Exp": lambda site, dy, x, y: dy * y,
    "FastGelu": lambda site, dy, x, y: site.own("FastGeluGrad", dy, x),
    "Identity": lambda site, dy, x, y: dy,
    "Log": lambda site, dy, x, y: dy / x,
    "Neg": lambda site, dy, x, y: -dy,
    "Reciprocal": lambda site, dy, x, y: -(dy * y * y),
    "Relu": lambda site, dy, x, y: site.own("ReluGrad", dy, y),
    "Sigmoid": lambda site, dy, x, y: site.own("SigmoidGrad", dy, y),
    "Sin": lambda site, dy, x, y: dy * site.op("Cos", x),
    "Sinh": lambda site, dy, x, y: dy * site.op("Cosh", x),
    "Softplus": lambda site, dy, x, y: dy * site.op("Sigmoid", x),
    "Sqrt": lambda site, dy, x, y: dy * 0.5 / y,
    "Tan": lambda site, dy, x, y: dy * (y * y + 1),
    "Tanh": lambda site, dy, x, y: site.own("TanhGrad", dy, y),
}


def _by_formula(formula: Callable[[Site, Term, Term, Term], Term]) -> Rule:
    """Return the rule of an operator of one input; formula(site, dy, x, y) returns dx."""

    def rule(site: Site) -> Sequence[Term]:
        return [formula(site, site.dys[0], site.inputs[0], site.outputs[0])]

    return rule


RULES |= {name: _by_formula(formula) for name, formula in FORMULAS.items()}


# ---- activations ---------------------------------------------------------------------------------


@gradient("Elu")
def elu(site: Site) -> Sequence[Term | None]:
    """dx = dy where x > 0, else dy alpha e^x."""
    return [_exponential_below_0(site, site.dys[0], site.attribute("alpha", 1.0), 1.0)]


@gradient("Selu")
def selu(site: Site) -> Sequence[Term | None]:
    """dx = gamma dy where x > 0, else gamma dy alpha e^x."""
    alpha = site.attribute("alpha", SELU_ALPHA)
    dy = site.dys[0] * site.attribute("gamma", SELU_GAMMA)
    return [_exponential_below_0(site, dy, alpha, 1.0)]


@gradient("Celu")
def celu(site: Site) -> Sequence[Term | None]:
    """dx = dy where x > 0, else dy e^(x / alpha)."""
    return [_exponential_below_0(site, site.dys[0], 1.0, 1 / site.attribute("alpha", 1.0))]


def _exponential_below_0(site: Site, dy: Term, factor: float, rate: float) -> Term:
    """Return dy where x > 0, else dy factor e^(rate x)."""
    x = site.inputs[0]
    slope = site.op("Exp", x if rate == 1 else x * rate)
    below = dy * (slope if factor == 1 else slope * factor)
    return site.choose(site.compare("Greater", x, 0), dy, below)


@gradient("LeakyRelu")
def leaky_relu(site: Site) -> Sequence[Term | None]:
    """dx = dy where x > 0, else alpha dy; y has x's sign if alpha is not negative."""
    alpha = site.attribute("alpha", 0.01)
    sign = site.outputs[0] if alpha >= 0 else site.inputs[0]
    return [site.own("LeakyReluGrad", site.dys[0], sign, alpha=alpha)]


@gradient("PRelu")
def prelu(site: Site) -> Sequence[Term | None]:
    """dx = dy where x > 0, else slope dy; dslope = sum of dy min(x, 0)."""
    (dy,), (x, slope) = site.dys, site.inputs
    dx = site.choose(site.compare("Greater", x, 0), dy, dy * slope) if site.wanted[0] else None
    if not site.wanted[1]:
        return [dx]
    return [dx, site.sum_to(dy * site.op("Min", x, site.number(0, x)), slope)]


@gradient("ThresholdedRelu")
def thresholded_relu(site: Site) -> Sequence[Term | None]:
    """dx = dy where x > alpha, else 0."""
    is_above = site.compare("Greater", site.inputs[0], site.attribute("alpha", 1.0))
    return [site.choose(is_above, site.dys[0], 0)]


@gradient("Shrink")
def shrink(site: Site) -> Sequence[Term | None]:
    """dx = dy where |x| > lambd, else 0."""
    size = site.op("Abs", site.inputs[0])
    is_far = site.compare("Greater", size, site.attribute("lambd", 0.5))
    return [site.choose(is_far, site.dys[0], 0)]


@gradient("HardSigmoid")
def hard_sigmoid(site: Site) -> Sequence[Term | None]:
    """dx = alpha dy where 0 < y < 1, else 0."""
    (dy,), (y,) = site.dys, site.outputs
    is_below, is_above = site.compare("Less", y, 1), site.compare("Greater", y, 0)
    slope = dy * site.attribute("alpha", 0.2)
    return [site.choose(site.op("And", is_below, is_above), slope, 0)]


@gradient("HardSwish")
def hard_swish(site: Site) -> Sequence[Term | None]:
    """dx = dy (x / 3 + 1/2) where |x| < 3; beyond 0 on the left and dy on the right."""
    (dy,), (x,) = site.dys, site.inputs
    is_near = site.compare("Less", site.op("Abs", x), 3)
    beyond = site.choose(site.compare("Greater", x, 0), dy, 0)
    return [site.choose(is_near, dy * (x * (1 / 3) + 0.5), beyond)]


@gradient("Mish")
def mish(site: Site) -> Sequence[Term | None]:
    """dx = dy (t + x s (1 - t^2)), t = tanh(softplus(x)), s = sigmoid(x)."""
    (dy,), (x,) = site.dys, site.inputs
    t = site.op("Tanh", site.op("Softplus", x))
    return [dy * (t + x * site.op("Sigmoid", x) * (1 - t * t))]


@gradient("Softsign")
def softsign(site: Site) -> Sequence[Term | None]:
    """dx = dy / (1 + |x|)^2, divided twice, since a square could overflow."""
    width = site.op("Abs", site.inputs[0]) + 1
    return [site.dys[0] / width / width]


@gradient("QuickGelu", "Swish")
def swish(site: Site) -> Sequence[Term | None]:
    """y = x s, s = sigmoid(alpha x): dx = dy s (1 + alpha x (1 - s)), by one node."""
    alpha = site.attribute("alpha", 1.702 if site.node.op_type == "QuickGelu" else 1.0)
    return [site.own("QuickGeluGrad", site.dys[0], site.inputs[0], alpha=alpha)]


@gradient("Gelu")
def gelu(site: Site) -> Sequence[Term | None]:
    """dx by one node: of x Phi(x), or of its approximation by tanh."""
    by_tanh = site.attribute("approximate", "none") == "tanh"
    op_type = "FastGeluGrad" if by_tanh else "GeluGrad"
    return [site.own(op_type, site.dys[0], site.inputs[0])]


@gradient("BiasGelu", "FastGelu")
def bias_gelu(site: Site) -> Sequence[Term | None]:
    """y = gelu(x + bias): dx by one node, dbias = sum of dx."""
    (dy,), (x, *bias) = site.dys, site.inputs
    is_fast = site.node.op_type == "FastGelu"
    if not bias or bias[0] is None:
        return [site.own("FastGeluGrad", dy, x)]
    dx = site.own("BiasFastGeluGrad_dX" if is_fast else "BiasGeluGrad_dX", dy, x, bias[0])
    return [dx, site.sum_from(dx, site.extents(x), bias[0]) if site.wanted[1] else None]


@gradient("FakeQuant")
def fake_quant(site: Site) -> Sequence[Term | None]:
    """dx = dy where x was not clipped to the range, else 0; no other input has a gradient."""
    return [site.own("FakeQuantGrad", site.dys[0], site.extra_output(1))]


# ---- types ---------------------------------------------------------------------------------------


@gradient("Cast", "CastLike")
def cast(site: Site) -> Sequence[Term | None]:
    """dx = dy in the type of x; as it is if x are quantized integers, whose gradient is real."""
    dtype = site.dtype(site.inputs[0])
    return [site.cast(site.dys[0], dtype) if is_real(dtype) else site.dys[0]]


# ---- of two and more arrays ----------------------------------------------------------------------


@gradient("Add", "Sum")
def add(site: Site) -> Sequence[Term | None]:
    """dx_i = dy, summed to the shape of x_i."""
    return [_sum(site, site.dys[0], i) for i in range(len(site.inputs))]


@gradient("Mean")
def mean(site: Site) -> Sequence[Term | None]:
    """dx_i = dy / n of n inputs, summed to the shape of x_i."""
    n = len(site.inputs)
    return [_sum(site, site.dys[0] / n, i) for i in range(n)]


@gradient("Sub")
def subtract(site: Site) -> Sequence[Term | None]:
    """y = a - b: da = dy, db = -dy."""
    dy = site.dys[0]
    return [_sum(site, dy, 0), _sum(site, -dy, 1) if site.wanted[1] else None]


@gradient("Mul")
def multiply(site: Site) -> Sequence[Term | None]:
    """y = a b: da = dy b, db = dy a."""
    (dy,), (a, b) = site.dys, site.inputs
    return [
        _sum(site, dy * b, 0) if site.wanted[0] else None,
        _sum(site, dy * a, 1) if site.wanted[1] else None,
    ]


@gradient("Div")
def divide(site: Site) -> Sequence[Term | None]:
    """y = a / b: da = dy / b, db = -dy y / b."""
    (dy,), (a, b), (y,) = site.dys, site.inputs, site.outputs
    if all(site.wanted):
        return site.ops(2, "DivGrad", dy, a, b, domain=MICROSOFT)
    quotient = dy / b
    return [_sum(site, quotient, 0), _sum(site, -(quotient * y), 1) if site.wanted[1] else None]


@gradient("Mod")
def modulo(site: Site) -> Sequence[Term | None]:
    """y = a - n b with a whole n: da = dy, db = -n dy."""
    (dy,), (a, b), (y,) = site.dys, site.inputs, site.outputs
    db = None
    if site.wanted[1]:
        db = _sum(site, -(dy * site.op("Round", (a - y) / b)), 1)
    return [_sum(site, dy, 0), db]


@gradient("Pow")
def power(site: Site) -> Sequence[Term | None]:
    """y = a^b: da = dy b a^(b - 1), 0 where b = 0; db = dy y log a, 0 where a = 0 <= b."""
    (dy,), (a, b), (y,) = site.dys, site.inputs, site.outputs
    exponent = site.value(b)
    if exponent is not None and exponent.size == 1:
        da = _by_exponent(site, float(exponent.item()))
        return [None if da is None else _sum(site, da, 0), None]
    if site.dtype(b) != site.dtype(a):
        b = site.cast(b, site.dtype(a))
    da = db = None
    if site.wanted[0]:
        slope = b * site.op("Pow", a, b - 1)
        da = _sum(site, site.choose(site.compare("Equal", b, 0), 0, dy * slope), 0)
    if site.wanted[1]:
        is_flat = site.op("And", site.compare("Equal", a, 0), site.compare("GreaterOrEqual", b, 0))
        slope = site.choose(is_flat, 0, y * site.op("Log", a))
        db = _sum(site, dy * slope, 1)
    return [da, db]


def _by_exponent(site: Site, b: float) -> Term | None:
    """Return dy b a^(b - 1) of a constant b (None of b = 0), frequent ones without a Pow."""
    (dy,), a, (y,) = site.dys, site.inputs[0], site.outputs
    formulas: dict[float, Callable[[], Term | None]] = {
        -1.0: lambda: -(dy * y * y),
        0.0: lambda: None,
        0.5: lambda: dy * 0.5 / y,
        1.0: lambda: dy,
        2.0: lambda: dy * (a * 2),
        3.0: lambda: dy * (a * a * 3),
    }
    if b in formulas:
        return formulas[b]()
    slope = site.op("Pow", a, site.number(b - 1, a))
    return site.op("Mul", dy, slope * b)


@gradient("Max", "Min")
def extreme(site: Site) -> Sequence[Term | None]:
    """dx_i = dy / n where x_i is one of the n inputs that equal y, else 0.

    Equal inputs share, so that their gradients' sum is dy and their order makes no difference. An
    input counts as equal if it is not Less than y (Max): so n is not 0 where y is NaN.
    """
    (dy,), (y,) = site.dys, site.outputs
    if len(site.inputs) == 1:
        return [dy]
    beyond = "Less" if site.node.op_type == "Max" else "Greater"
    loses = [site.compare(beyond, x, y) for x in site.inputs]
    ones = [site.choose(each, 0, site.number(1, dy)) for each in loses]
    share = dy / site.op("Sum", *ones)
    return [
        _sum(site, site.choose(each, 0, share), i) if site.wanted[i] else None
        for i, each in enumerate(loses)
    ]


@gradient("Clip")
def clip(site: Site) -> Sequence[Term | None]:
    """dx = dy where low <= x <= high; dlow = sum of dy where x < low; dhigh where x > high.

    Where high < low, y is high everywhere, so that dhigh = sum of dy and the others are 0.
    """
    (dy,), (y,) = site.dys, site.outputs
    x, low, high = (*site.inputs, None, None)[:3]
    if low is None and high is None:
        return [dy]
    is_inside = site.compare("Equal", x, y)
    is_in_order = None
    if low is not None and high is not None and not _are_in_order(site, low, high):
        is_in_order = site.compare("LessOrEqual", low, high)
        is_inside = site.op("And", is_inside, is_in_order)
    dx = site.choose(is_inside, dy, 0) if site.wanted[0] else None
    dlow = dhigh = None
    if low is not None and site.wanted[1]:
        is_low = site.compare("Less", x, low)
        is_low = site.op("And", is_low, is_in_order) if is_in_order else is_low
        dlow = _sum(site, site.choose(is_low, dy, 0), 1)
    if high is not None and site.wanted[2]:
        is_high = site.compare("Greater", x, high)
        is_high = site.op("Or", is_high, site.op("Not", is_in_order)) if is_in_order else is_high
        dhigh = _sum(site, site.choose(is_high, dy, 0), 2)
    return [dx, dlow, dhigh]


def _are_in_order(site: Site, low: Term, high: Term) -> bool:
    """Return True if both bounds are known, and low <= high."""
    bounds = site.value(low), site.value(high)
    return bounds[0] is not None and bounds[1] is not None and bool((bounds[0] <= bounds[1]).all())


@gradient("Where")
def where(site: Site) -> Sequence[Term | None]:
    """y = condition ? a : b: da = dy where the condition holds, else 0; db the other way round."""
    (dy,), condition = site.dys, site.inputs[0]
    pairs = ((dy, 0.0), (0.0, dy))
    return [
        None,
        *(
            _sum(site, site.choose(condition, *pair), i) if site.wanted[i] else None
            for i, pair in enumerate(pairs, 1)
        ),
    ]


@gradient("Expand")
def expand(site: Site) -> Sequence[Term | None]:
    """dx = sum of dy over the axes along which x was repeated."""
    return [_sum(site, site.dys[0], 0)]


def _sum(site: Site, dx: Term, place: int) -> Term | None:
    """Return `dx`, of the output's shape, summed to the shape of input `place`.

    None if that input's gradient is not needed.
    """
    return site.sum_to(dx, site.inputs[place]) if site.wanted[place] else None

# SPDX-License-Identifier: MIT
"""Elementwise operators: gelus with a bias, gates, rotations, relu's bits, dropouts, codecs.

A dropout's mask depends only on `state`, (seed, offset), which the dispatcher passes as a tensor;
on a GPU the kernel reads it there. Bodies compute by run(operator, *inputs): `launch`, or `infer`
for results without data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...call.op import Op
from ...codecs.table import CODECS, Codec
from ...dtypes import dtype_name
from ...errors import refuse, shown
from ...families.activation.operators import (
    BiasFastGeluGrad_dX,
    BiasGelu,
    BiasGeluGrad_dX,
    FastGeGlu,
    FastGeGluGrad,
    FastGelu,
    FastGeluGrad,
    Gelu,
    GeluGrad,
    QuickGelu,
    QuickGeluGrad,
    SwiGlu,
    SwiGluGrad,
    SwiGluHalves,
    SwiGluHalvesGrad,
)
from ...families.dropout.operators import (
    BiasDropout,
    BitmaskBiasDropout,
    BitmaskDropout,
    BitmaskDropoutGrad,
    Dropout,
    DropoutGrad,
)
from ...families.gist.operators import ReluGradFromBits, ReluWithBits
from ...families.rotary.operators import RotaryHalves, RotaryHalvesGrad
from .autograd import CustomOp, masked_op
from .dispatch import register
from .launching import NUMPY_DTYPES, Run, infer, instance, of_mask

# By `approximate` and whether there is a bias: the operator, and its gradient.
_GELUS = {
    ("none", False): (Gelu, GeluGrad),
    ("none", True): (BiasGelu, BiasGeluGrad_dX),
    ("tanh", False): (FastGelu, FastGeluGrad),
    ("tanh", True): (FastGelu, BiasFastGeluGrad_dX),
}


def _gelus(approximate: str, bias: Tensor | None) -> Any:
    """Return the classes of the operator and its gradient."""
    ops = _GELUS.get((approximate, bias is not None))
    if ops is None:
        refuse("cto::gelu", "approximate", "'none' or 'tanh'", shown(approximate))
    return ops


def _gelu(run: Run, x: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    op, _ = _gelus(approximate, bias)
    return run(instance(op), x) if bias is None else run(instance(op), x, bias)


def _gelu_backward(
    run: Run, dy: Tensor, x: Tensor, bias: Tensor | None, approximate: str
) -> Tensor:
    _, op = _gelus(approximate, bias)
    return run(instance(op), dy, x) if bias is None else run(instance(op), dy, x, bias)


def _save_gelu(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
    *tensors, ctx.approximate = arguments
    ctx.save_for_backward(*[x for x in tensors if x is not None])


def _over_rows(gradient: Tensor, bias: Tensor) -> Tensor:
    """Return a bias's gradient: that of x + bias, summed over the leading dimensions it lacks."""
    if bias.shape == gradient.shape:
        return gradient
    return gradient.sum(tuple(range(gradient.dim() - bias.dim())))


def _gelu_derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, bias = (*ctx.saved_tensors, None)[:2]
    dx = DOORS["gelu_backward"].every(dy, x, bias, ctx.approximate)
    return dx, _over_rows(dx, bias) if ctx.needs_input_grad[1] else None, None


def _quick_gelu(run: Run, x: Tensor, alpha: float) -> Tensor:
    return run(instance(QuickGelu, alpha=alpha), x)


def _quick_gelu_backward(run: Run, dy: Tensor, x: Tensor, alpha: float) -> Tensor:
    op = instance(QuickGeluGrad, alpha=alpha)
    return run(op, dy, x)


def _save_quick_gelu(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
    x, ctx.alpha = arguments
    ctx.save_for_backward(x)


def _quick_gelu_derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return DOORS["quick_gelu_backward"].every(dy, *ctx.saved_tensors, ctx.alpha), None


def _gated(name: str, forward: type[Op], gradient: type[Op]) -> tuple[CustomOp, CustomOp]:
    """Return the operator `name`, an activation of `gate` times `value`, and its derivative's.

    forward, gradient: the kernels' operators.
    """

    def body(run: Run, gate: Tensor, value: Tensor) -> Tensor:
        return run(instance(forward), gate, value)

    def gradients(run: Run, dy: Tensor, gate: Tensor, value: Tensor, mask: Sequence[bool]) -> Any:
        return of_mask(run, instance(gradient), (dy, gate, value), mask)

    def save(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
        ctx.save_for_backward(*arguments)

    def derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        mask = tuple(ctx.needs_input_grad[:2])
        return tuple(DOORS[f"{name}_backward"].masked(dy, *ctx.saved_tensors, mask))

    schema = (
        f"{name}_backward(Tensor grad, Tensor gate, Tensor value, "
        "bool[2] output_mask=[True, True]) -> (Tensor, Tensor)"
    )
    return (
        CustomOp(f"{name}(Tensor gate, Tensor value) -> Tensor", body, save, derivative),
        masked_op(schema, gradients),
    )


def _swiglu_halves(run: Run, x: Tensor) -> Tensor:
    return run(instance(SwiGluHalves), x)


def _swiglu_halves_backward(run: Run, dy: Tensor, x: Tensor) -> Tensor:
    return run(instance(SwiGluHalvesGrad), dy, x)


def _save_input(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
    ctx.save_for_backward(*arguments)


def _swiglu_halves_derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return (DOORS["swiglu_halves_backward"].every(dy, *ctx.saved_tensors),)


def _rotary(name: str, op: type[Op], argument: str, derivative_name: str) -> CustomOp:
    """A rotation of rows; its derivative is the other one, as both are linear."""

    def body(run: Run, x: Tensor, cos: Tensor, sin: Tensor, heads_last: bool) -> Tensor:
        return run(instance(op, heads_last=heads_last), x, cos, sin)

    def save(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
        _, cos, sin, ctx.heads_last = arguments
        ctx.save_for_backward(cos, sin)

    def derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        for place, each in ((1, "cos"), (2, "sin")):
            if ctx.needs_input_grad[place]:
                expected = "a tensor that requires no gradient"
                refuse(f"cto::{name}", each, expected, "one that does")
        # In the layout in which it has no gaps, as it would be copied in the other one.
        swapped = dy.transpose(1, 2)
        turn, heads_last = DOORS[derivative_name].every, ctx.heads_last
        if dy.is_contiguous() or not swapped.is_contiguous():
            dx = turn(dy, *ctx.saved_tensors, heads_last)
        else:
            dx = turn(swapped, *ctx.saved_tensors, not heads_last).transpose(1, 2)
        return dx, None, None, None

    tensors = f"Tensor {argument}, Tensor cos, Tensor sin"
    schema = f"{name}({tensors}, bool heads_last=False) -> Tensor"
    return CustomOp(schema, body, save, derivative)


def _relu(run: Run, x: Tensor) -> Any:
    return run(instance(ReluWithBits), x)


def _relu_backward(run: Run, dy: Tensor, bits: Tensor) -> Tensor:
    return run(instance(ReluGradFromBits), dy, bits)


def _save_relu(ctx: Any, _: Sequence[Any], results: Any) -> None:
    ctx.save_for_backward(results[1])


def _relu_derivative(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
    return (DOORS["relu_backward"].every(dy, *ctx.saved_tensors),)


def _state(state: Any) -> Any:
    """Return (seed, offset); a copy of a tensor on a GPU, as the kernel advances the offset."""
    if not isinstance(state, Tensor):
        return state
    if state.device.type == "cpu":
        return tuple(state.tolist())
    return state.clone().view(torch.uint64)


def _dropouts(
    name: str, plain: type[Op], biased: type[Op], gradient: type[Op], mask: torch.dtype
) -> tuple[CustomOp, CustomOp]:
    """Return the operator `name`, a dropout of x + bias, plus a residual, and its gradient's.

    plain, biased, gradient: the kernels' operators, without bias and residual, with them, and of
    the gradient. mask: the dtype of masks in PyTorch's schema.
    """

    def draw(run: Run, *arguments: Any) -> Any:
        """Return (result, mask), or the result alone if `run` computes only that."""
        x, bias, residual, p, state = arguments
        if bias is None and residual is None:
            return run(instance(plain), x, p, True, state)
        bias = x.new_zeros(x.shape[-1:]) if bias is None else bias
        return run(instance(biased), x, bias, residual, p, True, state)

    def body(run: Run, *arguments: Any) -> Any:
        *others, state = arguments
        results = draw(run, *others, _state(state))
        return results if isinstance(results, Tensor) else (results[0], results[1].view(mask))

    def direct(run: Run, *arguments: Any) -> Any:
        """Leave the mask in the operator's own dtype."""
        *others, state = arguments
        return draw(run, *others, _state(state))

    def fake(*arguments: Any) -> tuple[Tensor, Tensor]:
        y, drawn = draw(infer, *arguments)
        return y, drawn.view(mask)

    def backward(run: Run, dy: Tensor, drawn: Tensor, p: float) -> Tensor:
        is_bits = drawn.dtype == torch.int32
        own = drawn.view(torch.uint32) if is_bits else drawn
        return run(instance(gradient), dy, own, p, True)

    def save(ctx: Any, arguments: Sequence[Any], results: Any) -> None:
        _, bias, _, ctx.p, _ = arguments
        ctx.save_for_backward(results[1], bias)

    def derivative(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
        drawn, bias = ctx.saved_tensors
        of_x, of_bias, of_residual, *_ = ctx.needs_input_grad
        has_dx = of_x or of_bias
        dx = DOORS[f"{name}_backward"].every(dy, drawn, ctx.p) if has_dx else None
        dbias = _over_rows(dx, bias) if of_bias else None  # d (x + bias) = dx
        return dx, dbias, dy if of_residual else None, None, None

    schema = (
        f"{name}(Tensor input, Tensor? bias, Tensor? residual, float p, Tensor state) "
        "-> (Tensor output, Tensor mask)"
    )
    return (
        CustomOp(schema, body, save, derivative, fake, direct=direct, changing=4),
        CustomOp(
            f"{name}_backward(Tensor grad, Tensor mask, float p) -> Tensor",
            backward,
        ),
    )


def _coders(codec: Codec) -> tuple[CustomOp, CustomOp]:
    """Return the operators encode_<codec>, of a tensor, and decode_<codec>, of its codes."""

    def encode(run: Run, x: Tensor) -> Tensor:
        return run(instance(codec.encoder, **codec.fixed), x)

    def decode(run: Run, code: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        op = instance(codec.decoder, to=dtype_name(NUMPY_DTYPES[dtype]), shape=tuple(shape))
        return run(op, code)

    def fake(code: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=code.device)

    schema = f"decode_{codec.name}(Tensor code, SymInt[] shape, ScalarType dtype) -> Tensor"
    return (
        CustomOp(f"encode_{codec.name}(Tensor input) -> Tensor", encode),
        CustomOp(schema, decode, fake=fake),
    )


# Codecs whose codes have a size that depends on shape and dtype only.
FIXED_SIZE = tuple([codec for codec in CODECS.values() if not codec.leaves_room])
DOORS = register(
    (
        CustomOp(
            "gelu(Tensor input, Tensor? bias=None, str approximate='none') -> Tensor",
            _gelu,
            _save_gelu,
            _gelu_derivative,
        ),
        CustomOp(
            "gelu_backward(Tensor grad, Tensor input, Tensor? bias=None, "
            "str approximate='none') -> Tensor",
            _gelu_backward,
        ),
        CustomOp(
            "quick_gelu(Tensor input, float alpha=1.702) -> Tensor",
            _quick_gelu,
            _save_quick_gelu,
            _quick_gelu_derivative,
        ),
        CustomOp(
            "quick_gelu_backward(Tensor grad, Tensor input, float alpha=1.702) -> Tensor",
            _quick_gelu_backward,
        ),
        *_gated("swiglu", SwiGlu, SwiGluGrad),
        CustomOp(
            "swiglu_halves(Tensor input) -> Tensor",
            _swiglu_halves,
            _save_input,
            _swiglu_halves_derivative,
        ),
        CustomOp(
            "swiglu_halves_backward(Tensor grad, Tensor input) -> Tensor",
            _swiglu_halves_backward,
        ),
        *_gated("geglu", FastGeGlu, FastGeGluGrad),
        _rotary("rotary", RotaryHalves, "input", "rotary_backward"),
        _rotary("rotary_backward", RotaryHalvesGrad, "grad", "rotary"),
        CustomOp(
            "relu(Tensor input) -> (Tensor output, Tensor bits)",
            _relu,
            _save_relu,
            _relu_derivative,
        ),
        CustomOp(
            "relu_backward(Tensor grad, Tensor bits) -> Tensor",
            _relu_backward,
        ),
        *_dropouts("dropout", Dropout, BiasDropout, DropoutGrad, torch.bool),
        *_dropouts(
            "bitmask_dropout",
            BitmaskDropout,
            BitmaskBiasDropout,
            BitmaskDropoutGrad,
            torch.int32,  # uint32 has few operators in PyTorch
        ),
        *(operator for codec in FIXED_SIZE for operator in _coders(codec)),
    )
)

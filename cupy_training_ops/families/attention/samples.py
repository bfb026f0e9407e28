# SPDX-License-Identifier: MIT
"""Sample inputs of attention and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, FLOATS, Dtype, dtype_name
from ...samples import Generator, Sample, Shape
from . import reference as cpu
from .operators import FlashAttention


class Call(NamedTuple):
    """A sampled call, in each dtype."""

    label: str
    extents: tuple[int, ...]  # batch, heads, kv_heads, queries, keys, width, v_width
    dtypes: tuple[Dtype, ...]
    mask: Shape | None = None
    is_bool: bool = False  # the mask is
    has_lengths: bool = False  # with nonpad_kv_seqlen
    attributes: Mapping[str, Any] = {}  # with q_num_heads arrays have rank 3
    offset: int = 0  # elements by which arrays start off a 16-byte boundary


# "large" ends inside tiles of queries and of keys, "wide" has the widest heads; of "hidden" the
# first queries may see no key, of "padded" none sees the last keys.
CALLS = (
    Call("ordinary", (2, 4, 4, 40, 40, 16, 16), FLOATS),
    Call("odd", (2, 6, 2, 5, 7, 3, 5), (FLOAT16, FLOAT64), (7,), attributes={"softcap": 1.5}),
    Call("empty", (0, 4, 2, 4, 4, 8, 8), (BFLOAT16, FLOAT32)),
    Call("no-keys", (2, 2, 1, 4, 0, 8, 8), (FLOAT32,)),
    Call("no-queries", (2, 2, 1, 0, 4, 8, 8), (FLOAT16,)),
    Call("one", (1, 1, 1, 1, 1, 1, 1), (FLOAT16, FLOAT64)),
    Call("misaligned", (1, 2, 1, 20, 33, 8, 8), (BFLOAT16, FLOAT32), (20, 33), True, offset=1),
    Call("large", (1, 2, 1, 150, 140, 64, 48), (FLOAT16, FLOAT32), attributes={"is_causal": True}),
    Call("wide", (1, 1, 1, 70, 70, 128, 128), (BFLOAT16, FLOAT32), (1, 70, 1), True),
    Call(
        "hidden",
        (2, 2, 2, 20, 40, 16, 16),
        (BFLOAT16, FLOAT64),
        has_lengths=True,
        attributes={"is_causal": True},
    ),
    Call(
        "flat-padded",
        (2, 4, 2, 24, 30, 16, 24),
        FLOATS,
        (2, 1, 24, 26),
        attributes={"q_num_heads": 4, "kv_num_heads": 2, "scale": 0.3, "pads_mask": True},
    ),
)


def forward_inputs(rng: Generator, call: Call, dtype: Dtype) -> tuple[Any, ...]:
    """Return Q, K, V, the mask and lengths, the last two None where `call` has none."""
    batch, heads, kv_heads, queries, keys, width, v_width = call.extents
    is_flat = "q_num_heads" in call.attributes

    def normal(heads: int, rows: int, width: int) -> Any:
        shape = (batch, rows, heads * width) if is_flat else (batch, heads, rows, width)
        return rng.standard_normal(shape).astype(dtype)

    arrays = normal(heads, queries, width), normal(kv_heads, keys, width)
    mask = None if call.mask is None else rng.standard_normal(call.mask).astype(dtype)
    if mask is not None and call.is_bool:
        mask = mask > -1
    lengths = rng.integers(0, keys + 1, batch) if call.has_lengths else None
    return (*arrays, normal(kv_heads, keys, v_width), mask, lengths)


def gradient_inputs(rng: Generator, call: Call, dtype: Dtype) -> tuple[Any, ...]:
    """Return dY, Q, K, V, Y, LSE, the mask and lengths of `call`; Y, LSE are FlashAttention's."""
    inputs = forward_inputs(rng, call, dtype)
    op = FlashAttention(**call.attributes)
    y, lse = cpu.flash_attention(*inputs, **{a.name: getattr(op, a.name) for a in op.attributes})
    dy = rng.standard_normal(y.shape).astype(dtype)
    return (dy, *inputs[:3], y, lse, *inputs[3:])


def _samples(name: str) -> Iterator[Sample]:
    """Yield the samples of the operator of this name; masks of numbers get a gradient."""
    is_gradient = name.endswith("Grad")
    for call in CALLS:
        for dtype in call.dtypes:
            make = gradient_inputs if is_gradient else forward_inputs
            attributes = dict(call.attributes)
            if is_gradient and call.mask and not call.is_bool:
                attributes["mask_gradient"] = True
            types = [dtype_name(dtype)]
            if call.mask:
                types.append(dtype_name(BOOL if call.is_bool else dtype))
            label = "-".join([*types, call.label])
            yield Sample(
                name, label, partial(make, call=call, dtype=dtype), attributes, call.offset
            )


SAMPLES = {name: tuple(_samples(name)) for name in ("FlashAttention", "FlashAttentionGrad")}

# SPDX-License-Identifier: MIT
"""Attention without the matrix of scores, and its gradient.

Tiles of scores are computed where they are used, and again for the gradient. Sums are kept in
float32 (float64 for float64), in an order that follows from shapes and the GPU.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ...call.op import Op
from ...declare.schema import (
    Input,
    Output,
    Shape,
    Spec,
    attribute,
    boolean,
    count,
    finite,
    optional,
    positive_or_zero,
)
from ...declare.type_rows import TypeRows, Types
from ...dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT64, Dtype
from ...errors import refuse
from ...plan import Device, Plan
from ...rules.widening import computed_in
from .facts import ADDENDS, BOOLEANS, MAX_EXTENT, NO_MASK
from .plan import Kernels

HALF_PRECISION = (FLOAT16, BFLOAT16)

Q = Input(
    "Q", "T", shape="(batch, heads, queries, width) or (batch, queries, heads width)", doc="queries"
)
K = Input(
    "K",
    "T",
    shape="(batch, kv_heads, keys, width) or (batch, keys, kv_heads width)",
    doc="keys",
)
V = Input(
    "V",
    "T",
    shape="(batch, kv_heads, keys, v_width) or (batch, keys, kv_heads v_width)",
    doc="values",
)
MASK = Input(
    "attn_mask",
    "M",
    optional=True,
    shape="broadcast to (batch, heads, queries, keys), or shorter in the last, with pads_mask",
    doc="bool: True where a query sees a key; else added to scores",
)
LENGTHS = Input(
    "nonpad_kv_seqlen",
    "int64",
    optional=True,
    shape="(batch,)",
    doc="keys that exist; the last query is the last of them where it is causal",
)
LSE_SHAPE = "(batch, heads, queries)"


def max_width(dtype: Dtype) -> int:
    """Return the most elements of a head (width, v_width) that kernels take."""
    return 64 if dtype == FLOAT64 else 128


class _Attention(Op):
    """Base of both: attributes, and the extents of Q, K and V.

    Methods have the inputs' specs by names in small letters: q, k, v, y, dy, lse, mask (attn_mask)
    and lengths (nonpad_kv_seqlen), the last two None where they are left out.
    """

    domain = "cupy_training_ops"
    types: ClassVar[Types] = TypeRows(
        "T M U",
        "float32 float32 float32",
        "float32 bool float32",
        "float64 float64 float64",
        "float64 bool float64",
        "float16 float16 float32",
        "bfloat16 bfloat16 float32",
        "H bool float32",
        H=HALF_PRECISION,
    )
    is_causal = attribute(boolean, False, doc="query i sees keys up to i alone")
    q_num_heads = attribute(optional(count), None, doc="heads of Q, of rank 3 alone")
    kv_num_heads = attribute(optional(count), None, doc="heads of K and V, of rank 3 alone")
    scale = attribute(optional(finite), None, doc="None: 1 / sqrt(width)")
    softcap = attribute(positive_or_zero, 0.0, doc="0: none")
    pads_mask = attribute(
        boolean, False, doc="keys behind the end of a shorter mask are hidden, also if it has one"
    )

    def problem(self, q: Spec, k: Spec, v: Spec, mask: Spec | None) -> dict[str, Any]:
        """Return the fields of the struct Problem by name; refuse inputs that do not fit."""
        shapes = {
            name: self._by_heads(name, spec) for name, spec in zip("QKV", (q, k, v), strict=True)
        }
        batch, heads, queries, width = shapes["Q"]
        kv_heads, keys, v_width = shapes["K"][1], shapes["K"][2], shapes["V"][3]
        for name, expected in (
            ("K", (batch, kv_heads, keys, width)),
            ("V", (batch, kv_heads, keys, v_width)),
        ):
            if shapes[name] != expected:
                words = "(batch, heads, rows, width)"
                refuse(self.name, name, f"{words} = {expected}, for Q and K", f"{shapes[name]}")
        if not (heads and kv_heads) or heads % kv_heads:
            words = f"heads, a multiple of K's {kv_heads}"
            refuse(self.name, "Q", words, f"{heads} heads")
        for name, widest in (("Q", width), ("V", v_width)):
            if not 1 <= widest <= max_width(q.dtype):
                words = f"heads of 1 to {max_width(q.dtype)} elements of {q.dtype}"
                refuse(self.name, name, words, f"{widest}")
        if max(queries, keys, heads * width, heads * v_width) > MAX_EXTENT:
            words = f"at most {MAX_EXTENT} rows, and elements of all heads of one"
            refuse(self.name, "Q and K", words, f"shapes {q.shape} and {k.shape}")
        return {
            "heads": heads,
            "kv_heads": kv_heads,
            "queries": queries,
            "keys": keys,
            "width": width,
            "v_width": v_width,
            "is_flat": len(q.shape) == 3,
            "is_causal": self.is_causal,
            **self._mask_layout(mask, (batch, heads, queries, keys)),
            "scale": 1 / math.sqrt(width) if self.scale is None else self.scale,
            "softcap": self.softcap,
        }

    def _by_heads(self, name: str, spec: Spec) -> Shape:
        """Return the shape (batch, heads, rows, width) of the array `name`, Q, K or V."""
        n = self.q_num_heads if name == "Q" else self.kv_num_heads
        if len(spec.shape) == 4 and n is None:
            return spec.shape
        if len(spec.shape) == 3 and n is not None and spec.shape[2] % n == 0:
            return spec.shape[0], n, spec.shape[1], spec.shape[2] // n
        expected = "rank 4 without q_num_heads and kv_num_heads, or rank 3 with both, "
        refuse(self.name, name, f"{expected}which divide the last extent", f"shape {spec.shape}")

    def _mask_layout(self, mask: Spec | None, whole: Shape) -> dict[str, Any]:
        """Return the mask's fields of Problem; whole: (batch, heads, queries, keys).

        Steps from a batch, head, query or key to the next are in elements, 0 where it is broadcast.
        """
        if mask is None:
            steps = dict.fromkeys(("mask_batch", "mask_head", "mask_query", "mask_key"), 0)
            return {"mask": NO_MASK, "mask_keys": whole[3], **steps}
        shape = (1,) * (4 - len(mask.shape)) + mask.shape
        is_short = self.pads_mask and shape[3] <= whole[3]
        fits = all(n in (1, m) for n, m in zip(shape[:3], whole[:3], strict=False))
        if len(shape) != 4 or not fits or not (is_short or shape[3] in (1, whole[3])):
            shorter = ", or with a shorter last extent" if self.pads_mask else ""
            expected = f"a shape broadcast to {whole}{shorter}"
            refuse(self.name, "attn_mask", expected, f"{mask.shape}")
        return {
            "mask": BOOLEANS if mask.dtype == BOOL else ADDENDS,
            "mask_keys": shape[3] if is_short else whole[3],
            "mask_batch": 0 if shape[0] == 1 else math.prod(shape[1:]),
            "mask_head": 0 if shape[1] == 1 else shape[2] * shape[3],
            "mask_query": 0 if shape[2] == 1 else shape[3],
            "mask_key": int(is_short or shape[3] != 1),
        }

    def check_lengths(self, q: Spec, lengths: Spec | None) -> None:
        """Refuse nonpad_kv_seqlen of a shape other than (batch,)."""
        if lengths is not None and lengths.shape != q.shape[:1]:
            refuse(self.name, "nonpad_kv_seqlen", f"shape {q.shape[:1]}", f"shape {lengths.shape}")

    def statistics(self, q: Spec) -> Spec:
        """Return the spec of LSE, a number for each query."""
        batch, heads, queries, _ = self._by_heads("Q", q)
        return Spec((batch, heads, queries), computed_in(q.dtype))

    def result(self, q: Spec, v: Spec) -> Spec:
        """Return the spec of Y."""
        (_, heads, _, _), (*_, width) = self._by_heads("Q", q), self._by_heads("V", v)
        return Spec((*q.shape[:-1], width * (1 if len(q.shape) == 4 else heads)), q.dtype)


class FlashAttention(_Attention):
    """Attention: Y = P V, P = softmax of S over keys, S = scale Q K^T, and LSE = ln sum of e^S.

    With a softcap c S is c tanh(scale Q K^T / c), then the mask is added, or S is -inf where it is
    False, and where a key is hidden. heads may be a multiple of kv_heads: head h of Q goes with
    head h // (heads / kv_heads) of K and V. Causal, query i sees keys 0 to i; with nonpad_kv_seqlen
    n keys 0 to i + n - queries. A query that sees no key has Y = 0 and LSE = -inf.

    S is never in memory. P is rounded to T before it is multiplied with V, if T has 2 bytes. NaN
    and infinities propagate along their rows; those of hidden keys may or may not.

    Source: ONNX Attention-24, by the algorithm of Dao, FlashAttention-2 (2023).
    """

    inputs = (Q, K, V, MASK, LENGTHS)
    outputs = (
        Output("Y", "T", shape="shape of Q with v_width in place of width"),
        Output("LSE", "U", shape=LSE_SHAPE),
    )

    def infer(
        self, q: Spec, k: Spec, v: Spec, mask: Spec | None, lengths: Spec | None
    ) -> tuple[Spec, ...]:
        """Return the specs of Y and LSE; refuse inputs that do not fit each other."""
        self.problem(q, k, v, mask)
        self.check_lengths(q, lengths)
        return self.result(q, v), self.statistics(q)

    def plan(
        self,
        device: Device,
        q: Spec,
        k: Spec,
        v: Spec,
        mask: Spec | None,
        lengths: Spec | None,
        y: Spec | None,
        lse: Spec | None,
    ) -> Plan:
        """Plan one launch; y, lse: the outputs, None where not wanted."""
        problem = self.problem(q, k, v, mask)
        kernels = Kernels(device, problem, q.shape[0], (q, k, v, y))
        return kernels.forward(q, k, v, mask, lengths, y, lse)


class FlashAttentionGrad(_Attention):
    """Gradient of FlashAttention: dS = P (dY V^T - sum of dY Y), dV = P^T dY, dQ = scale dS K.

    P = e^(S - LSE) is computed again, and dK = scale dS^T Q; with a softcap c dQ and dK have the
    factor 1 - tanh^2(scale Q K^T / c). dK and dV are sums over the heads of Q that share them. Y
    and LSE are the outputs of FlashAttention. With mask_gradient, dS is the gradient of the mask
    before it is summed to the mask's shape: as many elements as scores.

    dS and P are rounded to T before they are multiplied, if T has 2 bytes. Queries
    that see no key have no part in it.

    Source: ONNX Attention-24, gradient, by the algorithm of Dao, FlashAttention-2 (2023).
    """

    inputs = (
        Input("dY", "T", shape="shape of Y"),
        Q,
        K,
        V,
        Input("Y", "T", shape="shape of Q with v_width in place of width"),
        Input("LSE", "U", shape=LSE_SHAPE),
        MASK,
        LENGTHS,
    )
    outputs = (
        Output("dQ", "T", shape="shape of Q"),
        Output("dK", "T", shape="shape of K"),
        Output("dV", "T", shape="shape of V"),
        Output(
            "dS", "T", optional=True, shape="(batch, heads, queries, keys)", doc="if mask_gradient"
        ),
    )
    mask_gradient = attribute(boolean, False, doc="dS is an output, else None")

    def infer(
        self,
        dy: Spec,
        q: Spec,
        k: Spec,
        v: Spec,
        y: Spec,
        lse: Spec,
        mask: Spec | None,
        lengths: Spec | None,
    ) -> tuple[Spec | None, ...]:
        """Return the specs of dQ, dK, dV and dS; refuse dY, Y and LSE of other shapes."""
        problem = self.problem(q, k, v, mask)
        self.check_lengths(q, lengths)
        expected = {"dY": self.result(q, v), "Y": self.result(q, v), "LSE": self.statistics(q)}
        for (name, spec), actual in zip(expected.items(), (dy, y, lse), strict=True):
            if actual.shape != spec.shape:
                refuse(self.name, name, f"shape {spec.shape}", f"shape {actual.shape}")
        scores = (q.shape[0], problem["heads"], problem["queries"], problem["keys"])
        ds = Spec(scores, q.dtype) if self.mask_gradient else None
        return *(Spec(each.shape, q.dtype) for each in (q, k, v)), ds

    def plan(
        self,
        device: Device,
        dy: Spec,
        q: Spec,
        k: Spec,
        v: Spec,
        y: Spec,
        lse: Spec,
        mask: Spec | None,
        lengths: Spec | None,
        *results: Spec | None,
    ) -> Plan:
        """Plan the gradients; results: dQ, dK, dV and dS, None where not wanted."""
        problem = self.problem(q, k, v, mask)
        rows, with_scores = (dy, q, k, v, y, *results[:3]), results[3] is not None
        kernels = Kernels(device, problem, q.shape[0], rows, with_scores)
        return kernels.gradient((dy, q, k, v), (y, lse), (mask, lengths), results)


OPS = {"FlashAttention": FlashAttention, "FlashAttentionGrad": FlashAttentionGrad}

# SPDX-License-Identifier: MIT
"""Rotary position embeddings, and their gradient.

A row of queries or keys is rotated by the angles of its position: element i of its first half and
element i of its second are a pair. Computed in float32 (float64 for float64), and rounded once to
the row's type: the angles of 16-bit rows may be float32.
"""

from __future__ import annotations

from typing import ClassVar

from ...call.op import Op
from ...declare.schema import Input, Output, Spec, attribute, boolean
from ...declare.type_rows import TypeRows, Types
from ...dtypes import BFLOAT16, FLOAT16, FLOATS
from ...errors import refuse
from ...plan import VEC_NBYTES, Config, Device, Launch, Plan, ceil_div, slots
from ...planning.fast_division import divisor
from ...rules.widening import computed_in
from .facts import ITEMS, THREADS

ROWS = "(batch, heads, rows, width), or (batch, rows, heads, width) with heads_last"
ANGLES = "(1 or batch, rows, width)"
COS = Input("cos", "TAngle", shape=ANGLES, doc="cosines of the angles of each position")
SIN = Input("sin", "TAngle", shape=ANGLES, doc="sines of the angles of each position")


class _Rotary(Op):
    """Base of both: one launch, a thread for some elements of a row's first half.

    Methods have the inputs' specs by names in small letters: x (X or dY), cos and sin; y: the
    output, Y or dX.
    """

    domain = "cupy_training_ops"
    types: ClassVar[Types] = TypeRows(
        "T TAngle", "F F", "H float32", F=FLOATS, H=(FLOAT16, BFLOAT16)
    )
    kernels: ClassVar[tuple[str, str]]  # their names: of vectors, of single elements
    heads_last = attribute(boolean, False, doc="heads lie between a row and the next one")

    def infer(self, x: Spec, cos: Spec, sin: Spec) -> tuple[Spec, ...]:
        """Return the spec of the output, that of the first input; refuse other shapes."""
        name = self.inputs[0].name
        if len(x.shape) != 4 or x.shape[3] % 2:
            refuse(self.name, name, "rank 4 and an even last extent", f"shape {x.shape}")
        rows = x.shape[1 if self.heads_last else 2]
        for argument, spec in (("cos", cos), ("sin", sin)):
            one, each = (1, rows, x.shape[3]), (x.shape[0], rows, x.shape[3])
            if spec.shape not in (one, each):
                expected = f"shape {one}" if one == each else f"shape {one} or {each}"
                refuse(self.name, argument, f"{expected}, for {name}", f"{spec.shape}")
        if cos.shape != sin.shape:
            refuse(self.name, "sin", f"shape {cos.shape}, as cos", f"{sin.shape}")
        return (Spec(x.shape, x.dtype),)

    def plan(self, device: Device, x: Spec, cos: Spec, sin: Spec, y: Spec) -> Plan:
        """Plan one launch, by vectors where half rows are whole ones and all arrays aligned."""
        batch, first, second, width = x.shape
        heads, rows = (second, first) if self.heads_last else (first, second)
        n = VEC_NBYTES // x.dtype.itemsize  # elements of a vector
        in_vectors = width // 2 % n == 0 and all(spec.aligned for spec in (x, cos, sin, y))
        n_items = width // 2 // n if in_vectors else width // 2
        total = batch * heads * rows * n_items
        arguments = (
            *(x, cos, sin, y, total),
            *(divisor(n_items), divisor(rows)),
            divisor(heads if self.heads_last else heads * rows),
            self.heads_last,
            cos.shape[0] != 1,
        )
        config = Config((ceil_div(total, THREADS * ITEMS),), (THREADS,))
        symbol = self.kernels[0] if in_vectors else self.kernels[1]
        types = slots(T=x.dtype, W=cos.dtype, ACC=computed_in(x.dtype))
        return Plan((Launch(symbol, config, arguments, types),))


class RotaryHalves(_Rotary):
    """Rotary embedding: Y1 = X1 cos1 - X2 sin1, Y2 = X2 cos2 + X1 sin2, of halves of rows.

    X1 and X2 are the halves of a row, as of cos and sin, which all heads share. If both halves of
    cos and sin are equal, pairs (X1, X2) turn by their angle; other halves are served, too. With
    one row of cos and sin for all of the batch, their first extent is 1. NaN propagates.

    Source: Su et al., RoFormer (2021), as transformers' apply_rotary_pos_emb has it.
    """

    kernels = ("rotary_halves", "rotary_halves__single")
    inputs = (Input("X", "T", shape=ROWS, doc="queries or keys"), COS, SIN)
    outputs = (Output("Y", "T", may_alias=("X",), shape="shape of X"),)


class RotaryHalvesGrad(_Rotary):
    """Gradient of RotaryHalves: dX1 = dY1 cos1 + dY2 sin2, dX2 = dY2 cos2 - dY1 sin1.

    By X alone: cos and sin are constants. NaN propagates.

    Source: Su et al., RoFormer (2021), gradient.
    """

    kernels = ("rotary_halves_grad", "rotary_halves_grad__single")
    inputs = (Input("dY", "T", shape=ROWS), COS, SIN)
    outputs = (Output("dX", "T", may_alias=("dY",), shape="shape of dY"),)


OPS = {"RotaryHalves": RotaryHalves, "RotaryHalvesGrad": RotaryHalvesGrad}

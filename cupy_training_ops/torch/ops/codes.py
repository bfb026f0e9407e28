# SPDX-License-Identifier: MIT
"""Encoders and decoders of every codec whose codes have a fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...codecs.table import CODECS, Codec
from ...dtypes import dtype_name
from .launching import OURS, Run, instance
from .nodes import Operator
from .registration import register


def _coder(codec: Codec) -> tuple[Operator, Operator]:
    def encode(run: Run, x: Tensor) -> Tensor:
        return run(instance(codec.encoder, **codec.fixed), x)

    def decode(run: Run, code: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        op = instance(codec.decoder, to=dtype_name(OURS[dtype]), shape=tuple(shape))
        return run(op, code)

    def fake(code: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=code.device)

    schema = f"decode_{codec.name}(Tensor code, SymInt[] shape, ScalarType dtype) -> Tensor"
    return (
        Operator(f"encode_{codec.name}(Tensor input) -> Tensor", encode),
        Operator(schema, decode, fake=fake),
    )


FIXED_SIZE = tuple([codec for codec in CODECS.values() if not codec.leaves_room])
DOORS = register([operator for codec in FIXED_SIZE for operator in _coder(codec)])

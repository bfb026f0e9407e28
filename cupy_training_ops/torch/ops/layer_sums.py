# SPDX-License-Identifier: MIT
"""Gradients of a linear layer, hidden @ weight.T + bias, summed over chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...plan import align_up, ceil_div
from .losses import MOST, scale_in_place

# Bytes of a chunk's scores, about: large, as each chunk reads and writes the summed gradients.
CHUNK_NBYTES = 512 << 20
SCALE = 1024  # factor of gradients of scores where float16 sums them: few become subnormal
_ROWS = 128  # a chunk has whole tiles of a matrix product
MOST_APART = 128  # rows of `LayerSums.apart`


def chunks(n_rows: int, row_nbytes: int, most_rows: int = 0) -> Iterator[slice]:
    """Yield slices that cover n_rows rows: nearly equal, about CHUNK_NBYTES, multiples of _ROWS.

    All rows of half of CHUNK_NBYTES at most are one slice. Others have at most 1.25 CHUNK_NBYTES,
    rounded up to _ROWS. row_nbytes: bytes of one row, of scores or of what else is processed in
    chunks. most_rows: rows of each slice, whatever their bytes; 0: no bound.
    """
    half, nbytes = CHUNK_NBYTES // 2, n_rows * row_nbytes
    n_chunks = max(2, (nbytes + half) // CHUNK_NBYTES) if nbytes > half else 1  # the nearest number
    step = most_rows or max(_ROWS, align_up(ceil_div(n_rows, n_chunks), _ROWS))
    return (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


class LayerSums:
    """Gradients of hidden, weight and bias, summed over chunks; `results` has all three, an empty
    tensor for each that the mask does not select.

    The sum for a 16-bit weight is float16, in the memory of its gradient: bfloat16 would round it
    to 8 bits at each chunk. Two chunks are summed in bfloat16 all the same: that is faster, and
    errors are 1.2 times those of one rounding. To stay within float16 it is

        weight_sums = unit * sum over rows of dscores.T @ (hidden / largest)

    largest: the largest magnitude of each column of hidden. unit: bounds the sums by MOST, as it is
    MOST / headroom / rows, or less. dscores: gradients of scores, which `add` gets times `scale`,
    so that small ones are normal numbers of float16. apart: indices of rows with the largest
    elements, beside which others would lose bits, or None: `add` gets 0 as their gradients, and
    `add_apart` adds them last, after `divide`.
    """

    def __init__(
        self,
        inputs: Sequence[Tensor | None],
        mask: Sequence[bool],
        n_chunks: int,
        chunk_rows: int,
        headroom: int,
    ) -> None:
        """Allocate the sums.

        inputs: hidden, weight, and bias or None. mask: which of their gradients are computed.
        n_chunks: how often `add` is called. chunk_rows: bound of the rows `apart`, 0 without.
        headroom: bound of the magnitudes of gradients of scores.
        """
        hidden, self.weight, bias = inputs
        assert hidden is not None
        self.results = [
            hidden.new_empty(x.shape if wanted else 0)
            for x, wanted in zip((hidden, self.weight, bias), mask, strict=True)
        ]
        # None without elements.
        gradients = [each if each.numel() else None for each in self.results]
        self.of_hidden, self.of_weight, self.of_bias = gradients
        self.are_wanted = any(mask)
        self.is_half = hidden.dtype == torch.float16 or (
            hidden.dtype == torch.bfloat16 and n_chunks > 2
        )
        self.scale = SCALE if self.is_half else 1
        self.wide_bias = None  # float16 would overflow
        if self.of_bias is not None:
            wide = torch.promote_types(self.of_bias.dtype, torch.float32)
            self.wide_bias = torch.zeros_like(self.of_bias, dtype=wide)
        self.weight_sums, self.unit, self.apart = self.of_weight, 1.0, None
        if self.is_half and self.of_weight is not None:
            self.weight_sums = self.of_weight.view(torch.float16)
            self.unit = MOST / headroom / 2 ** max(len(hidden) - 1, 0).bit_length()
            sizes = hidden.abs()
            if n_apart := min(MOST_APART, chunk_rows or MOST_APART, len(hidden) // 8):
                self.apart = sizes.amax(1).topk(n_apart, sorted=False).indices
                sizes.index_fill_(0, self.apart, 0)
            self.largest = sizes.amax(0).float() if len(hidden) else hidden.new_ones(())
            self.largest.masked_fill_(self.largest == 0, 1)
        if self.weight_sums is not None and not len(hidden):
            self.weight_sums.zero_()

    def add(self, rows: slice, hidden: Tensor, gradient: Tensor) -> None:
        """Add a chunk's gradients.

        hidden: the chunk's rows of it. gradient: of their scores, times `scale`; overwritten.
        """
        if self.of_hidden is not None:
            into, weight = self.of_hidden[rows], self.weight
            # gradient @ weight / scale, without another array.
            torch.addmm(into, gradient, weight, beta=0, alpha=1 / self.scale, out=into)
        if self.wide_bias is not None:
            self.wide_bias += gradient.sum(0, dtype=self.wide_bias.dtype)
        if self.weight_sums is not None:
            factors, alpha = (gradient, hidden), self.unit / self.scale
            if self.is_half:
                relative = torch.empty_like(hidden, dtype=self.weight_sums.dtype)
                torch.div(hidden, self.largest, out=relative)
                relative.clamp_(-1, 1)  # rows apart, whose gradient is 0 here, may be infinite
                factors = _to_half(gradient), relative
            # beta: the first chunk overwrites, others add.
            self.weight_sums.addmm_(
                factors[0].t(), factors[1], beta=int(rows.start > 0), alpha=alpha
            )

    def divide(self, divisor: Tensor) -> None:
        """Undo the scales, and divide the gradients by numbers, a tensor of shape (3,)."""
        # With a dimension, as they would be rounded to 16 bits on a GPU without.
        of_hidden, of_weight, of_bias = divisor.split(1)
        if self.of_hidden is not None:
            self.of_hidden /= of_hidden
        if self.of_bias is not None:
            self.wide_bias /= of_bias * self.scale
            self.of_bias.copy_(self.wide_bias)
        if self.weight_sums is None or self.of_weight is None:
            return
        if not self.is_half:
            scale_in_place(self.of_weight, 1 / of_weight.squeeze(0))
            return
        factor = self.largest / (of_weight * self.unit)
        for rows in chunks(len(self.weight_sums), 2 * self.weight_sums[0].nbytes):
            torch.mul(self.weight_sums[rows], factor, out=self.of_weight[rows])

    def add_apart(self, hidden: Tensor, gradient: Tensor, factors: tuple[float, Tensor]) -> None:
        """Add the gradients of the rows `apart`, after `divide`.

        hidden: these rows of it. gradient: of their scores, which those that are added are the
        product of with both `factors`, a number and powers of two of shape (3,).
        """
        assert self.of_weight is not None
        alpha, powers = factors
        for_hidden, for_weight, for_bias = powers.split(1)
        scaled = torch.empty_like(hidden)
        torch.mul(hidden, for_weight, out=scaled)  # by float32: the power may be beyond float16
        self.of_weight.addmm_(gradient.t(), scaled, alpha=alpha)
        if self.of_hidden is not None:
            rows = torch.empty_like(hidden)
            torch.addmm(rows, gradient, self.weight, beta=0, alpha=alpha, out=rows)
            self.of_hidden.index_copy_(0, self.apart, rows.mul_(for_hidden))
        if self.of_bias is not None and self.wide_bias is not None:
            total = gradient.sum(0, dtype=self.wide_bias.dtype)
            self.wide_bias += total.mul_(for_bias).mul_(alpha)
            self.of_bias.copy_(self.wide_bias)


def _to_half(gradient: Tensor) -> Tensor:
    """Convert a gradient to float16 in its own memory; vectorised, unlike copy_."""
    half = gradient.view(torch.float16)
    torch._foreach_copy_([half], [gradient])
    return half

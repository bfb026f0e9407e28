# SPDX-License-Identifier: MIT
"""Products of warpgroups: operands lie where descriptors say, and nobody touches what goes on."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from emulator import EmulatorError

ROWS, COLUMNS, K = 64, 16, 16
LINES = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes, by the swizzle mode
PLACED = 48 * 1024  # bytes of shared memory


class Layout:
    """Places of an operand's elements: an oracle that knows lines and patterns, no address bits.

    Eight lines of 16, 32, 64 or 128 bytes are a pattern: of a pattern, vector v of line l is at
    place v ^ (l / n), n lines being 128 bytes (one, of lines of 128). A line is a row, or if
    transposed one k. Patterns, and of lines of 16 bytes the vectors, are any distance apart.
    """

    def __init__(
        self, rng, mode: int, transposed: bool, n: int, first: int, itemsize: int = 2
    ) -> None:
        self.mode, self.transposed, self.itemsize = mode, transposed, itemsize
        self.line, self.start = LINES[mode], first
        vectors = self.line // 16
        if transposed:
            across, down = math.ceil(n / 8 / vectors), K // 8
        else:
            across, down = math.ceil(2 / vectors), n // 8
        # So that no two patterns share a place.
        unit = 8 * self.line
        self.of_down = unit * int(rng.integers(1, 3))
        self.of_across = self.of_down * down + unit * int(rng.integers(0, 3))
        self.end = first + self.of_across * across

    @property
    def bits(self) -> int:
        """The descriptor."""
        leading, stride = self.of_across, self.of_down
        if self.mode == 0 and self.transposed:
            leading, stride = stride, leading
        return self.mode << 62 | stride // 16 << 32 | leading // 16 << 16 | self.start // 16

    def place(self, row: int, k: int) -> int:
        """The byte where element (row, k) lies."""
        of_line, in_line = (k, row) if self.transposed else (row, k)
        vectors = self.line // 16
        number, of_vector = divmod(in_line, 16 // self.itemsize)
        pattern = number // vectors * self.of_across + of_line // 8 * self.of_down
        line = of_line % 8
        swizzled = number % vectors ^ line * self.line // 128 % vectors
        of_vector *= self.itemsize
        return self.start + pattern + line * self.line + swizzled * 16 + of_vector


def _multiply(load_kernels, memory, a: int, b: int, layout: int, times: int = 1):
    actual = np.full((ROWS, COLUMNS), np.nan, np.float32)
    kernel = load_kernels("warpgroup_products.cu").get_function("one_product")
    args = (memory.view(np.uint32), np.int32(memory.size // 4), actual)
    shared = {"shared_mem": memory.size}
    how = (np.uint64(a), np.uint64(b), np.int32(layout), np.int32(times))
    kernel((1,), (128,), (*args, *how), **shared)
    return actual


def _placed(rng, mode: int, transposed: tuple[bool, bool], dtype=np.float16):
    """Random operands, the memory where they lie, and both layouts."""
    itemsize = np.dtype(dtype).itemsize
    a, b = (rng.standard_normal((n, 32 // itemsize)).astype(dtype) for n in (ROWS, COLUMNS))
    of_a = Layout(rng, mode, transposed[0], ROWS, 0, itemsize)
    of_b = Layout(rng, mode, transposed[1], COLUMNS, -(-of_a.end // 1024) * 1024, itemsize)
    memory = np.full(max(PLACED, of_b.end), 0xFF, np.uint8)
    for array, layout in ((a, of_a), (b, of_b)):
        for row, k in np.ndindex(array.shape):
            at = layout.place(row, k)
            memory[at : at + itemsize] = array[row, k : k + 1].view(np.uint8)
    return a, b, memory, of_a, of_b


def _cut(floats):
    return (floats.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("mode", LINES)
@pytest.mark.parametrize("layout", range(4))
def test_operands_lie_where_descriptors_say(load_kernels, rng, mode, layout):
    a, b, memory, of_a, of_b = _placed(rng, mode, (bool(layout & 1), bool(layout & 2)))
    actual = _multiply(load_kernels, memory, of_a.bits, of_b.bits, layout)
    expected = a.astype(np.float64) @ b.T.astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", LINES)
def test_floats_are_cut_off_to_tf32(load_kernels, rng, mode):
    a, b, memory, of_a, of_b = _placed(rng, mode, (False, False), np.float32)
    actual = _multiply(load_kernels, memory, of_a.bits, of_b.bits, layout=4)
    np.testing.assert_allclose(actual, _cut(a) @ _cut(b).T, rtol=1e-5, atol=1e-5)


def test_products_of_a_group_are_added_up(load_kernels, rng):
    a, b, memory, of_a, of_b = _placed(rng, 1, (False, True))
    actual = _multiply(load_kernels, memory, of_a.bits, of_b.bits, layout=2, times=3)
    expected = 3 * a.astype(np.float64) @ b.T.astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


# What a descriptor of A in lines of 128 bytes becomes, and what of the message names it; None where
# other elements are multiplied.
DESCRIPTORS = {
    "start": (lambda bits: bits + 2, None),
    "start in a pattern": (lambda bits: bits + 8, "in the middle of a pattern"),
    "start beyond the memory": (lambda bits: bits | 0x3F80, "beside the"),
    "stride": (lambda bits: bits ^ 64 << 32, None),
    "leading": (lambda bits: bits ^ 64 << 16, None),
    "swizzle": (lambda bits: bits ^ 3 << 62, None),
    "no swizzle": (lambda bits: bits & ~(3 << 62), None),
    "base offset": (lambda bits: bits | 1 << 49, "beside its fields"),
    "bits of an address": (lambda bits: bits | 1 << 14, "beside its fields"),
}


@pytest.mark.parametrize("planted", DESCRIPTORS)
def test_planted_faults_of_descriptors(load_kernels, rng, planted):
    """For the leading offset A is transposed, in lines of 16 rows."""
    change, message = DESCRIPTORS[planted]
    a, b, memory, of_a, of_b = _placed(rng, 1, (False, False))
    if planted == "leading":
        a, b, memory, of_a, of_b = _placed(rng, 3, (True, False))
    layout = int(of_a.transposed)
    if message is not None:
        with pytest.raises(EmulatorError, match=re.escape(message)):
            _multiply(load_kernels, memory, change(of_a.bits), of_b.bits, layout)
        return
    actual = _multiply(load_kernels, memory, change(of_a.bits), of_b.bits, layout)
    assert not np.allclose(actual, a.astype(np.float32) @ b.T.astype(np.float32), atol=1e-3)


FAULTS = {
    "NO_FENCE": "no wgmma.fence",
    "NO_COMMIT": None,
    "NO_WAIT": None,
    "WAITS_FOR_ONE_LESS": None,
    "NO_PROXY_FENCE": "without a proxy fence",
    "PROXY_FENCE_TOO_EARLY": "without a proxy fence",
    "NO_BARRIER": "a race",
    "COPIES_OVER_IT": "has changed|a race",
    "STAGE_NOT_COPIED": "without a proxy fence|has changed|a race",
    "OTHER_STAGE": "without a proxy fence|has changed|a race",
    "NEVER_WAITS": "ends before its products",
    "LANES_DIFFER": "lanes of a warp differ",
    "WARPS_DIFFER": "warps of a warpgroup differ",
    "HALF_A_WARP": "deadlock",
    "WRITES_SUMS": "sums were written",
}


def _number(fault: str) -> np.int32:
    text = (Path(__file__).parent / "kernels" / "warpgroup_products.cu").read_text()
    (names,) = re.findall(r"enum Fault \{([^}]*)\}", text)
    return np.int32([name.strip() for name in names.split(",")].index(fault))


def _by_stages(load_kernels, rng, fault: str, count: int = 4):
    """The product, and what it should be."""
    operands = rng.standard_normal((count, ROWS + COLUMNS, K)).astype(np.float16)
    actual = np.full((ROWS, COLUMNS), -1, np.float32)
    kernel = load_kernels("warpgroup_products.cu").get_function("by_stages")
    args = (operands.view(np.uint32), np.int32(count), actual, _number(fault))
    kernel((1,), (128,), args, shared_mem=2 * (ROWS + COLUMNS) * 32)
    a, b = operands[:, :ROWS].astype(np.float64), operands[:, ROWS:].astype(np.float64)
    return actual, np.einsum("sik,sjk->ij", a, b)


def test_stages_are_multiplied_one_after_the_other(load_kernels, rng):
    actual, expected = _by_stages(load_kernels, rng, "NONE")
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_of_stages(load_kernels, rng, fault):
    if FAULTS[fault] is not None:
        with pytest.raises(EmulatorError, match=FAULTS[fault]):
            _by_stages(load_kernels, rng, fault)
        return
    actual, _ = _by_stages(load_kernels, rng, fault)
    assert np.isnan(actual).all()


def test_a_fault_leaves_nothing_behind(load_kernels, rng):
    for fault in ("NEVER_WAITS", "COPIES_OVER_IT", "NO_PROXY_FENCE"):
        with pytest.raises(EmulatorError):
            _by_stages(load_kernels, rng, fault)
        actual, expected = _by_stages(load_kernels, rng, "NONE")
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def _of_registers(load_kernels, rng, mode: int, n_groups: int, fault: str = "NONE"):
    """The sum of products of A in registers, three a group, and what it should be."""
    _, b, memory, _, of_b = _placed(rng, mode, (False, False), np.float32)
    a = rng.standard_normal((3 * n_groups, ROWS, 8)).astype(np.float32)
    actual = np.full((ROWS, COLUMNS), -1, np.float32)
    kernel = load_kernels("warpgroup_products.cu").get_function("of_registers")
    placed = (memory.view(np.uint32), np.int32(memory.size // 4))
    args = (*placed, a.view(np.uint32), actual, np.uint64(of_b.bits), np.int32(n_groups))
    kernel((1,), (128,), (*args, _number(fault)), shared_mem=memory.size)
    return actual, _cut(a).sum(axis=0) @ _cut(b).T


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("mode", LINES)
def test_products_of_registers_are_added_up(load_kernels, rng, mode, n_groups):
    actual, expected = _of_registers(load_kernels, rng, mode, n_groups)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("fault", ["NO_FENCE", "NO_WAIT", "LANES_DIFFER"])
def test_planted_faults_of_registers(load_kernels, rng, fault, n_groups):
    if FAULTS[fault] is None:
        actual, _ = _of_registers(load_kernels, rng, 1, n_groups, fault)
        assert np.isnan(actual).all()
        return
    with pytest.raises(EmulatorError, match=FAULTS[fault]):
        _of_registers(load_kernels, rng, 1, n_groups, fault)

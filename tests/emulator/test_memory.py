# SPDX-License-Identifier: MIT
"""Accesses outside of arrays, misaligned accesses, aliases, and shared memory."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from emulator import EmulatedModule, EmulatorError, guarded_copy, require_emulator, thread_order

MEMORY = (Path(__file__).parent / "kernels" / "memory.cu").read_text()
TABLE = np.dtype(
    {"names": ["count", "sources", "target"], "formats": ["i4", ("u8", 3), "u8"]}, align=True
)


@pytest.fixture(scope="module")
def kernel(load_kernels):
    """A function of a name: the kernel."""
    return load_kernels("memory.cu").get_function


def _copy_one(kernel, x, y, source, target):
    name = "copy_one" if x.dtype == np.float32 else "copy_one_byte"
    kernel(name)((1,), (1,), (x, y, np.int64(source), np.int64(target)))


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000, 1023, 1024, 1025])
def test_planted_out_of_bounds_accesses_are_exact_to_the_element(
    kernel, rng, marked_line, size, offset
):
    x = rng.standard_normal(size + offset).astype(np.float32)[offset:]
    y = rng.standard_normal(size + offset).astype(np.float32)[offset:]
    for inside in (0, size - 1):
        _copy_one(kernel, x, y, inside, size - 1 - inside)
        assert y[size - 1 - inside] == x[inside]
    before = y.copy()
    for outside, where in ((size, "0 bytes past the end"), (-1, "4 bytes before the start")):
        with pytest.raises(EmulatorError, match=f"a read of 4 bytes: {where} of argument 0"):
            _copy_one(kernel, x, y, outside, 0)
        with pytest.raises(EmulatorError, match=f"a write of 4 bytes: {where} of argument 1") as e:
            _copy_one(kernel, x, y, 0, outside)
        assert str(e.value).endswith(f"at {marked_line('memory.cu', 'copy')}")
        assert "copy_one: block (0,0,0) thread (0,0,0)" in str(e.value)
    np.testing.assert_array_equal(y, before, "a failed launch changes nothing")


@pytest.mark.parametrize("size", [1, 7, 15, 16, 17])
def test_out_of_bounds_bytes(kernel, rng, size):
    x, y = rng.integers(0, 256, (2, size), np.uint8)
    _copy_one(kernel, x, y, size - 1, 0)
    assert y[0] == x[-1]
    for outside in (-1, size):
        with pytest.raises(EmulatorError, match="of argument 0"):
            _copy_one(kernel, x, y, outside, 0)
        with pytest.raises(EmulatorError, match="of argument 1"):
            _copy_one(kernel, x, y, 0, outside)


def test_accesses_that_only_begin_inside_an_array_are_reported(kernel):
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    kernel("copy_wide")((1,), (1,), (x, y, np.int32(0)))
    np.testing.assert_array_equal(y, [0, 1, 0])
    with pytest.raises(EmulatorError, match="a read of 8 bytes: 4 bytes before the end of argum"):
        kernel("copy_wide")((1,), (1,), (x, y, np.int32(1)))


def test_far_accesses_and_null_pointers_are_reported(kernel):
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    for index in (2**20, -(2**20), 2**26, 2**40):
        with pytest.raises(EmulatorError, match="invalid memory access"):
            _copy_one(kernel, x, y, index, 0)
    for null in (None, 0, np.uint64(0)):
        with pytest.raises(EmulatorError, match="null"):
            kernel("copy_one")((1,), (1,), (null, y, np.int64(0), np.int64(0)))


def test_planted_misaligned_vector_access_is_reported(kernel, rng):
    x, y = (rng.standard_normal(65).astype(np.float32) for _ in range(2))
    kernel("copy_vectors")((1,), (16,), (x[:64], y[:64], np.int32(64)))
    np.testing.assert_array_equal(x[:64], y[:64])
    with pytest.raises(EmulatorError, match=r"misaligned address .* multiple of 16 at kernels/mem"):
        kernel("copy_vectors")((1,), (16,), (x[1:], y[:64], np.int32(64)))


@pytest.mark.parametrize("size", [4, 5, 6, 7, 1021])
def test_kernels_see_the_alignment_of_the_callers_array(kernel, size):
    remainder = np.zeros(1, np.uint64)
    for offset in range(8):
        x = np.ones(size + offset, np.float32)[offset:]
        kernel("alignment_of")((1,), (1,), (x, remainder))
        assert remainder[0] == x.ctypes.data % 16


def test_aliases_stay_aliases(kernel, rng):
    x = rng.standard_normal(64).astype(np.float32)
    original = x.copy()
    kernel("add_in_place")((1,), (64,), (x, x, np.int32(64)))
    np.testing.assert_array_equal(x, original + 1)
    x[0] = 5
    kernel("add_in_place")((1,), (64,), (x[:63], x[1:], np.int32(63)))
    np.testing.assert_array_equal(x, 5 + np.arange(64), "each thread reads what the last wrote")


def test_neighbouring_views_of_an_array_are_kept_apart(kernel, rng):
    x = rng.standard_normal(64).astype(np.float32)
    _copy_one(kernel, x[:32], x[32:], 31, 31)
    assert x[63] == x[31]
    with pytest.raises(EmulatorError, match="past the end of argument 0"):
        _copy_one(kernel, x[:32], x[32:], 32, 0)


def test_addresses_of_arrays_in_a_launch_mean_the_same_memory(kernel, rng):
    x = rng.standard_normal(8).astype(np.float32)
    address = x.ctypes.data + 4
    for pointer in (address, np.uint64(address)):
        x[2] = 0
        kernel("copy_one")((1,), (1,), (x, pointer, np.int64(0), np.int64(1)))
        assert x[2] == x[0]


def test_strided_arrays_arrive_with_all_their_elements(kernel, rng):
    base = rng.standard_normal(30).astype(np.float32)
    y = np.zeros(1, np.float32)
    _copy_one(kernel, base[10:20:3], y, 9, 0)
    assert y[0] == base[19]
    _copy_one(kernel, base[20:10:-1], y, -9, 0)
    assert y[0] == base[11]
    with pytest.raises(EmulatorError, match="past the end of argument 0"):
        _copy_one(kernel, base[10:20:3], y, 10, 0)


def test_empty_arrays_have_no_accessible_element(kernel):
    """Their address is null, as CuPy's, but for parts of other arrays."""
    y = np.zeros(1, np.float32)
    for empty in (y[:0].copy(), guarded_copy(y[:0]), np.zeros((0, 3), np.float32).T):
        for index, problem in ((0, "a null pointer"), (-1, "pointer arithmetic on null")):
            with pytest.raises(EmulatorError, match=problem):
                _copy_one(kernel, empty, y, index, 0)
    for index in (0, -1):
        with pytest.raises(EmulatorError, match="argument 0"):
            _copy_one(kernel, np.ones(4, np.float32)[2:2], y, index, 0)


def test_writing_to_a_read_only_array_is_an_error(kernel):
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    y.flags.writeable = False
    with pytest.raises(EmulatorError, match="wrote to argument 1, a read-only array"):
        _copy_one(kernel, x, y, 0, 0)


@pytest.mark.parametrize("overrun", [1, 11])
def test_stray_writes_of_library_functions_are_noticed(kernel, overrun):
    y = np.ones(5, np.uint8)
    kernel("clear_bytes")((1,), (1,), (y, np.int32(5)))
    assert not y.any()
    with pytest.raises(EmulatorError, match="written past the end of argument 0"):
        kernel("clear_bytes")((1,), (1,), (y, np.int32(5 + overrun)))
    with pytest.raises(EmulatorError, match="invalid memory access"):
        kernel("clear_bytes")((1,), (1,), (y, np.int32(17)))


@pytest.mark.parametrize("nbytes", [4, 8, 20, 32, 48 * 1024])
def test_dynamic_shared_memory_is_exact_to_the_element(kernel, marked_line, nbytes):
    out = np.zeros(1, np.int32)
    last = nbytes // 4 - 1
    kernel("write_dynamic")((1,), (1,), (out, np.int32(last)), nbytes)
    assert out[0] == 5
    for outside in (last + 1, -1):
        with pytest.raises(EmulatorError, match="of dynamic shared memory") as caught:
            kernel("write_dynamic")((1,), (1,), (out, np.int32(outside)), nbytes)
        assert marked_line("memory.cu", "dynamic") in str(caught.value)


def test_static_shared_memory_is_exact_to_the_element(kernel, marked_line):
    out = np.zeros(1, np.int32)
    kernel("write_static")((1,), (1,), (out, np.int32(7)))
    assert out[0] == 5
    for outside in (8, -1):
        with pytest.raises(EmulatorError, match=f"index {outside} out of range") as caught:
            kernel("write_static")((1,), (1,), (out, np.int32(outside)))
        assert marked_line("memory.cu", "static") in str(caught.value)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_shared_memory_starts_as_nan_in_every_block(kernel, order):
    first, second = np.zeros((2, 128), np.float32)
    with thread_order(order):
        kernel("read_unwritten")((2,), (64,), (first, second), 256)
    assert np.isnan(first).all()
    assert np.isnan(second).all()


def test_shared_memory_that_is_never_written_is_nan(kernel):
    out = np.zeros(2, np.float32)
    kernel("read_never_written")((1,), (1,), (out,))
    assert np.isnan(out).all()


def test_over_48_kib_must_be_granted(kernel):
    out = np.zeros(1, np.int32)
    args = (out, np.int32(0))
    with pytest.raises(EmulatorError, match="max_dynamic_shared_size_bytes grants 49152"):
        kernel("write_dynamic")((1,), (1,), args, 48 * 1024 + 4)
    raised = kernel("write_dynamic")
    raised.max_dynamic_shared_size_bytes = 64 * 1024
    raised((1,), (1,), args, 64 * 1024)
    assert out[0] == 5
    with pytest.raises(EmulatorError, match=r"over 49152, and .* grants 65536"):
        raised((1,), (1,), args, 64 * 1024 + 4)
    with pytest.raises(EmulatorError, match="over 232448"):
        raised.max_dynamic_shared_size_bytes = 2**20


# Compute capabilities 7.5, 7.0, 8.6, 8.0 and 9.0.
@pytest.mark.parametrize("kib", [64, 96, 99, 163, 227])
def test_a_device_grants_what_it_has(kib):
    require_emulator()
    nbytes = kib * 1024
    module = EmulatedModule(MEMORY, max_shared_nbytes=nbytes)
    kernel = module.get_function("write_dynamic")
    for refused in (nbytes + 1, 2**20):
        with pytest.raises(EmulatorError, match=f"write_dynamic: .* {refused} .* over {nbytes}, "):
            kernel.max_dynamic_shared_size_bytes = refused
    kernel.max_dynamic_shared_size_bytes = nbytes
    out = np.zeros(1, np.int32)
    kernel((1,), (1,), (out, np.int32(nbytes // 4 - 1)), nbytes)
    assert out[0] == 5
    with pytest.raises(EmulatorError, match="of dynamic shared memory"):
        kernel((1,), (1,), (out, np.int32(nbytes // 4)), nbytes)


def test_static_shared_memory_counts(kernel):
    out = np.zeros(4, np.int32)
    large = kernel("large_static")
    large((1,), (4,), (out,), 1024)
    np.testing.assert_array_equal(out, 3)
    with pytest.raises(EmulatorError, match=r"48128 bytes of static and 1028 .* grants 1024"):
        large((1,), (4,), (out,), 1028)
    most = 227 * 1024 - 48128
    with pytest.raises(EmulatorError, match=f"48128 bytes of static and {most + 1} of dynamic"):
        large.max_dynamic_shared_size_bytes = most + 1
    large.max_dynamic_shared_size_bytes = most
    large((1,), (4,), (out,), most)


def _table(sources, target):
    table = np.zeros(1, TABLE)
    table["count"], table["target"] = len(sources), target.ctypes.data
    table["sources"][0, : len(sources)] = [s.ctypes.data for s in sources]
    return table[0]


def test_structures_may_hold_addresses_of_reachable_arrays(kernel, rng):
    sources = [rng.standard_normal(9).astype(np.float32) for _ in range(3)]
    target = np.zeros(9, np.float32)
    run = kernel("sum_of_table")
    table = _table(sources, target)
    run((1,), (16,), (table, np.int32(9)), reachable=(*sources, target))
    np.testing.assert_array_equal(target, (sources[0] + sources[1]) + sources[2])
    with pytest.raises(EmulatorError, match="past the end of reachable array 0"):
        run((1,), (16,), (table, np.int32(10)), reachable=(*sources, target))


def test_guarded_copies_may_be_reached_through_other_arrays(kernel, rng):
    sources = [guarded_copy(rng.standard_normal(9).astype(np.float32)) for _ in range(3)]
    addresses = np.array([s.ctypes.data for s in sources], np.uint64)
    target = guarded_copy(np.zeros(9, np.float32))
    run = kernel("sum_through_addresses")
    run((1,), (16,), (addresses, target, np.int32(3), np.int32(9)))
    np.testing.assert_array_equal(target, (sources[0] + sources[1]) + sources[2])
    with pytest.raises(EmulatorError, match=r"past the end of a guarded copy of float32\[9\]"):
        run((1,), (16,), (addresses, target, np.int32(3), np.int32(10)))


def test_guarded_copies_keep_type_alignment_and_shape():
    for original in (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(9, dtype=np.float32)[1:],
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.zeros((0, 3), np.int64),
        np.array(2.5),
    ):
        copy = guarded_copy(original)
        np.testing.assert_array_equal(copy.astype(float), original.astype(float))
        assert (copy.dtype, copy.shape) == (original.dtype, original.shape)
        assert copy.size == 0 or copy.ctypes.data % 16 == original.ctypes.data % 16


def test_guarded_memory_is_given_back(kernel):
    for _ in range(3000):
        guarded_copy(np.ones(3, np.float32))
    y = np.zeros(4, np.float32)
    _copy_one(kernel, np.full(4, 3, np.float32), y, 0, 1)
    assert y[1] == 3


MANY = """
from pathlib import Path
import numpy as np
from emulator import EmulatedModule, EmulatorError, guarded_copy
kernel = EmulatedModule(Path("emulator/kernels/memory.cu").read_text()).get_function
ones = np.ones(5, np.float32)
arrays = [guarded_copy(ones) for _ in range(16384)]
for sources in (arrays, arrays[3:]):
    table = np.array([a.ctypes.data for a in sources], np.uint64)
    target = np.zeros(5, np.float32)
    try:
        args = table, target, np.int32(len(sources)), np.int32(5)
        kernel("sum_through_addresses")((1,), (5,), args)
        print(*target)
    except EmulatorError as error:
        print(error)
    del arrays[:3]
"""


def test_there_is_room_for_16384_guarded_arrays(run_python):
    """In a process of its own, where no other exists. The launch needs three more."""
    full, launched = run_python(MANY).splitlines()
    assert "no guarded memory for argument" in full
    assert full.endswith("16384 guarded arrays exist, and no more fit at once")
    assert launched == " ".join(["16381.0"] * 5)


def test_too_large_an_array_is_refused():
    require_emulator()
    array = np.empty(2**30, np.uint8)  # never touched
    with pytest.raises(EmulatorError, match=r"uint8\[1073741824\] .* at most 1073733632 bytes"):
        guarded_copy(array)

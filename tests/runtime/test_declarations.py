# SPDX-License-Identifier: MIT
"""Constants and structs, read from CUDA text: values as C++ has them, layouts as C lays them."""

from __future__ import annotations

import ctypes
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupy_training_ops import CompileError
from cupy_training_ops.runtime.source import Source, families, load

ALIASES = """
#ifndef CTO_T
#define CTO_T float
#endif
namespace cto {
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using T = CTO_T;
}  // namespace cto
"""


def text(code: str) -> Source:
    return Source("fake", ALIASES + code, {})


def constant(expression: str, c_type: str = "i64", **slots: str) -> int:
    code = f"using namespace cto; namespace own {{ constexpr {c_type} VALUE = {expression}; }}"
    return text(code).constant("VALUE", slots)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("32", 32),
        ("0x1F", 31),
        ("010", 8),
        ("0xFFFFFFFFu", 2**32 - 1),
        ("1'000'000ull", 1_000_000),
        ("2 + 3 * 4 - 1", 13),
        ("(2 + 3) * 4", 20),
        ("100 / 7 / 2", 7),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7 % -4", 3),
        ("1 << 4 + 1", 32),
        ("-16 >> 2", -4),
        ("3 > 2 ? 1 : 0 ? 5 : 6", 1),
        ("3 < 2 ? 1 : 0 ? 5 : 6", 6),
        ("1 == 2 || 3 >= 3 && !0", 1),
        ("~5 & 0xF ^ 1 | 16", 27),
        ("sizeof(T) == 4 ? 4 : 3", 4),
        ("16 / sizeof(u64)", 2),
        ("sizeof(unsigned char) + sizeof(const T*) + sizeof(cto::i32)", 13),
        ("true ? CTO_N * 2 : 0", 14),
    ],
)
def test_a_constant_is_what_c_makes_of_it(expression, value) -> None:
    assert constant(expression, N="7") == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("GONE", "fake.cu: there is no constant GONE"),
        ("f(3)", "there is no constant f"),
        ("0.5", "0.5 is no expression of integers"),
        ("1 +", r"1 \+ is no expression of integers"),
        ("1 / 0", "1 / 0 is no expression of integers"),
        ("sizeof(Gone)", "there is no struct or type Gone"),
        ("sizeof 3", "sizeof 3 is no expression"),
        ("1ull << 63", "VALUE is 9223372036854775808, which int64 cannot hold"),
    ],
)
def test_what_is_no_integer_is_refused(expression, message) -> None:
    with pytest.raises(CompileError, match=message):
        constant(expression)


def test_a_constant_that_is_not_there_is_refused_with_the_source_named() -> None:
    with pytest.raises(CompileError, match=r"gather\.cu: there is no constant FANIN"):
        load("gather").constant("FANIN")


def test_slots_are_bound_anew_for_each_question() -> None:
    source = text("namespace cto { constexpr int N = 16 / sizeof(T); }")
    slots = [{}, {"T": "double"}, {"T": "__half"}, {"T": "uint4"}, {"T": "u64"}]
    assert [source.constant("N", some) for some in slots] == [4, 2, 8, 1, 2]


NAMES = """
#define CTO_CAPACITY 3
#define CTO_CAPACITY 4
namespace cto {
constexpr int A = 1, B = A + 1;
namespace inner {
constexpr int A = 10, C = A + B;
struct S { static constexpr int A = 100, D = A + B; i32 at[A]; };
template <int N> struct Twice { static constexpr int BOTH = 2 * N; i32 at[N][BOTH]; };
}  // namespace inner
namespace cto::other { constexpr int A = 20; struct S { u32 n; }; struct Only { T n; }; }
namespace { constexpr int HIDDEN = 5; }
__device__ constexpr int TABLE[] = {1, 2};
template <class E> constexpr int WIDTH = sizeof(E);
__device__ int f(int n) { constexpr int LOCAL = 3; return LOCAL < n ? n : LOCAL; }
}  // namespace cto
/* constexpr int COMMENTED = 1; */ // constexpr int COMMENTED = 2;
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("B", 2),
        ("cto::A", 1),
        ("::cto::inner::A", 10),
        ("inner::A", 10),
        ("C", 12),
        ("inner::S::D", 102),
        ("gone::HIDDEN", 5),
        ("CTO_CAPACITY", 3),
    ],
)
def test_a_name_is_found_by_its_last_parts(name, value) -> None:
    assert text(NAMES).constant(name) == value


@pytest.mark.parametrize("name", ["LOCAL", "COMMENTED", "TABLE", "f", "WIDTH"])
def test_what_is_no_constant_is_not_found(name) -> None:
    with pytest.raises(CompileError, match=rf"fake\.cu: .*{name}"):
        text(NAMES).constant(name)


def test_a_name_with_several_meanings_is_refused() -> None:
    with pytest.raises(CompileError, match="A has several definitions: cto::A, cto::inner::A, "):
        text(NAMES).constant("A")
    with pytest.raises(CompileError, match="S has several definitions: cto::inner::S, cto::cto::o"):
        text(NAMES).struct("S")
    assert text(NAMES + "using namespace cto;").constant("A") == 1
    assert text(NAMES + "using namespace cto::inner;").struct("S").itemsize == 400
    assert text(NAMES + "using cto::inner::S;").struct("S").itemsize == 400


@pytest.mark.parametrize(
    ("c_type", "nbytes"),
    [
        ("inner::Twice<3>", 72),
        ("cto::inner::Twice<B + (C > 3)>", 72),
        ("Twice<CTO_CAPACITY>", 72),
        ("const cto::cto::other::Only", 4),
        ("struct gone::Only", 4),
    ],
)
def test_a_struct_is_found_by_its_last_parts_and_arguments(c_type, nbytes) -> None:
    assert text(NAMES + "using namespace cto;").struct(c_type).itemsize == nbytes


MEMBERS = """
namespace cto {
struct Divisor {
    i64 value;
    u64 multiplier;  // rounded up; i32 not_a_member;
    i64 shift;

    __device__ i64 quotient(i64 dividend) const { return (dividend << 1) / value; }
    __device__ static bool operator<(const Divisor& other) { return false; }
};
struct alignas(2 * sizeof(T)) Pair { T first{}, second = T(0); };
template <class E, int N>
struct alignas(sizeof(E) * N < 16 ? sizeof(E) * N : 16) Packet { E at[N]; };
template <int N> using Bytes = Packet<unsigned char, N>;
struct Everything {
    static constexpr int MOST = 3;
    explicit __device__ Everything(int n) : n{n}, more(n) {}
    __device__ Everything() = default;
    bool flag;
    Divisor extent[MOST], other;
    const T *__restrict__ from, *const *to;
    Packet<u32, MOST * sizeof(T) / sizeof(u32)> words;
    unsigned long long int wide;
    struct Inner { signed char low; short high; } inner[2][2];
    Pair pair;
    Bytes<sizeof(Packet<i32, 1>)> bytes;
    alignas(32) char last;
private:
    template <class E> __device__ E get() const { return E{}; }
};
struct Derived : Divisor { i32 n; };
struct Reference { const Divisor& divisor; };
struct Bits { u32 low : 4, high : 28; };
struct Anonymous { struct { i32 n; }; };
struct Empty {};
union Either { i32 n; float x; };
template <class E> struct Special { E n; };
template <> struct Special<double> { i32 n; };
}  // namespace cto
"""


def test_every_kind_of_member_is_read() -> None:
    read = text(MEMBERS).struct("Everything", {"T": "__half"})
    words = np.dtype([("at", np.uint32, (1,))])
    divisor = np.dtype([("value", "i8"), ("multiplier", "u8"), ("shift", "i8")])
    expected = {
        "flag": (np.dtype(bool), 0),
        "extent": (np.dtype((divisor, (3,))), 8),
        "other": (divisor, 80),
        "from": (np.dtype("u8"), 104),
        "to": (np.dtype("u8"), 112),
        "words": (words, 120),
        "wide": (np.dtype("u8"), 128),
        "inner": (np.dtype((np.dtype([("low", "i1"), ("high", "i2")], align=True), (2, 2))), 136),
        "pair": (np.dtype([("first", "f2"), ("second", "f2")]), 152),
        "bytes": (np.dtype([("at", "u1", (4,))]), 156),
        "last": (np.dtype("i1"), 160),
    }
    assert {name: read.fields[name] for name in read.names} == expected
    assert list(read.names) == list(expected)
    assert read.itemsize == 192


@pytest.mark.parametrize(
    ("c_type", "message"),
    [
        ("Gone", "there is no struct or type Gone"),
        ("Derived", "cto::Derived is derived from another"),
        ("Reference", "Divisor & is no type"),
        ("Bits", "u32 low : is no type"),
        ("Anonymous", "an anonymous struct is no type"),
        ("Empty", "cto::Empty has no members"),
        ("Either", "cto::Either is a union"),
        ("Special<double>", "Special has several definitions"),
        ("Packet<u32>", "cto::Packet takes 2 template arguments"),
        ("T", "T is no struct"),
    ],
)
def test_a_struct_whose_layout_is_unknown_is_refused(c_type, message) -> None:
    with pytest.raises(CompileError, match=rf"fake\.cu: .*{message}"):
        text(MEMBERS).struct(c_type)


C_TYPES = {
    "bool": (np.bool_, ctypes.c_bool),
    "unsigned char": (np.uint8, ctypes.c_uint8),
    "short": (np.int16, ctypes.c_int16),
    "i32": (np.int32, ctypes.c_int32),
    "u64": (np.uint64, ctypes.c_uint64),
    "float": (np.float32, ctypes.c_float),
    "double": (np.float64, ctypes.c_double),
    "__half": (np.float16, ctypes.c_uint16),  # C has neither; both are two bytes at an even address
    "__nv_bfloat16": (ml_dtypes.bfloat16, ctypes.c_uint16),
}
MEMBER_LISTS = st.lists(
    st.tuples(st.sampled_from(list(C_TYPES)), st.lists(st.integers(1, 3), max_size=2)), min_size=1
)


@given(MEMBER_LISTS)
def test_a_layout_is_that_of_c(members) -> None:
    lines = [f"{c} f{i}{''.join(f'[{n}]' for n in ns)};" for i, (c, ns) in enumerate(members)]
    read = text(f"struct Own {{ {' '.join(lines)} }};").struct("Own")
    fields = []
    for i, (c_type, extents) in enumerate(members):
        kind = C_TYPES[c_type][1]
        for n in reversed(extents):
            kind *= n
        fields.append((f"f{i}", kind))
        assert read[f"f{i}"] == np.dtype((C_TYPES[c_type][0], tuple(extents)))
    expected = type("Own", (ctypes.Structure,), {"_fields_": fields})
    offsets = [read.fields[name][1] for name, _ in fields]
    assert offsets == [getattr(expected, name).offset for name, _ in fields]
    assert read.itemsize == ctypes.sizeof(expected)


@pytest.mark.parametrize("family", families())
def test_every_struct_that_a_kernel_takes_is_read(family) -> None:
    source = load(family)
    scalars = re.compile(r"bool|[iu]\d+|float|double|ACC|T")
    for parameters in source.kernels.values():
        for parameter in parameters:
            if not (parameter.pointer or scalars.fullmatch(parameter.c_type)):
                assert source.struct(parameter.c_type).names

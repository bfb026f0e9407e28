# SPDX-License-Identifier: MIT
"""Sequences and optional values in graphs, beside lists of Python's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto


def run(text: str, opset: int = 18, **feeds: Any) -> list[Any]:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')
    return list(cto.onnx.Session(model).run(feeds).values())


def same(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [a.shape for a in actual] == [a.shape for a in expected]
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.fixture
def arrays(rng) -> list[np.ndarray]:
    return [rng.standard_normal(n).astype(np.float32) for n in (2, 3, 2)]


@pytest.mark.parametrize("place", [-3, -1, 0, 2, 3, None])
def test_insert(place, arrays, rng) -> None:
    x = rng.standard_normal(4).astype(np.float32)
    expected = list(arrays)
    expected.insert(len(expected) if place is None else place, x)
    if place is None:
        text = "(seq(float[N]) s, float[4] x) => (seq(float[N]) y) { y = SequenceInsert (s, x) }"
        actual = run(text, s=arrays, x=x)
    else:
        text = """(seq(float[N]) s, float[4] x, int64 p) => (seq(float[N]) y)
                  { y = SequenceInsert (s, x, p) }"""
        actual = run(text, s=arrays, x=x, p=np.array(place))
    same(actual[0], expected)


@pytest.mark.parametrize("place", [-3, -1, 0, 2])
def test_erase_at_and_length(place, arrays) -> None:
    text = """(seq(float[N]) s, int64 p) => (seq(float[N]) y, float[N] a, int64 n, int64 m)
        { y = SequenceErase (s, p) a = SequenceAt (s, p) n = SequenceLength (y)
          z = SequenceErase (y) m = SequenceLength (z) }"""
    actual = run(text, s=arrays, p=np.array(place))
    expected = list(arrays)
    del expected[place]
    same(actual[0], expected)
    np.testing.assert_array_equal(actual[1], arrays[place])
    assert actual[2:] == [2, 1]


def test_positions_beyond_an_end_are_refused(arrays) -> None:
    for name, rest, place in (("Insert", "s, x, p", 4), ("Erase", "s, p", 3), ("At", "s, p", -4)):
        kind = "float[N]" if name == "At" else "seq(float[N])"
        text = f"""(seq(float[N]) s, float[2] x, int64 p) => ({kind} y)
                   {{ y = Sequence{name} ({rest}) }}"""
        with pytest.raises(cto.ArgumentError, match=f"position: expected from .*, got {place}"):
            run(text, s=arrays, x=arrays[0], p=np.array(place))


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ([2, 0, 3], [(0, 2), (2, 2), (2, 5)]),
        (2, [(0, 2), (2, 4), (4, 5)]),
        (7, [(0, 5)]),
        (None, [(i, i + 1) for i in range(5)]),
    ],
)
@pytest.mark.parametrize("axis", [1, -1])
def test_split(split, parts, axis, rng) -> None:
    x = rng.standard_normal((2, 5)).astype(np.float32)
    expected = [x[:, a:b] for a, b in parts]
    if split is None:
        text = f"(float[2, 5] x) => (seq(float) y) {{ y = SplitToSequence <axis={axis}> (x) }}"
        same(run(text, x=x)[0], expected)
        flat = text.replace("<axis", "<keepdims=0, axis")
        same(run(flat, x=x)[0], [part[:, 0] for part in expected])
        return
    kind = "int64[K]" if isinstance(split, list) else "int64"
    text = f"""(float[2, 5] x, {kind} n) => (seq(float[N]) y, float[2, 5] z)
        {{ y = SplitToSequence <axis={axis}> (x, n)
           z = ConcatFromSequence <axis={axis}> (y) }}"""
    actual = run(text, x=x, n=np.array(split))
    same(actual[0], expected)
    np.testing.assert_array_equal(actual[1], x)


@pytest.mark.parametrize("split", [[2, 2], [6, -1], 0])
def test_wrong_splits_are_refused(split) -> None:
    kind = "int64[K]" if isinstance(split, list) else "int64"
    text = f"(float[5] x, {kind} n) => (seq(float[N]) y) {{ y = SplitToSequence (x, n) }}"
    with pytest.raises(cto.ArgumentError, match="split: expected"):
        run(text, x=np.ones(5, np.float32), n=np.array(split))


def test_an_empty_sequence_is_filled_and_joined(rng) -> None:
    x = rng.standard_normal(3).astype(np.float32)
    text = """(float[3] x) => (float[2, 3] y, float[3, 2] z) {
        none = SequenceEmpty () one = SequenceInsert (none, x) two = SequenceInsert (one, x)
        y = ConcatFromSequence <axis=0, new_axis=1> (two)
        z = ConcatFromSequence <axis=-1, new_axis=1> (two) }"""
    actual = run(text, x=x)
    np.testing.assert_array_equal(actual[0], [x, x])
    np.testing.assert_array_equal(actual[1], np.stack([x, x], 1))
    with pytest.raises(cto.ArgumentError, match="expected at least one array, got none"):
        run(text.replace("(two)", "(none)"), x=x)


def test_a_map_over_sequences(arrays, rng) -> None:
    """A body gets the element of the same place of a second sequence, and the whole of an array."""
    text = """(seq(float[N]) s, seq(float[N]) t, float x)
        => (seq(float[N]) y, seq(int64[1]) n, float[N] first) <int64 zero = {0}> {
        first = SequenceAt (y, zero)
        y, n = SequenceMap (s, t, x) <body = b (float[N] a, float[N] c, float d) =>
            (float[N] e, int64[1] f) { g = Mul (a, c) e = Add (g, d) f = Shape (a) }> }"""
    others = [rng.standard_normal(len(a)).astype(np.float32) for a in arrays]
    actual = run(text, s=arrays, t=others, x=np.float32(2))
    same(actual[0], [a * b + np.float32(2) for a, b in zip(arrays, others, strict=True)])
    assert [int(n[0]) for n in actual[1]] == [2, 3, 2]
    np.testing.assert_array_equal(actual[2], actual[0][0])
    with pytest.raises(cto.ArgumentError, match="expected sequences of 3 arrays, got one of 2"):
        run(text, s=arrays, t=others[:2], x=np.float32(2))


def test_optional_values(arrays) -> None:
    text = """(optional(float[N]) x) => (bool has, float[N] y) {
        has = OptionalHasElement (x)
        y = If (has) <then_branch = a () => (float[N] v) { v = OptionalGetElement (x) },
                      else_branch = b () => (float[N] v) <float[1] v = {7}> { }> }"""
    actual = run(text, x=arrays[0])
    assert actual[0]
    np.testing.assert_array_equal(actual[1], arrays[0])
    actual = run(text, x=None)
    assert not actual[0]
    np.testing.assert_array_equal(actual[1], [7])
    text = "(optional(float[N]) x) => (float[N] y) { y = OptionalGetElement (x) }"
    with pytest.raises(cto.ArgumentError, match="expected a value, got an empty optional"):
        run(text, x=None)
    text = "(optional(float[N]) x) => (optional(float[N]) y) { y = Identity (x) }"
    assert run(text, x=None) == [None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(seq(float[2]) s) => (float[2] y) { y = Neg (s) }", "expected an array, got a sequence"),
        ("(float[2] x, int64 i) => (float y) { y = SequenceAt (x, i) }", "got an array"),
        (
            "(float[2] x) => (float[2] y) { s = SequenceConstruct (x) t = Identity (s) y = Abs(t)}",
            "expected an array, got a sequence",
        ),
        (
            """(bool c, float[2] x) => (float[2] y) { s = SequenceConstruct (x)
            y = If (c) <then_branch = a () => (float[2] v) { v = Relu (s) },
                        else_branch = b () => (float[2] v) { v = Identity (x) }> }""",
            "X: expected an array, got a sequence",
        ),
        (
            """(bool c, float[2] x) => (int64 y) {
            s = If (c) <then_branch = a () => (float[2] v) { v = Relu (x) },
                        else_branch = b () => (float[2] v) { v = Identity (x) }>
            y = SequenceLength (s) }""",
            "input_sequence: expected a sequence, got an array",
        ),
    ],
)
def test_arrays_and_sequences_are_not_mixed(text, words) -> None:
    with pytest.raises(cto.ArgumentError, match=words):
        run(text)

# SPDX-License-Identifier: MIT
"""Checkpoints that are written: what is read of them, and the form that a verifier asks for."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.codecs.atomic_file import write_together
from cupy_training_ops.onnx import checkpoint as module
from cupy_training_ops.onnx.checkpoint import Checkpoint, Group, checkpoint_files, read_checkpoint

DATA = Path(__file__).parent / "data"
DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16),
]
SHAPES = [(), (0,), (3,), (1, 1), (2, 0, 4), (5, 7)]


def drawn_arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arrays of each dtype and of each shape, any bits; names of any letters."""
    arrays = {}
    for i, dtype in enumerate([*DTYPES, *DTYPES]):
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        n = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = rng.integers(0, 2 if dtype == "bool" else 256, n).astype(np.uint8)
        name = "".join(chr(int(rng.choice([97, 228, 8704, 128512]))) for _ in range(i))
        arrays[f"{name}{i}"] = np.frombuffer(data, dtype).reshape(shape)
    return arrays


def drawn_checkpoint(rng: np.random.Generator) -> Checkpoint:
    moments = {n: drawn_arrays(rng) for n in ("w", "größe", "")}
    groups = Group("group0", 2**40, 0.5, moments), Group("", 0, -1.0, {}), Group("g", 3, 0.0, {})
    properties = {"": 1, "ü": -(2**63), "m": 2**63 - 1, "f": 0.25, "i": float("inf"), "t": "ja 😀"}
    return Checkpoint(drawn_arrays(rng), drawn_arrays(rng), groups, properties)


def assert_same(actual: dict, expected: dict) -> None:
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape)
        assert actual[name].tobytes() == array.tobytes()


def write(checkpoint: Checkpoint, path: Path) -> None:
    write_together(checkpoint_files(checkpoint, path), sync=False)


@pytest.mark.parametrize("most_inside", [1 << 30, 0])
def test_all_that_is_written_is_read(most_inside, tmp_path, rng, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_INSIDE", most_inside)
    checkpoint, path = drawn_checkpoint(rng), tmp_path / "checkpoint"
    write(checkpoint, path)
    assert (tmp_path / "checkpoint.data").exists() == (most_inside == 0)
    actual = read_checkpoint(path)
    assert_same(dict(actual.trained), dict(checkpoint.trained))
    assert_same(dict(actual.frozen), dict(checkpoint.frozen))
    assert actual.properties == checkpoint.properties
    assert [group[:3] for group in actual.groups] == [group[:3] for group in checkpoint.groups]
    for group, expected in zip(actual.groups, checkpoint.groups, strict=True):
        assert list(group.moments) == list(expected.moments)
        for name, arrays in expected.moments.items():
            assert_same(dict(group.moments[name]), dict(arrays))


def test_an_empty_checkpoint(tmp_path) -> None:
    write(Checkpoint({}, {}), tmp_path / "checkpoint")
    assert read_checkpoint(tmp_path / "checkpoint") == Checkpoint({}, {})


def test_arrays_of_any_layout(tmp_path, rng) -> None:
    whole = rng.standard_normal((4, 6))
    arrays = {"t": whole.T, "part": whole[::2, ::-3]}
    write(Checkpoint(arrays, {}), tmp_path / "checkpoint")
    for name, array in read_checkpoint(tmp_path / "checkpoint").trained.items():
        np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize("value", [True, None, 2**63, 1e300, b"x", np.float32(1), [1]])
def test_properties_that_the_format_cannot_have_are_refused(value, tmp_path) -> None:
    with pytest.raises(cto.ArgumentError, match="property 'n': expected a number or text, got"):
        write(Checkpoint({}, {}, (), {"n": value}), tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


# ---- the form ------------------------------------------------------------------------------------

TENSOR = ("text", "text", ("vector", 8), ("number", 4), ("vector", 1), None, ("number", 8))
STATES = ("text", ("tables", TENSOR))
MODULE = (("tables", TENSOR), ("tables", TENSOR), ("number", 1), ("number", 1))
GROUP = ("text", ("number", 8), ("number", 4), ("tables", STATES))
VALUES = [("tables", ("text", kind)) for kind in (("number", 8), ("number", 4), "text")]
CHECKPOINT = (("number", 4), ("table", MODULE), ("tables", GROUP), ("table", tuple(VALUES)))


class Verifier:
    """Follows all offsets of a flatbuffer; what is read is at a multiple of its size."""

    def __init__(self, data: bytes) -> None:
        self.data, self.n_read = data, 0
        self.table(self.number("I", 0), CHECKPOINT)

    def number(self, kind: str, at: int) -> int:
        size = struct.calcsize(kind)
        assert at % size == 0, f"{kind} at {at}"
        assert 0 <= at <= len(self.data) - size
        return struct.unpack_from(f"<{kind}", self.data, at)[0]

    def table(self, at: int, fields: tuple) -> None:
        places = at - self.number("i", at)
        length, size = self.number("H", places), self.number("H", places + 2)
        assert length % 2 == 0
        assert places + length <= len(self.data)
        assert at + size <= len(self.data)
        assert (length - 4) // 2 <= len(fields)
        self.n_read += length + size
        used: set[int] = set(range(4))
        for i in range((length - 4) // 2):
            place = self.number("H", places + 4 + 2 * i)
            if place:
                kind = fields[i]
                n = kind[1] if kind[0] == "number" else 4
                assert place + n <= size
                assert used.isdisjoint(range(place, place + n))
                used.update(range(place, place + n))
                assert (at + place) % n == 0, f"field {i} at {at + place}"
                if kind[0] != "number":
                    self.target(at + place, kind)

    def target(self, at: int, kind: object) -> None:
        at += self.number("I", at)
        if kind == "text":
            n = self.number("I", at)
            assert self.data[at + 4 + n] == 0
            self.data[at + 4 : at + 4 + n].decode()
            self.n_read += n + 5
        elif kind[0] == "vector":
            n = self.number("I", at)
            assert (at + 4) % kind[1] == 0, f"vector at {at}"
            assert at + 4 + n * kind[1] <= len(self.data)
            self.n_read += 4 + n * kind[1]
        elif kind[0] == "table":
            self.table(at, kind[1])
        else:
            n = self.number("I", at)
            self.n_read += 4 + 4 * n
            for i in range(n):
                place = at + 4 + 4 * i
                self.table(place + self.number("I", place), kind[1])


@pytest.mark.parametrize("name", [path.name for path in DATA.iterdir()])
def test_the_verifier_takes_what_upstream_wrote(name) -> None:
    Verifier((DATA / name / "checkpoint").read_bytes())


@pytest.mark.parametrize("most_inside", [1 << 30, 0])
def test_the_verifier_takes_what_is_written(most_inside, tmp_path, rng, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_INSIDE", most_inside)
    for checkpoint in (Checkpoint({}, {}), drawn_checkpoint(rng), drawn_checkpoint(rng)):
        write(checkpoint, tmp_path / "checkpoint")
        data = (tmp_path / "checkpoint").read_bytes()
        assert data[4:8] == b"ODTC"
        n = Verifier(data).n_read
        assert n <= len(data) <= 2 * n + 64  # nothing twice, and little between


# ---- of sessions ---------------------------------------------------------------------------------


def steps(session: cto.onnx.TrainingSession, answers: dict, places: range) -> list[float]:
    return [float(session.step(answers["x"][i], answers["labels"][i])) for i in places]


@pytest.mark.parametrize("most_inside", [1 << 30, 0])
@pytest.mark.parametrize("name", ["cnn_max", "frozen", "mlp", "mse", "tied"])
def test_a_session_goes_on_from_the_checkpoint_it_wrote(
    name, most_inside, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "MOST_INSIDE", most_inside)
    with np.load(DATA / name / "answers.npz") as file:
        answers = dict(file)
    session, folder = cto.onnx.TrainingSession(DATA / name), tmp_path / "artifacts"
    session.lr = 0.015625
    steps(session, answers, range(3))
    session.properties["epoch"] = 7
    shutil.copytree(DATA / name, folder)
    session.save_checkpoint(folder / "checkpoint", sync=False)
    other = cto.onnx.TrainingSession(folder)
    assert (other.step_count, other.lr, other.properties) == (3, 0.015625, {"epoch": 7})
    assert steps(other, answers, range(3, 6)) == steps(session, answers, range(3, 6))
    for each, array in session.parameters.items():
        assert other.parameters[each].tobytes() == array.tobytes()


def test_a_checkpoint_that_is_refused_leaves_the_one_before(tmp_path) -> None:
    session, path = cto.onnx.TrainingSession(DATA / "mlp"), tmp_path / "checkpoint"
    session.save_checkpoint(path)
    before = path.read_bytes()
    with pytest.raises(cto.ArgumentError, match=r"property 'n': .* got 1e\+300"):
        write(Checkpoint({}, {}, (), {"n": 1e300}), path)
    with pytest.raises(cto.ArgumentError, match="save_checkpoint: file: expected the path"):
        session.save_checkpoint(3)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No such file"):
        session.save_checkpoint(tmp_path / "none" / "checkpoint")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


def test_moments_of_another_type_are_refused(tmp_path) -> None:
    folder = tmp_path / "artifacts"
    shutil.copytree(DATA / "mlp", folder)
    checkpoint = read_checkpoint(folder / "checkpoint")
    name, array = next(iter(checkpoint.trained.items()))
    moments = {name: {"momentum0": array.astype(np.float64), "momentum1": array}}
    group = Group("group0", 1, 0.1, moments)
    write(Checkpoint(checkpoint.trained, checkpoint.frozen, (group,)), folder / "checkpoint")
    with pytest.raises(
        cto.ArgumentError, match=r"expected momentum0 of .* of float32 .*, got float64"
    ):
        cto.onnx.TrainingSession(folder)

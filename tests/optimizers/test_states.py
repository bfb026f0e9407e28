# SPDX-License-Identifier: MIT
"""States of optimizers: as dictionaries and in files, from one provider to the other, damaged."""

from __future__ import annotations

import copy
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from runs import Run
from training import N_STEPS, OPTIMIZERS, Training, assert_same

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.testing.compare import assert_matches

HALF = N_STEPS // 2 + 1  # behind the step that is skipped


def trained(run: Run, name: str, first: int, last: int, before: Training | None = None) -> Training:
    """After the steps of a range, from where another one stands."""
    training = Training(run, name, np.random.default_rng(3))
    if before is not None:
        for own, other in zip(training.parameters, before.parameters, strict=True):
            own[...] = run.place(np.asarray(before.host(other)))
        stream = io.BytesIO()
        before.optimizer.save(stream)
        stream.seek(0)
        training.optimizer.load(stream)
    for i in range(first, last):
        training.prepare(i)
        training.step()
    return training


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("back", [False, True], ids=["cpu first", "kernels first"])
def test_a_state_goes_on_where_other_arrays_are(name, back, run, seed) -> None:
    """What one provider's file begins the other ends; on the same one bit for bit."""
    places = [Run("cpu", seed), run]
    first, second = reversed(places) if back else places
    with first:
        before = trained(first, name, 0, HALF)
        whole = trained(first, name, 0, N_STEPS).results()
        assert_same(trained(first, name, HALF, N_STEPS, before).results(), whole)
    with second:
        after = trained(second, name, HALF, N_STEPS, before).results()
    for actual, wanted in zip(after, whole, strict=True):
        assert_matches(actual, wanted)


def test_a_state_is_a_copy(anywhere) -> None:
    training = trained(anywhere, "AdamW", 0, 2)
    state = training.optimizer.state_dict()
    kept = training.results()[9:]
    moments = training.optimizer._moments["moment_1"]
    training.step()
    assert state["step"] == 2
    training.optimizer.load_state_dict(state)
    assert_same(training.results()[9:], kept)
    assert all(
        a is b for a, b in zip(training.optimizer._moments["moment_1"], moments, strict=True)
    )


def test_a_file_is_the_same_from_every_provider(run, seed) -> None:
    files = []
    for where in (Run("cpu", seed), run):
        with where:
            p = where.place(np.arange(6, dtype=np.float32).reshape(2, 3))
            optimizer = cto.Adam([p], names=["a/b: ü"], moment_dtype="bfloat16")
            optimizer.step([where.place(np.ones((2, 3), np.float32))])
            stream = io.BytesIO()
            optimizer.save(stream)
            files.append(stream.getvalue())
    contents = []
    for file in files:
        with np.load(io.BytesIO(file)) as members:
            contents.append({name: members[name].tolist() for name in members.files})
    assert contents[0] == contents[1]
    assert json.loads(contents[0]["header"]) == {
        "format": "cupy-training-ops optimizer state",
        "version": 1,
        "optimizer": "Adam",
        "shapes": {"a/b: ü": [2, 3]},
        "step": 1,
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_moments_of_each_type_come_back(dtype, tmp_path, rng) -> None:
    p = np.ones(5, np.float32)
    some, other = (cto.AdamW([p.copy()], moment_dtype=dtype) for _ in range(2))
    some.step([rng.standard_normal(5).astype(np.float32)])
    some.save(tmp_path / "state.npz")
    other.load(tmp_path / "state.npz")
    for name in ("moment_1", "moment_2"):
        a, b = (x.state_dict()[name]["0"] for x in (some, other))
        assert_same([a], [b])
        assert a.any()
        assert (a.dtype == BFLOAT16) == (dtype == "bfloat16")


# ---- what does not fit: one line, and nothing has changed ----------------------------------------


def optimizer(name: str = "AdamW", shape=(40, 3), dtype=None, names=("w", "b")):
    """One that has made three steps, and what it holds."""
    rng = np.random.default_rng(5)
    parameters = [rng.standard_normal(s).astype(np.float32) for s in (shape, (7,))]
    options = {} if name == "SGD" else {"moment_dtype": dtype}
    made = getattr(cto, name)(parameters, names=names, **options)
    for _ in range(3):
        made.step([rng.standard_normal(p.shape).astype(np.float32) for p in parameters])
    return made


def saved(made) -> bytes:
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def repacked(file: bytes, **members: np.ndarray) -> bytes:
    """A file with other members, or without those that are None."""
    with np.load(io.BytesIO(file)) as found:
        every = {name: found[name] for name in found.files} | members
    stream = io.BytesIO()
    np.savez(stream, **{name: array for name, array in every.items() if array is not None})
    return stream.getvalue()


def with_header(file: bytes, **changed: object) -> bytes:
    with np.load(io.BytesIO(file)) as members:
        header = json.loads(str(members["header"]))
    return repacked(file, header=np.array(json.dumps(header | changed)))


def packed_file() -> bytes:
    stream = io.BytesIO()
    cto.compress(np.ones(4, np.float32), "pack8").save(stream)
    return stream.getvalue()


GOOD = saved(optimizer())
ARRAY = np.zeros((40, 3), np.float32)
WRONG = {
    "empty": (b"", "no .npy or .npz file"),
    "text": (b"what else", "no .npy or .npz file"),
    "tensors": (b"\x02" + b"\0" * 7 + b"{}", "no optimizer state: it is a .safetensors file"),
    "packed": (packed_file(), "no optimizer state: its header does not say"),
    "archive": (repacked(GOOD, header=None), "no optimizer state: it has no member 'header'"),
    "newer": (with_header(GOOD, version=2), "expected format version 1, got 2; a newer"),
    "another class": (saved(optimizer("Adam")), "AdamW: state optimizer: expected AdamW"),
    "no moments": (saved(optimizer("SGD")), "AdamW: state optimizer: expected AdamW, got 'SGD'"),
    "a shape": (saved(optimizer(shape=(3, 40))), "state shapes['w']: expected shape (40, 3), got"),
    "names": (saved(optimizer(names=("w", "c"))), "state shapes: expected entries of ['w', 'b']"),
    "a type": (saved(optimizer(dtype="bfloat16")), "state moment_1['w']: expected float32, got bf"),
    "no member": (repacked(GOOD, **{"moment_2/1": None}), "it has no member 'moment_2/1'"),
    "a lie": (repacked(GOOD, **{"moment_2/0": ARRAY.T}), "moment_2['w']: expected shape (40, 3)"),
    "a step": (with_header(GOOD, step=-1), "state step: expected the number of steps"),
    "no step": (with_header(GOOD, step=True), "state step: expected the number of steps"),
    "a number": (with_header(GOOD, shapes=3), "state shapes: expected entries of"),
    "numbers": (with_header(GOOD, shapes={"w": 1, "b": 2}), "shapes['w']: expected shape (40, 3)"),
    "more": (with_header(GOOD, more=1), "state: expected a dictionary of"),
    "a list": (repacked(GOOD, header=np.array("[]")), "its header does not say"),
}


def assert_refused(file: bytes, path, message: str = "") -> None:
    """By an optimizer, which is as before."""
    path.write_bytes(file)
    made = optimizer()
    before = saved(made)
    with pytest.raises(ArgumentError) as refusal:
        made.load(path)
    text = str(refusal.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text
    assert saved(made) == before


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_does_not_fit_is_refused(case, tmp_path) -> None:
    file, message = WRONG[case]
    assert_refused(file, tmp_path / "state.npz", message)


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path) -> None:
    for length in range(0, len(GOOD), 97):
        assert_refused(GOOD[:length], tmp_path / "state.npz")


def test_a_flipped_bit_of_any_array_is_refused(tmp_path) -> None:
    with zipfile.ZipFile(io.BytesIO(GOOD)) as archive:
        starts = [m.header_offset + 300 for m in archive.infolist() if m.file_size > 400]
    assert len(starts) >= 2
    for start in starts:
        damaged = bytearray(GOOD)
        damaged[start] ^= 1
        assert_refused(bytes(damaged), tmp_path / "state.npz")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    path = tmp_path / "state.npz"
    path.write_bytes(GOOD)
    monkeypatch.setattr(np, "savez", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        optimizer().save(path)
    assert path.read_bytes() == GOOD
    assert list(tmp_path.iterdir()) == [path]


STATES = {
    "a list": ([], "AdamW: state: expected a dictionary of optimizer, shapes, step, moment_1"),
    "no arrays": ({"moment_1": None}, "AdamW: state moment_1: expected entries of"),
    "a text": ({"moment_1": {"w": "w", "b": "b"}}, r"AdamW: state moment_1\['w'\]: expected shape"),
    "a type": (
        {"moment_2": {"w": ARRAY.astype("f8"), "b": ARRAY[:7, 0]}},
        r"AdamW: state moment_2\['w'\]: expected float32, got float64",
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_a_state_that_does_not_fit_is_refused(case, anywhere) -> None:
    changed, message = STATES[case]
    parameters = [anywhere.place(array) for array in (ARRAY, ARRAY[:7, 0].copy())]
    made = cto.AdamW(parameters, names=["w", "b"])
    state = made.state_dict()
    with pytest.raises(ArgumentError, match=message):
        made.load_state_dict(
            changed if isinstance(changed, list) else state | {"step": 9} | changed
        )
    assert made.state_dict()["step"] == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_version_before_had_pickled_goes_on(name, seed) -> None:
    """It counted the steps of all parameters together, and no write that was interrupted."""
    with Run("cpu", seed) as cpu:
        training = trained(cpu, name, 0, 2)
        optimizer = training.optimizer
        state = copy.deepcopy(optimizer.__getstate__())
        counts = state.pop("_counts")
        del state["_whole"]
        state["_step"] = np.array(1) if counts is None else counts._parts[0].count
        other = object.__new__(type(optimizer))
        other.__setstate__(state)
        gradients = [np.ones_like(p) for p in optimizer.parameters]
        for one in (optimizer, other):
            one.step(gradients)
        assert_same(list(other.parameters), list(optimizer.parameters))
        assert other.state_dict().get("step") == optimizer.state_dict().get("step")
        assert pickle.loads(pickle.dumps(other)).names == other.names


def test_names_in_pickles_of_a_version_before() -> None:
    from cupy_training_ops.optimizers.state import Codes, Counts, Numbers

    homes = {"descent": cto.SGD, "adam": cto.AdamW, "lamb": cto.Lamb}
    for home, found in {**homes, "moments": Numbers, "counts": Counts}.items():
        text = f"ccupy_training_ops.optimizers.{home}\n{found.__name__}\n."
        assert pickle.loads(text.encode()) is found
    assert pickle.loads(b"ccupy_training_ops.optimizers.moments\nCodes\n.") is Codes

# SPDX-License-Identifier: MIT
"""Files from strangers: cut off, changed, lying about sizes, pointing elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cupy_training_ops as cto
from cupy_training_ops.onnx.checkpoint import read_checkpoint

DATA = Path(__file__).parent / "data"
MOST = 32 << 20  # bytes that refusing a small file may take


def artifacts(folder: Path, **changed: bytes) -> Path:
    """A copy of the smallest artifacts, with other bytes for some files."""
    shutil.copytree(DATA / "mse", folder, ignore=shutil.ignore_patterns("answers.npz"))
    for name, data in changed.items():
        (folder / name).write_bytes(data)
    return folder


def refused(folder: Path) -> None:
    """Opening it ends with an error of this package's, and takes little memory."""
    with little_memory(), pytest.raises(cto.OpError):
        cto.onnx.TrainingSession(folder)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """What runs inside allocates less than MOST bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_a_checkpoint_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    whole = (DATA / "mse" / "checkpoint").read_bytes()
    for end in range(0, len(whole) - 1, 97):
        (tmp_path / "checkpoint").write_bytes(whole[:end])
        with pytest.raises(cto.ArgumentError, match="checkpoint"):
            read_checkpoint(tmp_path / "checkpoint")


def test_a_model_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    whole = (DATA / "mse" / "training_model.onnx").read_bytes()
    folder = artifacts(tmp_path / "a")
    for end in range(0, len(whole) - 1, 97):
        (folder / "training_model.onnx").write_bytes(whole[:end])
        with pytest.raises(cto.OpError):
            cto.onnx.TrainingSession(folder)


def test_changed_bytes_of_a_checkpoint_are_refused_or_read(tmp_path: Path, rng) -> None:
    """What is read has as many bytes as there are; nothing else is raised."""
    whole = np.frombuffer((DATA / "mse" / "checkpoint").read_bytes(), np.uint8)
    path = tmp_path / "checkpoint"
    n_refused = 0
    for _ in range(400):
        changed = whole.copy()
        places = rng.integers(0, min(len(changed), 2000), rng.integers(1, 4))
        changed[places] = rng.choice(np.array([0, 1, 127, 128, 255], np.uint8), len(places))
        path.write_bytes(changed.tobytes())
        try:
            actual = read_checkpoint(path)
        except cto.ArgumentError:
            n_refused += 1
            continue
        arrays = (*actual.trained.values(), *actual.frozen.values())
        assert sum(array.nbytes for array in arrays) <= 2 * len(whole) + (1 << 16)
    assert 0 < n_refused < 400


@pytest.mark.parametrize("value", [2**60, 2**31 - 1, -1, -(2**63)])
def test_a_checkpoint_whose_sizes_lie_is_refused(value: int, tmp_path: Path) -> None:
    """Extents, in place of each that stands there."""
    whole = (DATA / "mse" / "checkpoint").read_bytes()
    shape = read_checkpoint(DATA / "mse" / "checkpoint").trained
    extents = {n for array in shape.values() for n in array.shape}
    n_changed = 0
    for extent in extents:
        place = whole.find(struct.pack("<q", extent))
        assert place > 0
        data = whole[:place] + struct.pack("<q", value) + whole[place + 8 :]
        refused(artifacts(tmp_path / str(extent), checkpoint=data))
        n_changed += 1
    assert n_changed


def test_a_checkpoint_that_says_one_tensor_many_times_is_refused(tmp_path: Path) -> None:
    """A vector of offsets that all lead to one tensor of a megabyte would be gigabytes."""
    path = tmp_path / "checkpoint"
    path.write_bytes(repeated_tensor(n_times=4000, nbytes=1 << 20))
    with little_memory(), pytest.raises(cto.ArgumentError, match="says more than it holds"):
        read_checkpoint(path)
    path.write_bytes(repeated_tensor(n_times=1, nbytes=1 << 20))
    assert read_checkpoint(path).trained[""].nbytes == 1 << 20


def test_parameters_in_the_file_beside_are_read_where_they_are(tmp_path: Path) -> None:
    path, data = tmp_path / "checkpoint", np.arange(24, dtype=np.uint8)
    path.write_bytes(repeated_tensor(n_times=1, nbytes=16, offset=5))
    with pytest.raises(cto.ArgumentError, match=r"'checkpoint\.data' beside it is not there"):
        read_checkpoint(path)
    (tmp_path / "checkpoint.data").write_bytes(data.tobytes())
    np.testing.assert_array_equal(read_checkpoint(path).trained[""], data[5:21])
    (tmp_path / "checkpoint.data").write_bytes(data[:20].tobytes())
    with pytest.raises(cto.ArgumentError, match="has no 16 bytes at 5"):
        read_checkpoint(path)


def test_a_whole_file_beside_whose_tensors_overlap_is_not_called_too_short(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(repeated_tensor(n_times=2, nbytes=16, offset=0))
    (tmp_path / "checkpoint.data").write_bytes(bytes(31))
    with pytest.raises(cto.ArgumentError, match=r"bytes of 'checkpoint\.data' in common"):
        read_checkpoint(path)


def test_a_file_beside_that_is_said_many_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(repeated_tensor(n_times=4000, nbytes=1 << 20, offset=0))
    (tmp_path / "checkpoint.data").write_bytes(b"\0" * (1 << 20))
    with little_memory(), pytest.raises(cto.ArgumentError, match=r"bytes of .* in common"):
        read_checkpoint(path)


def repeated_tensor(n_times: int, nbytes: int, offset: int | None = None) -> bytes:
    """A checkpoint by hand: header, root, module state, one tensor, the vector of offsets to it.

    offset: in the file beside it, where the tensor's bytes are then.
    """
    out = bytearray(struct.pack("<I4s", 0, b"ODTC"))

    def vtable(*offsets: int) -> int:
        at = len(out)
        out.extend(struct.pack(f"<HH{len(offsets)}H", 4 + 2 * len(offsets), 64, *offsets))
        out.extend(b"\0" * (-len(out) % 4))
        return at

    def words(n: int) -> int:
        at = len(out)
        out.extend(b"\0" * 4 * n)
        return at

    def put(at: int, target: int) -> None:
        struct.pack_into("<I", out, at, target - at)

    def begin(fields: int, slots: int) -> int:
        at = words(slots)
        struct.pack_into("<i", out, at, at - fields)
        return at

    root = begin(vtable(0, 4), 2)
    struct.pack_into("<I", out, 0, root)
    module = begin(vtable(4), 2)
    put(root + 4, module)
    vector = words(1 + n_times)
    put(module + 4, vector)
    struct.pack_into("<I", out, vector, n_times)
    where = (12, 0, 0) if offset is None else (0, 0, 12)
    tensor = begin(vtable(0, 0, 4, 8, *where), 5)
    for place in range(vector + 4, vector + 4 + 4 * n_times, 4):
        put(place, tensor)
    struct.pack_into("<i", out, tensor + 8, 2)  # uint8
    put(tensor + 4, len(out))
    out.extend(struct.pack("<Iq", 1, nbytes))
    if offset is not None:
        struct.pack_into("<q", out, tensor + 12, offset)
        return bytes(out)
    put(tensor + 12, len(out))
    out.extend(struct.pack("<I", nbytes) + b"\0" * nbytes)
    return bytes(out)


def with_initializer(**fields) -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, **fields)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy")
    return helper.make_model(helper.make_graph([node], "g", [x], [y], [tensor])).SerializeToString()


@pytest.mark.parametrize(
    "fields",
    [
        {"dims": [2**60], "raw_data": b"\0" * 8},
        {"dims": [2**31, 2**31, 2**31], "raw_data": b""},
        {"dims": [-1], "raw_data": b"\0" * 4},
        {"dims": [2**40], "float_data": [1.0]},
        {"dims": [0, 2**62], "raw_data": b""},
        {"dims": [1] * 65, "raw_data": b"\0" * 4},
        {"dims": [3], "raw_data": b"\0" * 13},
    ],
)
def test_an_initializer_whose_sizes_lie_is_refused(fields) -> None:
    with little_memory(), pytest.raises(cto.ArgumentError, match="initializer 'w'"):
        cto.onnx.Session(with_initializer(**fields))


def external(location: str, **said: object) -> bytes:
    proto = onnx.load_from_string(with_initializer(dims=[2]))
    tensor = proto.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **said}.items():
        tensor.external_data.add(key=key, value=str(value))
    return proto.SerializeToString()


def test_external_data_is_read_within_the_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.float32([9, 1, 2]).tobytes())
    (tmp_path / "model.onnx").write_bytes(external("w.bin", offset=4, length=8))
    session = cto.onnx.Session(tmp_path / "model.onnx")
    actual = session.run({"x": np.zeros(2, np.float32)})["y"]
    np.testing.assert_array_equal(actual, [1, 2])


def test_names_that_are_no_text_are_names() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 4] xqq)
    => (float[1, 1, 2] yqq) { yqq = MaxPool <kernel_shape = [2], strides = [2]> (xqq)
        zqq, kqq = MaxPool <kernel_shape = [2], strides = [2]> (xqq)
        gqq = MaxPoolGrad <kernel_shape = [2], strides = [2]> (zqq, kqq) }"""
    data = onnx.parser.parse_model(text).SerializeToString().replace(b"qq", b"\xff\xfe")
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    actual = cto.onnx.Session(data).run({"x\\xff\\xfe": x})
    np.testing.assert_array_equal(actual["y\\xff\\xfe"], [[[1, 3]]])


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("../secret", {}),
        ("sub/../../secret", {}),
        ("/etc/passwd", {}),
        ("link", {}),
        ("linked/secret", {}),
        ("absent", {}),
        ("", {}),
        ("a\0b", {}),
        (".", {}),
        ("w.bin", {"offset": 1}),
        ("w.bin", {"offset": -8}),
        ("w.bin", {"offset": 2**62}),
        ("w.bin", {"length": 2**60}),
        ("w.bin", {"length": 4}),
        ("w.bin", {"offset": "x"}),
    ],
)
def test_external_data_elsewhere_is_refused(location: str, said, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 8)
    (folder / "w.bin").write_bytes(b"\0" * 8)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "model.onnx").write_bytes(external(location, **said))
    with pytest.raises(cto.ArgumentError, match="external data"):
        cto.onnx.Session(folder / "model.onnx")


def test_external_data_that_is_said_many_times_is_refused(tmp_path: Path) -> None:
    proto = onnx.load_from_string(external("w.bin"))
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    for i in range(2):
        proto.graph.initializer.append(proto.graph.initializer[0])
        proto.graph.initializer[-1].name = f"again {i}"
        (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
        if i == 0:
            cto.onnx.Session(tmp_path / "model.onnx")
    with pytest.raises(cto.ArgumentError, match="say more than it holds"):
        cto.onnx.Session(tmp_path / "model.onnx")


def test_external_data_of_bytes_is_refused(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cto.ArgumentError, match="without its folder"):
        cto.onnx.Session(external("w.bin"))


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"\x08\x07", b"x" * 1000])
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(cto.ArgumentError, match="no ONNX model"):
        cto.onnx.Session(data)


def test_a_function_that_calls_itself_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[N] x) => (float[N] y) { y = mine.loop(x) }
    <domain: "mine", opset_import: ["" : 17, "mine" : 1]> loop (a) => (b) { b = mine.loop(a) }"""
    with pytest.raises(cto.ArgumentError):
        cto.onnx.Session(onnx.parser.parse_model(text))


def test_functions_that_multiply_are_refused() -> None:
    """Each calls the one before it ten times: a thousand bytes that are ten billion nodes."""
    head = 'domain: "m", opset_import: ["" : 17, "m" : 1]'
    calls = [f"<{head}> f0 (a) => (b) {{ b = Neg(a) }}"]
    for i in range(1, 11):
        body = " ".join(f"v{k + 1} = m.f{i - 1}(v{k})" for k in range(10))
        calls.append(f"<{head}> f{i} (v0) => (v10) {{ {body} }}")
    text = f"""<ir_version: 8, opset_import: ["" : 17, "m" : 1]>
    g (float[N] x) => (float[N] y) {{ y = m.f10(x) }} {" ".join(calls)}"""
    with pytest.raises(cto.ArgumentError):
        cto.onnx.Session(onnx.parser.parse_model(text))


@pytest.mark.parametrize("name", ["training_model.onnx", "checkpoint"])
def test_what_is_a_folder_or_missing_is_refused(name: str, tmp_path: Path) -> None:
    folder = artifacts(tmp_path / "a")
    (folder / name).unlink()
    with pytest.raises(OSError, match=name):
        cto.onnx.TrainingSession(folder)
    (folder / name).mkdir()
    words = "got a folder, as older releases" if name == "checkpoint" else "got a folder"
    with pytest.raises(cto.ArgumentError, match=f"{name}: expected .*{words}"):
        cto.onnx.TrainingSession(folder)


@pytest.mark.parametrize("name", ["training_model.onnx", "checkpoint"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = artifacts(tmp_path / "a")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(cto.ArgumentError, match="expected a file"):
        cto.onnx.TrainingSession(folder)


def test_parameters_of_other_shapes_are_refused(tmp_path: Path) -> None:
    folder = artifacts(tmp_path / "a", checkpoint=(DATA / "mlp" / "checkpoint").read_bytes())
    refused(folder)


# ---- models that were changed --------------------------------------------------------------------

OTHERS = ("Dropout", "MaxPool", "Shape", "Constant", "MaxPoolGrad", "AveragePoolGrad", "Loop")
OTHERS += ("SequenceConstruct", "LambOptimizer", "View", "Split", "Reshape", "Cast", "Concat")


def change(proto: onnx.ModelProto, rng: np.random.Generator) -> None:
    """One of the things that may be wrong with a graph."""
    graph = proto.graph
    node = graph.node[rng.integers(len(graph.node))]
    item = node.attribute[rng.integers(len(node.attribute))] if node.attribute else None
    kind = rng.integers(8)
    if kind == 0 and node.input:
        node.input[rng.integers(len(node.input))] = ""
    elif kind == 1:
        del node.input[:]
    elif kind == 2:
        del node.output[:]
    elif kind == 3:
        node.op_type = str(rng.choice(OTHERS))
    elif kind == 4 and item is not None:
        item.type = int(rng.integers(15))
    elif kind == 5 and item is not None:
        item.i, item.f = int(rng.choice([-1, 2**62])), float("nan")
        item.ints.extend([2**62, -5])
    elif kind == 6:
        node.domain = str(rng.choice(["", "com.microsoft", "x"]))
    elif kind == 7:
        del graph.output[:]


def changed(proto: onnx.ModelProto, rng: np.random.Generator) -> bytes:
    """A model with some bytes changed, or some nodes."""
    if rng.random() < 0.4:
        data = np.frombuffer(proto.SerializeToString(), np.uint8).copy()
        data[rng.integers(0, len(data), 3)] = rng.integers(0, 256, 3)
        return data.tobytes()
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for _ in range(rng.integers(1, 4)):
        change(copy, rng)
    return copy.SerializeToString()


def test_an_output_without_a_name_is_made_by_no_node_that_leaves_one_out() -> None:
    proto = onnx.load(DATA / "cnn_max" / "training_model.onnx")
    proto.graph.node[0].output.append("")
    proto.graph.output[0].name = ""
    with pytest.raises(cto.OpError, match="output '': nothing makes it"):
        cto.onnx.Session(proto.SerializeToString())


@pytest.mark.parametrize("n", [60, pytest.param(500, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["mse", "cnn_max", "cnn_average", "dropout"])
def test_a_model_that_was_changed_is_refused_or_opened(name: str, n: int, rng) -> None:
    proto = onnx.load(DATA / name / "training_model.onnx")
    n_refused = 0
    for i in range(n):
        try:
            cto.onnx.Session(changed(proto, rng), activations="default" if i % 2 else None)
        except cto.OpError:
            n_refused += 1
    assert n_refused > n / 2


def test_texts_of_a_model_are_shown_and_not_obeyed() -> None:
    """Each text of a model in turn is one that steers a terminal, has lines and is long."""
    loud = "\x1b[31m\u202e\nError: " + "x" * 20_000
    refusals = 0
    for place in texts(scattered()):
        model = scattered()
        *path, last = place
        message = model
        for name, i in path:
            message = getattr(message, name) if i is None else getattr(message, name)[i]
        name, i = last
        value = loud if isinstance(getattr(message, name), str) else loud.encode()
        if i is None:
            setattr(message, name, value)
        else:
            getattr(message, name)[i] = value
        try:
            cto.onnx.Session(model).run({"X": np.ones((2, 3), np.float32)})
        except cto.OpError as error:
            lines = str(error).splitlines()
            assert all(line.isprintable() and len(line) < 2000 for line in lines), place
            assert not any(line.startswith("Error: ") for line in lines), place
            refusals += 1
    assert refusals >= 15


def scattered() -> onnx.ModelProto:
    """A model with names, attributes of text and several nodes."""
    nodes = [
        helper.make_node("Gemm", ["X", "W"], ["Y"], name="first", transA=0, alpha=1.0),
        helper.make_node("ScatterND", ["Y", "I", "U"], ["Z"], reduction="none"),
    ]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["b", 3])]
    made = [helper.make_tensor_value_info("Z", TensorProto.FLOAT, ["b", 4])]
    rest = [
        helper.make_tensor("W", TensorProto.FLOAT, [3, 4], [1.0] * 12),
        helper.make_tensor("I", TensorProto.INT64, [1, 1], [0]),
        helper.make_tensor("U", TensorProto.FLOAT, [1, 4], [0.0] * 4),
    ]
    graph = helper.make_graph(nodes, "g", inputs, made, rest)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def texts(message) -> Iterator[tuple[tuple[str, int | None], ...]]:
    """The way to each text of a protobuf message."""
    for field, value in message.ListFields():
        is_one = hasattr(value, "ListFields") or isinstance(value, str | bytes | int | float)
        for i, item in [(None, value)] if is_one else enumerate(value):
            if isinstance(item, str | bytes):
                yield ((field.name, i),)
            elif hasattr(item, "ListFields"):
                yield from (((field.name, i), *rest) for rest in texts(item))


def test_a_model_in_place_of_a_folder_is_refused_with_what_takes_one(tmp_path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"a model")
    expected = r"artifacts: expected the path of a folder \(`from_model` trains one model\), got"
    with pytest.raises(cto.ArgumentError, match=expected):
        cto.onnx.TrainingSession(tmp_path / "model.onnx", np)

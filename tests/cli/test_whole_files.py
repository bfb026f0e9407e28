# SPDX-License-Identifier: MIT
"""Whole files in and out: names, types that no codec takes, and metadata are there again."""

from __future__ import annotations

import io
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cupy_training_ops import Packed, compress
from cupy_training_ops.codecs import packed_file, safetensors_file
from cupy_training_ops.codecs.safetensors_file import Entry

from .test_files import assert_refused, call
from .test_streams import members, piped

TEXTS = {"format": "pt", "who": "ünknown"}
FP8 = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F8_OF_THE_FUTURE")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def arrays(rng) -> dict[str, np.ndarray]:
    return {
        "layer.0/weight": rng.standard_normal((70, 90)).astype(np.float32),
        "half": rng.standard_normal((3000,)).astype(np.float16),
        "brain": rng.standard_normal((64, 65)).astype(ml_dtypes.bfloat16),
        "bias": np.ones(4, np.float32),
        "header": np.arange(5),
        "mask": np.array([[True], [False]]),
        "nothing": np.empty((0, 3), np.float32),
        "complex": np.ones(3, np.complex64),
        "": np.array(3.5),
    }


def write(path: str, tensors: dict[str, np.ndarray], eight: str = "", metadata=TEXTS) -> None:
    entries = [
        Entry(name, safetensors_file.type_name(a.dtype), a.shape, a.nbytes, [a.tobytes()])
        for name, a in tensors.items()
    ]
    if eight:
        entries.append(
            Entry("eight", eight, (8 if eight == "F4" else 4,), 4, [b"\x01\x02\x83\x7f"])
        )
    with Path(path).open("wb") as stream:
        safetensors_file.save(stream, entries, metadata)


def read(path: str) -> safetensors_file.Opened:
    with Path(path).open("rb") as stream:
        return safetensors_file.tensors(path, stream, path)


@pytest.mark.parametrize("container", ["small.safetensors", "small.npz"])
def test_a_file_comes_back_with_names_types_and_metadata(rng, container) -> None:
    given = arrays(rng)
    write("model.safetensors", given)
    result = call("encode", "model.safetensors", container)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{container}: int8 of 3 arrays, 6 as they are, ")
    assert "model.safetensors: header: stored as it is: int8 does not take int64" in result.stderr
    assert "model.safetensors: bias: stored as it is: 68 bytes of codes for 16" in result.stderr
    assert Path(container).stat().st_size < 0.5 * Path("model.safetensors").stat().st_size
    assert call("decode", container, "back.safetensors").exit_code == 0
    back = read("back.safetensors")
    assert back.metadata == TEXTS
    assert list(back.tensors) == list(read("model.safetensors").tensors)  # in their order
    for name, array in given.items():
        actual = back.tensors[name].map()
        assert (actual.dtype, actual.shape) == (array.dtype, array.shape), name
        coded = name in ("layer.0/weight", "half", "brain")
        expected = compress(array, "int8").decompress() if coded else array
        assert actual.tobytes() == expected.tobytes(), name


def test_the_library_reads_what_is_written_and_the_other_way_around(rng) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="in the extra `safetensors`")
    safetensors = pytest.importorskip("safetensors")
    given = {name: a for name, a in arrays(rng).items() if name != "complex"}
    library.save_file(given, "model.safetensors", metadata=TEXTS)
    assert call("encode", "model.safetensors", "small.safetensors").exit_code == 0
    assert sorted(library.load_file("small.safetensors")) == sorted(given)
    assert call("decode", "small.safetensors", "back.safetensors").exit_code == 0
    back = library.load_file("back.safetensors")
    assert {n: (a.dtype, a.shape) for n, a in back.items()} == {
        n: (a.dtype, a.shape) for n, a in given.items()
    }
    with safetensors.safe_open("back.safetensors", framework="numpy") as opened:
        assert opened.metadata() == TEXTS


@pytest.mark.parametrize("kind", FP8)
@pytest.mark.parametrize("container", ["small.safetensors", "small.npz"])
def test_a_tensor_of_8_or_4_bits_loses_no_other_and_is_kept(rng, kind, container) -> None:
    write("model.safetensors", arrays(rng), kind)
    result = call("encode", "model.safetensors", container, "--codec", "msfp15_signed")
    assert result.exit_code == 0, result.stderr
    assert "model.safetensors: eight: stored as it is: " in result.stderr
    assert call("decode", container, "back.safetensors").exit_code == 0
    back, before = read("back.safetensors").tensors, read("model.safetensors").tensors
    assert sorted(back) == sorted(before)
    eight = back["eight"]
    assert (eight.type, eight.shape) == (kind, before["eight"].shape)
    assert eight.content.tobytes() == b"\x01\x02\x83\x7f"
    assert call("info", container, "back.safetensors").exit_code == 0
    assert call("roundtrip", "back.safetensors", "--provider", "cpu").exit_code == 0
    numpys = call("decode", container, "back.npz")
    assert f"back.npz: eight: {kind} is written as raw bytes" in numpys.stderr
    assert members("back.npz")["eight"].tobytes() == b"\x01\x02\x83\x7f"


def test_an_npz_of_any_types_comes_back(rng) -> None:
    x = rng.standard_normal((50, 60))
    np.savez("x.npz", x=x, text=np.array(["a", "bc"]), n=np.arange(3), header=np.float64(1))
    assert call("encode", "x.npz", "small.npz", "--codec", "pack16").exit_code == 0
    assert call("decode", "small.npz", "back.npz").exit_code == 0
    back = members("back.npz")
    assert back["text"].tolist() == ["a", "bc"]
    assert back["n"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(back["x"], x.astype(np.float16).astype(np.float64))
    refused = call("encode", "x.npz", "small.safetensors")
    assert_refused(refused, "small.safetensors: text: .safetensors has no type <U2; .npz has it")
    assert not Path("small.safetensors").exists()
    assert call("encode", "x.npz", "one.safetensors", "--name", "x").exit_code == 0
    assert call("decode", "one.safetensors", "one.npy").exit_code == 0
    assert np.load("one.npy").shape == x.shape
    refused = call("encode", "x.npz", "two.npz", "--name", "x", "--name", "n")
    assert_refused(refused, "x.npz: n: int8 does not take int64; without --name")


def test_one_array_and_its_ending(rng) -> None:
    """A .safetensors is one, and a packed array is what `Packed.load` reads."""
    np.save("a.npy", rng.standard_normal(1000).astype(np.float32))
    assert call("encode", "a.npy", "a.safetensors").exit_code == 0
    assert read("a.safetensors").tensors["a"].type == "U8"
    assert call("encode", "a.npy", "a.npz").exit_code == 0
    assert Packed.load("a.npz").codec == "int8"
    assert call("decode", "a.safetensors", "a.npz", "folder/").exit_code == 2  # of one name
    assert call("decode", "a.safetensors", "folder/", "--format", "npz").exit_code == 0
    assert members("folder/a.npz")["a"].shape == (1000,)


def test_pipes(rng) -> None:
    write("model.safetensors", arrays(rng), "F4")
    call("encode", "model.safetensors", "small.npz")
    content = Path("model.safetensors").read_bytes()
    through = piped(content, "encode", "-", "from_pipe.npz")
    assert through.exit_code == 0, through.stderr
    back = piped(Path("from_pipe.npz").read_bytes(), "decode", "-", "-", "--format", "safetensors")
    with io.BytesIO(back.stdout_bytes) as stream:
        opened = safetensors_file.tensors(None, stream, "-")
    assert opened.metadata == TEXTS
    assert sorted(opened.tensors) == sorted(read("model.safetensors").tensors)


def test_info_lists_them() -> None:
    write("model.safetensors", {"w": np.ones((4, 1024), np.float32), "n": np.arange(3)})
    call("encode", "model.safetensors", "small.safetensors")
    assert call("info", "small.safetensors").stdout.splitlines() == [
        "small.safetensors: packed file, 2 arrays, 2 texts",
        "  array  codec  dtype    shape      bytes  codes",
        "  n      -      int64    (3,)          24     24",
        "  w      int8   float32  (4, 1024)  16384   4352",
    ]


def test_a_checkpoint_as_packages_ship_them_comes_back(rng) -> None:
    """Float32 alone, no metadata, biases of one element behind weights, names with dots."""
    shapes = {"stft_conv.weight": (258, 1, 256), "conv1.bias": (128,), "lstm_cell.bias_hh": (512,),
              "final_conv.weight": (1, 128, 1), "final_conv.bias": (1,)}  # fmt: skip
    given = {n: (0.1 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
    write("model.safetensors", given, metadata={})
    assert call("encode", "model.safetensors", "small.safetensors").exit_code == 0
    assert call("decode", "small.safetensors", "back.safetensors").exit_code == 0
    assert call("decode", "small.safetensors", "back.npz").exit_code == 0
    back = read("back.safetensors")
    assert back.metadata == {}
    assert list(back.tensors) == list(members("back.npz")) == list(shapes)
    for name, x in given.items():
        y = back.tensors[name].map()
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        blocks = np.pad(x.reshape(-1), (0, -x.size % 32)).reshape(-1, 32)
        step = np.repeat(np.abs(blocks).max(1) / 127, 32)[: x.size].reshape(x.shape)
        assert (np.abs(y - x) <= 0.52 * step).all()


def test_files_without_the_order_of_arrays_are_read(rng) -> None:
    """As before it was noted: in the order of the tensors."""
    write("model.safetensors", arrays(rng))
    call("encode", "model.safetensors", "small.safetensors")
    damaged(lambda about, _: about.pop("order"))
    assert call("decode", "bad.safetensors", "back.safetensors").exit_code == 0
    assert sorted(read("back.safetensors").tensors) == sorted(arrays(rng))


def test_some_arrays_of_a_packed_file(rng) -> None:
    given = arrays(rng)
    write("model.safetensors", given)
    call("encode", "model.safetensors", "small.safetensors")
    one = call("decode", "small.safetensors", "half.npy", "--name", "half")
    assert one.exit_code == 0, one.stderr
    expected = compress(given["half"], "int8").decompress()
    assert np.load("half.npy").tobytes() == expected.tobytes()
    two = call("decode", "small.safetensors", "two.npz", "--name", "half", "--name", "bias")
    assert two.exit_code == 0
    assert sorted(members("two.npz")) == ["bias", "half"]
    refused = call("decode", "small.safetensors", "x.npy", "--name", "halb")
    assert_refused(refused, "small.safetensors: no array 'halb'", "half")
    assert not Path("x.npy").exists()


def damaged(change) -> None:
    """bad.safetensors: small.safetensors with another description."""
    content = Path("small.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"][packed_file.KEY])
    change(about, header)
    header["__metadata__"][packed_file.KEY] = json.dumps(about)
    text = json.dumps(header).encode()
    start = len(text).to_bytes(8, "little")
    Path("bad.safetensors").write_bytes(start + text + content[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda about, _: about.update(version=7),
        lambda about, _: about.update(format="other"),
        lambda about, _: about.update(arrays=3),
        lambda about, _: about["arrays"][0].update(codec="zip"),
        lambda about, _: about["arrays"][0].update(shape=[3]),
        lambda about, _: about["arrays"][0].update(name="gone"),
        lambda about, _: about["arrays"][0].update(options={"no": 1}),
        *(
            lambda about, _, order=order: about.update(order=order)
            for order in (3, None, {}, ["w", "w"], ["gone"], [["w"]], [None])
        ),
        lambda _, header: header["w"].update(shape=[1]),
        lambda _, header: header["w"].update(data_offsets=[0, 10**9]),
        lambda _, header: header["w"].update(data_offsets=[-1, 10]),
        lambda _, header: header["w"].update(dtype=3),
        lambda _, header: header.update(x=header["w"]),
        lambda _, header: header["__metadata__"].update(n=3),
    ],
)
def test_damage_is_refused_with_the_file(change) -> None:
    write("model.safetensors", {"w": np.ones((4, 1024), np.float32)})
    call("encode", "model.safetensors", "small.safetensors")
    damaged(change)
    assert_refused(call("decode", "bad.safetensors", "out.npz"), "bad.safetensors")
    assert not Path("out.npz").exists()


@pytest.mark.parametrize(
    "content", [b"\xff" * 7 + b"\x7f{}", b"\x01\0\0\0\0\0\0\0{", b"\x02\0\0\0\0\0\0\0{}x",
                b'\x12\0\0\0\0\0\0\0{"a":1,"a":2}     ', b"\x04\0\0\0\0\0\0\0{{}}"],
)  # fmt: skip
def test_what_is_no_safetensors_file_is_refused(content) -> None:
    Path("x.safetensors").write_bytes(content)
    assert_refused(call("info", "x.safetensors"), "x.safetensors: no tensors to be read")


def test_a_file_that_is_not_packed_is_no_packed_file() -> None:
    write("model.safetensors", {"w": np.ones(3, np.float32)})
    assert_refused(
        call("decode", "model.safetensors", "x.npz"), "model.safetensors: no packed file"
    )

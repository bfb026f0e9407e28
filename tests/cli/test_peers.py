# SPDX-License-Identifier: MIT
"""`roundtrip --against`: other libraries' rows, which are never recommended."""

from __future__ import annotations

import sys
import types
import zlib

import numpy as np
import pytest

from .test_files import assert_refused, call


@pytest.fixture
def zstandard(monkeypatch) -> types.ModuleType:
    """A library of that interface, where it is not installed."""
    if "zstandard" not in sys.modules:
        module = types.ModuleType("zstandard")

        class Compressor:
            def __init__(self, level: int) -> None:
                self.level = level

            def compress(self, data) -> bytes:
                return zlib.compress(bytes(data), self.level)

        class Decompressor:
            def decompress(self, data: bytes) -> bytes:
                return zlib.decompress(data)

        module.ZstdCompressor, module.ZstdDecompressor = Compressor, Decompressor
        monkeypatch.setitem(sys.modules, "zstandard", module)
    return sys.modules["zstandard"]


def rows(result) -> dict[str, list[str]]:
    lines = result.stdout.partition("\n\n")[0].splitlines()
    return {line.split()[0]: line.split() for line in lines if line}


@pytest.mark.usefixtures("zstandard")
def test_a_peer_has_a_row_and_is_not_recommended(tmp_path, rng) -> None:
    x = np.zeros((40, 50), np.float32)
    x[0] = rng.standard_normal(50)
    np.savez(tmp_path / "x.npz", x=x, empty=np.empty((0, 2), np.float32))
    result = call(
        "roundtrip",
        tmp_path / "x.npz",
        "--codec",
        "pack16",
        "--against",
        "zstd",
        "--provider",
        "cpu",
    )
    assert result.exit_code == 0, result.output
    row = rows(result)["zstd"]
    assert float(row[1]) > 4
    assert row[-1] == "ok"
    assert "\nx      pack16" in result.stdout
    assert "not for float32: zstd" in result.stdout


def test_a_peer_that_returns_other_values_fails(zstandard, tmp_path, monkeypatch) -> None:

    class Wrong:
        def decompress(self, _: bytes) -> bytes:
            return bytes(4 * 8)

    monkeypatch.setattr(zstandard, "ZstdDecompressor", Wrong)
    np.save(tmp_path / "x.npy", np.ones(8, np.float32))
    result = call("roundtrip", tmp_path / "x.npy", "--codec", "pack16", "--against", "zstd")
    assert result.exit_code == 1
    assert rows(result)["zstd"][-1] == "FAIL"


def test_names_are_checked_before_anything_is_read(tmp_path, monkeypatch) -> None:
    assert_refused(
        call("roundtrip", tmp_path / "no", "--against", "zip"), "zstd, blosc2, zfp", "'zip'"
    )
    monkeypatch.setitem(sys.modules, "zfpy", None)
    refused = call("roundtrip", tmp_path / "no", "--against", "zfp")
    assert_refused(refused, "--against zfp: zfpy is not here; install it with: pip install zfpy")


@pytest.mark.parametrize("name", ["zstd", "blosc2", "zfp"])
def test_the_library_itself(name, tmp_path, rng) -> None:
    module = {"zstd": "zstandard", "blosc2": "blosc2", "zfp": "zfpy"}[name]
    pytest.importorskip(module, reason="in no extra")
    np.save(tmp_path / "x.npy", rng.standard_normal((3, 4, 5, 6, 7)).astype(np.float32))
    result = call("roundtrip", tmp_path / "x.npy", "--codec", "pack16", "--against", name)
    assert result.exit_code == 0, result.output
    assert rows(result)[name][-1] == "ok"

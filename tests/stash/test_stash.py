# SPDX-License-Identifier: MIT
"""ActivationStash: what comes back, what is refused, and that no memory is let go too early."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ActivationStash, ArgumentError, ProviderError

from .activations import activation

CODEC = {"lossless": "sparse", "default": "msfp15_signed", "small": "sparse_fp10"}
FLOATS = ("float32", "float16", "float64", "bfloat16")


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_come_back(rng, dtype) -> None:
    x = activation(rng, dtype=dtype)
    for policy, codec in CODEC.items():
        with ActivationStash(policy) as stash:
            stash.put("x", x)
            y = stash.get("x")
        assert y.tobytes() == cto.compress(x, codec).decompress().tobytes()
        assert (y.dtype, y.shape) == (x.dtype, x.shape)


def test_signs_masks_and_indices_come_back_whatever_the_policy(rng) -> None:
    x, index = activation(rng), rng.integers(0, 16, (5, 9))
    for policy in ("lossless", "default", "small"):
        with ActivationStash(policy) as stash:
            stash.put("sign", x, need="sign")
            stash.put("mask", x > 0, need="mask")
            stash.put("bools", x > 0)
            stash.put("index", index, need="index")
            assert (stash.get("index") == index).all()
            assert stash.get("mask").dtype == bool
            assert (stash.get("bools") == (x > 0)).all()
            assert (stash.get("sign") == (x > 0)).all()


def test_it_runs_on_kernels(run, rng) -> None:
    x = activation(rng, (3, 40))
    with ActivationStash("default") as stash:
        stash.put("x", run.place(x))
        y = run.host(stash.get("x"))
    assert y.tobytes() == cto.compress(x, CODEC["default"]).decompress().tobytes()


def test_infinities_and_nan_come_back_where_they_were() -> None:
    x = np.array([1.0, np.inf, np.nan] + [0.0] * 13, np.float32)
    with ActivationStash() as stash:
        stash.put("x", x)
        y = stash.get("x")
    np.testing.assert_array_equal(y, x)


def test_what_a_policy_names_no_codec_for_is_the_array_itself(rng) -> None:
    x, integers = activation(rng), np.arange(5)
    with ActivationStash(lambda *_: None) as stash:
        stash.put("x", x)
        assert stash.get("x") is x
    with ActivationStash("default") as stash:
        stash.put("integers", integers)
        assert stash.get("integers") is integers


@pytest.mark.parametrize("policy", ["lossless", "default", "wide", "small", "plain_msfp15"])
@pytest.mark.parametrize("need", ["value", "linear", "normalised", "smooth", "product", "sign"])
def test_types_that_no_codec_takes_are_the_array_itself(policy: str, need: str) -> None:
    """Integers and complex numbers, where codes are for floats; objects, texts, swapped bytes."""
    arrays = [np.array(x) for x in (np.array([None, {}]), ["a", "bc"], np.ones(4, ">f4"))]
    if policy != "lossless" or need == "sign":  # else `sparse` takes them
        arrays += [np.arange(70_000, 70_008), np.full(8, 1e5j, np.complex64)]
    for array in arrays:
        with ActivationStash(policy) as stash:
            stash.put("array", array, need)
            assert stash.get("array") is array


def test_a_copy_begins_anew(rng) -> None:
    """A model that has one can be copied and pickled."""
    stash = ActivationStash("small", check=True)
    for twin in (copy.deepcopy(stash), pickle.loads(pickle.dumps(stash))):
        x = activation(rng)
        with stash, twin:
            stash.put("x", x)
            twin.put("x", x)
            assert copy.copy(twin).report()["names"] == {}
            assert stash.get("x").tobytes() == twin.get("x").tobytes()
        assert twin.report() == stash.report()
        with twin:
            twin.put("x", x)
            x += 1
            with pytest.raises(ArgumentError, match="changed after put"):
                twin.get("x")


def test_a_function_decides(rng) -> None:
    seen, x = [], activation(rng)

    def policy(*given):
        seen.append(given)
        return "pack16"

    with ActivationStash(policy) as stash:
        stash.put("x", x)
        stash.get("x")
    assert seen == [("x", "float32", (7, 33), "value")]
    assert stash.report()["names"]["x"]["codec"] == "pack16"


def test_out_is_written(rng) -> None:
    x = activation(rng)
    out = np.empty_like(x)
    with ActivationStash("lossless") as stash:
        stash.put("x", x)
        assert stash.get("x", out=out) is out
    assert (out == x).all()


def test_the_report_counts(rng) -> None:
    arrays = [activation(rng, (8, 1000 + i)) for i in range(3)]
    with ActivationStash("default") as stash:
        for i, x in enumerate(arrays):
            stash.put(str(i), x)
        stash.put("mask", arrays[0], need="mask")
        stash.get("2")
    report = stash.report()
    assert report["before"] == sum(x.nbytes for x in arrays) + arrays[0].nbytes
    assert report["after"] == report["peak"] == sum(x.size for x in arrays) + arrays[0].size // 8
    assert report["names"]["1"] == {
        "codec": "msfp15_signed",
        "need": "value",
        "before": arrays[1].nbytes,
        "after": arrays[1].size,
    }
    with stash:
        stash.put("0", arrays[0])
    assert stash.report()["names"].keys() == {"0"}


def test_sparse_codes_hold_no_more_than_they_need() -> None:
    x = np.zeros((64, 1000), np.float32)
    with ActivationStash("lossless") as stash:
        stash.put("x", x)
        assert stash.report()["after"] < x.nbytes / 30
        assert (stash.get("x") == 0).all()


def test_relus_gradient_is_plain_trainings(rng) -> None:
    """Small results keep their sign: a codec that makes them 0 loses their gradient."""
    y = np.maximum(rng.standard_normal((64, 512)), 0).astype(np.float32)
    with ActivationStash("default") as stash:
        stash.put("y", y)
        actual = cto.relu_grad(np.ones_like(y), stash.get("y"))
    assert (actual == (y > 0)).all()
    with ActivationStash("plain_msfp15") as stash:
        stash.put("y", y)
        assert (cto.relu_grad(np.ones_like(y), stash.get("y")) != actual).any()


def test_needs_choose_guards(rng) -> None:
    """What does not deviate beside its mean stays: of tiles, or of rows."""
    x = rng.standard_normal((64, 512)).astype(np.float32)
    uneven = x.copy()
    uneven[3] = 100 + x[3] / 100
    arrays = {"x": x, "shifted": x + 100, "uneven": uneven}
    for need, coded in (("value", "x shifted uneven"), ("linear", "x uneven"), ("normalised", "x")):
        with ActivationStash("default") as stash:
            for name, array in arrays.items():
                stash.put(name, array, need)
            report = stash.report()
            actual = {name for name, row in report["names"].items() if row["codec"]}
            assert actual == set(coded.split())
            assert report["after"] == sum(a.nbytes // 4 ** (n in actual) for n, a in arrays.items())
            for name in arrays.keys() - actual:
                assert stash.get(name) is arrays[name]


@pytest.mark.parametrize("need", ["linear", "normalised"])
def test_needs_of_values_take_every_policy(rng, need) -> None:
    x = rng.standard_normal((64, 512)).astype(np.float32)
    for policy in ("lossless", "small", "plain_msfp15", lambda *_: "pack16"):
        with ActivationStash(policy) as stash:
            stash.put("x", x, need)
            assert np.allclose(stash.get("x"), x, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("need", ["product", "smooth"])
def test_wide_has_8_bits_where_default_has_16(rng, dtype, need) -> None:
    """As `compressed_activations("wide")` has."""
    x = rng.standard_normal((64, 512)).astype(dtype)
    nbytes = {}
    for policy in ("default", "wide"):
        with ActivationStash(policy) as stash:
            stash.put("x", x, need)
            error = np.abs(stash.get("x").astype(np.float64) - x)
            assert error.max() <= 2**-3  # a step beside a number from 4 to 8: signs are exact
        nbytes[policy] = stash.report()["names"]["x"]["after"]
    assert nbytes == {"default": 2 * x.size, "wide": x.size}


@pytest.mark.parametrize("bad", [16, 99, -1])
def test_an_index_beyond_15_is_refused(bad) -> None:
    index = np.array([0, 15, bad, 3])
    for check in (False, True):
        with ActivationStash(check=check) as stash:
            with pytest.raises(ArgumentError, match="array: expected indices from 0 to 15 of 'i'"):
                stash.put("i", index, need="index")
            stash.put("i", index % 16, need="index")  # the name is free
            assert (stash.get("i") == index % 16).all()
    with ActivationStash("lossless") as stash:  # whose codec for values takes it
        stash.put("i", index)
        assert (stash.get("i") == index).all()


def test_a_tensor_that_is_written_has_another_version() -> None:
    """Also where it was decoded ahead, and is copied."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    out, w = torch.zeros(4, 8), torch.ones(4, 8, requires_grad=True)
    loss = (w * out).sum()
    with ActivationStash() as stash:
        stash.put("x", torch.ones(4, 8))
        assert stash.get("x", out=out) is out
    assert (out == 1).all()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tensor_comes_back_as_one(rng) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    x = torch.from_numpy(activation(rng))
    with ActivationStash("lossless") as stash:
        stash.put("x", x)
        stash.put("kept", torch.arange(5) * 100, need="value")
        stash.put("sign", x, need="sign")
        stash.put("out", x)
        assert torch.equal(stash.get("x"), x)
        assert torch.equal(stash.get("kept"), torch.arange(5) * 100)
        assert torch.equal(stash.get("sign"), (x > 0).float())
        out = torch.empty_like(x)
        assert stash.get("out", out=out) is out
    with ActivationStash(lambda *_: None) as stash:
        stash.put("x", x)
        assert torch.equal(stash.get("x"), x)


# ---- capture -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "keep", "message"),
    [
        ("default", False, "a capture needs memory that exists already for the codes of 'x'"),
        ("small", True, "'sparse_fp10' cannot be captured"),
        ("default", True, "a capture needs `out` for 'x'"),
    ],
)
def test_what_cannot_be_captured_is_refused(rng, monkeypatch, policy, keep, message) -> None:
    from cupy_training_ops.call.backends import NumpyBackend

    x, stash = activation(rng), ActivationStash(policy, keep_buffers=keep)

    def step():
        with stash:
            stash.put("x", x)
            stash.get("x")

    step()
    monkeypatch.setattr(NumpyBackend, "capturing", lambda *_: True)
    with pytest.raises(ProviderError, match=message):
        step()


def test_buffers_are_kept_for_the_next_step(rng) -> None:
    x, out = activation(rng), np.empty((7, 33), np.float32)
    stash = ActivationStash("default", keep_buffers=True)
    codes = []
    for _ in range(2):
        with stash:
            stash.put("x", x)
            codes.append(stash._entries["x"].code)
            stash.get("x", out=out)
    assert codes[0] is codes[1]


def test_buffers_of_one_codec_serve_no_other(rng, monkeypatch) -> None:
    """A policy may choose another codec in each step; a failed check forbids its codec alone."""
    from cupy_training_ops.call.backends import NumpyBackend

    x, chosen = activation(rng, (8, 64)), ["pack16"]
    stash = ActivationStash(lambda *_: chosen[0], keep_buffers=True)

    def step() -> None:
        with stash:
            stash.put("x", x)
            y = stash.get("x", out=np.empty_like(x))
        assert y.tobytes() == cto.compress(x, chosen[0]).decompress().tobytes()

    for codec in ("pack16", "msfp15", "pack8", "pack16"):
        chosen[0] = codec
        step()
    stash._pending.decisions = {place: "pack8" not in place for place in stash._buffers}
    monkeypatch.setattr(NumpyBackend, "capturing", lambda *_: True)
    step()


def test_no_buffers_are_kept_of_codes_without_a_fixed_size(rng) -> None:
    """They would be as large as the arrays, and no later step could use them."""
    stash = ActivationStash("lossless", keep_buffers=True)
    with stash:
        stash.put("x", activation(rng))
        stash.get("x")
    assert not stash._buffers


# ---- training ------------------------------------------------------------------------------------


@pytest.fixture
def train_digits(monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is in the extra `examples`")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    monkeypatch.delitem(sys.modules, "train_digits", raising=False)
    import train_digits

    return train_digits


def test_digits_learn_from_codes(train_digits) -> None:
    """Lossless: the same bits. `small` holds less than `default`, which holds a quarter."""
    plain = train_digits.train(np, 1, 4)
    results = {p: train_digits.train(np, 1, 4, p) for p in ("lossless", "default", "small")}
    assert results["lossless"].losses == plain.losses
    peaks = {policy: actual.stash["peak"] for policy, actual in results.items()}
    assert peaks["small"] < peaks["default"] == results["default"].stash["before"] / 4
    for actual in results.values():
        assert abs(actual.losses[-1] - plain.losses[-1]) < 0.1

# SPDX-License-Identifier: MIT
"""Arrays and codes part by part: what the whole gives."""

from __future__ import annotations

import numpy as np
import pytest
from codec_names import FLOAT_CODECS

from cupy_training_ops import compress
from cupy_training_ops.codecs.packed import decode_in_parts, encode_in_parts
from cupy_training_ops.dtypes import FLOAT32, FLOATS, dtype_name
from cupy_training_ops.errors import DtypeError

SHAPES = [(), (0, 3), (1,), (7,), (16, 4), (13, 11)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("cupy_training_ops.codecs.packed.PART", 24)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_parts_give_what_the_whole_gives(codec, dtype, rng):
    for shape in SHAPES:
        x = np.asarray(rng.standard_normal(shape), dtype)
        whole, done = compress(x, codec), []
        packed = encode_in_parts(x, codec, {}, done.append)
        assert (packed.shape, packed.dtype, packed.codec) == (whole.shape, whole.dtype, codec)
        assert packed.code.tobytes() == whole.code.tobytes()
        values = np.concatenate(list(decode_in_parts(packed, done.append)))
        assert values.dtype == dtype
        assert values.tobytes() == whole.decompress().tobytes()
        assert sum(done) == 2 * x.size


def test_options_reach_every_part(rng):
    x = rng.standard_normal(100).astype(FLOAT32)
    x[::30] = np.nan
    whole = compress(x, "msfp15", keep_nonfinite=True)
    packed = encode_in_parts(x, "msfp15", {"keep_nonfinite": True}, lambda _: None)
    assert packed.code.tobytes() == whole.code.tobytes()
    values = np.concatenate(list(decode_in_parts(packed, lambda _: None)))
    np.testing.assert_array_equal(values, whole.decompress())
    np.testing.assert_array_equal(np.isnan(values), np.isnan(x))
    zeroed = encode_in_parts(x, "msfp15", {"keep_nonfinite": False}, lambda _: None)
    values = np.concatenate(list(decode_in_parts(zeroed, lambda _: None)))
    assert (values[np.isnan(x)] == 0).all()


def test_what_no_codec_takes_is_refused():
    with pytest.raises(DtypeError, match="GistPack8Encoder: X"):
        encode_in_parts(np.arange(3), "pack8", {}, lambda _: None)

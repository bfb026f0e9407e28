# SPDX-License-Identifier: MIT
"""The oracle of attention against PyTorch, JAX's derivatives and the formula of single queries."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp

from cupy_training_ops import ArgumentError, DtypeError, flash_attention, flash_attention_grad
from cupy_training_ops.dtypes import BFLOAT16, FLOAT32
from cupy_training_ops.families.attention import reference
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

MASK = {"mask": (2, 1, 5, 7)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "added": MASK,
    "bool": {"is_bool": True, "mask": (4, 5, 7)},
    "one-key": {"mask": (5, 1), "is_causal": True},
    "short": {"mask": (2, 1, 1, 4), "pads_mask": True, "softcap": 2.0},
    "lengths": {"lengths": [3, 6]},
    "causal-lengths": {"lengths": [3, 6], "is_causal": True, **MASK},
    "flat": {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": True},
}

every_option = pytest.mark.parametrize("form", OPTIONS)


def inputs(rng, form: str) -> tuple[list[Any], dict[str, Any]]:
    """dY, Q, K, V, the mask and lengths in float64, and attributes."""
    attributes = dict(OPTIONS[form])
    shape, lengths = attributes.pop("mask", None), attributes.pop("lengths", None)
    mask = None if shape is None else rng.standard_normal(shape)
    if attributes.pop("is_bool", False):
        mask = mask > 0
    arrays = [rng.standard_normal((2, h, n, w)) for h, n, w in ((4, 5, 3), (4, 5, 6), (2, 7, 6))]
    arrays.append(rng.standard_normal((2, 2, 7, 3)))
    if "q_num_heads" in attributes:
        arrays = [np.ascontiguousarray(x.swapaxes(1, 2)).reshape(2, x.shape[2], -1) for x in arrays]
    return [*arrays, mask, None if lengths is None else np.array(lengths)], attributes


def seen(mask: Any, lengths: Any, is_causal: bool) -> Any:
    """Which of 5 queries sees which of 7 keys, by a boolean mask and the rest."""
    result = np.ones((2, 4, 5, 7), bool)
    if mask is not None and mask.dtype == bool:
        result &= mask
    ends = np.array([7, 7] if lengths is None else lengths)[:, None, None, None]
    result &= np.arange(7) < ends
    first = 0 if lengths is None else ends - 5
    return result & (np.arange(7) <= np.arange(5)[:, None] + first) if is_causal else result


def expected(q: Any, k: Any, v: Any, mask: Any, lengths: Any, options: dict[str, Any]) -> Any:
    """Y by the whole matrix of scores, in JAX; LSE."""
    if "q_num_heads" in options:
        q, k, v = (
            x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2) for x, n in ((q, 4), (k, 2), (v, 2))
        )
    k, v = (jnp.repeat(x, 2, 1) for x in (k, v))
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * options.get("scale", 1 / math.sqrt(6))
    cap = options.get("softcap")
    s = cap * jnp.tanh(s / cap) if cap else s
    if mask is not None and mask.dtype != bool:
        if options.get("pads_mask"):
            widths = [(0, 0)] * (mask.ndim - 1) + [(0, 7 - mask.shape[-1])]
            mask = jnp.pad(mask, widths, constant_values=-jnp.inf)
        s = s + mask
    shown = seen(mask, lengths, options.get("is_causal", False))
    s = jnp.where(shown, s, -jnp.inf)
    alive = shown.any(-1, keepdims=True)
    weights = jnp.where(alive, jax.nn.softmax(jnp.where(alive, s, 0), -1), 0)
    y = weights @ v
    lse = jax.nn.logsumexp(s, -1)
    return (y.swapaxes(1, 2).reshape(2, 5, -1) if "q_num_heads" in options else y), lse


@every_option
def test_it_is_the_matrix_of_scores(rng, form) -> None:
    (_, *given), options = inputs(rng, form)
    for actual, wanted in zip(
        flash_attention(*given, **options), expected(*given, options), strict=True
    ):
        assert_matches(actual, np.asarray(wanted))


@every_option
def test_gradients_are_jax(rng, form) -> None:
    (dy, *given), options = inputs(rng, form)
    mask, with_mask = given[3], given[3] is not None and given[3].dtype != bool
    primals = given[:4] if with_mask else given[:3]

    def forward(q, k, v, mask=mask):
        return expected(q, k, v, mask, given[4], options)[0]

    wanted = vjp(forward, primals, dy)
    y, lse = flash_attention(*given, **options)
    actual = flash_attention_grad(
        dy, *given[:3], y, lse, *given[3:], **options, mask_gradient=with_mask
    )
    for one, other in zip(actual[:3], wanted, strict=False):
        assert_matches(one, other)
    if not with_mask:
        assert actual[3] is None
        return
    ds = actual[3][..., : mask.shape[-1]] if "pads_mask" in options else actual[3]
    whole = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    axes = tuple(i for i in range(4) if whole.shape[i] == 1)
    assert_matches(ds.sum(axes, keepdims=True).reshape(mask.shape), wanted[3])


@pytest.mark.parametrize("form", ["plain", "causal", "added", "bool"])
def test_it_is_pytorchs(rng, form) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    (dy, *given), options = inputs(rng, form)
    if form == "bool":
        given[3][..., 0] = True
    leaves = [torch.tensor(x, requires_grad=True) for x in given[:3]]
    mask = None if given[3] is None else torch.tensor(given[3])
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *leaves, attn_mask=mask, enable_gqa=True, **options
    )
    wanted.backward(torch.tensor(dy))
    y, lse = flash_attention(*given, **options)
    assert_matches(y, wanted.detach().numpy())
    actual = flash_attention_grad(dy, *given[:3], y, lse, *given[3:], **options)
    for one, leaf in zip(actual[:3], leaves, strict=True):
        assert_matches(one, leaf.grad.numpy())


def test_a_query_without_keys_is_0(rng) -> None:
    """Its gradients, too: ONNX's reference says 0 for Y, PyTorch NaN."""
    (dy, *given), _ = inputs(rng, "plain")
    given[3] = np.ones((5, 7), bool)
    given[3][2] = False
    y, lse = flash_attention(*given)
    assert not y[:, :, 2].any()
    assert (lse[:, :, 2] == -np.inf).all()
    dq, dk, dv, _ = flash_attention_grad(dy, *given[:3], y, lse, given[3])
    assert not dq[:, :, 2].any()
    dy[:, :, 2] = 100
    for actual, wanted in zip(
        flash_attention_grad(dy, *given[:3], y, lse, given[3])[:3], (dq, dk, dv), strict=True
    ):
        assert_matches(actual, wanted, 0)


def test_parts_of_queries_are_one(rng, monkeypatch) -> None:
    (dy, *given), options = inputs(rng, "causal-lengths")
    y, lse = flash_attention(*given, **options)
    arguments = (dy, *given[:3], y, lse, *given[3:])
    whole = flash_attention_grad(*arguments, **options)
    monkeypatch.setattr(reference, "PART", 60)
    for actual, wanted in zip(flash_attention(*given, **options), (y, lse), strict=True):
        assert_matches(actual, wanted)
    for actual, wanted in zip(flash_attention_grad(*arguments, **options), whole, strict=True):
        assert actual is wanted is None or assert_matches(actual, wanted) is None


Q, K = np.zeros((2, 4, 5, 6), FLOAT32), np.zeros((2, 2, 7, 6), FLOAT32)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ((Q, K, K[:, :, :6]), {}, r"V: expected .* \(2, 2, 7, 6\).*, got \(2, 2, 6, 6\)"),
        ((Q, K[:1], K), {}, r"K: expected .*\(2, 2, 7, 6\)"),
        ((Q[:, :3], K, K), {}, "Q: expected heads, a multiple of K's 2, got 3 heads"),
        ((Q[:, :0], K, K), {}, "Q: expected heads, a multiple of K's 2, got 0"),
        ((Q, K[:, :0], K[:, :0]), {}, "Q: expected heads, a multiple of K's 0, got 4"),
        ((Q, K, K[..., :0]), {}, "V: expected heads of 1 to 128 elements of float32, got 0"),
        ((Q[..., 0], K, K), {}, "Q: expected rank 4 without q_num_heads"),
        ((Q, K, K), {"q_num_heads": 4, "kv_num_heads": 2}, "Q: expected rank 4 without"),
        ((Q[0], K[0], K[0]), {"q_num_heads": 4, "kv_num_heads": 4}, "Q: .* divide the last"),
        ((Q, K, K, np.zeros((5, 6), FLOAT32)), {}, r"attn_mask: .* \(2, 4, 5, 7\), got \(5, 6\)"),
        ((Q, K, K, np.zeros((5, 8), bool)), {"pads_mask": True}, "attn_mask: .* shorter last"),
        ((Q, K, K, np.zeros((3, 5, 7), bool)), {}, "attn_mask: expected a shape broadcast"),
        ((Q, K, K, np.zeros((1, 2, 4, 5, 7), bool)), {}, "attn_mask: expected a shape broadcast"),
        ((Q, K, K, None, np.zeros(3, np.int64)), {}, r"nonpad_kv_seqlen: expected shape \(2,\)"),
        ((Q, K, K), {"softcap": -1.0}, "softcap: expected a finite number of at least 0"),
        ((Q, K, K), {"scale": math.inf}, "scale: expected a finite number"),
    ],
)
def test_bad_input_is_named(anywhere, given, options, words) -> None:
    arrays = [None if x is None else anywhere.place(np.ascontiguousarray(x)) for x in given]
    with pytest.raises(ArgumentError, match=f"FlashAttention: {words}"):
        flash_attention(*arrays, **options)


def test_types_that_do_not_go_together_are_named() -> None:
    with pytest.raises(DtypeError, match="FlashAttention: "):
        flash_attention(Q, K, K, np.zeros((5, 7), BFLOAT16))
    with pytest.raises(DtypeError, match="FlashAttention: V: expected dtype float32"):
        flash_attention(Q, K, K.astype(BFLOAT16))
    with pytest.raises(ArgumentError, match=r"FlashAttention: Q: .* 1 to 64 elements of float64"):
        flash_attention(*[np.zeros((1, 1, 2, 65))] * 3)


@pytest.mark.parametrize("name", ["dY", "Y", "LSE"])
def test_the_gradient_names_what_does_not_fit(name) -> None:
    arrays = {"dY": Q, "Q": Q, "K": K, "V": K, "Y": Q, "LSE": Q[..., 0].copy()}
    arrays[name] = np.ascontiguousarray(arrays[name][:, :2])
    with pytest.raises(ArgumentError, match=rf"FlashAttentionGrad: {name}: expected shape \(2, 4"):
        flash_attention_grad(**arrays)

# SPDX-License-Identifier: MIT
"""Policies: the codec for an activation, by what the backward pass needs; its operators.

owner: the class or function of the caller, which errors name. name: the array's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ..codecs.table import CODECS, get_codec
from ..dtypes import Dtype, dtype_name
from ..errors import ArgumentError, raise_if_from_handler, refuse, shown
from ..families.gist.operators import Decoder
from ..families.gist_guard.operators import GistGuardedMsfp15Encoder
from ..families.gist_guard.sample import Grouping
from .error_check import LINEAR, NORMALISED, PRODUCT, SMOOTH, TILES

BY_RANGE = (PRODUCT, SMOOTH)  # needs for which 16 bits suffice
VALUES = ("value", LINEAR, NORMALISED, *BY_RANGE)  # needs that are more than sign or index
NEEDS = ("sign", "mask", "index", *VALUES)
# (name, dtype's name, shape, need) -> a codec's name, or None: not compressed.
Policy = Callable[..., str | None]
T = TypeVar("T")

LOSSLESS, HALF = "sparse", "pack16"
WIDER_THAN_16_BITS = ("float32", "float64")
# Codecs that lose nothing of these needs.
EXACT = {"sign": "pack1", "mask": "pack1", "index": "index4"}


def by_need(
    of_values: str,
    _name: str,
    dtype: str,
    _shape: tuple[int, ...],
    need: str,
    halves: bool = True,
) -> str | None:
    """Return the name of the codec with the fewest bits that serves a need, or None.

    of_values: the codec for values. dtype: a name. halves: return HALF, a codec of 16 bits, for
    needs of BY_RANGE, where 16 bits suffice and fewer may not.
    """
    if need in BY_RANGE and halves:
        return HALF if dtype in WIDER_THAN_16_BITS else None
    codec = EXACT["mask"] if dtype == "bool" else EXACT.get(need, of_values)
    return codec if dtype in map(dtype_name, get_codec(codec).dtypes) else None


POLICIES: Mapping[str, Policy] = {
    "lossless": partial(by_need, LOSSLESS, halves=False),
    "default": partial(by_need, "msfp15_signed"),
    "wide": partial(by_need, "msfp15_signed", halves=False),
    "small": partial(by_need, "sparse_fp10"),
    "plain_msfp15": partial(by_need, "msfp15"),
}


def get_policy(owner: str, policy: object, named: Mapping[str, T]) -> T | Policy:
    """Return the policy of a name in `named`, or `policy` itself, a function; refuse others."""
    if isinstance(policy, str) and policy in named:
        return named[policy]
    if not callable(policy):
        expected = f"one of {', '.join(map(repr, named))} or a function of name, dtype, shape, need"
        refuse(owner, "policy", expected, shown(policy))
    return policy


def takes_consumer(policy: Policy) -> bool:
    """Return True if a policy has a parameter `consumer`."""
    try:
        parameters = inspect.signature(policy).parameters
    except (TypeError, ValueError) as error:  # a C function without a signature
        raise_if_from_handler(error)
        return False
    return "consumer" in parameters


def choose_codec(
    owner: str,
    policy: Policy,
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    need: str,
    consumer: str = "",
) -> str | None:
    """Return the codec's name that a policy chooses, or None; refuse one that loses what is needed.

    dtype: a name. consumer: of the function that saves the array, "" if unknown.
    """
    if need not in NEEDS:
        refuse(owner, "need", f"one of {', '.join(map(repr, NEEDS))}", shown(need))
    more = {"consumer": consumer} if takes_consumer(policy) else {}
    codec = policy(name, dtype, shape, need, **more)
    if codec is not None:
        _refuse_unfit(owner, name, dtype, need, codec)
    return codec


def _refuse_unfit(owner: str, name: str, dtype: str, need: str, codec: object) -> None:
    """Raise ArgumentError for an unknown codec, or one that loses what is needed."""
    if not isinstance(codec, str) or codec not in CODECS:
        raise ArgumentError(
            f"{owner}: policy: expected the name of a codec ({', '.join(CODECS)}) or None "
            f"for {name!r}, got {shown(codec)}"
        )
    kinds = get_codec(codec).kinds
    keeps_index = ("index" in kinds and get_codec(codec).lossless) or dtype == "bool"
    if need == "index" and not keeps_index:
        raise ArgumentError(
            f"{owner}: policy: expected a codec that keeps every index of {name!r}, got {codec!r}, "
            f"which is lossy"
        )
    keeps_values = "value" in kinds or dtype == "bool"
    if need in VALUES and not keeps_values:
        raise ArgumentError(
            f"{owner}: policy: expected a codec that keeps the values of {name!r}, got {codec!r}, "
            f"which does not"
        )


def coders(
    codec: str, dtype: Dtype | str, shape: tuple[int, ...], measure: str, grouping: Grouping | None
) -> tuple[Any, Decoder]:
    """Return the operators (encoder, decoder) of a codec, with its default options, for arrays of a
    dtype and shape.

    measure: with TILES the encoder also returns measured numbers, over the groups of `grouping`.
    """
    row = get_codec(codec)
    options = row.defaults  # loss scaling notices an overflow by infinities and NaN
    if measure == TILES:
        encoder: Any = GistGuardedMsfp15Encoder.shared(grouping=grouping, **options)
    else:
        encoder = row.encoding(**options)
    of_decoder = row.decoder_options(encoder.attribute_values, options)
    return encoder, row.decoder.shared(to=dtype, shape=shape, **of_decoder)

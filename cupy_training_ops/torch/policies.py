# SPDX-License-Identifier: MIT
"""Policies for PyTorch's saved tensors: by who saves a tensor, or by who made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ..codecs.kept.guards import PRODUCT, SMOOTH
from ..codecs.kept.policies import (
    POLICIES,
    WIDER_THAN_16_BITS,
    Policy,
    chosen,
    get_policy,
    is_told,
)
from .consumers import EXACT, Use

NAME = "compressed_activations"
MAKE_ZEROS = frozenset({"ReluBackward0", "ThresholdBackward0", "NativeDropoutBackward0"})


@dataclass(frozen=True, eq=False)
class TorchPolicy:
    """How a codec is chosen."""

    choose: Callable[[str, str, tuple[int, ...], str, Use], str | None]
    by_consumer: bool  # codes are guarded, and who needs a tensor exactly has it
    told: bool  # of the consumer

    def chosen(
        self, name: str, dtype: str, shape: tuple[int, ...], need: str, use: Use
    ) -> tuple[str, str]:
        """A codec, or the reason why there is none."""
        codec = self.choose(name, dtype, shape, need, use)
        if codec:
            return codec, ""
        if not self.by_consumer:
            return "", "policy"
        return "", "exact" if use.consumer else "unknown"


def by_consumer(
    smooth: Mapping[str, str], _name: str, dtype: str, _shape: object, need: str, use: Use
) -> str | None:
    """Codes for who takes a value linearly; `smooth` has those of smooth functions, by dtype."""
    if need == "mask":
        return "pack1"
    if use.need == EXACT:
        return None
    return smooth.get(dtype) if use.need in (SMOOTH, PRODUCT) else "msfp15_signed"


def small(name: str, dtype: str, shape: tuple[int, ...], need: str) -> str | None:
    """Sparse codes where an operation makes zeros; elsewhere they would be longer than MSFP15."""
    found = POLICIES["small" if name in MAKE_ZEROS else "plain_msfp15"]
    return found(name, dtype, shape, need)


def _by_maker(policy: Policy) -> TorchPolicy:
    """A function of four, or of the consumer too."""

    def choose(name: str, dtype: str, shape: tuple[int, ...], need: str, use: Use) -> str | None:
        return chosen(NAME, policy, name, dtype, shape, need, use.consumer)

    return TorchPolicy(choose, by_consumer=False, told=is_told(policy))


def _by_consumer(smooth: Mapping[str, str]) -> TorchPolicy:
    return TorchPolicy(partial(by_consumer, smooth), by_consumer=True, told=True)


FLOATS = ("float32", "float64", "float16", "bfloat16")
NAMED = {
    "lossless": _by_maker(POLICIES["lossless"]),
    "default": _by_consumer(dict.fromkeys(WIDER_THAN_16_BITS, "pack16")),
    "wide": _by_consumer(dict.fromkeys(FLOATS, "msfp15_signed")),
    "small": _by_maker(small),
    "plain_msfp15": _by_maker(POLICIES["plain_msfp15"]),
}


def policy_of(policy: object) -> TorchPolicy:
    """A policy by name, or around the caller's function."""
    found = get_policy(NAME, policy, NAMED)
    return found if isinstance(found, TorchPolicy) else _by_maker(found)

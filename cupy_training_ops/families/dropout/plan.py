# SPDX-License-Identifier: MIT
"""Bases of dropout's operators: ratio, state and seed, and launches by elements or by lines."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from ...call.op import Op
from ...declare.schema import (
    Changing,
    Function,
    Input,
    Spec,
    attribute,
    flag,
    integer,
    optional,
    real,
    single,
)
from ...declare.type_rows import Types
from ...dtypes import FLOATS, Dtype
from ...errors import ArgumentError, shown
from ...plan import VEC_NBYTES, Config, Device, Launch, Plan, ceil_div
from ...planning.elementwise import streaming_launch, type_slots
from ...planning.lines import Kernels, Lines, Registers, division, register_nbytes
from . import philox
from .facts import N_HELD
from .philox import DEFAULT_RATIO, dropout_scale

# What a block computes before its first tile costs as much as a tile does where elements are short.
# Of 64 Mi in float16 BitmaskDropout takes 0.078 ms in place of 0.080, BiasDropout 0.121 in place of
# 0.132. Dropout is faster without (0.083, 0.087), and so are wider elements.
MOST_TILES = 4
WIDE_NBYTES = 4  # elements of so many have one
BLOCKS = 16  # a multiprocessor, before they take several tiles

Ratio = float | Changing
State = Spec | Changing
Arrays = tuple[Spec | None, ...]


@dataclass(frozen=True)
class Launches:
    """Plans launches of one call, which share the device, the dtype `t` and the ratio."""

    device: Device
    t: Dtype
    ratio: Ratio  # 0 where nothing is dropped

    @property
    def scale(self) -> object:
        """Return the factor of kept elements, 1 / (1 - ratio)."""
        return self._of_ratio(partial(dropout_scale, t=self.t))

    @property
    def keeps_all(self) -> object:
        """Return True (or a Changing) for ratio 0: nothing is dropped, whatever a mask says."""
        return self._of_ratio(lambda ratio: ratio == 0)

    def elementwise(self, symbol: str, arrays: Arrays, *options: object) -> Launch:
        """Plan a launch of the kernel `symbol`: a thread has NBYTES bytes of arrays[0].

        arrays, then options, its scalars, are the kernel's arguments.
        """
        return replace(streaming_launch(symbol, arrays, options), slots=self._slots)

    def by_tiles(self, symbol: str, arrays: Arrays, *options: object) -> Launch:
        """Plan a launch of the kernel `symbol`, with up to MOST_TILES tiles for each block.

        A tile is what a block takes in `elementwise`; 4-byte elements and wider have one. The
        kernel's arguments are arrays, the number of tiles of a block, and options, its scalars.
        """
        launch = self.elementwise(symbol, arrays)
        (n_tiles,) = launch.config.grid
        most = MOST_TILES if self.t.itemsize < WIDE_NBYTES else 1
        tiles = min(most, max(1, n_tiles // (BLOCKS * self.device.multiprocessors)))
        config = Config((ceil_div(n_tiles, tiles),), launch.config.block)
        return replace(launch, config=config, args=(*launch.args, tiles, *options))

    def over_lines(
        self,
        kernels: Kernels,
        arrays: Arrays,
        options: tuple[object, ...],
        lines: Lines,
        fits: bool,
        most: int,
    ) -> Launch:
        """Plan a launch of one of `kernels`, by how `lines` are divided (algorithm/lines.cuh).

        It takes arrays, options, and the lines' extents. fits: True if a row starts at the same
        address modulo 16 in all arrays. most: threads for one row at most.
        """
        nbytes, itemsize = register_nbytes(self.device, self.t), self.t.itemsize
        registers = Registers(nbytes, N_HELD, itemsize, VEC_NBYTES // itemsize, N_HELD, most)
        aligned = fits and all(spec.aligned for spec in arrays if spec is not None)
        divided = division(lines, registers, aligned, kernels)
        args = (*arrays, *options, *divided.args)
        return Launch(divided.kernel, divided.config, args, self._slots)

    def draw_arguments(self, state: State) -> tuple[object, ...]:
        """Return a kernel's last arguments: state, largest word that keeps an element, scale."""
        return state, self._of_ratio(philox.keep_threshold), self.scale

    def then_advance(self, launch: Launch, state: State) -> Plan:
        """Plan the launch, then one that adds 1 to the offset of a state array if ratio > 0."""
        if isinstance(state, Changing):
            return Plan((launch,))  # numbers of the call
        by = self._of_ratio(lambda ratio: int(ratio > 0))
        config = Config((1,), (1,))
        return Plan((launch, Launch("dropout__advance", config, (state, by), self._slots)))

    def _of_ratio(self, function: Function) -> object:
        """Return function(ratio), or a Changing that is it at each call."""
        ratio = self.ratio
        return ratio.then(function) if isinstance(ratio, Changing) else function(ratio)

    @property
    def _slots(self) -> dict[str, str]:
        """Return the macros that kernels are compiled with, the same for all of one type."""
        return type_slots(self.t) | {"LINE_NBYTES": str(register_nbytes(self.device, self.t))}


# ---- inputs, and the operators that have them ----------------------------------------------------


def part(value: object) -> float:
    """A number from 0 on, below 1, also in an array or a sequence of one element.

    Return `value` as such, or refuse it; documents show the first line.
    """
    number = real(single(value))
    if not 0 <= number < 1:
        raise ArgumentError(f"expected a number from 0 on, below 1, got {shown(number)}")
    return number


def seed(value: object) -> int:
    """An integer of 64 bits, signed or not.

    Return `value` as such, or refuse it; documents show the first line.
    """
    whole = integer(value)
    if not -(2**63) <= whole < 2**64:
        raise ArgumentError(f"expected an integer of 64 bits, got {shown(whole)}")
    return whole


def two_integers(value: object) -> tuple[int, int]:
    """Two integers.

    Return `value` as such, or refuse it; documents show the first line.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ArgumentError(f"expected two integers, got {shown(value)}")
    return integer(value[0]), integer(value[1])


RATIO = Input(
    "ratio",
    "float64",
    memory="host",
    convert=part,
    static=False,
    optional=True,
    doc="0.5 where it is left out",
)
TRAINING = Input(
    "training_mode",
    "bool",
    memory="host",
    convert=flag,
    optional=True,
    doc="False where it is left out: the identity",
)
OF_FORWARD = replace(TRAINING, doc="that of the forward; True where it is left out")
STATE = Input(
    "state",
    "uint64",
    memory="either",
    convert=two_integers,
    count=2,
    optional=True,
    updated=True,
    supplied=True,
    shape="two elements",
    doc="seed and offset; of an array the offset goes on by one",
)
SEED = attribute(
    optional(seed), None, doc="None takes one from the system, another in a process that is forked"
)


class WithRatio(Op):
    """Base of operators with a ratio, which training_mode may turn off."""

    types: ClassVar[Types] = {"T": FLOATS}
    ratio_at: ClassVar[int]  # its place among the inputs, from the end
    training_at: ClassVar[int | None] = None
    trains: ClassVar[bool] = True  # training_mode where it is left out

    def ratio(self, inputs: Sequence[Any]) -> Any:
        """Return the ratio to drop with: 0 where training_mode (of `inputs`) turns dropout off."""
        training = None if self.training_at is None else inputs[self.training_at]
        if not (self.trains if training is None else training):
            return 0.0
        ratio = inputs[self.ratio_at]
        return DEFAULT_RATIO if ratio is None else ratio

    def launches(self, device: Device, specs: Sequence[Any]) -> Launches:
        """Return the Launches of a call; specs: its inputs and outputs, the first of type T."""
        return Launches(device, specs[0].dtype, self.ratio(specs[: len(self.inputs)]))


# XORed into keys that the system gave: a forked child would draw what its parent draws.
_of_process = 0


def _draw_for_child() -> None:
    global _of_process
    _of_process = secrets.randbits(64)


os.register_at_fork(after_in_child=_draw_for_child)


class Drawing(WithRatio):
    """Base of operators that draw random words from a state (seed, offset).

    Where the caller passes none, an instance supplies one, with offsets 0, 1, 2, ... at its calls;
    as a function with a seed it always supplies offset 0.
    """

    seed = SEED
    _key: int  # the seed, 0 to 2^64 - 1; without one, random
    _first: tuple[int, int]  # (key, 0): state of calls that draw nothing, or always the same
    _offsets: Iterator[int] | None  # of the next calls; None of a function with a seed

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        key = secrets.randbits(64) if self.seed is None else self.seed % 2**64
        vars(self).update(_key=key, _first=(key, 0), _offsets=itertools.count())

    @classmethod
    def to_share(cls, **attributes: object) -> Self:
        """Make the instance of the function form, whose offset is always 0 if it has a seed."""
        op = super().to_share(**attributes)
        if op.seed is not None:
            vars(op).update(_offsets=None)
        return op

    def supply_always(self) -> object:
        """Return the state where all calls get the same one, else None."""
        return self._first if self._offsets is None else None

    def supply(self, *inputs: Any) -> tuple[int, int]:
        """Return the state (seed, offset) of a call whose inputs hold none."""
        if self._offsets is None or not self.ratio(inputs) > 0:
            return self._first
        key = self._key ^ _of_process if self.seed is None else self._key
        return key, next(self._offsets)

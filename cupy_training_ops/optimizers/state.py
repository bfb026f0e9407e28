# SPDX-License-Identifier: MIT
"""States of optimizers: as a dictionary, and in a file that holds the same.

A state is held against a layout before anything is written, its arrays by their headers before any
of them is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..codecs import container
from ..codecs.numpy_file import BinaryFile, Header, NumpyArray, Stored, StrPath
from ..declare.schema import Shape
from ..dtypes import BFLOAT16, Dtype, dtype_name
from ..errors import ArgumentError, pass_on, refuse, shown

State = dict[str, Any]

FORMAT = container.Format("optimizer state", version=1, longest_header=1 << 26)
MAX_STEP = 2**62  # that were made
_RAW = np.dtype(np.uint16)  # of bfloat16 in a file


@dataclass(frozen=True)
class Layout:
    """The layout of a state: arrays of each moment, one for each parameter."""

    optimizer: str
    shapes: Mapping[str, Shape]  # of the parameters, by name
    moments: Mapping[str, Dtype]
    counts: bool  # whether steps are counted

    @property
    def held(self) -> Mapping[str, Shape]:
        """The shapes of a state's arrays."""
        return self.shapes

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of a state's entries that are no arrays."""
        return ("optimizer", "shapes", *(("step",) if self.counts else ()))

    def check(self, state: object) -> None:
        """Refuse what is no state of such an optimizer; headers may stand for arrays."""
        self._check_keys(state, (*self.numbers, *self.moments))
        assert isinstance(state, dict)
        self.check_numbers({key: state[key] for key in self.numbers})
        for name, dtype in self.moments.items():
            self._check_each(name, state[name], lambda array: array.shape, self.held)
            for parameter, array in state[name].items():
                if array.dtype != dtype:
                    self._refuse(f"{name}[{parameter!r}]", dtype_name(dtype), str(array.dtype))

    def check_numbers(self, state: State) -> None:
        """The same without arrays."""
        self._check_keys(state, self.numbers)
        if state["optimizer"] != self.optimizer:
            self._refuse("optimizer", self.optimizer, shown(state["optimizer"]))
        step = state.get("step", 0)
        if isinstance(step, dict) and step.keys() == self.shapes.keys():
            for name, made in step.items():
                self._check_step(f"step[{name!r}]", made)
        else:
            self._check_step("step", step)
        self._check_each("shapes", state["shapes"], tuple, self.shapes)

    def _check_step(self, key: str, step: object) -> None:
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            self._refuse(key, "the number of steps that were made", shown(step))

    def _check_keys(self, state: object, keys: Sequence[str]) -> None:
        if not isinstance(state, dict) or state.keys() != set(keys):
            got = list(state) if isinstance(state, dict) else type(state).__name__
            self._refuse("", f"a dictionary of {', '.join(keys)}", shown(got))

    def _check_each(
        self, key: str, entries: Any, shape_of: Callable[[Any], Shape], shapes: Mapping[str, Shape]
    ) -> None:
        """The entry of each parameter: none is missing, none more, all of the right shape."""
        if not isinstance(entries, dict) or entries.keys() != self.shapes.keys():
            names = list(entries) if isinstance(entries, dict) else entries
            self._refuse(key, f"entries of {shown(list(self.shapes))}", shown(names))
        for parameter, expected in shapes.items():
            try:
                shape = shape_of(entries[parameter])
            except (AttributeError, TypeError) as error:
                pass_on(error)
                entry = shown(entries[parameter])
                self._refuse(f"{key}[{parameter!r}]", f"shape {expected}", entry)
            if shape != expected:
                self._refuse(f"{key}[{parameter!r}]", f"shape {expected}", f"shape {shown(shape)}")

    def _refuse(self, key: str, expected: str, got: str) -> NoReturn:
        refuse(self.optimizer, f"state {key}".strip(), expected, got)


def step(names: Sequence[str], made: Sequence[int]) -> int | dict[str, int]:
    """The steps of each parameter by name; one number, where all have the same."""
    return made[0] if len(set(made)) == 1 else dict(zip(names, made, strict=True))


def steps(names: Sequence[str], step: int | dict[str, int]) -> list[int]:
    """The steps of each parameter."""
    return [step[name] for name in names] if isinstance(step, dict) else [step] * len(names)


def save(file: StrPath | BinaryFile, state: State, layout: Layout, sync: bool = True) -> None:
    """Write a state of such a layout, whose arrays are NumPy's."""
    arrays = {
        _member(moment, i): _raw(array)
        for moment in layout.moments
        for i, array in enumerate(state[moment].values())
    }
    container.write(file, FORMAT, {key: state[key] for key in layout.numbers}, arrays, sync)


def load(file: StrPath | BinaryFile, *layouts: Layout) -> State:
    """The state of a file, which is one of such a layout, or of another one."""
    with container.load(file, FORMAT) as opened:
        state = dict(opened.header)
        layout = next((x for x in layouts if state.keys() == set(x.numbers)), layouts[0])
        with _named(file):
            layout.check_numbers(state)
        stored = {
            moment: {
                parameter: opened.member(_member(moment, i))
                for i, parameter in enumerate(state["shapes"])
            }
            for moment in layout.moments
        }
        headers = {
            m: {p: _header(array) for p, array in arrays.items()} for m, arrays in stored.items()
        }
        with _named(file):
            layout.check(state | headers)
        for moment, arrays in stored.items():
            state[moment] = {p: _with_type(array.read()) for p, array in arrays.items()}
    return state


@contextlib.contextmanager
def _named(file: object) -> Iterator[None]:
    """Refusals that name the file."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{file}: {error}") from None


def _member(moment: str, i: int) -> str:
    """A parameter's name may be any text, that of a file's member may not."""
    return f"{moment}/{i}"


def _raw(array: NumpyArray) -> NumpyArray:
    """NumPy's files have no bfloat16: its elements are kept as they are."""
    return array.view(_RAW) if array.dtype == BFLOAT16 else array


def _with_type(array: NumpyArray) -> NumpyArray:
    return array.view(BFLOAT16) if array.dtype == _RAW else array


def _header(array: Stored) -> Header:
    """The header of an array in a file, with its dtype."""
    header = array.header()
    return header._replace(dtype=BFLOAT16) if header.dtype == _RAW else header

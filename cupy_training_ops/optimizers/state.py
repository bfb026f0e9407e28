# SPDX-License-Identifier: MIT
"""State of optimizers: moments and counts of steps in memory, a dictionary of them, and its file.

A dictionary or a file is held against a layout before anything is written, a file's arrays by their
headers before any of them is read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..backend import Array
from ..call.arguments import adopt
from ..call.backends import info, to_host
from ..codecs import container
from ..codecs.numpy_file import BinaryFile, Header, NumpyArray, Stored, StrPath
from ..declare.schema import Shape, Spec
from ..dtypes import BFLOAT16, FLOAT32, FLOAT64, INT64, UINT8, Dtype, HostArray, dtype_name
from ..errors import ArgumentError, raise_if_from_handler, refuse, shown
from ..families.adam.codes import coded_sizes, decode, decode_old, encode, old_size

State = dict[str, Any]
Places = tuple[int, ...]  # of parameters

FORMAT = container.Format("optimizer state", version=1, longest_header=1 << 26)
MAX_STEP = 2**62  # that were made
_RAW = np.dtype(np.uint16)  # of bfloat16 in a file

# ---- arrays of any kind --------------------------------------------------------------------------


def zeros(like: Any, shape: Shape, dtype: Dtype) -> Any:
    """Zeros where an array is."""
    backend, *_, device = info(like)
    if backend.has_tensors:
        tensor: Any = backend.empty(Spec(tuple(shape), dtype), device)
        return tensor.zero_()
    nbytes = math.prod(shape) * dtype.itemsize
    array: Any = backend.zeros(nbytes, device)
    return array.view(dtype).reshape(shape)


def overwrite(array: Any, source: HostArray) -> None:
    backend, dtype, *_ = info(array)
    backend.overwrite(array, source.astype(dtype, copy=False))


def twin(array: Any) -> Any:
    """Another array with the same elements; nothing waits."""
    backend, dtype, shape, *_, device = info(array)
    copy = zeros(array, shape, dtype)
    if not backend.runs_kernels:
        np.copyto(copy, array)
    else:
        with backend.on(device):
            backend.work("copy")(array, copy)
    return copy


def host_copy(array: Array) -> HostArray:
    """A copy in NumPy's memory."""
    host_array = to_host(array)
    return host_array.copy() if host_array is array else host_array


def on_host(array: Any) -> HostArray:
    return to_host(adopt("state_dict", "array", array))


# ---- moments and counts --------------------------------------------------------------------------


BITS = {"8bit": 8, "4bit": 4}  # of codes, by an optimizer's `state`
MIN_CODED = 4096  # elements of a parameter whose moments are codes
CODED = ("moment_1", "moment_2")


class Numbers:
    """Arrays of a dtype, shaped as their parameters."""

    name = ""  # of the optimizer's `state`

    def __init__(self, dtype: Dtype) -> None:
        self.dtype = dtype  # in a state

    def is_coded(self, parameter: Any) -> bool:
        """Return True if a parameter's moments are codes."""
        return False

    def first(self, parameter: Any, names: Sequence[str]) -> dict[str, Any]:
        """Moments of 0."""
        return {name: zeros(parameter, parameter.shape, self.dtype) for name in names}

    def save(self, moments: Mapping[str, Any], parameter: Any) -> dict[str, HostArray]:
        """The arrays of a state, of one parameter."""
        return {name: host_copy(array) for name, array in moments.items()}

    def restore(self, moments: Mapping[str, HostArray]) -> dict[str, HostArray]:
        """The elements of an optimizer's arrays, from a state's."""
        return dict(moments)


class Codes(Numbers):
    """Moments of 8 or 4 bits each. A state has their numbers, from which the same moments come.

    Those of fewer than MIN_CODED elements are numbers.
    """

    bits = 8  # in pickles of older versions

    def __init__(self, bits: int) -> None:
        super().__init__(FLOAT32)
        self.bits = bits

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.bits}bit"

    def is_coded(self, parameter: Any) -> bool:
        size: int = math.prod(parameter.shape)
        return size >= MIN_CODED

    def first(self, parameter: Any, names: Sequence[str]) -> dict[str, Any]:
        if info(parameter)[1] == FLOAT64:
            refuse("AdamW", "state", "None, where parameters are float64", f"'{self.name}'")
        if not self.is_coded(parameter):
            return super().first(parameter, names)
        sizes = coded_sizes(math.prod(parameter.shape), self.bits)
        return {n: zeros(parameter, (size,), UINT8) for n, size in zip(names, sizes, strict=True)}

    def save(self, moments: Mapping[str, Any], parameter: Any) -> dict[str, HostArray]:
        arrays = super().save(moments, parameter)
        if not self.is_coded(parameter):
            return arrays
        shape = tuple(parameter.shape)
        numbers = decode(_pair(arrays), math.prod(shape), self.bits)
        return {name: x.reshape(shape) for name, x in zip(CODED, numbers, strict=True)}

    def restore(self, moments: Mapping[str, HostArray]) -> dict[str, HostArray]:
        if not self.is_coded(moments[CODED[0]]):
            return super().restore(moments)
        return dict(zip(CODED, encode(*_pair(moments), self.bits), strict=True))

    def renewed(self, moments: Mapping[str, Any], parameter: Any) -> dict[str, Any]:
        """Moments of an older version's codes, in those of this one; others as they are."""
        n = math.prod(parameter.shape)
        size = info(moments[CODED[0]])[2]
        if self.bits != 8 or info(moments[CODED[0]])[1] != UINT8 or size != (old_size(n),):
            return dict(moments)
        arrays = {name: host_copy(array) for name, array in moments.items()}
        wide = [x.reshape(parameter.shape) for x in decode_old(_pair(arrays), n)]
        own = self.first(parameter, CODED)
        for name, x in self.restore(dict(zip(CODED, wide, strict=True))).items():
            overwrite(own[name], x)
        return own


def _pair(moments: Mapping[str, Any]) -> tuple[Any, Any]:
    return moments[CODED[0]], moments[CODED[1]]


class Part(NamedTuple):
    """Parameters that were updated in the same steps, and the step that is their next one."""

    places: Places
    count: Any  # an array: what skips a step is known on the device alone
    counts: bool = True  # its update, and not another one of the same step


class Counts:
    """The parts of all parameters: one, until a step has gradients of some of them alone."""

    def __init__(self, like: Any, n_parameters: int) -> None:
        self._n_parameters = n_parameters
        self._parts = [Part(tuple(range(n_parameters)), zeros(like, (), INT64))]
        overwrite(self._parts[0].count, np.array(1))

    def of(self, places: Places) -> list[Part]:
        """Return the parts that the parameters at these places are, each with a count of steps.

        A part that has other parameters, too, is divided, and its count copied.
        """
        parts = self._parts
        if len(parts) == 1 and parts[0].places == places:
            return parts
        wanted, chosen, every = set(places), list[Part](), list[Part]()
        for part in parts:
            own = tuple(i for i in part.places if i in wanted)
            if own and own != part.places:
                others = tuple(i for i in part.places if i not in wanted)
                every.append(Part(others, twin(part.count)))
                part = Part(own, part.count)
            every.append(part)
            if own:
                chosen.append(part)
        self._parts = every
        return chosen

    def steps(self) -> list[int]:
        """The steps of each parameter; waits."""
        steps = [0] * self._n_parameters
        for part in self._parts:
            n_made = int(to_host(part.count)) - 1
            for i in part.places:
                steps[i] = n_made
        return steps

    def load(self, made: Sequence[int]) -> None:
        """Set the counts of steps; parts are divided where their parameters differ.

        made: steps of each parameter.
        """
        parts, numbers = list[Part](), list[int]()
        for part in self._parts:
            alike: dict[int, list[int]] = {}
            for i in part.places:
                alike.setdefault(made[i], []).append(i)
            for n_made, own in alike.items():
                is_first = own[0] == part.places[0]
                parts.append(Part(tuple(own), part.count if is_first else twin(part.count)))
                numbers.append(n_made)
        for part, n_made in zip(parts, numbers, strict=True):
            overwrite(part.count, np.array(n_made + 1))
        self._parts = parts


# ---- states as dictionaries ----------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The layout of a state: arrays of each moment, one for each parameter."""

    optimizer: str
    shapes: Mapping[str, Shape]  # of the parameters, by name
    moments: Mapping[str, Dtype]
    counts: bool  # whether steps are counted

    @property
    def array_shapes(self) -> Mapping[str, Shape]:
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
            self._check_each(name, state[name], lambda array: array.shape, self.array_shapes)
            for parameter, array in state[name].items():
                if array.dtype != dtype:
                    self._refuse(f"{name}[{parameter!r}]", dtype_name(dtype), str(array.dtype))

    def check_numbers(self, state: State) -> None:
        """Refuse a state whose entries that are no arrays do not fit the optimizer."""
        self._check_keys(state, self.numbers)
        step = state.get("step", 0)
        if isinstance(step, dict) and step.keys() == self.shapes.keys():
            for name, made in step.items():
                self._check_step(f"step[{name!r}]", made)
        else:
            self._check_step("step", step)
        self._check_each("shapes", state["shapes"], tuple, self.shapes)

    def _check_optimizer(self, name: object) -> None:
        if not isinstance(name, str) or name != self.optimizer:
            self._refuse("optimizer", self.optimizer, shown(name))

    def _check_step(self, key: str, step: object) -> None:
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            self._refuse(key, "the number of steps that were made", shown(step))

    def _check_keys(self, state: object, keys: Sequence[str]) -> None:
        if isinstance(state, dict):  # whose keys say less than its name
            self._check_optimizer(state.get("optimizer", self.optimizer))
        if not isinstance(state, dict) or state.keys() != set(keys):
            got = list(state) if isinstance(state, dict) else type(state).__name__
            self._refuse("", f"a dictionary of {', '.join(keys)}", shown(got))

    def _check_each(
        self, key: str, entries: Any, shape_of: Callable[[Any], Shape], shapes: Mapping[str, Shape]
    ) -> None:
        """Refuse entries that are not one for each parameter, or not of its shape.

        key: their name in the state. entries: by the name of the parameter. shape_of: gives the
        shape of an entry. shapes: the expected ones.
        """
        if not isinstance(entries, dict) or entries.keys() != self.shapes.keys():
            names = list(entries) if isinstance(entries, dict) else entries
            self._refuse(key, f"entries of {shown(list(self.shapes))}", shown(names))
        for parameter, expected in shapes.items():
            try:
                shape = shape_of(entries[parameter])
            except (AttributeError, TypeError) as error:
                raise_if_from_handler(error)
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


# ---- their file ----------------------------------------------------------------------------------


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
        with _naming(file):
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
        with _naming(file):
            layout.check(state | headers)
        for moment, arrays in stored.items():
            state[moment] = {p: _with_type(array.read()) for p, array in arrays.items()}
    return state


@contextlib.contextmanager
def _naming(file: object) -> Iterator[None]:
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

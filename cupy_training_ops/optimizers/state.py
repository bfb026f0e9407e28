# SPDX-License-Identifier: MIT
"""State of optimizers: moments and counts of steps in memory, a dictionary of them, and its file.

    {"optimizer": "AdamW", "shapes": {name: shape}, "step": steps that were made,
     "moment_1": {name: array}, "moment_2": {name: array}}        by the names of parameters

A dictionary or a file is compared with a layout before anything is written, a file's arrays by
their headers before any of them is read.
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
Places = tuple[int, ...]  # indices of parameters

FORMAT = container.Format("optimizer state", version=1, longest_header=1 << 26)
MAX_STEP = 2**62  # steps that a state may say were made
_RAW = np.dtype(np.uint16)  # bfloat16 is stored in a file as its bits

# ---- arrays of any kind --------------------------------------------------------------------------


def zeros(like: Any, shape: Shape, dtype: Dtype) -> Any:
    """Return zeros of this shape and dtype, in the library and on the device of `like`."""
    backend, *_, device = info(like)
    if backend.has_tensors:
        tensor: Any = backend.empty(Spec(tuple(shape), dtype), device)
        return tensor.zero_()
    nbytes = math.prod(shape) * dtype.itemsize
    array: Any = backend.zeros(nbytes, device)
    return array.view(dtype).reshape(shape)


def overwrite(array: Any, source: HostArray) -> None:
    """Copy a NumPy array into an array of any library, in its dtype."""
    backend, dtype, *_ = info(array)
    backend.overwrite(array, source.astype(dtype, copy=False))


def twin(array: Any) -> Any:
    """Return another array with the same elements, on its device; nothing waits."""
    backend, dtype, shape, *_, device = info(array)
    copy = zeros(array, shape, dtype)
    if not backend.runs_kernels:
        np.copyto(copy, array)
    else:
        with backend.on(device):
            backend.work("copy")(array, copy)
    return copy


def host_copy(array: Array) -> HostArray:
    """Return a NumPy copy of an array; waits for the device."""
    host_array = to_host(array)
    return host_array.copy() if host_array is array else host_array


def on_host(array: Any) -> HostArray:
    """Return any library's array as NumPy's, without a copy if it is on the host."""
    return to_host(adopt("state_dict", "array", array))


# ---- moments and counts --------------------------------------------------------------------------


BITS = {"8bit": 8, "4bit": 4}  # of a code, by the argument `state` of AdamW
MIN_CODED = 4096  # elements from which a parameter's moments are codes
CODED = ("moment_1", "moment_2")


class Numbers:
    """Storage of moments as arrays of one dtype, shaped as their parameters."""

    name = ""  # the optimizer's argument `state`; "" for None

    def __init__(self, dtype: Dtype) -> None:
        self.dtype = dtype  # of moments in a state

    def is_coded(self, parameter: Any) -> bool:
        """Return True if a parameter's moments are codes."""
        return False

    def first(self, parameter: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return {name: array} for the moments of a parameter, all 0."""
        return {name: zeros(parameter, parameter.shape, self.dtype) for name in names}

    def save(self, moments: Mapping[str, Any], parameter: Any) -> dict[str, HostArray]:
        """Convert moments of a parameter, {name: array}, to those of a state, NumPy copies."""
        return {name: host_copy(array) for name, array in moments.items()}

    def restore(self, moments: Mapping[str, HostArray]) -> dict[str, HostArray]:
        """Convert a parameter's moments in a state to those that the optimizer stores."""
        return dict(moments)


class Codes(Numbers):
    """Storage of moments as codes of 8 or 4 bits, in a flat array of bytes for each moment.

    A parameter of fewer than MIN_CODED elements has numbers. A state has the float32 numbers that
    the codes stand for; encoding these restores the same codes.
    """

    bits = 8  # default for pickles of older versions, which lack it

    def __init__(self, bits: int) -> None:
        super().__init__(FLOAT32)
        self.bits = bits

    @property
    def name(self) -> str:  # type: ignore[override]
        """The optimizer's argument `state`, "8bit" or "4bit"."""
        return f"{self.bits}bit"

    def is_coded(self, parameter: Any) -> bool:
        size: int = math.prod(parameter.shape)
        return size >= MIN_CODED

    def first(self, parameter: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return {name: array of codes} for the moments of a parameter, all 0; for a small one
        arrays of numbers."""
        if info(parameter)[1] == FLOAT64:
            refuse("AdamW", "state", "None, where parameters are float64", f"'{self.name}'")
        if not self.is_coded(parameter):
            return super().first(parameter, names)
        sizes = coded_sizes(math.prod(parameter.shape), self.bits)
        return {n: zeros(parameter, (size,), UINT8) for n, size in zip(names, sizes, strict=True)}

    def save(self, moments: Mapping[str, Any], parameter: Any) -> dict[str, HostArray]:
        """Decode codes to float32 arrays of the parameter's shape; copy a small one's numbers."""
        arrays = super().save(moments, parameter)
        if not self.is_coded(parameter):
            return arrays
        shape = tuple(parameter.shape)
        numbers = decode(_pair(arrays), math.prod(shape), self.bits)
        return {name: x.reshape(shape) for name, x in zip(CODED, numbers, strict=True)}

    def restore(self, moments: Mapping[str, HostArray]) -> dict[str, HostArray]:
        """Encode a state's arrays, so that decoding the codes gives these numbers again."""
        if not self.is_coded(moments[CODED[0]]):
            return super().restore(moments)
        return dict(zip(CODED, encode(*_pair(moments), self.bits), strict=True))

    def renewed(self, moments: Mapping[str, Any], parameter: Any) -> dict[str, Any]:
        """Convert 8-bit codes of an older version, known by their length; return others unchanged.

        moments: {name: array} of one parameter, in an unpickled optimizer.
        """
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
    """Return (moment_1, moment_2)."""
    return moments[CODED[0]], moments[CODED[1]]


class Part(NamedTuple):
    """Parameters that were updated in the same steps, and the number of their next step."""

    places: Places
    count: Any  # an int64 array of shape (), as only the device knows of skipped steps
    counts: bool = True  # this part's update adds 1 to `count`; False if another part's does


class Counts:
    """Counts of steps: each parameter is in one part, all in the same until a step has gradients
    of only some of them."""

    def __init__(self, like: Any, n_parameters: int) -> None:
        """Begin with step 1 for all parameters; like: an array on the device of the counts."""
        self._n_parameters = n_parameters
        self._parts = [Part(tuple(range(n_parameters)), zeros(like, (), INT64))]
        overwrite(self._parts[0].count, np.array(1))

    @property
    def parts(self) -> list[Part]:
        """Return all parts: another list once some are divided, or counts are loaded."""
        return self._parts

    def of(self, places: Places) -> list[Part]:
        """Return parts that hold exactly the parameters with indices `places`.

        A part that has other parameters, too, is divided for good, and its count copied.
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
        """Return how many steps were made of each parameter; waits for the device."""
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
    """Keys, shapes and dtypes that a state has to have, by which one from elsewhere is checked."""

    optimizer: str  # name of the class
    shapes: Mapping[str, Shape]  # of the parameters, by name
    moments: Mapping[str, Dtype]  # by name, such as "moment_1"
    counts: bool  # True if the state has "step"

    @property
    def array_shapes(self) -> Mapping[str, Shape]:
        """The shapes of each moment's arrays, by parameter."""
        return self.shapes

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of a state's entries that are no arrays."""
        return ("optimizer", "shapes", *(("step",) if self.counts else ()))

    def check(self, state: object) -> None:
        """Refuse an object that is no state of this layout.

        Objects with shape and dtype, such as headers of a file, may be in the place of arrays.
        """
        self._check_keys(state, (*self.numbers, *self.moments))
        assert isinstance(state, dict)
        self.check_numbers({key: state[key] for key in self.numbers})
        for name, dtype in self.moments.items():
            self._check_each(name, state[name], lambda array: array.shape, self.array_shapes)
            for parameter, array in state[name].items():
                if array.dtype != dtype:
                    self._refuse(f"{name}[{parameter!r}]", dtype_name(dtype), str(array.dtype))

    def check_numbers(self, state: State) -> None:
        """Refuse a dictionary of the entries that are no arrays if these do not fit."""
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
        """Refuse a step that is no int in [0, MAX_STEP]; key: its name in the error."""
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            self._refuse(key, "the number of steps that were made", shown(step))

    def _check_keys(self, state: object, keys: Sequence[str]) -> None:
        """Refuse an object that is no dictionary with exactly these keys."""
        if isinstance(state, dict):  # first: another optimizer's name says more than its keys
            self._check_optimizer(state.get("optimizer", self.optimizer))
        if not isinstance(state, dict) or state.keys() != set(keys):
            got = list(state) if isinstance(state, dict) else type(state).__name__
            self._refuse("", f"a dictionary of {', '.join(keys)}", shown(got))

    def _check_each(
        self, key: str, entries: Any, shape_of: Callable[[Any], Shape], shapes: Mapping[str, Shape]
    ) -> None:
        """Refuse entries that are not one for each parameter, or not of the expected shape.

        key: their name in the state. entries, shapes: by the name of the parameter. shape_of: from
        an entry to its shape.
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
        """Raise ArgumentError; key: an entry of the state, "" for the state itself."""
        refuse(self.optimizer, f"state {key}".strip(), expected, got)


def step(names: Sequence[str], made: Sequence[int]) -> int | dict[str, int]:
    """Return the "step" of a state: {name: steps}, or one number if all parameters have the same.

    made: steps of each parameter, in the order of names.
    """
    return made[0] if len(set(made)) == 1 else dict(zip(names, made, strict=True))


def steps(names: Sequence[str], step: int | dict[str, int]) -> list[int]:
    """Return the steps of each parameter from the "step" of a state: the reverse of `step`."""
    return [step[name] for name in names] if isinstance(step, dict) else [step] * len(names)


# ---- their file ----------------------------------------------------------------------------------


def save(file: StrPath | BinaryFile, state: State, layout: Layout, sync: bool = True) -> None:
    """Write a state of NumPy arrays, which has this layout, as a .npz file.

    The i-th parameter's array of a moment is its member "moment/i". sync: wait for the disk.
    """
    arrays = {
        _member(moment, i): _raw(array)
        for moment in layout.moments
        for i, array in enumerate(state[moment].values())
    }
    container.write(file, FORMAT, {key: state[key] for key in layout.numbers}, arrays, sync)


def load(file: StrPath | BinaryFile, *layouts: Layout) -> State:
    """Read the state of a file; its keys have to be those of one of these layouts, which it has
    to fit."""
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
    """Put the file's name ahead of an ArgumentError's message."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{file}: {error}") from None


def _member(moment: str, i: int) -> str:
    """Return the name of a file's member: numbered, as parameters' names may be any text."""
    return f"{moment}/{i}"


def _raw(array: NumpyArray) -> NumpyArray:
    """Return bfloat16 as a view of its bits, as NumPy's files lack it; others as they are."""
    return array.view(_RAW) if array.dtype == BFLOAT16 else array


def _with_type(array: NumpyArray) -> NumpyArray:
    """Return an array of a file, uint16 as bfloat16: those are its bits."""
    return array.view(BFLOAT16) if array.dtype == _RAW else array


def _header(array: Stored) -> Header:
    """The header of an array in a file, with its dtype."""
    header = array.header()
    return header._replace(dtype=BFLOAT16) if header.dtype == _RAW else header

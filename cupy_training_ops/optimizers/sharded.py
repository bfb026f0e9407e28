# SPDX-License-Identifier: MIT
"""AdamW over ranks: each updates its parts of the parameters, and has moments of these alone.

A piece is a run of elements of one flat parameter that one rank owns: its part, or the tail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from ..call.backends import info
from ..call.bound import CheckedCall
from ..call.checks import is_number
from ..call.interop import ForeignArrays, is_tensor, refuse_mixed
from ..call.keys import SameArrays
from ..codecs.numpy_file import BinaryFile, StrPath
from ..declare.schema import Shape, finite
from ..device.marks import Whole
from ..device.streams import Cuda, Streams
from ..device.tensor_guards import Watched
from ..dtypes import Dtype, HostArray, dtype_name
from ..errors import OpError, refuse, shown
from ..families.collective.messages import description
from ..families.optimizer.operators import GradientNorm
from ..process_group import ProcessGroup
from ..rules.widening import computed_in
from . import adam
from . import state as states
from .base import CLOSED, EVERY, Arrays, Names, Optimizer, known_of, numbers_of, plain
from .parts import GatheredParts, MeanOfParts, Split, adopt_without_waiting, in_turns
from .state import Counts, Layout, Part, Places, State, host_copy, on_host, zeros
from .steps import AdamWUpdate, check_betas, check_number

# A turn: parameters that are updated together, and the operator that gathers them afterwards.
Turns = list[tuple[Places, GatheredParts]]
Updates = list[list[CheckedCall]]  # of each turn: a call for each count of steps

_MAX_PATTERNS = 64  # cached sets of parameters with gradients


# ---- states of ranks -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Share(Layout):
    """Layout of one rank's share of a state: of each moment and parameter a flat array, which
    joins the rank's pieces."""

    rank: int = 0
    split: Split = field(default_factory=lambda: Split.of((), 1))

    @classmethod
    def of(cls, whole: Layout, rank: int, n_ranks: int) -> Self:
        """Return the layout of this rank's share of a state whose layout is `whole`."""
        split = Split.of(list(map(math.prod, whole.shapes.values())), n_ranks)
        return cls(whole.optimizer, whole.shapes, whole.moments, whole.counts, rank, split)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of a state's entries that are no arrays; "ranks" is their number."""
        return (*super().numbers, "rank", "ranks")

    @property
    def array_shapes(self) -> Mapping[str, Shape]:
        """(n,) by parameter: this rank's n elements of it."""
        sizes = dict.fromkeys(self.shapes, 0)
        for name, start, stop in self.pieces:
            sizes[name] += stop - start
        return {name: (size,) for name, size in sizes.items()}

    @property
    def pieces(self) -> list[tuple[str, int, int]]:
        """(name, start, stop) of each piece: elements [start, stop) of a flat parameter."""
        sizes, names = list(map(math.prod, self.shapes.values())), list(self.shapes)
        return [(names[i], a, b) for i, a, b in self.split.pieces(self.rank, sizes)]

    def check_numbers(self, state: State) -> None:
        """Refuse a dictionary of the entries that are no arrays if these do not fit.

        A share of another rank, or of another number of ranks, does not.
        """
        super().check_numbers(state)
        got, expected = (state["rank"], state["ranks"]), (self.rank, self.split.n_ranks)
        if got != expected:
            self._refuse("", "rank {} of {}".format(*expected), "rank {} of {}".format(*got))

    def shard(self, moment: Mapping[str, Any]) -> list[HostArray]:
        """Cut this rank's pieces out of a whole moment: {parameter: array of its shape}."""
        flat = {name: on_host(array).reshape(-1) for name, array in moment.items()}
        return [flat[name][start:stop] for name, start, stop in self.pieces]

    def merge(self, moment: str, pieces: Sequence[HostArray]) -> dict[str, HostArray]:
        """Join this rank's pieces of a moment, in order, to {parameter: flat array}, as a share has
        them."""
        lists: dict[str, list[HostArray]] = {name: [] for name in self.shapes}
        for (name, *_), piece in zip(self.pieces, pieces, strict=True):
            lists[name].append(piece)
        empty = np.empty(0, self.moments[moment])
        return {name: np.concatenate([empty, *own]) for name, own in lists.items()}

    def pieces_of(self, moment: Mapping[str, Any]) -> list[HostArray]:
        """Cut a moment of this rank's share, {parameter: flat array}, back into its pieces."""
        rest, apart = {name: on_host(array) for name, array in moment.items()}, []
        for name, start, stop in self.pieces:
            piece, rest[name] = np.split(rest[name], [stop - start])
            apart.append(piece)
        return apart


def join(every: Sequence[State], whole: Layout) -> State:
    """Check `every` rank's share, in their order, and join them to a state of layout `whole`."""
    if not every:
        refuse(whole.optimizer, "state", "a state of each rank", "none")
    shares = [Share.of(whole, rank, len(every)) for rank in range(len(every))]
    for share, state in zip(shares, every, strict=True):
        share.check(state)
        if state["step"] != every[0]["step"]:
            expected = f"{shown(every[0]['step'])}, as of rank 0"
            share._refuse("step", expected, shown(state["step"]))
    joined: State = {key: every[0][key] for key in whole.numbers}
    for moment, dtype in whole.moments.items():
        flat = {name: np.empty(math.prod(shape), dtype) for name, shape in whole.shapes.items()}
        for share, state in zip(shares, every, strict=True):
            pieces = share.pieces_of(state[moment])
            for (name, start, stop), piece in zip(share.pieces, pieces, strict=True):
                flat[name][start:stop] = piece
        joined[moment] = {name: flat[name].reshape(shape) for name, shape in whole.shapes.items()}
    return joined


# ---- the optimizer -------------------------------------------------------------------------------


class Means(list[Any]):
    """Gradients of which this rank's parts are already the means over ranks, as `optimizer` divides
    them: its step does not exchange them."""

    def __init__(self, gradients: Sequence[Any], optimizer: object) -> None:
        super().__init__(gradients)
        self.optimizer = optimizer


def slice_of(array: Any, start: int, stop: int) -> Any:
    """Return a flat view of elements [start, stop) of a C-contiguous array."""
    return array.reshape(-1)[start:stop]


class Cut(NamedTuple):
    """Prepared calls of a step, for a later step with the same gradients."""

    known: SameArrays | None  # record of the arguments; None if it can never be used again
    places: Places  # of the parameters with gradients
    counts: object  # `Counts.parts`, whose counts the updates have
    parts: list[Any]  # this rank's pieces of these gradients, then the padding's
    updates: Updates


class Own(Optimizer):
    """Optimizer of the pieces that this rank updates: its parameters are these flat arrays.

    The last one is an element of padding; the update that includes it adds 1 to the step.
    """

    counts = False  # `AdamW` below counts, and passes each update its count

    def _outputs_of(self, places: Places) -> list[str]:
        """Return names of the outputs of an update; "new_T", the new count of steps, is one of them
        if the padding is among these parameters."""
        counts = places[-1] == self._every[-1]
        return [name for name in self._outputs if counts or name != "new_T"]


class AdamW(adam.AdamW):
    """AdamW with a group: `cto.AdamW(..., group=group)` makes an instance of this class.

    `_inner` updates the pieces that this rank owns. In the methods `places` are indices of
    parameters, `gradients` one for each of these, `numbers` (lr, loss_scale, max_norm) of a step.
    """

    _counts: Counts

    def __init__(
        self,
        parameters: Sequence[Any],
        lr: Any = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 1e-2,
        names: Names | None = None,
        low_precision: Sequence[Any] | None = None,
        moment_dtype: object = None,
        state: str | None = None,
        group: ProcessGroup | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
        rounding_seed: int | None = None,
    ) -> None:
        """Check arguments, divide the parameters among ranks, and compare with the other ranks.

        parameters: list of arrays, the same on all ranks, updated in place. lr: a number, or an
        array of one element, which each step reads. betas, epsilon (eps there), weight_decay,
        maximize: as in PyTorch's AdamW. names: texts that name the parameters in a state.
        low_precision: for each parameter a copy of 16 bits to write too, or None. moment_dtype:
        None for float32 (float64). group: the ranks. state, amsgrad and rounding_seed are refused
        here.
        """
        if not isinstance(group, ProcessGroup):
            refuse("AdamW", "group", "a ProcessGroup", shown(group))
        for name, value in {"state": state, "rounding_seed": rounding_seed}.items():
            if value is not None:
                refuse("AdamW", name, "None, over ranks", shown(value))
        if amsgrad:
            refuse("AdamW", "amsgrad", "False, over ranks", shown(amsgrad))
        self.group = group
        alpha, beta = check_betas("AdamW", betas)
        weight_decay = check_number("AdamW", "weight_decay", finite, weight_decay)
        rates = {"alpha": alpha, "beta": beta, "epsilon": epsilon, "lambda_": weight_decay}
        rates |= {"maximize": True} if maximize else {}
        self._op = AdamWUpdate(**rates, max_norm_clip=math.inf)
        self._check(parameters, lr, names, low_precision)
        wide = computed_in(info(self._weights[0])[1])
        dtype = self._moment_dtype(moment_dtype, wide)
        self._divide(dtype)
        self._compare(f"AdamW({rates}, moment_dtype={dtype_name(dtype)})")

    def _check(
        self, parameters: Sequence[Any], lr: Any, names: Names | None, copies: Sequence[Any] | None
    ) -> None:
        """Check and store arguments of `__init__`, before anything is allocated; copies:
        low_precision."""
        refuse_mixed("AdamW", CLOSED, (parameters, copies), ())
        self._weights = self._adopt("parameters", parameters)
        vars(self).update(parameters=tuple(parameters), _callers_copies=copies)
        if copies is not None:
            self._check_length("low_precision", copies)
        self._take_arrays()
        self.lr = self._checked_rate(lr)
        self._dtype()
        vars(self).update(names=self._checked_names(names))
        self._check_shapes("parameters", self._every, self._weights)
        self._check_shapes("low_precision", *self._copies_of(self._every))

    _natively = False  # tensors are converted to CuPy arrays

    def _take_arrays(self) -> None:
        """Take the caller's parameters and copies as NumPy or CuPy arrays over their memory."""
        self._weights = self._adopt("parameters", self.parameters)
        self._are_tensors = all(map(is_tensor, self.parameters))
        copies = self._callers_copies
        self._copies = None if copies is None else self._adopt("low_precision", copies)
        self._every = tuple(range(len(self._weights)))
        self._watched = Watched(tuple(filter(is_tensor, (*self.parameters, *(copies or ())))))
        self._streams: Streams | None = None  # made where there are several turns

    def _divide(self, dtype: Dtype) -> None:
        """Divide the parameters' elements among ranks, and make `_inner`, which updates its share.

        dtype: of moments. The parameters of `_inner` are views of this rank's pieces of parameters,
        and behind them one element of padding, so that no rank has none. Moments and the norm are
        _inner's.
        """
        sizes, group = [math.prod(w.shape) for w in self._weights], self.group
        self._split = Split.of(sizes, group.size)
        # (i, start, stop) of each of this rank's pieces: elements of the flat parameters[i].
        self._pieces = list(self._split.pieces(group.rank, sizes))
        first, wide = self._weights[0], computed_in(info(self._weights[0])[1])
        self._padding = zeros(first, (1,), info(first)[1])
        self._no_gradients: dict[Dtype, Any] = {}  # the padding's gradient 0, by dtype
        weights, copies = self._own_parts()
        self._inner = Own(self._op, weights, self.lr, None, copies, dtype)
        self._counts, self._whole = Counts(self._inner.gradient_norm, len(sizes)), Whole("AdamW")
        self._form, self._moments = self._inner._form, self._inner._moments
        self.gradient_norm, self.is_finite = self._inner.gradient_norm, self._inner.is_finite
        self._norms = zeros(first, (group.size,), wide)  # [r]: norm of rank r's parts of gradients
        self._measure, self._measure_all = GradientNorm(), GradientNorm()  # of parts, of _norms
        self._gather_norms = GatheredParts(group=group, split=Split.of_elements(group.size))
        self._ops: dict[Places, tuple[MeanOfParts, Turns]] = {}  # by parameters with gradients
        self._last_cut: Cut | None = None

    def _compare(self, words: str) -> None:
        """Raise ArgumentError on all ranks if `words`, shapes or dtypes of arrays differ on one."""
        text = description(words, (*self._weights, *self._copies_of(self._every)[1]))
        self.group.exchange("AdamW", self.group.everyone, text)

    def _adopt_again(self) -> None:
        """Take the caller's arrays anew, here and in `_inner`, as tensors may have moved."""
        self._last_cut = None
        self._take_arrays()
        weights, self._inner._callers_copies = self._own_parts()
        vars(self._inner).update(parameters=tuple(weights))
        self._inner._adopt_again()

    # ---- steps -----------------------------------------------------------------------------------

    def step(
        self,
        gradients: Sequence[Any],
        lr: Any = None,
        loss_scale: Any = None,
        max_norm: Any = None,
    ) -> None:
        """Update the parameters by the mean of all ranks' gradients, on all of them.

        gradients: an array of this rank, or None, for each parameter. lr: in place of the
        optimizer's own. loss_scale: what gradients are divided by. max_norm: larger ones are scaled
        down to this norm. Each is a number, or one element in an array.

        All ranks call this together, with the same numbers and with gradients of the same
        parameters. Afterwards the parts of `gradients` that this rank updates hold the means over
        all ranks, and their other elements are undefined. `gradient_norm` is the norm of the means
        of all parameters; a NaN or an infinity on any rank makes all ranks skip the step. Raises
        GroupError, too; a step that is stopped in its middle ends the group.
        """
        numbers = tuple(map(plain, (self.lr if lr is None else lr, loss_scale, max_norm)))
        self.group.require_open("AdamW")
        if type(gradients) not in (list, tuple, Means):
            gradients = self._as_tuple(gradients)
        with (
            self._whole.lock,
            ForeignArrays(EVERY, (self.parameters, gradients, *numbers), ()).stream(),
        ):
            self._whole.refuse_torn()
            if not self._watched.are_same():
                self._adopt_again()
            places, present = self._with_gradients(self._as_arrays(gradients, numbers))
            if present:
                are_means = isinstance(gradients, Means) and gradients.optimizer is self
                self._update(places, list(present), numbers, are_means)
        if self._watched.tensors:
            self._raise_versions(gradients)

    def _update(
        self, places: Places, gradients: list[Any], numbers: Arrays, are_means: bool
    ) -> None:
        """Make the step of the parameters with these indices: whole, or the group ends.

        gradients: one for each of these. numbers: (lr, loss_scale, max_norm). are_means: this
        rank's parts of the gradients are means over ranks already.
        """
        means, turns = self._operators(places)
        cut = self._last_parts(places, gradients, numbers) or self._prepare(
            places, gradients, numbers
        )
        inner, own = self._inner, self._norms[self.group.rank :][:1].reshape(())  # a view, ()
        is_sent = are_means
        try:
            if not are_means:
                means(gradients)
            is_sent = True
            self._measure(cut.parts, out=(own, None), outputs=("norm",))
            self._gather_norms([self._norms])
            self._measure_all([self._norms], out=(inner.gradient_norm, inner.is_finite))
            self._take_turns(turns, cut.updates, numbers)
        except BaseException as error:
            if isinstance(error, OpError) and not is_sent:  # on all ranks
                raise
            raise self.group.broken("AdamW", error) from error

    def _take_turns(self, turns: Turns, updates: Updates, numbers: Arrays) -> None:
        """Update parameters turn by turn; a turn is gathered on a side stream during the next.

        updates: the n-th are those of the n-th turn. numbers: (lr, loss_scale, max_norm).
        """
        streams = self._side() if len(turns) > 1 else Streams()
        self._whole.is_torn = True
        for (places, gather), calls in zip(turns, updates, strict=True):
            for call in calls:
                call(**numbers_of(call, (None, *numbers)))
            weights = [self._weights[i] for i in places] + self._copies_of(places)[1]
            streams.fork()
            streams.on_side(partial(gather, weights))
        streams.join(streams.current(), streams.mark())
        self._whole.is_torn = False

    def _side(self) -> Streams:
        """Return streams with a side stream of high priority, made at first.

        Its blocks come first: a turn's gathering takes longer than its update.
        """
        if self._streams is None:
            first, device = self._weights[0], info(self._weights[0])[5]
            is_on_gpu = device >= 0 and not isinstance(first, np.ndarray)
            self._streams = Cuda(device, first=True) if is_on_gpu else Streams()
        return self._streams

    def _as_arrays(self, gradients: Any, numbers: Arrays) -> Any:
        """Return the gradients, as CuPy arrays if they and arrays in numbers are PyTorch tensors.

        PyTorch's stream is the current one of CuPy, too, so that none waits for the other.
        """
        if not self._are_tensors or not isinstance(gradients, list | tuple):
            return gradients
        if not all(x is None or is_number(x) or is_tensor(x) for x in (*gradients, *numbers)):
            return gradients
        return [
            adopt_without_waiting("AdamW", f"gradients[{i}]", x) for i, x in enumerate(gradients)
        ]

    def _last_parts(self, places: Places, gradients: list[Any], numbers: Arrays) -> Cut | None:
        """Return the previous step's calls if its arguments were the same, else None."""
        last = self._last_cut
        if last is None or last.places != places or last.counts is not self._counts.parts:
            return None
        return last if last.known and last.known.has((gradients, *numbers)) else None

    def _prepare(self, places: Places, gradients: list[Any], numbers: Arrays) -> Cut:
        """Check the arguments of a step and prepare its updates.

        places: indices of the parameters that have gradients. gradients: one for each of these.
        numbers: (lr, loss_scale, max_norm).
        """
        self._check_shapes("gradients", places, gradients)
        arrays, padding = dict(zip(places, gradients, strict=True)), self._no_gradient(gradients)
        backend, known = info(gradients[0])[0], None
        unowned = getattr(backend, "borrow_slice", None)  # CuPy's
        if unowned:
            known = known_of(backend, (gradients, *numbers))
        every = self._parts_of(arrays, padding, unowned or slice_of)
        counts = self._counts.of(places)
        updates = [self._turn(own, counts, every, numbers) for own, _ in self._operators(places)[1]]
        own = [part for part in every if part is not None]
        cut = Cut(known, places, self._counts.parts, own, updates)
        self._last_cut = cut if known else None  # it keeps gradients alive
        return cut

    def _turn(
        self, places: Places, counts: Sequence[Part], gradients: Sequence[Any], numbers: Arrays
    ) -> list[CheckedCall]:
        """Return the updates of a turn: one for each count of steps that its parameters have.

        places: indices of the turn's parameters. counts: parts of all parameters with gradients,
        each with its count. gradients: for each of this rank's pieces its gradient, or None; the
        padding's last. numbers: (lr, loss_scale, max_norm).
        """
        updates = []
        for part in counts:
            own = set(places).intersection(part.places)
            chosen = [k for k, (i, _, _) in enumerate(self._pieces) if i in own]
            if part.places[-1] in own:
                chosen.append(len(self._pieces))  # the padding: this update counts the step
            if chosen:
                parts = [gradients[k] for k in chosen]
                inner = Part(tuple(chosen), part.count)
                updates.append(self._inner._update_call(inner, parts, (parts, *numbers)))
        return updates

    def means_of(self, places: Places) -> MeanOfParts:
        """Return the operator that puts the means over ranks into this rank's parts of gradients.

        places: indices of the parameters that have gradients.
        """
        return self._operators(places)[0]

    def _operators(self, places: Places) -> tuple[MeanOfParts, Turns]:
        """Return (operator, turns) of a step with gradients of the parameters with these indices.

        operator: puts means over ranks into this rank's parts of gradients. turns: (parameters
        that are updated together, the operator that gathers them afterwards).
        """
        operators = self._ops.get(places)
        if operators is None:
            means = MeanOfParts(group=self.group, split=self._split.among(places))
            sizes = [self._weights[i].nbytes for i in places]
            turns = in_turns(places, sizes) if self.group.size > 1 else [places]
            operators = means, [(turn, self._gathering(turn)) for turn in turns]
            if len(self._ops) >= _MAX_PATTERNS:
                self._ops.clear()
            self._ops[places] = operators
        return operators

    def _gathering(self, places: Places) -> GatheredParts:
        """Return the operator that gathers parameters, then their copies, on all ranks.

        places: indices of the parameters.
        """
        split = self._split.among((*places, *self._copies_of(places)[0]))
        return GatheredParts(group=self.group, split=split)

    def _copies_of(self, places: Places) -> tuple[list[int], list[Any]]:
        """Return (indices among `places` of parameters with low_precision copies, the copies)."""
        copies = self._copies or ()
        copied = [i for i in places if copies and copies[i] is not None]
        return copied, [copies[i] for i in copied]

    def _own_parts(self) -> tuple[list[Any], list[Any] | None]:
        """Return this rank's pieces of (parameters, copies): the parameters and low_precision of
        `_inner`, the padding last; None without copies."""
        weights, copies = dict(enumerate(self._weights)), dict(enumerate(self._copies or ()))
        return self._parts_of(weights, self._padding), self._parts_of(
            copies, None
        ) if copies else None

    def _parts_of(
        self, arrays: dict[int, Any], padding: Any, cut: Callable[..., Any] = slice_of
    ) -> list[Any]:
        """Return for each of this rank's pieces a view of it, or None; `padding` is the last.

        arrays: by the index of their parameter. cut: from (array, start, stop) to a view of these
        elements of the flat array.
        """
        own = [(arrays.get(i), start, stop) for i, start, stop in self._pieces]
        return [None if x is None else cut(x, a, b) for x, a, b in own] + [padding]

    def _no_gradient(self, gradients: Sequence[Any]) -> Any:
        """Return the padding's gradient, a 0 of shape (1,) in the dtype of these; cached."""
        dtype = info(gradients[0])[1]
        if dtype not in self._no_gradients:
            self._no_gradients[dtype] = zeros(gradients[0], (1,), dtype)
        return self._no_gradients[dtype]

    def _check_shapes(self, argument: str, places: Sequence[int], arrays: Sequence[Any]) -> None:
        """Refuse arrays that have not the parameters' shapes, or are not C-contiguous.

        argument: their name in the error. places: of their parameters.
        """
        for place, array in zip(places, arrays, strict=True):
            _, _, shape, _, strides, _ = info(array)
            expected = tuple(self._weights[place].shape)
            if tuple(shape) != expected:
                words = f"shape {expected} like parameters[{place}]"
                refuse("AdamW", f"{argument}[{place}]", words, f"shape {tuple(shape)}")
            if strides is not None:
                words = "a C-contiguous array"
                refuse("AdamW", f"{argument}[{place}]", words, f"strides {tuple(strides)}")

    # ---- states ----------------------------------------------------------------------------------

    def state_dict(self, sharded: bool = False) -> State:
        """Return the state beside the parameters, as NumPy copies: whole, or this rank's (sharded).

        The whole is the same on all ranks, which ask for it together, and as without a group. A
        share also has `rank` and `ranks`, and no rank waits for another.
        """
        state: State = {"optimizer": "AdamW", "shapes": dict(self._layout.shapes)}
        with self._whole.lock:
            self._whole.refuse_torn()
            state["step"] = states.step(self.names, self._counts.steps())
            if sharded:
                state |= {"rank": self.group.rank, "ranks": self.group.size}
                return state | {moment: self._share_of(moment) for moment in self.moments}
            wholes = [self._gather(i) for i in self._every]
        for moment, arrays in zip(self.moments, zip(*wholes, strict=True), strict=True):
            state[moment] = dict(zip(self.names, arrays, strict=True))
        return state

    def load_state_dict(self, state: Any) -> None:
        """Go on from a whole state, from this rank's share of one, or from a list of all shares.

        A share is that of as many ranks; a list, in the order of ranks, that of any number of them.
        No rank waits for another. Raises ArgumentError where something does not fit, and then
        nothing has changed here.
        """
        layout, share = self._layout, self._share
        if isinstance(state, list | tuple):
            state = join(state, layout)
        if isinstance(state, dict) and "ranks" in state:
            share.check(state)
            pieces = {m: share.pieces_of(state[m]) for m in self.moments}
        else:
            layout.check(state)
            pieces = {m: share.shard(state[m]) for m in self.moments}
        with self._whole.lock:
            self._load(state, pieces)

    def save(self, file: StrPath | BinaryFile, sharded: bool = False, *, sync: bool = True) -> None:
        """Write `state_dict(sharded)`: the whole by rank 0 alone, a share by each rank."""
        state = self.state_dict(sharded)
        if sharded or self.group.rank == 0:
            states.save(file, state, self._share if sharded else self._layout, sync)

    def load(self, file: Any) -> None:
        """Go on from a whole file, from this rank's share, or from a list of all ranks' files."""
        if isinstance(file, list | tuple):
            layouts = [Share.of(self._layout, rank, len(file)) for rank in range(len(file))]
            self.load_state_dict([states.load(*pair) for pair in zip(file, layouts, strict=True)])
        else:
            self.load_state_dict(states.load(file, self._layout, self._share))

    @property
    def _share(self) -> Share:
        """The layout of this rank's share of a state."""
        return Share.of(self._layout, self.group.rank, self.group.size)

    def _share_of(self, moment: str) -> dict[str, Any]:
        """Return this rank's elements of a moment, {parameter: flat NumPy array}."""
        own = map(host_copy, self._moments[moment])
        return self._share.merge(moment, list(own)[: len(self._pieces)])

    def _gather(self, place: int) -> list[Any]:
        """Gather the moments of parameters[place] from all ranks; return NumPy arrays of its shape.

        The n-th is that of self.moments[n]. All ranks call this together.
        """
        weight = self._weights[place]
        whole = [zeros(weight, (math.prod(weight.shape),), self._form.dtype) for _ in self.moments]
        for moment, array in zip(self.moments, whole, strict=True):
            pairs = zip(self._pieces, self._moments[moment], strict=False)
            for (i, start, stop), own in pairs:
                if i == place:
                    array[start:stop] = own
        split = self._split.among([place] * len(whole))
        GatheredParts(group=self.group, split=split)(whole)
        return [host_copy(array).reshape(weight.shape) for array in whole]

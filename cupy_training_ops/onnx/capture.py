# SPDX-License-Identifier: MIT
"""Runs of a session as CUDA graphs: captured once for each form of its feeds, then replayed.

The form of feeds is their dtypes, shapes, and values that the host reads, which are as they were in
a replay. A form's first run is an ordinary one that records the memory blocks it takes; the next is
captured into memory of its own, and replayed from then on. Its addresses stay: feeds are copied
there, results out of there.

`notes` are callbacks that a run makes together with its writes (session.Notes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import methodcaller
from typing import Any, Generic, TypeVar

import cupy
import numpy as np

from ..device import graphs, workspace
from ..device.marks import in_turn
from ..errors import OpError, ProviderError
from ..log import LOG
from .arena import Arena, OtherMemoryError, Plan, Recorder
from .graph import EMPTY
from .runner import each
from .session import NO_NOTES, Notes, Session

MOST_FORMS = 16
MOST_TRIES = 4
Arrays = Mapping[str, Any]
_copy = methodcaller("copy")


F = TypeVar("F", bound="Form")


class Forms(Generic[F]):
    """Looks up the form of a run's feeds, of a class F with what runs of that form share.

    make_form: returns a new F. fixed: feeds that are the same arrays in each run, by name.
    """

    make_form: Callable[[], F]

    def __init__(self, session: Session, fixed: Arrays) -> None:
        self._session, self._fixed = session, fixed
        self._fixed_arrays = {id(a) for item in fixed.values() for a in each_array(item)}
        self._forms: dict[object, F] = {}  # by what `_form` makes of feeds: dtypes, shapes, bytes
        self._memory: Any = None  # of runs; one piece for all forms

    def _checked(self, feeds: Arrays) -> Arrays:
        """Return the feeds as arrays; refused where they do not fit."""
        arrays = {name: self._session.as_fed(name, value) for name, value in feeds.items()}
        self._session.extents.check(arrays, self._session.caller)
        for name, value in arrays.items():
            self._session.labels.note_range(name, value)
        return arrays

    def _form(self, arrays: Arrays, *more: object) -> F:
        """Return the form of these feeds, a new one at first; more: what else distinguishes it."""
        key = (*more, *[self._form_of(name, value) for name, value in arrays.items()])
        if key not in self._forms:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = self.make_form()
        return self._forms[key]

    def _form_of(self, name: str, value: Any) -> object:
        """Return a feed's part of a form's key: its name; dtype, shape, and bytes if on the host.

        These of each array of a sequence; EMPTY of an optional without a value.
        """
        form = each(partial(_form_of_array, self._session.is_on_host(name)), value)
        return name, tuple(form) if isinstance(form, list) else form

    def _copies(self, arrays: Arrays) -> dict[str, Any]:
        """Return C-contiguous, aligned copies of feeds, at the place (host, device) that reads them

        Operators copy others, so that runs of one form would take different memory.
        """
        return {n: each(_copy, self._session.on_place(n, value)) for n, value in arrays.items()}

    def _own(self, results: Arrays) -> frozenset[str]:
        """Return the names of results that are no fixed feeds: the caller needs copies of them."""
        fixed = self._fixed_arrays
        return frozenset(
            n for n, a in results.items() if not fixed.issuperset(map(id, each_array(a)))
        )


class Captures(Forms["_Form"]):
    """Runs one session by CUDA graphs: a function of its feeds, by form as the module says."""

    def __init__(self, session: Session, fixed: Arrays) -> None:
        super().__init__(session, fixed)
        self.make_form = _Form
        self._pool = cupy.cuda.MemoryPool()  # of runs that are recorded: one for all forms
        self._side: graphs.SideStream | None = None

    def __call__(self, feeds: Arrays, notes: Notes = NO_NOTES) -> dict[str, Any]:
        """Return the session's results by name; feeds: arrays by name, but for the fixed ones."""
        arrays = self._checked(feeds)
        form = self._form(arrays)
        self._side = self._side or graphs.side_stream(self)
        self._side.go_on(cupy.cuda.get_current_stream())
        if form.graph is None:
            return self._first_runs(form, arrays, self._side, notes)
        self._session.labels.check(form.classes)
        form.copy_feeds(arrays)
        return form.replay(notes)

    def _first_runs(
        self, form: _Form, arrays: Arrays, side: graphs.SideStream, notes: Notes
    ) -> dict[str, Any]:
        """Run a form without a graph: record its memory, or capture it if that is recorded.

        arrays: feeds by name. side: a stream beside the caller's, on which a capture is made. If it
        takes other memory than the last run, record again; after MOST_TRIES it is refused.
        """
        with side.beside(), workspace.behind_graphs():
            if form.plan is not None and self._capture(form, arrays, side.stream):
                return form.replay(notes)
            if form.tries == MOST_TRIES:
                raise ProviderError(
                    "TrainingSession: graph=True: each step takes other memory than the one "
                    "before, so that none can be captured"
                )
            try:
                return self._record(form, arrays, notes)
            except BaseException:  # replays would count on zeros that it has not left behind
                self._forms.clear()
                raise

    def _record(self, form: _Form, arrays: Arrays, notes: Notes) -> dict[str, Any]:
        """Run ordinarily, and make the plan of the memory that this took (`form.plan`).

        arrays: feeds by name. Return the results by name.
        """
        recorder = Recorder(self._pool.malloc)
        feeds = self._copies(arrays)
        with cupy.cuda.using_allocator(recorder.malloc):
            results = self._session.run_checked({**self._fixed, **feeds}, notes)
        form.tries += 1
        outputs = [a for item in results.values() for a in each_array(item)]
        form.plan = recorder.plan([a for a in outputs if isinstance(a, cupy.ndarray)])
        return results

    def _capture(self, form: _Form, arrays: Arrays, stream: Any) -> bool:
        """Capture a run of feeds `arrays` on a stream, in memory of the form's plan.

        Return False if it asked for other blocks than the plan has, which is then dropped.
        """
        plan = form.plan
        assert plan is not None
        self._pool.free_all_blocks()
        form.inputs = self._copies(arrays)
        arena = Arena(plan, self._room(plan))
        try:
            with cupy.cuda.using_allocator(arena.malloc), graphs.capture(stream) as captured:
                results = self._session.run_checked({**self._fixed, **form.inputs})
            is_same = arena.is_used
        except OtherMemoryError:
            is_same = False
        except BaseException as error:
            if not isinstance(error, OpError):  # it may not be raised again: record anew
                form.plan = None
            raise
        if not is_same:
            LOG.info("fallback: a step is not captured: it took other memory than the last")
            form.plan = None
            return False
        form.graph, form.results, form.memory = captured.graph, results, self._memory
        form.classes = self._session.labels.classes.copy()
        form.sent = captured.arrays
        form.own = self._own(results)
        return True

    def _room(self, plan: Plan) -> Any:
        """Return memory of at least a plan's size; forms share it, as no value outlives a replay"""
        if self._memory is None or self._memory.size < plan.nbytes:
            self._memory = None
            self._memory = cupy.cuda.Memory(max(plan.nbytes, 512))
        return self._memory


class Form:
    """Facts that all runs share whose feeds have one form."""

    def __init__(self) -> None:
        self.tries = 0  # how often the memory was recorded
        self.plan: Plan | None = None  # of the memory of a run
        self.inputs: dict[str, Any] = {}  # arrays by name that replays read: feeds are copied there
        self.own: frozenset[str] = frozenset()  # results that replays overwrite: copy them
        self.classes: dict[str, int] = {}  # how many a loss has, by its output's name

    def copy_feeds(self, arrays: Arrays) -> None:
        """Copy feeds, by name, into `inputs`; those that the host reads are equal within a form."""
        for name, value in arrays.items():
            pairs = zip(each_array(self.inputs[name]), each_array(value), strict=True)
            for target, array in pairs:
                if isinstance(target, np.ndarray) or target is EMPTY:
                    continue
                if not isinstance(array, np.ndarray):
                    target[...] = array
                elif array.size == 1:
                    target.fill(array.item())
                else:
                    target.set(np.ascontiguousarray(array))

    def for_caller(self, results: Arrays) -> dict[str, Any]:
        """Return results by name, copied where the next replay overwrites them."""
        return {n: each(_copy, a) if n in self.own else a for n, a in results.items()}


class _Form(Form):
    """A form, and its CUDA graph once there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.graph: Any = None
        self.memory: Any = None  # of its run, kept alive
        self.sent: list[Any] = []  # copies of the host's values that the graph reads, kept alive
        self.results: dict[str, Any] = {}  # by name, which replays overwrite

    def replay(self, notes: Notes) -> dict[str, Any]:
        """Launch the graph on the current stream, and return copies of its results, by name."""
        in_turn([self.graph.launch], notes.replay)
        return self.for_caller(self.results)


def each_array(item: Any) -> list[Any]:
    """Return the arrays of a value: itself if it is a list, else [array]."""
    return item if isinstance(item, list) else [item]


def _form_of_array(on_host: bool, array: Any) -> tuple[object, ...]:
    """Return an array's dtype and shape; its bytes, too, if it is on the host."""
    return array.dtype, array.shape, *([array.tobytes()] if on_host else [])

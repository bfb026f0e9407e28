# SPDX-License-Identifier: MIT
"""Runs of a session as CUDA graphs: captured once for each form of its feeds, then replayed.

A first run is an ordinary one that notes what memory it takes; the next one like it is captured
into memory of its own, and replayed from then on. What a replay reads is at places that stay: feeds
are copied there, results out of there. What is on the host is as it was at the capture, so that
another value of it is another form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import cupy
import numpy as np

from ..device import graphs, workspace
from ..device.marks import in_turn
from ..errors import OpError, ProviderError
from ..log import LOG
from .arena import Arena, OtherMemoryError, Plan, Recorder
from .session import NO_NOTES, Notes, Session

MOST_FORMS = 16
MOST_TRIES = 4
Arrays = Mapping[str, Any]


F = TypeVar("F", bound="Form")


class Forms(Generic[F]):
    """The forms of one session's runs. `fixed` feeds are the same arrays in each run."""

    make_form: Callable[[], F]

    def __init__(self, session: Session, fixed: Arrays) -> None:
        self._session, self._fixed = session, fixed
        self._fixed_arrays = {id(a) for item in fixed.values() for a in each_array(item)}
        self._forms: dict[object, F] = {}
        self._memory: Any = None

    def _checked(self, feeds: Arrays) -> Arrays:
        """The feeds as arrays; refused where they do not fit."""
        arrays = {name: self._session.as_fed(name, value) for name, value in feeds.items()}
        self._session.extents.check(arrays, self._session.caller)
        for name, value in arrays.items():
            self._session.labels.note_range(name, value)
        return arrays

    def _form(self, arrays: Arrays, *more: object) -> F:
        key = (*more, *[self._form_of(name, value) for name, value in arrays.items()])
        if key not in self._forms:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = self.make_form()
        return self._forms[key]

    def _form_of(self, name: str, value: Any) -> object:
        """A feed's part of a form's key: dtype, shape, and the values where the host reads them."""
        if self._session.is_on_host(name):
            return name, value.dtype, value.shape, value.tobytes()
        return name, value.dtype, value.shape

    def _copies(self, arrays: Arrays) -> dict[str, Any]:
        """Feeds without gaps and aligned, whatever the caller's are: a run takes memory by that."""
        return {n: self._session.on_place(n, value).copy() for n, value in arrays.items()}

    def _own(self, results: Arrays) -> frozenset[str]:
        """Results that are no fixed feeds: the caller needs copies of them."""
        fixed = self._fixed_arrays
        return frozenset(
            n for n, a in results.items() if not fixed.issuperset(map(id, each_array(a)))
        )


class Captures(Forms["_Form"]):
    """The captured runs of one session."""

    def __init__(self, session: Session, fixed: Arrays) -> None:
        super().__init__(session, fixed)
        self.make_form = _Form
        self._pool = cupy.cuda.MemoryPool()  # of runs that are noted: one for all forms
        self._side: graphs.SideStream | None = None

    def __call__(self, feeds: Arrays, notes: Notes = NO_NOTES) -> dict[str, Any]:
        """The session's results; `feeds` are those that are not fixed."""
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
        """A run that notes its memory, or is captured; noted anew where it takes other memory."""
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
        recorder = Recorder(self._pool.malloc)
        feeds = self._copies(arrays)
        with cupy.cuda.using_allocator(recorder.malloc):
            results = self._session.run_checked({**self._fixed, **feeds}, notes)
        form.tries += 1
        outputs = [a for item in results.values() for a in each_array(item)]
        form.plan = recorder.plan([a for a in outputs if isinstance(a, cupy.ndarray)])
        return results

    def _capture(self, form: _Form, arrays: Arrays, stream: Any) -> bool:
        """Capture a run; False where it took other memory."""
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
            if not isinstance(error, OpError):  # not what the next one would come to
                form.plan = None
            raise
        if not is_same:
            LOG.info("fallback: a step is not captured: it took other memory than the last")
            form.plan = None
            return False
        form.graph, form.results, form.memory = captured.graph, results, self._memory
        form.classes = self._session.labels.classes.copy()
        form.sent = [array for s in self._session.program.uploads for array in s.copies.values()]
        form.own = self._own(results)
        return True

    def _room(self, plan: Plan) -> Any:
        """Memory for a plan: forms share it, as nothing outlives a replay."""
        if self._memory is None or self._memory.size < plan.nbytes:
            self._memory = None
            self._memory = cupy.cuda.Memory(max(plan.nbytes, 512))
        return self._memory


class Form:
    """One form of feeds."""

    def __init__(self) -> None:
        self.tries = 0
        self.plan: Plan | None = None
        self.inputs: dict[str, Any] = {}  # at the places that replays read
        self.own: frozenset[str] = frozenset()
        self.classes: dict[str, int] = {}  # of labels

    def copy_feeds(self, arrays: Arrays) -> None:
        """Copy feeds to where replays read them; what is read on the host is the same."""
        for name, value in arrays.items():
            target = self.inputs[name]
            if isinstance(target, np.ndarray):
                continue
            if not isinstance(value, np.ndarray):
                target[...] = value
            elif value.size == 1:
                target.fill(value.item())
            else:
                target.set(np.ascontiguousarray(value))

    def for_caller(self, results: Arrays) -> dict[str, Any]:
        """Results for the caller, copied where the next replay writes them."""
        return {n: _copy(a) if n in self.own else a for n, a in results.items()}


class _Form(Form):
    """A form, and its graph once there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.graph: Any = None
        self.memory: Any = None
        self.sent: list[Any] = []  # what the graph reads beside, whatever is sent later
        self.results: dict[str, Any] = {}

    def replay(self, notes: Notes) -> dict[str, Any]:
        """A run on the current stream; its results are the caller's."""
        in_turn([self.graph.launch], notes.replay)
        return self.for_caller(self.results)


def each_array(item: Any) -> list[Any]:
    """The arrays of a value, which may be a list of them."""
    return item if isinstance(item, list) else [item]


def _copy(item: Any) -> Any:
    return [array.copy() for array in item] if isinstance(item, list) else item.copy()

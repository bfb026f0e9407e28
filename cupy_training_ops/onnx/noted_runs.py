# SPDX-License-Identifier: MIT
"""Runs of a session whose kernel launches are recorded, and repeated in later runs.

A node costs the host a call: look-ups, an allocation, a launch. All but the launch is the same
where feeds have the same form: dtypes, shapes, and values that the host reads. So the first run of
a form is an ordinary one, the second records the sizes and lives of its memory blocks, the third
takes them from one piece and records its launches, and from then on these are repeated, one after
the other from C code. Nodes that do other work than launches of this package are run as before,
between them. Where one of these gives another result than the recorded run had (another shape,
another value on the host), the rest is an ordinary run.

`notes` and `marks` are callbacks that a run makes together with its writes (session.Notes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..device import recording, streams, workspace
from ..device.cuda import PER_THREAD
from ..device.marks import NO_MARKS, Marks
from ..errors import ProviderError, raise_if_from_handler
from .arena import Arena, Plan, Recorder
from .capture import Arrays, Form, Forms, each_array
from .program import LARGEST_COPY, Upload
from .session import NO_NOTES, Notes, Session
from .steps import Step

MOST_TRIES = 4  # to plan a form's memory; after these its runs stay ordinary


class _Group(NamedTuple):
    """Recorded launches of consecutive steps, or one step that is run anew each time."""

    place: int  # index of the first step
    calls: tuple[recording.Queue, ...] | None  # None: run the step anew
    first_block: int = 0  # blocks of the memory plan that the step takes: from this one
    end_block: int = 0  # up to this one, exclusive


class _Noted(NamedTuple):
    """A recorded run of one form, to be repeated."""

    groups: tuple[_Group, ...]
    values: list[Any]  # by slot, also those that a later step of the run freed
    memory: tuple[object, ...]  # kept alive, since the launches have its addresses
    is_whole: bool  # no step is run anew


class _Form(Form):
    """A form, and its recorded run, `noted`, once there is one; n_runs: how many runs it had."""

    def __init__(self) -> None:
        super().__init__()
        self.n_runs = 0
        self.noted: _Noted | None = None


class NotedRuns(Forms[_Form]):
    """Runs one session on CuPy's arrays: a function of its feeds, by form as the module says."""

    def __init__(self, session: Session, fixed: Arrays) -> None:
        """Prepare runs of `session`; fixed: arrays that are fed to all of them, by name.

        Launches are recorded if all copies between host and device go to the device.
        """
        super().__init__(session, fixed)
        self.make_form = _Form
        self._run_plainly = session.run_over(fixed)
        self._stores: workspace.Stores = {}  # scratch memory of kernels
        self._stream: Any = None  # of the last run
        copies = [step.run for step in session.program.steps if step.runner is None]
        # False: a step copies to the host, so that no run is recorded.
        self._is_noted = all(isinstance(run, Upload) for run in copies)

    def __call__(self, feeds: Arrays, notes: Notes = NO_NOTES) -> dict[str, Any]:
        """Return the session's results by name; feeds: arrays by name, but for the fixed ones."""
        stream = cupy.cuda.get_current_stream()
        if not self._is_noted or stream.ptr == PER_THREAD or streams.is_capturing(stream):
            return self._run_plainly(feeds, notes)
        self._go_on(stream)
        arrays = self._checked(feeds)
        form = self._form(arrays, cupy.cuda.runtime.getDevice())
        form.n_runs += 1
        if form.noted is not None:
            self._session.labels.check(form.classes)
            form.copy_feeds(arrays)
            return self._replay(form, form.noted, notes)
        if form.n_runs == 1 or form.tries == MOST_TRIES or self._session.feeds_statistics:
            return self._run_plainly(feeds, notes)
        if form.plan is not None and not self._has_room(form.plan):
            form.tries = MOST_TRIES
            return self._run_plainly(feeds, notes)
        with workspace.in_stores(self._stores):
            run = self._record if form.plan is None else self._note
            return run(form, self._copies(arrays), notes)

    def _go_on(self, stream: Any) -> None:
        """On another stream than before, wait for the work of that one, and drop all recordings."""
        if self._stream is not None and self._stream.ptr != stream.ptr:
            stream.wait_event(self._stream.record())
            self._forget()
        self._stream = stream

    def _forget(self) -> None:
        """Drop all recordings, scratch memory, and the memory of plans."""
        self._forms.clear()
        self._stores.clear()
        self._memory = None

    def _record(self, form: _Form, feeds: Arrays, notes: Notes) -> dict[str, Any]:
        """Run ordinarily, and make the plan of the memory that this took (`form.plan`).

        Return the results by name.
        """
        session, recorder = self._session, Recorder(cupy.cuda.get_allocator())
        values = session.start_values({**self._fixed, **feeds})
        session.begin(values, notes)
        with cupy.cuda.using_allocator(recorder.malloc), np.errstate(all="ignore"):
            for place in range(len(session.program.steps)):
                session.run_place(place, values, notes.steps)
        lasting = [a for _, slot in session.program.results for a in each_array(values[slot])]
        form.plan = recorder.plan([a for a in lasting if isinstance(a, cupy.ndarray)])
        form.tries += 1
        return session.results(values)

    def _note(self, form: _Form, feeds: Arrays, notes: Notes) -> dict[str, Any]:
        """Run in memory of the form's plan, and record the launches (`form.noted`).

        Return the results by name. If the run took other blocks than the plan has, the plan is
        dropped, and made anew next time.
        """
        session, plan = self._session, form.plan
        assert plan is not None
        arena = Arena(plan, self._memory, cupy.cuda.get_allocator())
        form.inputs = dict(feeds)
        values = session.start_values({**self._fixed, **feeds})
        every = values.copy()  # also those that steps free
        groups: list[_Group] = []
        memory: list[object] = []
        session.begin(values, notes)
        with cupy.cuda.using_allocator(arena.malloc), np.errstate(all="ignore"):
            for place, step in enumerate(session.program.steps):
                inputs, first = [values[slot] for slot in step.inputs], arena.place
                with recording.recorded() as noted:
                    session.run_place(place, values, notes.steps)
                for slot in step.outputs:
                    every[slot] = values[slot]
                memory += noted.memory
                is_noted = _is_noted(step, noted, inputs, has_room=arena.place > first)
                calls = tuple(noted.calls) if is_noted else None
                groups.append(_Group(place, calls, first, arena.place))
        results = session.results(values)
        form.own, form.classes = self._own(results), session.labels.classes.copy()
        if arena.is_used:
            is_whole = all(group.calls is not None for group in groups)
            joined = tuple(_joined(groups, notes.steps))
            form.noted = _Noted(joined, every, (*memory, self._memory), is_whole)
        else:
            form.plan = None
        return form.for_caller(results)

    def _has_room(self, plan: Plan) -> bool:
        """Return True if the memory that all forms share has the size of a plan, after growing it.

        A larger piece is at another address, so that recordings of all forms are dropped.
        """
        if self._memory is None or self._memory.size < plan.nbytes:
            for form in self._forms.values():
                form.noted = None
            self._memory = None
            try:
                self._memory = cupy.cuda.alloc(max(plan.nbytes, 512)).mem
            except MemoryError:
                return False
        return True

    def _replay(self, form: _Form, noted: _Noted, notes: Notes) -> dict[str, Any]:
        """Repeat the launches of the recorded run `noted`, and return its results by name.

        The feeds have been copied to its inputs.
        """
        session, values = self._session, noted.values
        session.begin(values, notes)
        try:
            if noted.is_whole:
                for group in noted.groups:
                    _make_again(session, group, notes.steps)
            else:
                values = values.copy()
                self._run_between(form, noted, values, notes.steps)
        except BaseException:  # what they left behind is not known
            self._forget_zeros()
            raise
        return form.for_caller(session.results(values))

    def _run_between(
        self, form: _Form, noted: _Noted, values: list[Any], marks: Mapping[int, Marks]
    ) -> None:
        """Repeat the launches of `noted`, and run the other steps between them.

        These allocate in their blocks of the plan. values: by slot, of this run. marks: callbacks
        by a step's index. If such a step gives another result than the recorded run had, run the
        rest ordinarily, and drop the recording.
        """
        session, plan = self._session, form.plan
        assert plan is not None
        otherwise = cupy.cuda.get_allocator()
        arena = Arena(plan, self._memory, otherwise)
        with np.errstate(all="ignore"), workspace.in_stores(self._stores):
            for group in noted.groups:
                if group.calls is not None:
                    _make_again(session, group, marks)
                    continue
                arena.place = group.first_block
                with cupy.cuda.using_allocator(arena.malloc):
                    session.run_place(group.place, values, marks)
                outputs = session.program.steps[group.place].outputs
                if not all(_is_same(values[slot], noted.values[slot]) for slot in outputs):
                    form.noted = form.plan = None
                    for place in range(group.place + 1, len(session.program.steps)):
                        session.run_place(place, values, marks)
                    return

    def _forget_zeros(self) -> None:
        """Trust no scratch memory to be zero any more, which recorded launches rely on."""
        for store in self._stores.values():
            store.is_zero = False
        for form in self._forms.values():
            form.noted = None


def _make_again(session: Session, group: _Group, marks: Mapping[int, Marks]) -> None:
    """Repeat the launches of a group; errors name its node.

    marks: by a step's index, functions to call right after its first and after its last write.
    """
    assert group.calls is not None
    try:
        recording.make_again(group.calls, marks.get(group.place, NO_MARKS))
    except MemoryError:
        raise
    except Exception as error:
        raise_if_from_handler(error)
        title = session.program.steps[group.place].node.title
        raise ProviderError(f"{title} or behind it: {error}") from error


def _joined(groups: Sequence[_Group], marked: Mapping[int, Marks]) -> list[_Group]:
    """Return the groups, with consecutive recorded steps as one, unless they have marks.

    marked: marks by index of a step. Steps without launches are left out.
    """
    joined: list[_Group] = []
    for group in groups:
        last = joined[-1] if joined else None
        is_apart = group.place in marked or (last is not None and last.place in marked)
        if group.calls == ():
            continue
        if last is None or last.calls is None or group.calls is None or is_apart:
            joined.append(group)
        else:
            joined[-1] = last._replace(calls=last.calls + group.calls)
    return joined


def _is_noted(
    step: Step, noted: recording.Recording, inputs: Sequence[Any], has_room: bool
) -> bool:
    """Return True if repeating a step's recorded launches does all that the step does.

    Also True of a step without launches whose result is the same in each run: it computes on the
    host, where all values are the form's, or makes a view. noted: the recording of the step;
    inputs: their values; has_room: the step allocated memory.
    """
    runner = step.runner
    if isinstance(step.run, Upload):
        return step.run.repeats and getattr(inputs[0], "nbytes", LARGEST_COPY + 1) <= LARGEST_COPY
    if runner is None:
        return False
    on_host = all(value is None or isinstance(value, np.ndarray) for value in inputs)
    if on_host or runner.shapes_only:
        return not runner.updates and not noted.calls and not has_room
    if not noted.is_whole:
        return False
    is_view = bool(runner.views) and not noted.calls and not has_room
    return runner.noted or is_view


def _is_same(value: Any, before: Any) -> bool:
    """Return True if steps may use `value` as the recorded run used `before`.

    On the device they have one address, dtype and shape; on the host one dtype, shape and content.
    None is a value that was freed, as no later step reads it.
    """
    if value is None or value is before:
        return True
    if isinstance(value, np.ndarray) and isinstance(before, np.ndarray):
        is_alike = value.dtype == before.dtype and value.shape == before.shape
        return is_alike and value.tobytes() == before.tobytes()
    if isinstance(value, cupy.ndarray) and isinstance(before, cupy.ndarray):
        return _place(value) == _place(before)
    if isinstance(value, list) and isinstance(before, list) and len(value) == len(before):
        return all(map(_is_same, value, before))
    return False


def _place(array: Any) -> tuple[object, ...]:
    return array.data.ptr, array.dtype, array.shape, array.strides

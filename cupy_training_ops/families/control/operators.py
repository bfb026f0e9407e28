# SPDX-License-Identifier: MIT
"""Control flow: operators that order work and compute nothing.

Arrays pass as they are: of any strides and of several types in a list, never copied.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...backend import Array, Backend
from ...call.arguments import in_order
from ...call.backends import BACKENDS
from ...call.view_ops import DelegatingOp
from ...callables.split_step import Yielded, current_run
from ...declare.schema import (
    Inferred,
    Input,
    Output,
    Spec,
    attribute,
    count,
    integer,
    integers,
    optional,
    real,
    single,
)
from ...declare.type_rows import Types
from ...device.streams import EVENTS, MAX_EVENTS, NO_EVENT
from ...dtypes import BOOL, FIXED_SIZE
from ...errors import ArgumentError, OpError, ProviderError, raise_if_from_handler, refuse, shown

NOTHING_COMPUTED = "NumPy and CuPy arrays alike: nothing is computed or launched."
Specs = tuple[Spec, ...]


def event(value: object) -> int:
    """Return an event's number, from 0 to 4095, or -1 for none; refuse other values."""
    number = integer(single(value))
    if not NO_EVENT <= number < MAX_EVENTS:
        raise ArgumentError(f"expected {NO_EVENT} or a number to {MAX_EVENTS - 1}, got {number}")
    return number


def seconds(value: object) -> float:
    """Return an attribute's seconds; refuse numbers below 0."""
    number = real(value)
    if not 0 <= number <= threading.TIMEOUT_MAX:
        raise ArgumentError(f"expected seconds from 0 to {threading.TIMEOUT_MAX}, got {number}")
    return number


def count_or_none(value: object) -> int:
    """Return a number of arrays, an integer of at least 0."""
    return 0 if integer(value) == 0 else count(value)


def arrays(name: str, doc: str, holes: bool = False) -> Input:
    """Return the declaration of an input: a list of arrays whose elements nobody reads.

    doc: how many, for the documentation. holes: its items may be None.
    """
    return Input(
        name,
        "T",
        variadic=True,
        mixed=True,
        not_accessed=True,
        holes=holes,
        shape="any shapes",
        doc=doc,
    )


class _Control(DelegatingOp):
    """An operator of control flow."""

    no_out = "nothing is written, and arrays pass as they are"
    provider = NOTHING_COMPUTED
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    bitwise_exact = True

    def require_some(self, argument: str, specs: Specs) -> None:
        """Refuse an empty list."""
        if not specs:
            refuse(self.name, argument, "at least one array", "none")


class Group(_Control):
    """Says that its inputs are there: done = True.

    A graph makes several results one by it. Nothing is waited for.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/controlflow/group.cc.
    """

    inputs = (arrays("input_tensors", "at least one"),)
    outputs = (Output("done", "bool", memory="host", shape="shape (1,)", doc="True"),)

    def infer(self, tensors: Specs) -> tuple[Inferred, ...]:
        self.require_some("input_tensors", tensors)
        return (np.ones(1, BOOL),)

    def delegate(self, tensors: tuple[object, ...]) -> object:
        return np.ones(1, BOOL)


class PassThrough(_Control):
    """The identity: outputs[i] = inputs[i], the very array.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/controlflow/pass_through.cc.
    """

    inputs = (arrays("inputs", "at least one"),)
    outputs = (Output("outputs", "T", variadic=True, shape="the very arrays of `inputs`"),)

    def infer(self, inputs: Specs) -> tuple[Inferred, ...]:
        self.require_some("inputs", inputs)
        return (inputs,)

    def delegate(self, inputs: tuple[object, ...]) -> object:
        return inputs


class _Event(_Control):
    """An operator that orders one stream after another by an event."""

    provider = (
        "On CuPy arrays events are CUDA's, of their device's current stream; on NumPy arrays the "
        "host's. One table serves both."
    )
    inputs = (
        Input(
            "EventIdentifier",
            "int64",
            memory="host",
            convert=event,
            static=False,
            doc="-1 does nothing",
        ),
        arrays("InputData", "at least one; those beyond `num_outputs` only order"),
    )
    outputs = (
        Output(
            "OutputData",
            "T",
            variadic=True,
            shape="the very arrays of InputData, `num_outputs` of them",
        ),
    )
    num_outputs: int | None

    def infer(self, identifier: object, data: Specs) -> tuple[Inferred, ...]:
        """Return the specs of the first num_outputs arrays of `data`; None: of all."""
        self.require_some("InputData", data)
        if self.num_outputs is not None and self.num_outputs > len(data):
            expected = f"at most {len(data)}, one for each array of InputData"
            refuse(self.name, "num_outputs", expected, str(self.num_outputs))
        return (data[: self.num_outputs],)

    def delegate(self, identifier: int, data: tuple[Array, ...]) -> object:
        """Record event `identifier` or wait for it; return `data`'s first num_outputs arrays."""
        if identifier != NO_EVENT:
            try:
                self.order(identifier, BACKENDS[type(data[0])])
            except OpError:
                raise
            except RuntimeError as error:  # CUDA's own
                raise_if_from_handler(error)
                raise ProviderError(f"{self.name}: event {identifier}: {error}") from error
        return data[: self.num_outputs]

    def order(self, identifier: int, backend: Backend) -> None:
        """Record the event on the current stream of `backend`, or let that wait for it."""
        raise NotImplementedError


class RecordEvent(_Event):
    """Marks what is queued so far as an event, for one WaitEvent: OutputData = InputData.

    An event that is recorded is not recorded again before a WaitEvent took it. Under capture the
    event is the graph's: a WaitEvent of the same capture takes it.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/controlflow/record.cc.
    """

    num_outputs = attribute(optional(count_or_none), None, doc="None: one for each array")

    def order(self, identifier: int, backend: Backend) -> None:
        """Record event `identifier` on the backend's current stream."""
        if not EVENTS.record(identifier, backend.record):
            expected = "an event that a WaitEvent took before it is recorded again"
            refuse(self.name, "EventIdentifier", expected, shown(identifier))


class WaitEvent(_Event):
    """Lets what follows wait for what an event marks, and takes the event: OutputData = InputData.

    On a GPU the current stream waits, and the caller goes on. Before the event is recorded the
    caller waits, at most `timeout` seconds; then it is an error. One record is for one wait: of
    several that wait for an event each takes another record.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/controlflow/wait.cc.
    """

    num_outputs = attribute(optional(count), None, doc="None: one for each array")
    timeout = attribute(seconds, 60.0, doc="of the wait for a RecordEvent")

    def order(self, identifier: int, backend: Backend) -> None:
        """Wait on the backend's current stream for event `identifier`, once it is recorded."""
        try:
            mark = EVENTS.take(identifier, self.timeout)
        except TimeoutError as error:
            raise_if_from_handler(error)
            raise ProviderError(
                f"WaitEvent: event {identifier}: expected a RecordEvent within "
                f"{self.timeout:g} s, got none"
            ) from None
        backend.wait(mark)


class YieldOp(_Control):
    """Splits a step in two: module_outputs_grad = gradients that a caller sends for module_outputs.

    A generator function that `SplitStep` runs yields what a call returns, and is sent the gradients
    there: `gradients = yield YieldOp(full_shape_outputs=[0])([y])`.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/controlflow/yield.cc.
    """

    no_out = "gradients are the caller's own arrays"
    needs = "a generator function that SplitStep runs"
    inputs = (arrays("module_outputs", "at least one"),)
    outputs = (
        Output(
            "module_outputs_grad",
            "T",
            variadic=True,
            shape="the gradients passed to SplitStep.run_backward, or zeros",
            doc="one for each of module_outputs that is differentiable, of its type",
        ),
    )
    non_differentiable_outputs = attribute(integers, (), doc="places without a gradient")
    full_shape_outputs = attribute(integers, doc="places whose gradient has the full shape")

    def __call__(self, /, *inputs: object, **named: Any) -> Yielded:
        """Return what the step function of SplitStep is to yield, after the usual checks.

        inputs, named: the arrays. The result has all of them, those that get a gradient, and for
        each of the latter True if its gradient has the full shape.
        """
        if named.get("outputs") is not None:
            refuse(self.name, "outputs", "None: all gradients are sent", shown(named["outputs"]))
        differentiable = super().__call__(*inputs, **named)
        keywords = {key: value for key, value in named.items() if key == "module_outputs"}
        (arrays,) = in_order(self.declaration, inputs, keywords)
        full_shape = tuple(place in self.full_shape_outputs for place in self._places(arrays))
        return Yielded(current_run(self.name), tuple(arrays), differentiable, full_shape)

    def infer(self, outputs: Specs) -> tuple[Inferred, ...]:
        """Return specs of the gradients: those of differentiable outputs; refuse wrong places."""
        self.require_some("module_outputs", outputs)
        for name in ("non_differentiable_outputs", "full_shape_outputs"):
            places = getattr(self, name)
            if len(set(places)) < len(places):
                refuse(self.name, name, "each place once", shown(places))
            if not set(places) <= set(range(len(outputs))):
                expected = f"places of {len(outputs)} arrays, from 0 to {len(outputs) - 1}"
                refuse(self.name, name, expected, shown(places))
        return (tuple(outputs[place] for place in self._places(outputs)),)

    def delegate(self, outputs: tuple[object, ...]) -> object:
        """Return the arrays that get a gradient; refuse a call where no SplitStep can send it."""
        current_run(self.name)
        return tuple(outputs[place] for place in self._places(outputs))

    def _places(self, outputs: Sequence[object]) -> list[int]:
        """Return the places of module_outputs that get a gradient."""
        return [i for i in range(len(outputs)) if i not in self.non_differentiable_outputs]


OPS = {
    "Group": Group,
    "PassThrough": PassThrough,
    "RecordEvent": RecordEvent,
    "WaitEvent": WaitEvent,
    "YieldOp": YieldOp,
}

# SPDX-License-Identifier: MIT
"""ONNX Runtime's training artifacts: steps, accumulation, evaluation, and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Generic, Literal

import numpy as np

from ..codecs.atomic_file import write_together
from ..codecs.numpy_file import BinaryFile, StrPath
from ..declare.schema import finite
from ..device.marks import Marks
from ..dtypes import Dtype, HostArray
from ..errors import ArgumentError, cut, refuse, shown
from ..summary import Summary
from ..typing import ArrayModule, ArrayT, Policy
from .checkpoint import FILES, Checkpoint, Group, checkpoint_files, read_checkpoint
from .checks import BUFFER, refuse_unsummed
from .graph import Graph
from .models import Source
from .parts import model_outputs, part_of, write_part
from .session import Notes, Session
from .training_state import Point, Transactional, exclusive, read_state, write_state

RESET = "lazy_reset_grad"  # the input that lets gradients begin anew
DEFAULT_LR = 1e-3  # as in ONNX Runtime
MOMENTS = ("first_order_moments", "second_order_moments")
NUMBERS = ("learning_rate", "step")
OPTIMIZER_INPUTS = {*NUMBERS, "params", "gradients", *MOMENTS}

Arrays = Mapping[str, Any]
Run = Callable[[Arrays, Notes], dict[str, Any]]  # outputs by name, of the inputs that change


class TrainingSession(Summary, Transactional, Generic[ArrayT]):
    """Trains the artifacts in a folder of `generate_artifacts`, on NumPy or CuPy arrays.

    artifacts: the folder with training_model.onnx and checkpoint; with optimizer_model.onnx for
    `step` and `apply`, with eval_model.onnx for `eval` and `export`. xp: numpy or cupy. prefix:
    that of the files' names. seed: of random masks; the system's without one. activations: the
    policy, such as "default", by which activations wait for the backward part as codes; `report`
    says how many bytes they were and are. tf32: multiply matrices and convolve float32 by TF32,
    with 11 bits of each factor, where a GPU can. graph: capture the second step of each form of
    inputs as CUDA graphs, and replay them from then on. What is read on the host belongs to the
    form. What cannot be captured is refused then, with the node's name.

    Inputs come by position or by name, as the training model has them. Parameters and
    gradients are arrays that steps update in place. Nothing waits for the device: a loss is an
    array, too. On CuPy arrays, steps with inputs of the form of earlier ones make their launches
    again, in memory for intermediate values that stays the session's.

    A call that is refused has changed nothing. One that is stopped, as by Ctrl-C or for lack of
    memory, is made as a whole or not at all: parameters, running statistics, states of random
    numbers and counts are those before or behind it. The one exception are gradients of batches
    before, which begin anew where a stopped call had begun to add to them. Where parameters
    themselves were partly written, all calls but `load` are refused. Calls of other threads wait.
    """

    def __init__(
        self,
        artifacts: StrPath,
        xp: ArrayModule[ArrayT] | ModuleType = np,
        *,
        prefix: str = "",
        seed: int | None = None,
        activations: Policy | None = None,
        tf32: bool = False,
        graph: bool = False,
    ) -> None:
        if not isinstance(artifacts, str | os.PathLike):
            refuse("TrainingSession", "artifacts", "the path of a folder", shown(artifacts))
        if Path(artifacts).is_file():
            expected = "the path of a folder (`from_model` trains one model)"
            refuse("TrainingSession", "artifacts", expected, f"the file {shown(str(artifacts))}")
        paths = {name: Path(artifacts) / f"{prefix}{name}" for name in FILES}
        training, evaluation, optimizer = [paths[name] for name in FILES[:3]]
        checkpoint = read_checkpoint(paths["checkpoint"])
        models = training, *(path if path.exists() else None for path in (evaluation, optimizer))
        ways = {"activations": activations, "tf32": tf32, "graph": graph}
        self._open(models, checkpoint, xp, seed=seed, **ways)

    @classmethod
    def from_model(
        cls,
        model: Source,
        *,
        loss: Any,
        trainable: Collection[str] | None = None,
        frozen: Collection[str] | None = None,
        tied: Collection[str] | None = None,
        optimizer: Literal["AdamW", "SGD"] = "AdamW",
        clip_norm: float | None = None,
        xp: ArrayModule[ArrayT] | ModuleType = np,
        seed: int | None = None,
        activations: Policy | None = None,
        tf32: bool = False,
        graph: bool = False,
        **numbers: float,
    ) -> TrainingSession[ArrayT]:
        """Return a session that trains an inference model.

        model: a path, the bytes of a file, or an onnx.ModelProto. loss: "cross_entropy" (labels of
        the classes along axis 1 of the first output), "mse", "l1", "bce_with_logits", or the name
        of an output that is one number. trainable: the names of initializers that are trained; by
        default all real ones of one dimension or more. frozen: those that are not. tied: those that
        are one parameter although Identity gives them several names; by default those whose
        elements differ, as exporters share new biases and scales. optimizer: "AdamW", with
        `numbers` alpha=0.9, beta=0.999, epsilon=1e-8 and weight_decay=0.01, or "SGD". clip_norm:
        the largest norm of all gradients together. Other arguments as of TrainingSession.

            session = TrainingSession.from_model("model.onnx", loss="cross_entropy")
            loss = session.step(x, labels)

        Batch norms have their statistics of the batch in training, Dropout drops.
        """
        from .artifacts import make

        made = make(
            model,
            loss=loss,
            trainable=trainable,
            frozen=frozen,
            tied=tied,
            optimizer=optimizer,
            clip_norm=clip_norm,
            fuses=True,
            **numbers,
        )
        session = cls.__new__(cls)
        ways = {"activations": activations, "tf32": tf32, "graph": graph}
        session._open(made[:3], made.checkpoint, xp, seed=seed, **ways)
        return session

    def _open(
        self,
        models: Sequence[Source],
        checkpoint: Checkpoint,
        xp: Any,
        *,
        seed: int | None,
        activations: Any,
        tf32: Any,
        graph: Any,
    ) -> None:
        """Open three models: of training, of evaluation (or None), of the optimizer (or None).

        checkpoint: their parameters and moments. The others as TrainingSession has them.
        """
        if graph:
            _refuse_uncapturable(xp, activations)
        super().__init__()
        self.xp = xp
        training, evaluation, optimizer = models
        self._training = Session(training, xp, seed=seed, activations=activations, tf32=tf32)
        self._eval = None if evaluation is None else Session(evaluation, xp, tf32=tf32)
        # True: launches of a run are recorded, and repeated in later ones.
        self._is_noted = getattr(xp, "__name__", "") == "cupy" and activations is None
        arrays = NUMBERS if graph or self._is_noted else ()
        self._optimizer = None if optimizer is None else Session(optimizer, xp, arrays=arrays)
        self._load_checkpoint(checkpoint)
        self.properties = dict(checkpoint.properties)
        self._training.extents.names_hold = True  # extents of one name have to be equal
        if self._eval is not None:
            self._eval.extents.names_hold = True
            self._eval.share(self._training)
            self._eval.caller = "TrainingSession: eval"
        self._parts: dict[tuple[str, ...], Session] = {}
        self.outputs: Arrays = {}  # of the last forward pass, by name
        self._run_training, self._run_optimizer = self._runs(graph)

    def _runs(self, graph: bool) -> tuple[Run, Run | None]:
        """Return functions that run the training model and the optimizer's (None without one).

        They take the inputs that change from step to step; parameters, gradient buffers and moments
        are fixed here.
        """
        make: Any = Session.run_over
        if graph:
            from .capture import Captures

            make = Captures
        elif self._is_noted:
            from .noted_runs import NotedRuns

            make = NotedRuns
        fixed = self._parameters_of(self._training)
        on_host = filter(self._training.is_on_host, () if self.xp is np else [*fixed])
        # Parameters of the device that the host reads: each run copies them anew.
        self._copied = {n: fixed.pop(n) for n in on_host}
        fixed |= {n + BUFFER: buffer for n, buffer in self._buffers.items()}
        if self._optimizer is None:
            return make(self._training, fixed), None
        updated = {
            "params": [self._parameters[n] for n in self._trained],
            "gradients": [self._buffers[n] for n in self._trained],
            **{kind: list(arrays.values()) for kind, arrays in self._moments.items()},
        }
        own = {n: updated[n] for n in self._optimizer.inputs if n in updated}
        return make(self._training, fixed), make(self._optimizer, own)

    def _load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Copy parameters and moments from a checkpoint, checked against the graphs."""
        graph = self._training.graph
        inputs = {item.name: item for item in graph.inputs}
        self._trained = tuple(name.removesuffix(BUFFER) for name in inputs if name.endswith(BUFFER))
        arrays = {**checkpoint.frozen, **checkpoint.trained}
        self._check(inputs, arrays)
        refuse_unsummed(graph, arrays)
        self._parameters = {n: self.xp.asarray(a) for n, a in arrays.items()}
        self._parameters |= self._training.own_statistics(self._parameters)
        self._buffers = {n: self.xp.zeros_like(self._parameters[n]) for n in self._trained}
        self._user = tuple(  # names of the inputs that callers feed
            n for n in inputs if n not in arrays and not n.endswith(BUFFER) and n != RESET
        )
        self._point, self._lr = Point(), DEFAULT_LR
        self._moments: dict[str, dict[str, Any]] = {}
        if self._optimizer is not None:
            self._load_optimizer(self._optimizer, checkpoint)

    def _check(self, inputs: Mapping[str, Any], arrays: Arrays) -> None:
        """Refuse parameters (`arrays`) that do not fit the training model's inputs (Values)."""
        for name in self._trained:
            if name not in arrays:
                self._refuse("checkpoint", f"the parameter {cut(name)!r}", "none")
        for name, array in arrays.items():
            item = inputs.get(name)
            if item is None or item.shape is None:
                continue
            if item.shape != array.shape or item.dtype != array.dtype:
                expected = f"{cut(name)!r} of {item.dtype} and shape {item.shape}"
                self._refuse("checkpoint", expected, f"{array.dtype} and shape {array.shape}")
        if not self._trained or RESET not in inputs or not self._training.outputs:
            self._refuse("training_model.onnx", "one that generate_artifacts wrote", "another")

    def _load_optimizer(self, optimizer: Session, checkpoint: Checkpoint) -> None:
        """Fill `_moments` (by kind, then by parameter), the step count and the learning rate.

        optimizer: the session of its model. checkpoint: their values; moments not in it are zeros.
        """
        extra = sorted(set(optimizer.inputs) - OPTIMIZER_INPUTS)
        if extra:
            self._refuse("optimizer_model.onnx", f"inputs among {sorted(OPTIMIZER_INPUTS)}", extra)
        known = {n: m for group in checkpoint.groups for n, m in group.moments.items()}
        read = {name for node in optimizer.graph.nodes for name in node.inputs}
        dtypes = {item.name: item.dtype for item in optimizer.graph.inputs}
        for i, kind in enumerate(m for m in MOMENTS if m in optimizer.inputs):
            names = self._trained if kind in read else ()  # SGD has moments that it does not use
            self._moments[kind] = {n: self._moment(known, n, i, dtypes[kind]) for n in names}
        if checkpoint.groups:
            group = checkpoint.groups[0]
            self._point, self._lr = Point(group.step), group.initial_lr

    def _moment(self, known: Mapping[str, Arrays], name: str, i: int, dtype: Dtype | None) -> Any:
        """Return moment i of a parameter: from a checkpoint's moments (`known`), else zeros."""
        parameter = self._parameters[name]
        dtype = dtype or parameter.dtype
        moment = known.get(name, {}).get(f"momentum{i}")
        if moment is None:
            return self.xp.zeros_like(parameter, dtype)
        if moment.shape != parameter.shape or moment.dtype != dtype:
            expected = f"momentum{i} of {cut(name)!r} of {dtype} and shape {parameter.shape}"
            self._refuse("checkpoint", expected, f"{moment.dtype} and shape {moment.shape}")
        return self.xp.asarray(moment)

    def _refuse(self, what: str, expected: str, got: object) -> None:
        refuse("TrainingSession", what, expected, got if isinstance(got, str) else shown(got))

    # ---- arrays, names, settings -----------------------------------------------------------------

    @property
    def parameters(self) -> Mapping[str, ArrayT]:
        """All parameters by name, the frozen ones too."""
        return MappingProxyType(self._parameters)

    @property
    def gradients(self) -> Mapping[str, ArrayT]:
        """The accumulated gradients by parameter; after `apply` as the optimizer left them."""
        return MappingProxyType(self._buffers)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs of a step."""
        return self._user

    @property
    def graph(self) -> Graph:
        """The training graph as it is run."""
        return self._training.graph

    @property
    def evaluates(self) -> bool:
        """True if there is an eval model."""
        return self._eval is not None

    def _facts(self) -> dict[str, object]:
        """Return the facts that repr() shows."""
        nodes = self._optimizer.graph.nodes if self._optimizer else ()
        return {
            "inputs": self._user,
            "parameters": sum(array.size for array in self._parameters.values()),
            "optimizer": nodes[-1].op_type if nodes else None,
            "step_count": self.step_count,
        }

    @property
    def lr(self) -> float:
        """The learning rate of the next steps."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        try:
            rate = finite(value)
        except ArgumentError as error:
            raise ArgumentError(f"TrainingSession: lr: {error}") from None
        if abs(rate) > float(np.finfo(np.float32).max):
            self._refuse("lr", "a number within float32's range", rate)
        self._lr = rate

    # ---- training --------------------------------------------------------------------------------

    @exclusive
    def step(self, *inputs: Any, **named: Any) -> ArrayT:
        """Run forward, backward and the optimizer, and return the loss, an array.

        inputs, named: the training model's inputs (`self.inputs`), by position or by name.
        """
        optimizer, run = self._need_optimizer()
        try:
            loss: ArrayT = self._forward_backward("step", inputs, named)
            self._apply(optimizer, run)
        except BaseException:
            self._put_back()
            raise
        return loss

    @exclusive
    def accumulate(self, *inputs: Any, **named: Any) -> ArrayT:
        """Run forward and backward, adding gradients to those since the last `apply`.

        Return the loss, an array. inputs, named: the training model's inputs, by position or name.
        """
        try:
            loss: ArrayT = self._forward_backward("accumulate", inputs, named)
            self._point = Point(self.step_count, is_reset=False)
        except BaseException:
            self._put_back()
            raise
        return loss

    @exclusive
    def apply(self) -> None:
        """Make a step of the optimizer with the accumulated gradients, which begin anew then."""
        optimizer, run = self._need_optimizer()
        if self._point.is_reset:
            raise ArgumentError("TrainingSession: apply: no gradients since the last step")
        self._apply(optimizer, run)

    def _forward_backward(self, call: str, inputs: Sequence[Any], named: Arrays) -> Any:
        """Run forward and backward, and return the loss; `_put_back` can still restore the states.

        call: the public method's name, for messages. inputs, named: its inputs by position and by
        name. `_point` changes together with writes: before
        the first of all, is_begun is set; with the first one into a gradient's buffer is_reset,
        since the sums of batches before are lost then.
        """
        self._training.caller = f"TrainingSession: {call}"
        feeds = self._by_name(call, self._user, inputs, named)
        feeds |= {**self._copied, RESET: np.array([self._point.is_reset])}
        begun = self._point._replace(is_begun=True)
        anew = self._noting(begun._replace(is_reset=True))
        sums = Marks(first=(anew,))
        first = min(self._training.program.writers, default=-1)
        notes = Notes(self._noting(begun), {first: sums}, replay=sums)
        results = self._run_training(feeds, notes)
        self.outputs = {n: v for n, v in results.items() if not n.endswith("accumulation.out")}
        return next(iter(self.outputs.values()))

    def _apply(self, optimizer: Session, run: Run) -> None:
        """Run the optimizer's step by `run`, and change `_point` together with its writes.

        a write of gradients alone           anew    gradients begin anew
        a write of parameters or moments     torn    these are partly those of another step
        the last write                       made    the step counts
        """
        before, made = self._point, Point(self.step_count + 1)
        feeds = {
            "learning_rate": np.array([self._lr], np.float32),
            "step": np.array([made.step_count], np.int64),
        }
        anew = self._noting(before._replace(is_reset=True))
        torn = self._noting(Point(before.step_count, is_torn=True))
        writers = optimizer.program.writers
        marks = {
            place: Marks(
                (anew if names <= {"gradients"} else torn,),
                (self._noting(made),) if place == max(writers) else (),
            )
            for place, names in writers.items()
        }
        changing = {n: feeds[n] for n in optimizer.inputs if n in feeds}
        run(changing, Notes(None, marks, Marks((torn,), (self._noting(made),))))
        self._point = made

    def _put_back(self) -> None:
        """Restore states and running statistics if a pass or an evaluation was stopped."""
        point = self._point
        if point.is_begun:
            self._training.put_back()
            self._point = point._replace(is_begun=False)
        for session in (self._eval, *self._parts.values()):
            if session is not None and session.is_begun:
                session.put_back()

    def _need_optimizer(self) -> tuple[Session, Run]:
        if self._optimizer is None or self._run_optimizer is None:
            raise ArgumentError("TrainingSession: there is no optimizer_model.onnx")
        return self._optimizer, self._run_optimizer

    @exclusive
    def eval(self, *inputs: Any, **named: Any) -> ArrayT | Any:
        """Return the loss of the eval model; all its outputs are in `outputs`.

        inputs, named: the eval model's inputs, by position or by name. Without labels, return what
        the model computes of the other inputs: an array, or a tuple.
        """
        if self._eval is None:
            raise ArgumentError("TrainingSession: there is no eval_model.onnx")
        user = tuple(n for n in self._eval.inputs if n not in self._parameters)
        feeds = self._by_name("eval", user, inputs, named, may_lack=True)
        whole = len(feeds) == len(user)
        session = self._eval if whole else self._without_labels(tuple(feeds))
        self.outputs = session.run(feeds | self._parameters_of(session))
        values = tuple(self.outputs.values())
        return values[0] if whole or len(values) == 1 else values

    def _without_labels(self, inputs: tuple[str, ...]) -> Session:
        """Return a session of the part of the eval model that needs these inputs alone."""
        assert self._eval is not None
        if inputs not in self._parts:
            names = model_outputs(self._eval.graph, {*inputs, *self._parameters})
            part = part_of(self._eval.graph, names)
            needed = [i.name for i in part.inputs if i.name not in self._parameters]
            if set(needed) != set(inputs):
                expected = f"{', '.join(needed)}, alone or beside all others"
                self._refuse("eval: inputs", expected, ", ".join(inputs))
            session = Session(part, self.xp)
            session.extents.names_hold = True
            session.share(self._training)
            session.caller = self._eval.caller
            self._parts[inputs] = session
        return self._parts[inputs]

    def _parameters_of(self, session: Session) -> dict[str, Any]:
        return {n: self._parameters[n] for n in session.inputs if n in self._parameters}

    def _by_name(
        self,
        call: str,
        user: Sequence[str],
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        may_lack: bool = False,
    ) -> dict[str, Any]:
        """Return the inputs of a call by name.

        call: its name, for messages. user: all inputs' names, in order. inputs: those by position.
        named: those by name. may_lack: some may be missing, not all.
        """
        feeds = dict(zip(user, inputs, strict=False))
        twice = feeds.keys() & named.keys()
        feeds |= named
        lacks = set(user) - feeds.keys() if not may_lack or not feeds else set()
        if lacks or twice or feeds.keys() - set(user) or len(inputs) > len(user):
            got = f"{len(inputs)} by position and {cut(str(sorted(named)))} by name"
            self._refuse(f"{call}: inputs", ", ".join(user), got)
        return feeds

    def report(self) -> dict[str, Any]:
        """Return bytes of the last step's activations `before` and `after` they became codes.

        `peak`: most of these at a time. `names`: by array, codec, need, before and after.
        """
        return self._training.report()

    # ---- files -----------------------------------------------------------------------------------

    @exclusive
    def save(self, file: StrPath | BinaryFile, *, sync: bool = True) -> None:
        """Write all that training goes on with: `load` makes the next steps bit-equal.

        A path is replaced by a whole file or not at all, also where the machine stops, but with
        sync=False, which waits for no disk.
        """
        self._check_file("save", file, "write")
        write_state(file, self._state_arrays(), self._numbers(), sync)

    @exclusive
    def load(self, file: StrPath | BinaryFile) -> None:
        """Go on from a file that `save` wrote for the same artifacts."""
        self._check_file("load", file, "read")
        arrays = self._state_arrays()
        numbers, values = read_state(file, arrays, self._numbers())
        self._point = Point(is_torn=True)
        for name, value in values.items():
            arrays[name][...] = self.xp.asarray(value)
        self._lr = numbers["lr"]
        self._point = Point(numbers["step"], numbers["is_reset"])

    @exclusive
    def save_checkpoint(self, file: StrPath, *, sync: bool = True) -> None:
        """Write ONNX Runtime's checkpoint: parameters, moments, step, learning rate, properties.

        With the models of the folder it goes on there, by `CheckpointState.load_checkpoint`, and
        here, as the folder's file `checkpoint`. Gradients since the last `apply` and states of
        random numbers are not in it, as `save` has them. Arrays of more than 1 GiB go into a file
        beside it, with `.data` at its name's end. sync: wait until it is on the disk.
        """
        self._check_file("save_checkpoint", file)
        host = {n: self._on_host(a) for n, a in self._parameters.items()}
        trained = {n: host.pop(n) for n in self._trained}
        groups: tuple[Group, ...] = ()
        if self._optimizer is not None:
            kinds = [self._moments[kind] for kind in MOMENTS if kind in self._moments]
            moments = {
                n: {f"momentum{i}": self._on_host(m[n]) for i, m in enumerate(kinds) if n in m}
                or {"momentum0": np.zeros_like(trained[n])}  # ONNX Runtime wants it of SGD
                for n in self._trained
            }
            groups = (Group("group0", self.step_count, self._lr, moments),)
        path = Path(file)
        checkpoint = Checkpoint(trained, host, groups, self.properties)
        write_together(checkpoint_files(checkpoint, path), sync)

    def _check_file(self, call: str, file: object, method: str | None = None) -> None:
        """Refuse a `file` that is no path, nor, if `method` is named, an open file with that."""
        is_open = method is not None and hasattr(file, method)
        if not (isinstance(file, str | os.PathLike) or is_open):
            words = "the path of a file" + (", or an open one" if method else "")
            self._refuse(f"{call}: file", words, shown(file))

    def _on_host(self, array: Any) -> HostArray:
        on_host: HostArray = array if self.xp is np else self.xp.asnumpy(array)
        return on_host

    def _state_arrays(self) -> dict[str, Any]:
        """Return all arrays that steps change or depend on, as {"parameter/weight": array, ...}."""
        arrays = {f"parameter/{n}": a for n, a in self._parameters.items()}
        arrays |= {f"gradient/{n}": a for n, a in self._buffers.items()}
        for kind, moments in self._moments.items():
            arrays |= {f"{kind}/{n}": a for n, a in moments.items()}
        return arrays | {f"state/{n}": a for n, a in self._training.states.items()}

    def _numbers(self) -> dict[str, Any]:
        point = self._point
        return {"step": point.step_count, "is_reset": point.is_reset, "lr": self._lr}

    @exclusive
    def export(
        self, file: StrPath, outputs: Sequence[str] | None = None, *, sync: bool = True
    ) -> None:
        """Write a plain inference model with the parameters as they are now.

        outputs: values of the eval model by name; by default what its loss is computed of.
        sync: wait until it is on the disk.
        """
        if self._eval is None:
            raise ArgumentError("TrainingSession: there is no eval_model.onnx")
        self._check_file("export", file)
        arrays = {**self._parameters, **self._training.states}
        on_host = {n: self._on_host(a) for n, a in arrays.items()}
        write_part(self._eval.graph, self._eval.model, on_host, outputs, Path(file), sync)


def _refuse_uncapturable(xp: Any, activations: str | None) -> None:
    """Refuse graph=True with NumPy, or with activations as codes."""
    if xp is np:
        refuse("TrainingSession", "graph", "False with NumPy, which has no CUDA graphs", "True")
    if activations is not None:
        expected = "None with graph=True: codes' sizes and guards are known in each step alone"
        refuse("TrainingSession", "activations", expected, shown(activations))

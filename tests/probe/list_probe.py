# SPDX-License-Identifier: MIT
"""One operator for each thing that lists of arrays ask of the frame."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.declare.facts import Struct, i64
from cupy_training_ops.declare.schema import Input, Output, Spec, real
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, INT64
from cupy_training_ops.errors import refuse
from cupy_training_ops.plan import Config, Launch, Plan, Pointers, by_value, slots
from cupy_training_ops.planning import multi_tensor

from .probe import Probe

THREADS = 128
EXTENTS = Struct("Extents", at=i64[4])  # of list_probe.cu


class ProbeSpread(Probe):
    """Three lists from a list: X + 1, X W (2 X where W is None), -X; and how many there are."""

    inputs = (
        Input("Xs", "float32", variadic=True),
        Input("Ws", "float32", variadic=True, holes=True),
    )
    outputs = (
        Output("Raised", "float32", variadic=True, aliases="Xs", on_request=True),
        Output("Count", "int64", memory="host"),
        Output("Scaled", "float32", variadic=True),
        Output("Negated", "float32", variadic=True),
    )

    def infer(self, xs, ws):
        if len(ws) != len(xs):
            refuse(self.name, "Ws", f"{len(xs)} arrays or None", str(len(ws)))
        return xs, np.array([len(xs)], INT64), xs, xs

    def plan(self, device, xs, ws, raised, count, scaled, negated):
        sizes = np.zeros(4, np.int64)
        sizes[: len(xs)] = [x.size for x in xs]
        tables = (Pointers(tuple(specs), 4) for specs in (xs, ws, raised, scaled, negated))
        config = Config((len(xs),), (THREADS,))
        return Plan((Launch("probe_spread", config, (*tables, by_value(EXTENTS, at=sizes))),))


def probe_spread(xs, ws):
    scaled = [x * (np.float32(2) if w is None else w) for x, w in zip(xs, ws, strict=True)]
    return [x + np.float32(1) for x in xs], scaled, [-x for x in xs]


class ProbeDescend(Probe):
    """X - rate G, of lists; the rate is 1 where it is not given, a number or an array."""

    inputs = (
        Input("Xs", "float32", variadic=True),
        Input("Gs", "float32", variadic=True),
        Input("rate", "float32", memory="either", convert=real, optional=True),
    )
    outputs = (Output("Ys", "float32", variadic=True, aliases="Xs"),)

    def infer(self, xs, gs, rate):
        if len(gs) != len(xs):
            refuse(self.name, "Gs", f"{len(xs)} arrays", str(len(gs)))
        return (xs,)

    def plan(self, device, xs, gs, rate, ys):
        sizes = np.zeros(4, np.int64)
        sizes[: len(xs)] = [x.size for x in xs]
        args = (*(Pointers(specs, 4) for specs in (xs, gs, ys)), 1.0 if rate is None else rate)
        config = Config((len(xs),), (THREADS,))
        return Plan((Launch("probe_descend", config, (*args, by_value(EXTENTS, at=sizes))),))


def probe_descend(xs, gs, rate=None):
    step = np.float32(1 if rate is None else np.ravel(rate)[0])
    return [x - step * g for x, g in zip(xs, gs, strict=True)]


class ProbeMomentum(Probe):
    """M = 0.9 M + G, V = V + G^2, W = W - rate M, in place, over four lists; the rate changes."""

    inputs = (
        Input("Ws", "float32", variadic=True),
        Input("Gs", "float32", variadic=True),
        Input("Ms", "float32", variadic=True),
        Input("Vs", "float32", variadic=True),
        Input("rate", "float32", memory="host", convert=real, static=False),
    )
    outputs = (
        Output("new_Ws", "float32", variadic=True, aliases="Ws"),
        Output("new_Ms", "float32", variadic=True, aliases="Ms"),
        Output("new_Vs", "float32", variadic=True, aliases="Vs"),
    )

    def infer(self, ws, gs, ms, vs, rate):
        for name, specs in (("Gs", gs), ("Ms", ms), ("Vs", vs)):
            if [spec.shape for spec in specs] != [w.shape for w in ws]:
                refuse(self.name, name, "the shapes of Ws", "others")
        return ws, ms, vs

    def plan(self, device, ws, gs, ms, vs, rate, *_):
        room = 89  # tensors whose addresses in four lists, and sizes, a launch takes
        binding = {"CAPACITY": str(room)}
        steps = []
        for batch in multi_tensor.batches([w.size for w in ws], 1024, room):
            config = Config((batch.n_chunks,), (THREADS,))
            tables = (batch.pointers(specs) for specs in (ws, gs, ms, vs))
            args = (*tables, batch.sizes, len(batch.members), rate)
            steps.append(Launch("probe_momentum", config, args, binding))
        return Plan(tuple(steps))


def probe_momentum(ws, gs, ms, vs, rate):
    new_ms = [np.float32(0.9) * m + g for m, g in zip(ms, gs, strict=True)]
    new_ws = [w - np.float32(rate) * m for w, m in zip(ws, new_ms, strict=True)]
    return new_ws, new_ms, [v + g * g for v, g in zip(vs, gs, strict=True)]


class ProbeMixed(Probe):
    """The first elements of arrays of two dtypes."""

    inputs = (Input("Xs", "T", variadic=True, mixed=True),)
    outputs = (Output("Y", "float32"),)
    types = {"T": (FLOAT32, FLOAT16)}  # noqa: RUF012

    def infer(self, xs):
        return (Spec((len(xs),), FLOAT32),)

    def plan(self, device, xs, y):
        config = Config((1,), (1,))
        launches = (
            Launch("probe_mixed", config, (x, y, i), slots(T=x.dtype)) for i, x in enumerate(xs)
        )
        return Plan(tuple(launches))


def probe_mixed(xs):
    return np.array([x.ravel()[0] for x in xs], np.float32)

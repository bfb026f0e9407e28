# SPDX-License-Identifier: MIT
"""Random words one by one, from the header that kernels draw with."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.declare.schema import Input, Output, Spec, integer
from cupy_training_ops.families.dropout.plan import two_integers
from cupy_training_ops.plan import Config, Launch, Plan
from cupy_training_ops.rules import philox

from .probe import Probe, one_launch

WORD = np.dtype(np.uint32)


class ProbePhilox(Probe):
    """The four words of each counter and key."""

    inputs = (Input("counters", "uint32"), Input("keys", "uint32"))
    outputs = (Output("words", "uint32"),)

    def infer(self, counters, keys):
        return (Spec(counters.shape, WORD),)

    def plan(self, device, counters, keys, words):
        n = counters.size // 4
        return one_launch("probe_philox", n, (counters, keys, words, n))


def probe_philox(counters, keys):
    pairs = zip(counters.tolist(), keys.tolist(), strict=True)
    return np.array([philox.block(counter, tuple(key)) for counter, key in pairs], WORD)


class ProbeWords(Probe):
    """The word of each element."""

    inputs = (
        Input("elements", "int64"),
        Input("state", "uint64", memory="either", convert=two_integers, count=2),
    )
    outputs = (Output("words", "uint32"),)

    def infer(self, elements, state):
        return (Spec(elements.shape, WORD),)

    def plan(self, device, elements, state, words):
        return one_launch("probe_words", elements.size, (elements, words, state, elements.size))


def probe_words(elements, state):
    return np.concatenate([philox.words(state, e, e + 1) for e in elements.tolist()])


class ProbeTile(Probe):
    """The words of the 2,048 elements from `first` on, in a tile of an element-wise kernel."""

    inputs = (
        Input("like", "uint32"),
        Input("first", "int64", memory="host", convert=integer),
        ProbeWords.inputs[1],
    )
    outputs = (Output("words", "uint32"),)

    def infer(self, like, first, state):
        return (like,)

    def plan(self, device, like, first, state, words):
        launch = Launch("probe_tile", Config((1,), (128,)), (words, state, first, words.size))
        return Plan((launch,))


def probe_tile(like, first, state):
    return philox.words(state, first, first + like.size)

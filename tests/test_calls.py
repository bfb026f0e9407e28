# SPDX-License-Identifier: MIT
"""What one call owes to the next: exact keys, memory of its own, scratch memory between threads."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import time
from typing import NamedTuple

import numpy as np
import pytest
import ranks
from probe.probe import ProbeAxpy, ProbeCut, ProbeHalves, ProbeJoin, ProbeSum

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError
from cupy_training_ops.call import backends, checks, op, overlap
from cupy_training_ops.call.overlap import Overlap, Written
from cupy_training_ops.call.view_ops import ViewOp
from cupy_training_ops.declare.schema import Input, Output, integer
from cupy_training_ops.device.launch import ReadyPlan
from cupy_training_ops.testing.compare import assert_matches

X = np.arange(8, dtype=np.float32)


class Counted(ViewOp):
    """X itself, and a number that is planned for."""

    inputs = (Input("X", "float32"), Input("count", "int64", memory="host", convert=integer))
    outputs = (Output("Ys", "float32", variadic=True),)

    def infer(self, x, count):
        return ((x,),)


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_of_either_sign_are_two_calls(anywhere, order) -> None:
    scale = cto.get_op("Scale")(scale_down=True)
    for factor in order:
        result = anywhere.host(scale(anywhere.place(np.ones(3, np.float32)), factor))
        assert_matches(result, np.full(3, np.copysign(np.inf, factor), np.float32))


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_attributes_of_either_sign_are_two_operators(order) -> None:
    dy, y = np.ones(3, np.float32), -np.ones(3, np.float32)
    for alpha in order:
        assert np.signbit(cto.leaky_relu_grad(dy, y, alpha=alpha)).all() == np.signbit(alpha)


@pytest.mark.parametrize(
    ("call", "right", "wrong"),
    [
        (lambda v: SCALE(X, v), 1.0, True),
        (lambda v: COUNTED(X, v), 1, True),
        (lambda v: JOIN(v, [X]), (8,), (8.0,)),
        (lambda v: JOIN(v, [X]), (8,), np.array([8.0])),
        (lambda v: JOIN(v, [X]), (1, 8), (True, 8)),
        (lambda v: CUT(X, v), (4, 4), (4, 4.0)),
        (lambda v: cto.view(X, [v]), (2, 4), (2.0, 4)),
        (lambda v: DECODE(CODE, shape=v), (1, 8), (True, 8)),
        (lambda v: DECODE(CODE, shape=v), (1, 8), (1.0, 8)),
    ],
)
def test_what_is_refused_at_first_is_refused_later(call, right, wrong) -> None:
    call(right)
    with pytest.raises(ArgumentError, match="expected"):
        call(wrong)


DECODE = functools.partial(cto.gist_pack8_decoder, to="float32")
SCALE, JOIN, CUT = cto.get_op("Scale")(), ProbeJoin(), ProbeCut()
COUNTED = Counted()
CODE = cto.gist_pack8_encoder(X)


def test_an_instance_remembers_so_many_calls(monkeypatch) -> None:
    monkeypatch.setattr(op, "_MAX_REMEMBERED", 4)
    join = ProbeJoin()
    for n in range(10):
        join((n,), [np.ones(n, np.float32)])
    assert 0 < len(join._remembered) <= 4


def test_functions_share_so_many_instances(monkeypatch) -> None:
    monkeypatch.setattr(op, "_MAX_SHARED", 4)
    shared = {ProbeAxpy.shared(a=float(a)) for a in range(10)}
    assert len(shared) == 10
    assert 0 < len(ProbeAxpy._shared) <= 4
    assert ProbeAxpy.shared(a=9) is ProbeAxpy.shared(a=9)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
)
def test_an_operator_can_be_copied_and_pickled(again) -> None:
    scale = cto.get_op("Scale")(scale_down=True)
    scale(X, 2.0)
    assert repr(again(scale)) == repr(scale)
    assert_matches(again(scale)(X, 2.0), X / 2)


def test_names_of_outputs_may_be_a_list(anywhere) -> None:
    x = anywhere.place(X)
    low, high, _ = ProbeHalves()(x, outputs=["Low"])
    assert high is None
    assert_matches(anywhere.host(low), X[:4])
    assert ProbeHalves().workspace_nbytes(x, outputs=["Low"]) == 0
    with pytest.raises(ArgumentError, match=r"ProbeHalves: outputs: expected .* got 3"):
        ProbeHalves()(x, outputs=3)


# ---- memory --------------------------------------------------------------------------------------


def test_a_sum_in_place_is_apart_from_its_other_inputs(anywhere) -> None:
    """Partly the same memory is refused; exactly the same is not, where elements go alone."""
    whole = anywhere.place(np.arange(100, dtype=np.float32))
    with pytest.raises(ArgumentError, match=r"InPlaceAccumulator: old_sum: .* shared with value"):
        cto.in_place_accumulator(whole[1:], whole[:-1])
    with pytest.raises(ArgumentError, match=r"ProbeAxpy: Y: .* memory shared with X"):
        ProbeAxpy()(whole, whole)
    cto.in_place_accumulator(whole, whole)
    assert_matches(anywhere.host(whole), 2 * np.arange(100, dtype=np.float32))


def test_lists_in_place_hold_an_array_once(anywhere) -> None:
    a, b, v = (anywhere.place(np.full(50, n, np.float32)) for n in (0, 1, 10))
    with pytest.raises(ArgumentError, match=r"old_sums\[1\]: .* shared with old_sums\[0\]"):
        cto.in_place_accumulator_list([a, a], [v, v])
    cto.in_place_accumulator_list([a, b], [v, b])
    assert_matches(anywhere.host(a), np.full(50, 10, np.float32))
    assert_matches(anywhere.host(b), np.full(50, 2, np.float32))


class Memory(NamedTuple):
    """An array for the check: CuPy's empty ones may point into others, NumPy's do not."""

    start: int
    nbytes: int

    def meets(self, other: Memory) -> bool:
        return bool(set(range(*self.span)) & set(range(*other.span)))

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.start + self.nbytes


@pytest.mark.parametrize("n_written", [1, 2, 3])
def test_spans_are_compared_as_pairs_would_be(rng, monkeypatch, n_written) -> None:
    for _ in range(300):
        n = int(rng.integers(n_written, 7))
        arrays = [Memory(*map(int, rng.integers((1, 0), (25, 6)))) for _ in range(n)]
        places = [int(p) for p in rng.permutation(n)]
        inputs = places[n_written:]
        written = [Written(p, tuple(inputs[:1])) for p in places[:n_written]]
        unread = inputs[1:2]
        expected = any(
            arrays[w.place].meets(arrays[p])
            for w in written
            for p in range(n)
            if p != w.place and p not in unread
            if p not in w.partners or arrays[w.place] != arrays[p]
        )
        names, sizes = [f"a{i}" for i in range(n + 1)], [*(a.nbytes for a in arrays), 0]
        monkeypatch.setattr(overlap, "MANY", rng.choice([0, 100]))
        check = Overlap("Op", names, sizes, written, unread)
        try:
            check.refuse([*(a.start for a in arrays), 0])
            refused = False
        except ArgumentError:
            refused = True
        assert refused == expected, (arrays, written, unread)


def test_a_signal_that_is_not_read_may_lie_anywhere(anywhere) -> None:
    gradient = anywhere.place(np.ones(10, np.float32))
    for signal in (gradient, gradient[2:4], gradient[::3], gradient[5:5]):
        gradient[...] = 1
        cto.zero_gradient(gradient, signal)
        assert not anywhere.host(gradient).any()


def test_a_workspace_beside_a_host_output(run, monkeypatch) -> None:
    """A host output has no address on the device."""
    x, seen = run.place(X), []
    backend = type(backends.BACKENDS[type(x)])
    pointers = backend.pointers
    monkeypatch.setattr(
        backend,
        "pointers",
        lambda self, arrays: (
            seen.extend(a.dtype for a in arrays if a is not None) or pointers(self, arrays)
        ),
    )
    _, high, sizes = ProbeHalves()(x, workspace=run.xp.zeros(64, np.uint8))
    assert (sizes.tolist(), sizes.dtype) == ([4, 4], np.int64)
    assert_matches(run.host(high), X[4:])
    assert np.dtype(np.uint8) in seen
    assert np.dtype(np.int64) not in seen


@pytest.mark.parametrize("name", ["X", "Y"])
def test_a_workspace_is_apart_from_the_calls_arrays(anywhere, name) -> None:
    memory = anywhere.place(np.ones(70_000, np.float32))
    out = anywhere.place(np.ones(4, np.float32))
    scratch = (memory if name == "X" else anywhere.xp.zeros(100_000, np.uint8)).view(np.uint8)
    target = out[:1] if name == "X" else scratch[:4].view(np.float32)
    with pytest.raises(ArgumentError, match=f"ProbeSum: workspace: .* memory shared with {name}"):
        ProbeSum()(memory, out=target, workspace=scratch)
    assert (anywhere.host(memory) == 1).all()


@pytest.mark.parametrize("wrong", ["junk", np.zeros(64, np.float32), np.zeros((8, 8), np.uint8)])
def test_a_wrong_workspace_is_refused_by_the_cpu_provider_too(wrong) -> None:
    with pytest.raises(ArgumentError, match="ProbeSum: workspace: expected"):
        ProbeSum()(X, workspace=wrong)


def test_threads_on_one_stream_take_turns(run, rng, monkeypatch) -> None:
    """The launches of a call that share scratch memory lie together."""
    inside, most = [], []

    def slow(original, self, *arguments, **named):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        original(self, *arguments, **named)
        inside.pop()

    wrapped = functools.partialmethod(functools.partial(slow, ReadyPlan.run))
    monkeypatch.setattr(ReadyPlan, "run", wrapped)
    op_, x = ProbeSum(), run.place(rng.integers(-8, 8, 3000).astype(np.float32))
    results = [run.place(np.zeros(1, np.float32)) for _ in range(6)]
    ranks.results(ranks.gathered([functools.partial(op_, x, out=out) for out in results], 60))
    if run.on_gpu:
        run.xp.cuda.Device().synchronize()
    assert (len(most), max(most)) == (6, 1)
    for result in results:
        assert run.host(result)[0] == run.host(x).sum()


# ---- arguments -----------------------------------------------------------------------------------


def test_arguments_that_are_no_plain_arrays(anywhere) -> None:
    x = anywhere.place(X)
    masked = np.ma.masked_array(X, X > 3)
    for wrong, message in (
        (lambda: ProbeSum()(masked), "ProbeSum: X: expected an array without a mask"),
        (lambda: cto.scale(x, np.ma.masked), "Scale: scale: expected an array without a mask"),
        (lambda: cto.dropout(X, masked[:1], True), "Dropout: ratio: expected an array without a"),
        (lambda: ProbeSum()(x, out=np.float32(0)), "ProbeSum: out: expected an array, got a scal"),
        (lambda: cto.scale(x, 10**400), "Scale: scale: expected a number, got an integer of 1329"),
        (lambda: ProbeJoin()([[1], [2, 3]], [x]), "ProbeJoin: shape: expected integers in rank 1"),
        (lambda: cto.get_op(None), "no operator None; `cupy-training-ops ops` lists"),
        (lambda: cto.compress(None, "pack8"), "GistPack8Encoder: X: expected an array, got None"),
        (lambda: cto.Packed("pack8", "float32", (2,), [1, 2]), "Packed: code: expected a NumPy or"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()


def test_what_no_gpu_launches_names_the_operator(run) -> None:
    index, dy = run.place(np.zeros(2, np.int64)), run.place(np.ones(2, np.float32))
    with pytest.raises(ArgumentError, match=r"GatherGrad: inputs: .* can launch, got grid \("):
        cto.gather_grad((2**50,), index, dy)


def test_views_that_are_not_asked_for_are_none(anywhere) -> None:
    assert cto.view(anywhere.place(X), [(2,), (6,)], outputs=()) == (None, None)


def test_arrays_in_several_places_are_refused() -> None:
    checks.one_place("Op", {"X": "the host", "Y": "the host"})
    with pytest.raises(ArgumentError, match=r"Op: .* X is on the host, Y is on cuda device 1"):
        checks.one_place("Op", {"X": "the host", "Y": "cuda device 1"})


def test_an_onnx_number_may_be_numpys() -> None:
    assert cto.gist_pack8_decoder(CODE, to=np.int64(10)).dtype == np.float16
    under_way = sys.exception()  # a test that interrupted its calls may have left one
    with pytest.raises(DtypeError, match=r"expected float32, .* got int8") as caught:
        cto.gist_pack8_decoder(CODE, to="int8")
    assert caught.value.__context__ is under_way

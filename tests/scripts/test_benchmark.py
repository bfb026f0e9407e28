# SPDX-License-Identifier: MIT
"""The benchmark without a GPU: its cases and peers, and the tables of what it measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import benchmark_report
import pytest
from click.testing import CliRunner
from compiled_peers import DoesNotCompileError, compiled, time_limit, torch_peers
from machine import commit

from cupy_training_ops.device.source import families
from cupy_training_ops.planning.elementwise import ElementwiseOp
from cupy_training_ops.registry import FAMILIES, get_op, names

pytest.importorskip("cupy", reason="the cases make CuPy arrays")
from cases import Case, all_cases, chosen_cases, liger
from timing import Timing

from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.hollow import hollow, hollow_launches

LISTS = {"ConcatTraining", "InPlaceAccumulatorList", "MixedPrecisionScale", "ReduceAllL2"}
LISTS |= {"IsAllFinite", "AdamOptimizerList", "AdamWOptimizer", "GradientNorm"}
LISTS |= {"InplaceClipGradNorm", "SGDOptimizerV2"}


@pytest.mark.parametrize("family", FAMILIES)
def test_cases_are_chosen_by_family(family) -> None:
    actual = chosen_cases([family])
    assert {case.op for case in actual} <= FAMILIES[family].keys()
    assert actual == [case for case in all_cases() if case.family == family]
    alone = family in families() and family != "collective"  # which needs several processes
    assert bool(actual) == alone, f"scripts/cases/{family}.py, or MODULES of its __init__.py"


def test_cases_are_chosen_by_operator_and_label() -> None:
    assert [case.id for case in chosen_cases(["gist"], "Pack16Enc", "f4")] == [
        "GistPack16Encoder[f4]"
    ]
    assert chosen_cases([]) == all_cases()
    assert chosen_cases(["gist"], "GatherGrad") == []


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.id for case in all_cases()]
    assert len(names) == len(set(names))


def test_every_element_wise_operator_has_a_case() -> None:
    actual = {name for name in names() if issubclass(get_op(name), ElementwiseOp)}
    assert actual <= {case.op for case in all_cases()}


@pytest.mark.parametrize("case", chosen_cases(["activation"], "", "f8"), ids=lambda case: case.op)
def test_the_peers_of_activations_compute_the_same(case, rng) -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra")
    op = get_op(case.op)()
    shapes = [(8,) if item.name == op.row else (5, 8) for item in op.inputs]
    inputs = [rng.uniform(0.1, 0.9, shape) for shape in shapes]
    for peer in case.peers.values():
        if case.op == "QuickGeluGrad":
            with pytest.raises(NotImplementedError, match="PyTorch has no quick_gelu_backward"):
                peer(*inputs)
        else:
            assert_matches(peer(*inputs)().numpy(), op(*inputs))


def test_lists_are_also_called_eagerly_beside_pytorch() -> None:
    eager = [case for case in all_cases() if case.eager]
    assert {case.op for case in eager} == LISTS
    assert all(torch_peers(case) for case in eager)


def test_the_commit_is_the_one_told(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CTO_COMMIT", "told")
    assert commit() == "told"
    monkeypatch.delenv("CTO_COMMIT")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() == "unknown"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_the_commit_is_gits(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("CTO_COMMIT", raising=False)
    monkeypatch.chdir(tmp_path)
    for words in (["init"], ["commit", "--allow-empty", "-m", "first"]):
        identity = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", *identity, *words], check=True, capture_output=True)
    assert len(commit()) >= 7
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"


@pytest.fixture
def untimed(monkeypatch):
    """The benchmark where calls are made on hollow arrays, and take as many ms as there are."""
    import benchmark

    def timer(actions, eager=False):
        for action in actions:
            action()
        return Timing(float(len(actions)), 0.5, 9.5, not eager)

    def torch_timer(actions, eager=False):
        return timer(actions, eager)

    monkeypatch.setattr("cupy.random.default_rng", lambda _seed: None)
    monkeypatch.setattr(benchmark, "time_cupy", timer)
    monkeypatch.setattr(benchmark, "time_torch", torch_timer)
    monkeypatch.setattr(benchmark, "torch_version", lambda: "2")
    monkeypatch.setattr(benchmark, "compiled", lambda actions: actions[:1])
    with hollow_launches():
        yield benchmark


def absent(*_inputs):
    raise NotImplementedError("no such function")


def present(*_inputs):
    return list  # something that can be called


PEERS = {"torch": present, "torch other": absent, "cupy": present}


def scale_case(**fields):
    return Case("Scale", "f4", lambda _rng: (hollow((2**25,), "f4"), 2.0), peers=PEERS, **fields)


def test_a_case_is_measured_beside_its_peers(untimed) -> None:
    (record,) = untimed.measured(scale_case(), 2.0**28, True)
    assert (record["kind"], record["case"], record["family"]) == (
        "case",
        "Scale[f4]",
        "elementwise",
    )
    assert (record["nbytes"], record["floor_ms"], record["ms"]["median"]) == (2**28, 1.0, 2.0)
    assert {name: ms["median"] for name, ms in record["peers"].items()} == {
        "torch": 2.0, "torch, compiled": 1.0, "cupy": 2.0,
    }  # fmt: skip
    assert record["left_out"] == {"torch other": "no such function"}
    assert record["of_best_peer"] == 2.0
    json.dumps(record)


def test_what_does_not_compile_is_told(untimed, monkeypatch) -> None:
    def compiled(_actions):
        raise DoesNotCompileError("Unsupported: that")

    monkeypatch.setattr(untimed, "compiled", compiled)
    (record,) = untimed.measured(scale_case(), 1.0, True)
    assert record["left_out"]["torch, compiled"] == "Unsupported: that"
    assert record["peers"].keys() == {"torch", "cupy"}


def test_eager_calls_are_measured_beside_eager_peers(untimed) -> None:
    captured, eager = untimed.measured(scale_case(eager=True), 1.0, True)
    assert (captured["kind"], captured["ms"]["captured"]) == ("case", True)
    assert (eager["kind"], eager["ms"]["captured"]) == ("eager", False)
    assert {name: ms["captured"] for name, ms in eager["peers"].items()} == {
        "torch": False, "cupy": False,
    }  # fmt: skip


def test_peers_can_be_left_out(untimed) -> None:
    (record,) = untimed.measured(scale_case(), 1.0, False)
    assert (record["peers"], record["left_out"], record["of_best_peer"]) == ({}, {}, None)


def timing(median: float) -> dict:
    return {"median": median, "p20": median - 0.1, "p80": median + 0.1, "captured": True}


MACHINE = {
    "kind": "machine", "gpu": "G", "driver": "1.2", "cuda": 13, "cupy": "14", "torch": "2",
    "commit": "abc", "date": "2026-01-01", "copy_gb_per_s": 4000.4,
}  # fmt: skip
SCALE = {
    "kind": "case", "case": "Scale[f4]", "family": "elementwise", "floor_ms": 0.9, "aim_ms": 1.0,
    "share": 0.75, "ms": timing(1.2), "of_best_peer": 1.5, "left_out": {"torch, compiled": "graph"},
    "peers": {"torch": timing(1.0), "torch, compiled": timing(0.8)},
}  # fmt: skip
ALONE = {
    **SCALE, "case": "ReluGrad[f4]", "family": "activation", "ms": timing(0.95),
    "of_best_peer": None, "peers": {}, "left_out": {},
}  # fmt: skip
EAGER = {**SCALE, "kind": "eager", "case": "List[f4]", "of_best_peer": 1.03, "ms": timing(2.0)}


def report(tmp_path, *records, options=()) -> str:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = CliRunner().invoke(benchmark_report.main, [str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_report_has_a_row_for_each_case_and_says_what_is_left_out(tmp_path) -> None:
    lines = report(tmp_path, MACHINE, SCALE, ALONE, EAGER).splitlines()
    assert lines[0].endswith("PyTorch 2, commit abc, 2026-01-01; copy rate 4000 GB/s")
    bold = "**1.2000 (1.1000, 1.3000)**"
    assert (
        f"| Scale[f4] | 0.9000 | 1.0000 | {bold} | 75% | torch, compiled | 0.8000 | **1.50** |"
        in lines
    )
    assert "| ReluGrad[f4] | 0.9000 | 1.0000 | 0.9500 (0.8500, 1.0500) | 75% |  |  |  |" in lines
    assert "| List[f4] | 2.0000 (1.9000, 2.1000) | torch, compiled | 0.8000 | 1.03 |" in lines
    assert "* Scale[f4]: torch, compiled is left out: graph" in lines


def test_bytes_that_are_read_twice_have_a_floor_of_their_own(untimed) -> None:
    (record,) = untimed.measured(scale_case(read_again=lambda x, _: x.nbytes), 2.0**28, False)
    assert (record["floor_ms"], record["floor_again_ms"]) == (1.0, 1.5)


def test_the_report_begins_with_the_mean_and_the_worst(tmp_path) -> None:
    twice = {**ALONE, "case": "Twice[f4]", "floor_again_ms": 0.95}
    conv = {**SCALE, "case": "ConvGrad[f4]", "family": "conv", "of_best_peer": 2.0}
    lines = report(tmp_path, MACHINE, SCALE, conv, twice, EAGER).splitlines()
    mean = (1.2 / 0.9) ** 0.5  # of this and of 1
    assert f"geometric mean of 2: {mean:.3f}" in lines[2]
    assert lines[3] == "Furthest behind their best peers: ConvGrad[f4] 2.00, Scale[f4] 1.50"
    assert any(line.startswith("| Twice[f4] | 0.9000 | 0.9500 | 1.0000 |") for line in lines)


def test_the_report_of_one_family(tmp_path) -> None:
    text = report(tmp_path, MACHINE, SCALE, ALONE, EAGER, options=["--family", "activation"])
    assert "ReluGrad[f4]" in text
    assert "Scale[f4]" not in text
    assert "called eagerly" not in text


def test_liger_kernel_is_a_peer_where_it_is_importable(monkeypatch) -> None:
    actual = {case.op for case in all_cases() if "Liger" in case.peers}
    assert {"Softmax", "CrossEntropyLossAndGrad", "LayerNormalization"} <= actual
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(NotImplementedError, match="Liger-Kernel is not importable"):
        liger.softmax(None)


def test_a_time_limit_ends_what_takes_longer() -> None:
    with time_limit(60):
        pass
    with pytest.raises(TimeoutError, match=r"more than 0\.05 s"), time_limit(0.05):
        time.sleep(30)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # in PyTorch itself
def test_what_one_graph_cannot_hold_does_not_compile() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    x = torch.ones(8)

    def branching():
        return x + 1 if x.sum() > 3 else x

    with pytest.raises(DoesNotCompileError, match="Unsupported"):
        compiled([branching])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_peer_does_the_same() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    xs = [torch.full((8,), value, device="cuda") for value in (1.0, 2.0)]
    for action, x in zip(compiled([lambda x=x: x.add_(3) for x in xs]), xs, strict=True):
        before = x.clone()
        action()
        assert torch.equal(x, before + 3)

# SPDX-License-Identifier: MIT
"""Codes in both graphs of compiled models: outputs, gradients, order, and what is never encoded."""

from __future__ import annotations

import copy
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402
from torch._functorch import config, partitioners  # noqa: E402
from torch._inductor.custom_graph_pass import CustomPartitionerFn  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops.errors import ArgumentError  # noqa: E402
from cupy_training_ops.torch.graph_codes import (  # noqa: E402
    budget,
    formats,
    partition,
    plan,
    policies,
    rewrite,
)

from .compiled import MODELS, Convolutions, backend, errors, made, normal, step  # noqa: E402

MOST = {"gelu": (0.01, 0.02), "gated": (0.01, 0.02), "convolutions": (0.015, 0.03)}


def codes_of(policy="default", **settings):
    return cto.torch.activation_codes(policy, **{"least": 0} | settings)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", ["default", "wide"])
def test_gradients_are_near_and_the_loss_is_the_same(name, policy, seed):
    model, inputs = made(name, seed)
    loss, plain = step(model, inputs, None)
    codes = codes_of(policy)
    with_codes, coded = step(model, inputs, codes)
    assert torch.equal(loss, with_codes)
    actual = errors(plain, coded)
    median, worst = MOST[name]
    assert 0 < actual[len(actual) // 2] <= median
    assert actual[-1] <= worst
    report = codes.report()
    assert report["after"] < 0.65 * report["before"]


def test_swiglu_and_hand_written_norms_are_encoded(seed):
    model, inputs = made("gated", seed)
    codes = codes_of()
    step(model, inputs, codes)
    lines = [line for line in codes.report()["graphs"][0] if line["before"] >= 4 * 32 * 64 * 4]
    stays = {line["reason"] for line in lines if line["as"] == "itself"}
    assert len([line for line in lines if line["as"].startswith("int8")]) >= 8
    assert all("attention" in reason for reason in stays - {"parameter", "input", "shared"})


def test_of_a_norm_the_normalised_value_is_encoded(seed):
    """So a mean a thousand times the deviation is no matter."""
    torch.manual_seed(seed)

    class Far(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
            self.last = nn.Linear(64, 64)

        def forward(self, x, target):
            return (self.last(self.norm(self.first(x) + 1000)) * target).sum()

    model, inputs = Far().double().float(), (normal(seed, 256, 64), normal(seed + 1, 256, 64))
    _, plain = step(model, inputs, None)
    _, coded = step(model, inputs, codes_of())
    assert errors(plain, coded)[-1] <= 0.02


def test_without_codes_gradients_are_equal_to_the_bit(seed):
    model, inputs = made("gelu", seed)
    _, plain = step(model, inputs, None)
    codes = cto.torch.activation_codes(least=1 << 40)
    _, same = step(model, inputs, codes)
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    assert codes.report()["coded"] == {}


def test_saved_tensors_stand_before_symbolic_sizes(seed):
    model, (x, target) = made("gelu", seed)
    graphs = []
    _, plain = step(model, (x, target), None)
    _, coded = step(model, (x, target), codes_of(), graphs, dynamic=True)
    assert 0 < errors(plain, coded)[-1] <= 0.02
    n_sizes = 0
    for forward, backward, n_outputs in graphs:
        saved = [node.meta["val"] for node in forward.graph.output_node().args[0][n_outputs:]]
        are_sizes = [isinstance(value, torch.SymInt) for value in saved]
        n_sizes += sum(are_sizes)
        assert are_sizes == sorted(are_sizes)
        names = {node.name for node in backward.graph.find_nodes(op="placeholder")}
        outputs = forward.graph.output_node().args[0][n_outputs:]
        assert {node.name for node in outputs} <= names
        assert len(forward.graph.output_node().meta["desc"]) == n_outputs + len(outputs)
    assert n_sizes


def test_results_and_parameters_stay_as_they_are(seed):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            y = torch.relu(self.first(x))
            return self.last(y).square().sum(), y

    torch.manual_seed(seed)
    model, x = Both(), normal(seed, 64, 64)
    graphs, codes = [], codes_of()
    compiled = torch.compile(model, backend=_backend(codes, graphs))
    loss, y = compiled(x)
    assert torch.equal(y, torch.relu(model.first(x)))
    loss.backward()
    lines = {line["name"]: line for line in codes.report()["graphs"][0]}
    assert {line["reason"] for line in lines.values() if "primals" in line["name"]} <= {
        "parameter",
        "input",
    }
    assert "shared" in {line["reason"] for line in lines.values()}


def _backend(codes, graphs=None):
    from .compiled import backend

    torch._dynamo.reset()
    return backend(codes, graphs)


def test_casts_of_parameters_are_made_again(seed):
    model, inputs = made("gelu", seed)
    codes = codes_of()
    with torch.autocast("cpu", torch.bfloat16):
        _, plain = step(model, inputs, None)
        _, coded = step(model, inputs, codes)
    made_again = codes.report()["coded"]["made again"]
    assert made_again["tensors"] >= 8
    assert made_again["after"] == 0
    assert errors(plain, coded)[-1] <= 0.02


class Halved(nn.Module):
    """A product with a buffer under autocast, which is written then."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 64)
        self.register_buffer("down", torch.randn(64, 64))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = nn.functional.gelu(self.up(x)) @ self.down
        with torch.no_grad():
            self.down.mul_(0.5)
        return y.float().square().mean()


@pytest.mark.parametrize("is_in_graph", [True, False])
def test_casts_of_written_buffers_are_saved(is_in_graph, seed):
    """A cast in the backward pass would read what is written; Inductor writes in the graph."""
    gradients = []
    for codes in (None, codes_of()):
        torch._dynamo.reset()
        torch.manual_seed(seed)
        model, compiler = Halved(), backend(codes)
        compiler.kwargs["keep_inference_input_mutations"] = is_in_graph
        torch.compile(model, backend=compiler)(normal(seed, 8, 16, 64)).backward()
        gradients.append(model.up.weight.grad)
    plain, coded = gradients
    assert 0 < (coded - plain).norm() <= 0.02 * plain.norm()


class Counting(nn.Module):
    """Writes buffers, and computes with their numbers of before or after."""

    def __init__(self, reads_new):
        super().__init__()
        self.reads_new, self.up, self.down = reads_new, nn.Linear(64, 128), nn.Linear(128, 64)
        self.register_buffer("scale", torch.rand(64) + 0.5)
        self.register_buffer("mix", torch.randn(64, 64))

    def forward(self, x):
        scale, mix = self.scale, self.mix
        if not self.reads_new:
            scale, mix = scale.view(1, 64).clone(), mix.t() * 2
        with torch.no_grad():
            self.scale.mul_(0.5)
            self.mix.mul_(1.5)
        x = x + self.down(nn.functional.gelu(self.up(x)))
        x = torch.relu((x * scale) @ mix)
        return (x * torch.sigmoid(x)).square().mean()


@pytest.mark.parametrize("share", [None, 0.5, 0.1])
@pytest.mark.parametrize("is_in_graph", [True, False])
@pytest.mark.parametrize("reads_new", [True, False])
def test_nothing_is_computed_again_from_written_buffers(reads_new, is_in_graph, share, seed):
    """PyTorch's own partitioner does so, and gradients are of buffers that were written twice."""
    torch.manual_seed(seed)
    model, x = Counting(reads_new), normal(seed, 8, 16, 64)
    eager, codes = copy.deepcopy(model), codes_of(budget=share)
    eager(x).backward()
    torch._dynamo.reset()
    compiler = backend(codes)
    compiler.kwargs["keep_inference_input_mutations"] = is_in_graph
    torch.compile(model, backend=compiler)(x).backward()
    for one, other in zip(eager.parameters(), model.parameters(), strict=True):
        assert (other.grad - one.grad).norm() <= 0.03 * one.grad.norm()
    assert torch.equal(eager.mix, model.mix)
    assert codes.report()["coded"]


@pytest.mark.parametrize("name", ["gelu", "gated"])
def test_what_follows_from_codes_is_computed_again(name, seed):
    """Of a layer only the operands of GELU or of the gate wait, not its result too."""
    model, inputs = made(name, seed)
    codes = codes_of()
    step(model, inputs, codes)
    lines = codes.report()["graphs"][0]
    hidden = 4 * 32 * 128 * 4
    coded = [line for line in lines if line["before"] == hidden and line["as"] == "int8"]
    again = [line for line in lines if line["before"] == hidden and line["as"] == "made again"]
    assert len(coded) == (2 if name == "gelu" else 4)
    assert len(again) == 2


class Attention(nn.Module):
    """Attention whose keys, queries and values may have means far from 0, and a head."""

    def __init__(self, mean):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.head = nn.Linear(64, 256, bias=False)
        with torch.no_grad():
            self.qkv.bias.normal_().mul_(mean)

    def forward(self, x, target):
        heads = [t.unflatten(-1, (2, 32)).transpose(1, 2) for t in self.qkv(x).chunk(3, 2)]
        y = nn.functional.scaled_dot_product_attention(*(t.contiguous() for t in heads))
        y = self.head(x + self.out(y.transpose(1, 2).flatten(2)))
        return nn.functional.cross_entropy(y.float().flatten(0, 1), target)


def _attention(seed, mean=0.0):
    torch.manual_seed(seed)
    target = torch.randint(256, (256,), generator=torch.Generator().manual_seed(seed))
    return Attention(mean).bfloat16(), (normal(seed, 2, 128, 64).bfloat16(), target)


@pytest.mark.parametrize("policy", ["default", "wide"])
def test_operands_of_attention_are_centred(policy, seed):
    """Values ten deviations from 0 are as near as others: the error is that of the distances."""
    model, inputs = _attention(seed, mean=3.0)
    with torch.no_grad():
        model.qkv.bias[:128] = 0
    _, plain = step(model, inputs, None)
    codes = codes_of(policy)
    _, coded = step(model, inputs, codes)
    assert 0 < errors(plain, coded)[-1] <= 0.03
    lines = [line for line in codes.report()["graphs"][0] if "attention" in line["reason"]]
    centred = [line for line in lines if line["as"] == "int8_centred"]
    assert len(centred) == (4 if policy == "wide" else 2)
    stays = [line for line in lines if line["as"] == "itself" and line["before"] == 2 * 128 * 128]
    assert len(stays) == (0 if policy == "wide" else 2)
    assert all(line["after"] == line["before"] * 8.5 / 16 + 2 * 64 * 4 for line in centred)


def test_operands_of_attention_in_float32_stay(seed):
    model, (x, target) = _attention(seed)
    codes = codes_of()
    step(model.float(), (x.float(), target), codes)
    assert "int8_centred" not in codes.report()["coded"]


@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_codes_are_smaller_than_values_of_few_tokens(tokens, seed):
    """A centre in float32 for each feature is more than codes spare where tokens are few."""
    model, (x, target) = _attention(seed)
    codes = codes_of("wide")
    step(model, (x[:, :tokens], target[: 2 * tokens]), codes)
    report = codes.report()
    assert ("int8_centred" in report["coded"]) == (tokens == 5)
    lines = [line for graph in report["graphs"] for line in graph if line["as"] != "itself"]
    assert all(line["after"] < line["before"] for line in lines)


def test_any_centre_is_right_and_none_is_farther_off(monkeypatch, seed):
    model, inputs = _attention(seed, mean=3.0)
    with torch.no_grad():
        model.qkv.bias[:128] = 0
    _, plain = step(model, inputs, None)
    monkeypatch.setattr(rewrite, "centre_of", lambda x, dim: formats.centre_of(x, dim) * 0.9)
    _, near = step(model, inputs, codes_of())
    assert errors(plain, near)[-1] <= 0.03
    monkeypatch.setattr(rewrite, "centre_of", lambda x, dim: formats.centre_of(x, dim) * 0)
    _, far = step(model, inputs, codes_of())
    assert errors(plain, far)[-1] > 1.5 * errors(plain, near)[-1]


def test_a_result_of_attention_is_saved_once(seed):
    """Its copy in the layout of the next product is made again, also where it stays as it is."""
    model, (x, target) = _attention(seed)
    for dtype in (torch.bfloat16, torch.float32):
        codes = codes_of()
        step(model.to(dtype), (x.to(dtype), target), codes)
        nbytes = 2 * 128 * 64 * dtype.itemsize
        lines = [line for line in codes.report()["graphs"][0] if line["before"] == nbytes]
        again = [line for line in lines if line["as"] == "made again"]
        assert [line["reason"] for line in again] == ["computed from others"]
    _, plain = step(model, (x.float(), target), None)
    exact = codes_of(least=1 << 40)
    _, same = step(model, (x.float(), target), exact)
    assert all(torch.equal(plain[name], same[name]) for name in plain)


class Lookups(nn.Module):
    """Rows of tables, a norm and a layer."""

    def __init__(self, norm, has_places):
        super().__init__()
        self.tokens, self.norm, self.last = nn.Embedding(32, 64), norm(64), nn.Linear(64, 64)
        self.places = nn.Embedding(128, 64) if has_places else None

    def forward(self, tokens, target):
        x = self.tokens(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1]))
        return (self.last(self.norm(x)) * target).sum()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("has_places", [False, True])
def test_rows_are_looked_up_again_and_exact(norm, has_places, seed):
    """Rounded rows of one token are off by the same, which no sum over tokens evens out."""
    torch.manual_seed(seed)
    model, tokens = Lookups(norm, has_places), torch.arange(4 * 128).view(4, 128) % 32
    inputs = tokens, normal(seed, 4, 128, 64)
    _, plain = step(model, inputs, None)
    codes = codes_of()
    _, coded = step(model, inputs, codes)
    assert all(torch.allclose(plain[name], coded[name], rtol=1e-5, atol=1e-5) for name in plain)
    lines = [line for line in codes.report()["graphs"][0] if line["before"] >= 4 * 128 * 64 * 4]
    assert {line["as"] for line in lines if line["reason"] != "input"} == {"made again"}


@pytest.mark.filterwarnings("ignore")  # of checkpoint, about its future
def test_blocks_under_checkpointing(seed):
    model, inputs = made("gelu", seed)
    _, plain = step(model, inputs, None)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = model.blocks

        def forward(self, x, target):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return (x * target).sum()

    _, coded = step(Checkpointed(), inputs, codes_of())
    assert errors(plain, coded)[-1] <= 0.02


def test_graphs_without_a_backward_pass(seed):
    model, inputs = made("gelu", seed)
    with torch.no_grad():
        loss = torch.compile(model, backend=_backend(codes_of()))(*inputs)
        expected = model(*inputs)
    most = 1e-7 * inputs[1].abs().sum()  # rounding is as large as terms, the sum may be near 0
    assert abs(loss - expected) <= most


@pytest.mark.parametrize("name", ["gelu"])
def test_budgets_are_kept(name, seed):
    model, inputs = made(name, seed)
    _, plain = step(model, inputs, None)
    whole = codes_of("products")
    step(model, inputs, whole)
    before = whole.report()["before"]
    for limit in (0.7, f"{before * 0.4 / 1000:.3f}KB"):
        codes = codes_of(budget=limit)
        _, coded = step(model, inputs, codes)
        share = 0.4 if isinstance(limit, str) else limit
        assert codes.report()["after"] <= 1.001 * share * before
        assert codes.report()["before"] == before
        assert errors(plain, coded)[-1] <= 0.02


@pytest.mark.parametrize("share", [0.999, 0.7, 0.5, 0.2])
@pytest.mark.parametrize("name", ["gelu", "convolutions"])
def test_partitions_without_codes_are_those_of_pytorch(name, share, seed):
    """Saved values are PyTorch's, so that a choice among them is never worse."""
    model, inputs = made(name, seed)
    graphs, codes = [], codes_of()
    with config.patch(activation_memory_budget=share):
        step(model, inputs, None, graphs)

    def split(gm, joint_inputs, **settings):
        changed = budget._Settings()
        partitioner = budget._partitioner(changed, {})
        for each in (1.0, share):
            changed.change(activation_memory_budget=each)
            try:
                result = partitioner(gm, joint_inputs, **settings)
            except budget._SameChoiceError:
                continue
            changed.change(cse=False)
        return result

    codes["custom_partitioner_fn"] = split
    step(model, inputs, codes, graphs)
    saved = [
        [node.name for node in forward.graph.output_node().args[0][n_outputs:]]
        for forward, _, n_outputs in graphs
    ]
    assert saved[0] == saved[1]


def test_a_budget_of_pytorch_is_among_those_tried(monkeypatch, seed):
    tried = []
    original = budget._Search.attempt
    monkeypatch.setattr(
        budget._Search, "attempt", lambda search, x: [original(search, x), tried.append(x)][0]
    )
    model, inputs = made("gelu", seed)
    step(model, inputs, codes_of(budget=0.123))
    assert {1.0, 0.999} <= set(tried)
    first = tried[: next((i for i, x in enumerate(tried) if x < 0.123), len(tried))]
    assert 0.123 in tried or min(first) > 0.123  # larger ones were enough


def test_small_budgets_compute_products_again(monkeypatch, seed):
    """Scores of a head are the largest that is saved, and have no codes."""
    monkeypatch.setattr(budget, "SHARES", (1.0, 0.999))  # PyTorch's smaller ones would do it, too
    monkeypatch.setattr(budget, "LESS", ())
    model, inputs = _attention(seed)
    _, plain = step(model, inputs, None)
    whole, codes = codes_of("wide"), codes_of("wide", budget="180KB")
    step(model, inputs, whole)
    assert whole.report()["after"] > 180_000
    _, coded = step(model, inputs, codes)
    report = codes.report()
    assert report["after"] <= 180_000
    scores = [line for line in report["graphs"][0] if line["shape"] == ("256", "256")]
    assert [line["as"] for line in scores] == ["made again"]
    assert errors(plain, coded)[-1] <= 0.03


def test_other_threads_meet_the_functions_of_pytorch_while_budgets_are_tried(monkeypatch, seed):
    names = ("solve_min_cut", "estimate_runtime", "choose_saved_values_set")
    seen = []
    original = plan.Planner.plan

    def look(*arguments):
        seen.append([getattr(partitioners, name) for name in names])
        seen[-1] += [config.activation_memory_budget, config.cse]
        return original(*arguments)

    monkeypatch.setattr(plan.Planner, "plan", look)
    expected = [getattr(partitioners, name) for name in names] + [1.0, config.cse]
    model, inputs = made("gelu", seed)
    step(model, inputs, codes_of(budget=0.4))
    assert len(seen) > 1
    assert all(functions == expected for functions in seen)


def test_memory_budgets_of_pytorch_go_with_codes(seed):
    model, inputs = made("gelu", seed)
    with config.patch(activation_memory_budget=0.5):
        _, plain = step(model, inputs, None)
        _, coded = step(model, inputs, codes_of())
    assert errors(plain, coded)[-1] <= 0.02


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Inductor's own imports
def test_options_have_a_mode_and_go_with_others():
    codes = cto.torch.activation_codes(mode="max-autotune")
    assert isinstance(codes, dict)
    assert codes["triton.cudagraphs"]
    assert codes["max_autotune"]
    assert isinstance(codes["custom_partitioner_fn"], CustomPartitionerFn)
    torch.compile(nn.Linear(2, 2), options=codes | {"max_autotune": False})


@pytest.mark.parametrize(
    "settings",
    [{"policy": "best"}, {"budget": 0}, {"budget": 1.5}, {"budget": "4 apples"}, {"mode": "fast"}],
    ids=str,
)
def test_wrong_options_are_refused(settings):
    with pytest.raises(ArgumentError, match="activation_codes"):
        cto.torch.activation_codes(**settings)


def test_the_key_of_caches_has_all_settings():
    keys = [
        cto.torch.activation_codes(**settings)["custom_partitioner_fn"].uuid()
        for settings in ({}, {"policy": "wide"}, {"budget": 0.5}, {"budget": 0.4}, {"least": 1})
    ]
    assert len(set(keys)) == len(keys)
    one = cto.torch.activation_codes()["custom_partitioner_fn"]
    assert one.uuid() == cto.torch.activation_codes()["custom_partitioner_fn"].uuid()
    assert copy.deepcopy(one) is one
    other = "import cupy_training_ops as c; o = c.torch.activation_codes(budget=0.5); "
    printed = subprocess.run(
        [sys.executable, "-c", other + "print(o['custom_partitioner_fn'].uuid().hex())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == keys[2].hex()  # in every process


def test_another_pytorch_gets_its_own_graphs_and_a_warning(monkeypatch, seed):
    model, inputs = made("gelu", seed)
    _, plain = step(model, inputs, None)

    def missing(*_):
        raise AttributeError("no such attribute")

    monkeypatch.setattr(partition, "rewrite", missing)
    with pytest.warns(UserWarning, match="has no codes"):
        _, same = step(model, inputs, codes_of())
    assert all(torch.equal(plain[name], same[name]) for name in plain)


# ---- planted faults ------------------------------------------------------------------------------


def _scales_of_others(q, scale):
    return formats.decode_int8(q, scale.flip(0))


def _codes_in_another_place(q, scale):
    return formats.decode_int8(q.roll(1, 0), scale.roll(1, 0))


@pytest.mark.parametrize("fault", [_scales_of_others, _codes_in_another_place])
def test_planted_decoders_are_noticed(fault, monkeypatch, seed):
    wrong = formats.Format("int8", 8.5, 32, formats.encode_int8, fault)
    chosen = {need: wrong for need in policies.POLICIES["default"].formats}
    monkeypatch.setattr(policies, "SIGNED", {wrong: wrong})
    monkeypatch.setitem(policies.POLICIES, "default", policies.GraphPolicy("default", chosen))
    model, inputs = made("gelu", seed)
    _, plain = step(model, inputs, None)
    _, coded = step(model, inputs, codes_of())
    assert errors(plain, coded)[-1] > 0.02


def test_encoded_parameters_are_noticed(monkeypatch, seed):
    monkeypatch.setattr(plan, "_why_never", lambda *_: "")
    monkeypatch.setattr(plan, "_without_shared", lambda saved, _: saved)
    model, inputs = made("gelu", seed)
    codes = codes_of()
    step(model, inputs, codes)
    names = {line["name"] for line in codes.report()["graphs"][0] if line["as"] != "itself"}
    assert any("primals" in name for name in names)


def test_a_replaced_result_is_noticed(monkeypatch, seed):
    """Sizes of what the forward pass gives out are checked by AOTAutograd, or the loss differs."""
    model, inputs = made("gelu", seed)
    loss, _ = step(model, inputs, None)
    original = partition.rewrite

    def shifted(forward, backward, chosen, n_outputs):
        original(forward, backward, chosen, n_outputs)
        output = forward.graph.output_node()
        first = output.args[0][0]
        with forward.graph.inserting_before(output):
            other = forward.graph.call_function(torch.ops.aten.mul.Tensor, (first, 1.01))
            other.meta.update(first.meta)
        output.args = ((other, *output.args[0][1:]),)
        forward.recompile()

    monkeypatch.setattr(partition, "rewrite", shifted)
    with_fault, _ = step(model, inputs, codes_of())
    assert not torch.equal(loss, with_fault)


# ---- Inductor ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_inductor_on_the_host(seed):
    torch._dynamo.reset()
    torch.manual_seed(seed)
    model, inputs = Convolutions(), (normal(seed, 4, 3, 16, 16), normal(seed + 1, 4, 32, 8, 8))
    codes = codes_of()
    gradients = []
    for options in (None, codes):
        torch._dynamo.reset()
        model.zero_grad()
        torch.compile(model, options=options)(*inputs).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert errors(*gradients)[-1] <= 0.03
    assert codes.report()["coded"]


@pytest.mark.thorough
def test_decoded_images_have_their_channels_last(seed):
    """In another layout the gradient of a convolution copies its input."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 1), nn.ReLU()
    ).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 14, 14).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(x).square().mean()
        loss.backward()

    with torch._inductor.config.patch(force_layout_optimization=True):
        compiled = torch.compile(model, options=cto.torch.activation_codes(least=1))
        _, sources = run_and_get_code(step)
    calls = re.findall(
        r"convolution_backward.default\(.*?reinterpret_tensor\((.*?)\), 0\)", sources[-1]
    )
    strides = [tuple(map(int, re.findall(r"\d+", call.rpartition("(")[2]))) for call in calls]
    assert strides == [(32 * 144, 1, 12 * 32, 32)]

# SPDX-License-Identifier: MIT
"""Modules by PyTorch's names, and models whose modules are swapped."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import convert, nn  # noqa: E402

theirs = torch.nn
MADE = {
    "CrossEntropyLoss": {"ignore_index": 3, "reduction": "sum"},
    "Dropout": {"p": 0.25},
    "Embedding": {"num_embeddings": 9, "embedding_dim": 16, "padding_idx": 2},
    "GELU": {"approximate": "tanh"},
    "LayerNorm": {"normalized_shape": 16, "eps": 1e-3},
    "LinearCrossEntropyLoss": {"in_features": 16, "num_classes": 8, "bias": True},
    "LogSoftmax": {"dim": -1},
    "RMSNorm": {"normalized_shape": (16,)},
    "ReLU": {},
    "Softmax": {"dim": 0},
}
LACKING = [
    ("Dropout", {"p": 0.5, "inplace": True}),
    ("Embedding", {"num_embeddings": 9, "embedding_dim": 4, "max_norm": 1.0}),
    ("Embedding", {"num_embeddings": 9, "embedding_dim": 4, "sparse": True}),
    ("Embedding", {"num_embeddings": 9, "embedding_dim": 4, "scale_grad_by_freq": True}),
    ("LogSoftmax", {}),
    ("Softmax", {}),
]
FUNCTIONS = {
    "Dropout": "dropout",
    "Embedding": "embedding",
}


@pytest.fixture(autouse=True)
def _seeded(seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)


def inputs_of(name, leaf, labels):
    if name == "Embedding":
        return (labels(9, 4, 8),)
    x = leaf(8, 16, dtype=torch.float32)
    n_classes = {"CrossEntropyLoss": 16, "LinearCrossEntropyLoss": 8}.get(name)
    return (x,) if n_classes is None else (x, labels(n_classes, 8))


def test_every_module_has_a_case() -> None:
    assert set(MADE) == set(nn.__all__)


@pytest.mark.parametrize("name", MADE)
def test_a_module_is_pytorchs(leaf, labels, name) -> None:
    """By its words, its parameters, its state, and what it computes."""
    if not hasattr(theirs, name):
        pytest.skip(f"this PyTorch has no {name}")
    expected, actual = getattr(theirs, name)(**MADE[name]), getattr(nn, name)(**MADE[name])
    assert isinstance(actual, type(expected))
    assert repr(actual) == repr(expected)
    actual.load_state_dict(expected.state_dict())
    given = inputs_of(name, leaf, labels)
    results = []
    for module in (actual, expected):
        module.eval()
        y = module(*given)
        sources = [x for x in (*given, *module.parameters()) if x.requires_grad]
        results.append([y, *torch.autograd.grad(y, sources, y.detach())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


def test_dropout_drops_in_training_alone(leaf) -> None:
    x, module = leaf(64, 64), nn.Dropout(0.5)
    assert 0.3 < (module(x) == 0).double().mean() < 0.7
    assert module.eval()(x) is x


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize(("name", "given"), LACKING)
def test_arguments_that_no_kernel_takes_are_pytorchs(leaf, labels, name, given) -> None:
    """Results and gradients are PyTorch's, and its calls are counted."""
    expected, actual = getattr(theirs, name)(**given), getattr(nn, name)(**given)
    actual.load_state_dict(expected.state_dict())
    assert repr(actual) == repr(expected)
    cto.torch.fallbacks(reset=True)
    results = []
    x, *others = inputs_of(name, leaf, labels)
    for module in (actual, expected):
        y_of = module.eval() if name == "Dropout" else module
        y = y_of(x * 1, *others)
        sources = [s for s in (x, *module.parameters()) if s.requires_grad]
        results.append([y, *[dx.to_dense() for dx in torch.autograd.grad(y.sum(), sources)]])
    torch.testing.assert_close(*results)
    argument = list(given)[-1] if given else None
    expected_counts = {f"{FUNCTIONS[name]}: {argument}": 1} if argument else {}
    assert cto.torch.fallbacks() == expected_counts


def test_a_loss_in_place(leaf, labels) -> None:
    x = leaf(8, 16)
    y, target = x * 2, labels(16, 8)
    nn.CrossEntropyLoss(inplace=True)(y, target).backward()
    expected = torch.autograd.grad(theirs.CrossEntropyLoss()(x * 2, target), x)[0]
    torch.testing.assert_close(x.grad, expected)
    assert not torch.equal(y, x * 2)


@pytest.mark.parametrize("out_features", [(), (3,)])
def test_a_layer_with_its_loss(leaf, labels, out_features) -> None:
    """The loss is that of PyTorch's parts, which any version has; options are the function's."""
    x, target = leaf(8, 16), labels(5, 8, *out_features)
    target[0] = 2
    weight, named = torch.linspace(0.5, 2, 5).double(), {"ignore_index": 2, "label_smoothing": 0.1}
    layer = nn.LinearCrossEntropyLoss(
        *(16, 5),
        **named,
        out_features=out_features,
        bias=True,
        weight=weight,
        dtype=torch.float64,
        lse_square_scale=0.01,
        return_z_loss=True,
    )
    assert set(layer.state_dict()) == {"linear.weight", "linear.bias", "weight"}
    actual = layer(x, target)
    scores = layer.linear(x).view(8, 5, *out_features)
    losses = theirs.functional.cross_entropy(scores, target, weight, reduction="none", **named)
    weights = torch.where(target == 2, 0, weight[target])
    z_loss = (weights * 0.01 * scores.logsumexp(1).square()).sum() / weights.sum()
    expected = losses.sum() / weights.sum() + z_loss
    torch.testing.assert_close(actual.loss, expected)
    torch.testing.assert_close(actual.z_loss, z_loss)
    sources = x, *layer.parameters()
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, sources) for loss in (actual.loss, expected))
    )


def test_losses_say_their_options() -> None:
    options = {"softcap": 30.0, "lse_square_scale": 0.5, "return_z_loss": True}
    text = "lse_square_scale=0.5, softcap=30.0, return_z_loss=True"
    assert repr(nn.CrossEntropyLoss(**options)) == f"CrossEntropyLoss({text})"
    assert f", {text}\n" in repr(nn.LinearCrossEntropyLoss(3, 5, **options)).replace("(\n  ", ", ")
    assert repr(nn.CrossEntropyLoss()) == repr(theirs.CrossEntropyLoss())


# ---- convert -------------------------------------------------------------------------------------


class Norm(theirs.LayerNorm):
    """A subclass computes what it says."""

    def forward(self, input):
        return super().forward(input) + 1


def model():
    return theirs.Sequential(
        theirs.Embedding(9, 16),
        theirs.LayerNorm(16),
        theirs.Sequential(theirs.Linear(16, 16), theirs.GELU(), theirs.ReLU()),
        theirs.RMSNorm(16),
        Norm(16),
        theirs.Dropout(0.0),
        theirs.LogSoftmax(-1),
    )


def test_convert_says_why_it_swapped_nothing() -> None:
    network = theirs.Sequential(theirs.Conv2d(3, 4, 3), theirs.BatchNorm2d(4), theirs.ReLU())
    assert str(cto.torch.convert(network)) == (
        "swapped nothing\n"
        "left every BatchNorm2d: alone it stays PyTorch's; with the relu after it, see `also`\n"
        "left every Conv2d: no kernel of this package computes it\n"
        "left every ReLU: most models save its result anyway, for the next layer"
    )
    left = theirs.Sequential(theirs.Dropout(0.5, inplace=True))
    assert str(cto.torch.convert(left)).startswith("swapped nothing\nleft 0: Dropout")


def test_convert_says_what_it_swapped_and_what_not() -> None:
    swapped = theirs.Sequential(*model(), theirs.Softmax(), theirs.Dropout(0.5, inplace=True))
    actual = cto.torch.convert(swapped)
    assert actual.swapped == {
        "0": "Embedding",
        "1": "LayerNorm",
        "2.1": "GELU",
        "3": "RMSNorm",
        "5": "Dropout",
        "6": "LogSoftmax",
    }
    assert set(actual.left) == {"7", "8"}
    assert str(actual).splitlines() == [
        "swapped 1 Dropout, 1 Embedding, 1 GELU, 1 LayerNorm, 1 LogSoftmax, 1 RMSNorm",
        "left 7: Softmax with dim=None (expected a dimension)",
        "left 8: Dropout with inplace=True (expected False)",
        "left every Linear: no kernel of this package computes it",
        "left every Norm: a subclass of LayerNorm, which may compute something else",
        "left every ReLU: most models save its result anyway, for the next layer",
    ]
    assert [type(swapped[i]) for i in (0, 4)] == [nn.Embedding, Norm]


def test_convert_says_why_it_left_a_parametrized_module() -> None:
    model = theirs.Sequential(theirs.Embedding(4, 8))
    theirs.utils.parametrizations.weight_norm(model[0])
    left = convert(model).left_classes
    expected = "a subclass of Embedding, which may compute something else"
    assert left["ParametrizedEmbedding"] == expected


@pytest.mark.parametrize("way", ["function", "decorator", "decorator of PyTorch"])
def test_a_class_with_another_forward_pass_is_left(monkeypatch, leaf, way) -> None:
    """As libraries patch PyTorch's classes."""
    own, x = theirs.LayerNorm.forward, leaf(3, 8)

    def doubled(self, input):
        return 2 * own(self, input)

    others = {
        "function": doubled,
        "decorator": functools.wraps(own)(doubled),
        "decorator of PyTorch": torch.no_grad()(own),
    }
    monkeypatch.setattr(theirs.LayerNorm, "forward", others[way])
    left = theirs.Sequential(theirs.LayerNorm(8), theirs.GELU()).double()
    expected = left(x)
    result = convert(left)
    assert result.left == {"0": "another forward pass was put into the class LayerNorm"}
    assert result.swapped == {"1": "GELU"}
    torch.testing.assert_close(left(x), expected)


def test_a_module_with_a_forward_pass_of_its_own_is_left(leaf) -> None:
    """As libraries put hooks into modules."""
    x = leaf(3, 8)
    left = theirs.Sequential(theirs.LayerNorm(8), theirs.GELU()).double()
    own = left[0].forward
    left[0].forward = lambda input: 2 * own(input)
    expected = left(x)
    result = convert(left)
    assert result.left == {"0": "another forward pass was put into the module"}
    assert result.swapped == {"1": "GELU"}
    torch.testing.assert_close(left(x), expected)


def test_a_loss_against_probabilities_is_pytorchs(leaf) -> None:
    """As of mixed images: who converts a model does not know its labels."""
    scores, target = leaf(4, 6), leaf(4, 6, gradients=False).softmax(1)
    loss = theirs.CrossEntropyLoss(reduction="sum")
    expected = loss(scores, target)
    convert(loss)
    cto.torch.fallbacks(reset=True)
    torch.testing.assert_close(loss(scores, target), expected)
    assert not cto.torch.fallbacks()


def test_convert_leaves_what_it_is_told_to() -> None:
    swapped = model()
    actual = convert(swapped, skip=("Dropout", "GELU"))
    assert set(actual.swapped.values()) == {"Embedding", "LayerNorm", "RMSNorm", "LogSoftmax"}
    assert not actual.left
    assert actual.left_classes["Dropout"] == actual.left_classes["GELU"] == "named in skip"
    assert type(swapped[5]) is theirs.Dropout
    for skip in ("Dropout", ("ReLU",)):
        with pytest.raises(ArgumentError, match="convert: skip: expected names of CrossEntropyLo"):
            convert(model(), skip=skip)


def test_a_converted_model_is_as_before(labels) -> None:
    """Results and gradients, parameters, hooks, state; a second time nothing is left to do."""
    before, seen = model(), []
    converted = copy.deepcopy(before)
    converted[1].register_forward_hook(lambda *_: seen.append(1))
    parameters = list(converted.parameters())
    convert(converted)
    assert all(a is b for a, b in zip(converted.parameters(), parameters, strict=True))
    assert converted.state_dict().keys() == before.state_dict().keys()
    target, indices = labels(16, 7), labels(9, 7)
    results = []
    for network in (before, converted):
        loss = theirs.functional.nll_loss(network(indices), target)
        results.append([loss, *torch.autograd.grad(loss, list(network.parameters()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)
    assert seen == [1]
    again = convert(converted)
    assert not again.swapped
    assert set(again.left_classes) == {"Linear", "Norm", "ReLU"}


def test_undo_puts_all_back(labels) -> None:
    """Parameters and what they were trained to stay; a second time nothing is left to do."""
    network, other = model(), theirs.CrossEntropyLoss(label_smoothing=0.1)
    whole = theirs.ModuleDict({"model": network, "loss": other})
    before, parameters = [type(m) for m in whole.modules()], list(whole.parameters())
    actual = convert(whole)
    assert type(other) is nn.CrossEntropyLoss
    expected = network(labels(9, 7))
    for _ in range(2):
        actual.undo()
        assert [type(m) for m in whole.modules()] == before
    assert all(a is b for a, b in zip(whole.parameters(), parameters, strict=True))
    assert convert(whole).swapped == actual.swapped
    assert expected.shape == (7, 16)


def test_undo_leaves_a_class_that_a_module_got_since() -> None:
    """The class of a parametrization computes the weight: without it the module has none."""
    model, x = theirs.Sequential(theirs.LayerNorm(8), theirs.GELU()), torch.randn(2, 8)
    conversion = convert(model)
    theirs.utils.parametrize.register_parametrization(model[0], "weight", theirs.Softplus())
    expected = model(x)
    with pytest.raises(ArgumentError, match=r"undo: 0: .* a ParametrizedLayerNorm"):
        conversion.undo()
    assert type(model[1]) is nn.GELU
    assert torch.equal(model(x), expected)
    theirs.utils.parametrize.remove_parametrizations(model[0], "weight")
    conversion.undo()
    assert [type(each) for each in model] == [theirs.LayerNorm, theirs.GELU]
    torch.testing.assert_close(model(x), expected)


def test_a_converted_model_is_copied_and_pickled() -> None:
    converted = model()[:4]
    convert(converted)
    for again in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert type(again[1]) is nn.LayerNorm
        assert torch.equal(again(torch.tensor([3])), converted(torch.tensor([3])))


def test_a_converted_model_under_autocast() -> None:
    """Norms have the type of their parameters, as PyTorch's have under autocast."""
    converted = theirs.Sequential(theirs.Linear(16, 16), theirs.LayerNorm(16))
    expected = copy.deepcopy(converted)
    convert(converted)
    with torch.autocast("cpu", torch.bfloat16):
        actual, wanted = (network(torch.ones(4, 16)) for network in (converted, expected))
    torch.testing.assert_close(actual, wanted.to(actual.dtype), atol=3e-2, rtol=3e-2)


def test_layouts_stay_as_pytorchs(leaf) -> None:
    """A result that is transposed back is contiguous again, and channels last stay last."""
    row = leaf(2, 6, 8, dtype=torch.float32).detach().requires_grad_()
    images = leaf(2, 3, 4, 5, dtype=torch.float32).detach()
    inputs = {
        "transposed": row.transpose(1, 2),
        "last": images.to(memory_format=torch.channels_last).requires_grad_(),
        "gaps": images[..., ::2].transpose(1, 2).requires_grad_(),
        "in order": images.clone().requires_grad_(),
    }
    for way, x in inputs.items():
        for name, module in (("GELU", nn.GELU()), ("Dropout", nn.Dropout()), ("ReLU", nn.ReLU())):
            plain = getattr(theirs, name)()
            y, expected = module(x), plain(x)
            if way != "gaps":
                assert y.stride() == expected.stride(), (name, way)
            if name == "Dropout":
                (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
                torch.testing.assert_close(y, x * dx)  # where x is 0, both are
                assert set(dx.unique().tolist()) <= {0.0, 2.0}
                continue
            torch.testing.assert_close(y, expected)
            dy = torch.rand_like(y)
            actual, wanted = (torch.autograd.grad(each, x, dy)[0] for each in (y, expected))
            torch.testing.assert_close(actual, wanted)
    assert nn.GELU()(inputs["transposed"]).transpose(1, 2).view(12, 8).shape == (12, 8)


NORMS = [  # of types that PyTorch takes together on a CPU: names, types of input and weight
    ("LayerNorm", torch.bfloat16, torch.float32),
    ("RMSNorm", torch.bfloat16, torch.float32),
    ("RMSNorm", torch.float32, torch.bfloat16),
]


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(("name", "kind", "kind_of_weight"), NORMS)
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_a_norm_of_two_types_has_its_inputs(leaf, name, kind, kind_of_weight, compiles) -> None:
    """As norms of float32 in a model of 16 bits, whose next layer takes these alone."""
    plain = getattr(theirs, name)(16, dtype=kind_of_weight)
    converted = copy.deepcopy(plain)
    convert(converted)
    x = leaf(8, 16, dtype=kind)
    actual = (torch.compile(converted, backend="aot_eager") if compiles else converted)(x)
    assert actual.dtype == plain(x).dtype == kind
    bound = {"atol": 1e-2, "rtol": 1e-2}
    torch.testing.assert_close(actual, plain(x), **bound)
    dy = torch.rand_like(x)
    gradients = (
        torch.autograd.grad(y, (x, norm.weight), dy)
        for y, norm in ((actual, converted), (plain(x), plain))
    )
    for a, b in zip(*gradients, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=5e-2, rtol=5e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert converted(x).dtype == kind_of_weight  # as PyTorch's on a GPU, if that is float32


@pytest.mark.filterwarnings("ignore")
def test_a_converted_model_is_compiled_and_exported(labels) -> None:
    converted, indices = model(), labels(9, 7)
    convert(converted)
    compiled = torch.compile(converted, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(indices), converted(indices))
    exported = torch.export.export(converted, (indices,), strict=False)
    torch.testing.assert_close(exported.module()(indices), converted(indices))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("autocast", [False, True])
def test_compilers_are_left_what_they_fuse(leaf, labels, autocast) -> None:
    """With results as they are elsewhere; losses and embeddings are ours there, too."""
    names = []

    def noting(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if "call" in node.op)
        return graph.forward

    x = leaf(8, 16, dtype=torch.bfloat16 if autocast else torch.float32)
    for name in MADE:
        names.clear()
        module = getattr(nn, name)(**MADE[name]).eval()
        given = inputs_of(name, leaf, labels)
        given = given if given[0].dtype == torch.int64 else (x.detach(), *given[1:])
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            actual = torch.compile(module, fullgraph=True, backend=noting)(*given)
            expected = module(*given)
        assert actual.dtype == expected.dtype, name
        torch.testing.assert_close(actual, expected, atol=2e-2, rtol=2e-2)
        is_ours = any("cto" in called for called in names)
        assert is_ours == (name.endswith("CrossEntropyLoss") or name == "Embedding"), (name, names)


def rms_norm_of(module_name: str, name: str, **named: float):
    """A module of the form that transformers gives its RMS norms."""

    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(hidden_states.dtype)

    forward.__module__, forward.__qualname__ = module_name, f"{name}.forward"  # as in a class body
    made = type(name, (theirs.Module,), {"forward": forward, "__module__": module_name})()
    made.weight = theirs.Parameter(torch.rand(16) + 0.5)
    vars(made).update(named)
    return made


def test_rms_norms_of_transformers_are_swapped(leaf, monkeypatch) -> None:
    x = leaf(8, 16, dtype=torch.float32)
    norm = rms_norm_of(
        "transformers.models.llama.modeling_llama", "LlamaRMSNorm", variance_epsilon=1e-6
    )
    cls, expected = type(norm), norm(x)
    actual = convert(norm)
    assert actual.swapped == {"": "LlamaRMSNorm"}
    assert str(convert(norm)) == "swapped nothing"
    actual.undo()
    assert type(norm) is cls
    convert(norm)
    assert isinstance(norm, cls)
    torch.testing.assert_close(norm(x), expected)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")  # theirs, again
    torch.testing.assert_close(compiled(x), expected)
    others = (
        rms_norm_of("mine", "LlamaRMSNorm", variance_epsilon=1e-6),
        rms_norm_of("transformers.models.olmo.modeling_olmo", "OlmoRMSNorm", eps=1e-6),
    )
    for other in others:
        left = convert(other)
        assert not left.swapped
        assert set(left.left_classes.values()) == {"not of the form of transformers' RMS norms"}
    for name in ("transformers", cls.__module__):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(LlamaRMSNorm=cls))
    for again in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert type(again) is type(norm)
        assert torch.equal(again(x), norm(x))


def test_a_pass_that_was_put_into_a_class_before_its_module_is_unpickled_runs(
    leaf, monkeypatch
) -> None:
    name, x = "transformers.models.llama.modeling_llama", leaf(8, 16, dtype=torch.float32)
    norm = rms_norm_of(name, "LlamaRMSNorm", variance_epsilon=1e-6)
    of_another_process = SimpleNamespace(LlamaRMSNorm=type(rms_norm_of(name, "LlamaRMSNorm")))
    of_another_process.LlamaRMSNorm.forward = lambda self, x: 2 * self.weight * x
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(LlamaRMSNorm=type(norm)))
    convert(norm)
    pickled = pickle.dumps(norm)
    monkeypatch.setitem(sys.modules, name, of_another_process)
    assert torch.equal(pickle.loads(pickled)(x), 2 * norm.weight * x)

# SPDX-License-Identifier: MIT
"""Language models of transformers, converted, beside the models as they were."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import io
import pickle
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("torch.utils.checkpoint")
transformers = pytest.importorskip("transformers", reason="transformers is in no extra")

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import convert, functional, language_models  # noqa: E402

F = torch.nn.functional
checkpoint = torch.utils.checkpoint.checkpoint
CLASSES = 37
SMALL = {
    "vocab_size": CLASSES,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
}
GPT2 = {"vocab_size": CLASSES, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5 = {"vocab_size": CLASSES, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
# The class, its configuration, and what convert swaps beside the model: norms, layers, gelus.
MODELS = {
    "gemma": ("GemmaForCausalLM", SMALL),
    "gemma2": ("Gemma2ForCausalLM", SMALL | {"final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3ForCausalLM", SMALL | {"final_logit_softcapping": 2.0}),
    "llama": ("LlamaForCausalLM", SMALL),
    "mistral": ("MistralForCausalLM", SMALL),
    "phi3": ("Phi3ForCausalLM", SMALL),
    "qwen2": ("Qwen2ForCausalLM", SMALL),
    "qwen3": ("Qwen3ForCausalLM", SMALL | {"tie_word_embeddings": True}),
    "gpt2": (
        "GPT2LMHeadModel",
        GPT2 | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "bert": ("BertForMaskedLM", SMALL | NO_DROPOUT),
    "t5": (
        "T5ForConditionalGeneration",
        T5 | {"dropout_rate": 0.0, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0},
    ),
}
WITHOUT_EFFECT = ("key.bias", "k_proj.bias")  # softmax is the same where all scores are moved
families = pytest.mark.parametrize("family", MODELS)


@pytest.fixture(autouse=True)
def _seeded(seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)


def model_of(family: str, dtype=torch.float64, **changes):
    """A small model in training, with parameters that are far from 0 and from 1."""
    name, named = MODELS[family]
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**named | changes)).to(dtype).train()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def inputs_of(family: str, labels):
    """Words and labels, of which some are ignored; more of these for a decoder of its own."""
    words, wanted = labels(CLASSES, 3, 9), labels(CLASSES, 3, 7 if family == "t5" else 9)
    wanted[1, 2:6] = -100
    mask = torch.ones_like(words)
    mask[0, 7:] = 0
    return {"input_ids": words, "attention_mask": mask, "labels": wanted}


def shifted(family: str, wanted):
    """Labels as losses of rows take them: the next word's, but of BERT and T5."""
    if family in ("bert", "t5"):
        return wanted
    return F.pad(wanted, (0, 1), value=-100)[..., 1:]


def plain_loss(family: str, model, inputs, reduction="mean"):
    """The loss in the model's own type: transformers compute it in float32."""
    target = shifted(family, inputs["labels"]).reshape(-1)
    given = {name: value for name, value in inputs.items() if name != "labels"}
    if family == "t5":
        given["decoder_input_ids"] = model._shift_right(inputs["labels"])
    scores = model(**given).logits
    return F.cross_entropy(scores.reshape(-1, CLASSES), target, reduction=reduction)


def gradients(model, loss):
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, [*named.values()]), strict=True))


@families
def test_loss_and_gradients_are_those_of_the_model(labels, family) -> None:
    """In float64, beside PyTorch's loss of the scores; norms of theirs are float32.

    T5's are made float64, as its scores have no scale, and so enlarge what those round.
    """
    model, inputs = model_of(family), inputs_of(family, labels)
    converted = copy.deepcopy(model)
    for module in model.modules():
        if type(module).__name__ == "T5LayerNorm":
            named = {"weight": module.weight, "eps": module.variance_epsilon}
            module.forward = functools.partial(
                F.rms_norm, normalized_shape=module.weight.shape, **named
            )
    swapped = set(convert(converted).swapped.values())
    assert type(model).__name__ in swapped
    result = converted(**inputs)
    assert result.logits is None
    is_wide = family in ("bert", "t5")  # transformers compute other losses in float32
    assert result.loss.dtype == (torch.float64 if is_wide else torch.float32)
    expected = plain_loss(family, model, inputs)
    torch.testing.assert_close(result.loss.double(), expected, atol=1e-6, rtol=1e-6)
    actual, wanted = gradients(converted, result.loss), gradients(model, expected)
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 1e-4 or name.endswith(WITHOUT_EFFECT), name
        torch.testing.assert_close(actual[name], gradient, atol=1e-5, rtol=1e-5, msg=name)


def assert_same(converted, model, inputs, **named) -> None:
    """Losses and gradients of both models are the same in float32."""
    actual, expected = converted(**inputs, **named), model(**inputs, **named)
    assert actual.logits is None
    assert actual.loss.dtype == expected.loss.dtype
    torch.testing.assert_close(actual.loss, expected.loss, atol=2e-5, rtol=2e-5)
    wanted = gradients(model, expected.loss)
    for name, gradient in gradients(converted, actual.loss).items():
        torch.testing.assert_close(gradient, wanted[name], atol=5e-5, rtol=5e-5, msg=name)


def pair_of(family: str, dtype=torch.float32, **changes):
    """A model, and a converted copy."""
    model = model_of(family, dtype, **changes)
    converted = copy.deepcopy(model)
    convert(converted)
    return converted, model


@families
def test_items_of_a_batch_are_counted_as_transformers_count_them(labels, family) -> None:
    """As its Trainer passes them where it accumulates gradients; BERT and T5 ignore them."""
    converted, model = pair_of(family)
    inputs = inputs_of(family, labels)
    assert_same(converted, model, inputs, num_items_in_batch=torch.tensor(31))
    if family == "llama":
        assert_same(converted, model, inputs, num_items_in_batch=31)
        parts = [{name: x[i : i + 1] for name, x in inputs.items()} for i in range(3)]
        n_items = (shifted(family, inputs["labels"]) != -100).sum()
        total = sum(converted(**part, num_items_in_batch=n_items).loss for part in parts)
        torch.testing.assert_close(total, model(**inputs).loss, atol=2e-5, rtol=2e-5)


def test_arguments_of_the_loss_are_transformers(labels) -> None:
    converted, model = pair_of("llama")
    inputs = inputs_of("llama", labels)
    assert_same(converted, model, inputs, shift_labels=labels(CLASSES, 3, 9))
    for each in (converted, model):
        each.config.final_logit_softcapping = 0.1  # which is Gemma's alone
    inputs["labels"][inputs["labels"] == -100] = 5
    assert_same(converted, model, inputs, ignore_index=5)


def test_an_index_to_ignore_that_is_none_is_refused_as_by_transformers(labels) -> None:
    """Labels that are shifted would end in 0, which counts."""
    converted, _ = pair_of("llama")
    with pytest.raises(TypeError, match="ignore_index: expected an integer, got None"):
        converted(**inputs_of("llama", labels), ignore_index=None)


def test_a_batch_without_labels_that_count(labels) -> None:
    """A mean of no rows is 0 here, NaN there; shares of a batch are 0 in both."""
    converted, model = pair_of("llama")
    inputs = inputs_of("llama", labels)
    inputs["labels"].fill_(-100)
    assert converted(**inputs).loss == 0
    assert model(**inputs).loss.isnan()
    assert_same(converted, model, inputs, num_items_in_batch=torch.tensor(4))


@pytest.mark.parametrize("way", ["half model", "autocast"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "t5", "bert"])
def test_losses_of_16_bits_are_float32_as_transformers(labels, family, way) -> None:
    """But those of BERT and T5, which their own code leaves in 16 bits."""
    is_half = way == "half model"
    converted, model = pair_of(family, torch.bfloat16 if is_half else torch.float32)
    inputs = inputs_of(family, labels)
    with torch.autocast("cpu", torch.bfloat16, enabled=not is_half):
        actual, expected = (each(**inputs).loss for each in (converted, model))
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=0.1, rtol=0.05)
    actual.backward()
    assert all(p.grad.isfinite().all() for p in converted.parameters())


def test_scores_where_they_are_wanted(labels) -> None:
    """In evaluation, without labels, and where one asks for them; with the loss beside them."""
    converted, model = pair_of("gemma2")
    inputs = inputs_of("gemma2", labels)
    words = {name: x for name, x in inputs.items() if name != "labels"}
    expected = model(**inputs)
    for result in (converted(**inputs, skip_logits=False), converted.eval()(**inputs)):
        torch.testing.assert_close(result.logits, expected.logits, atol=5e-5, rtol=5e-5)
        torch.testing.assert_close(result.loss, expected.loss, atol=2e-5, rtol=2e-5)
    assert converted(**inputs, skip_logits=True).logits is None
    assert converted.train()(**words).logits is not None
    assert converted(**words, skip_logits=True).loss is None


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "t5"])
def test_results_have_what_transformers_have_in_them(labels, family) -> None:
    """All but scores, as an object and as a tuple, from arguments by position too."""
    converted, model = pair_of(family, use_cache=True)
    inputs = inputs_of(family, labels)
    named = inputs | {"output_hidden_states": True, "output_attentions": True}
    actual, expected = converted(**named), model(**named)
    assert type(actual) is type(expected)
    assert [*actual] == [name for name in expected if name != "logits"]
    kinds = [type(value) for name, value in expected.items() if name != "logits"]
    assert [*map(type, actual.to_tuple())] == kinds
    for name in ("hidden_states", "encoder_hidden_states", "decoder_hidden_states"):
        for a, b in zip(actual.get(name) or (), expected.get(name) or (), strict=True):
            torch.testing.assert_close(a, b, atol=5e-5, rtol=5e-5)
    as_tuple = converted(**named, return_dict=False)
    assert [*map(type, as_tuple)] == [kinds[0], type(None), *kinds[1:]]  # None for the scores
    words = inputs["input_ids"]
    if family == "t5":
        by_place = converted(words, inputs["attention_mask"], labels=inputs["labels"])
    else:
        by_place = converted(words, attention_mask=inputs["attention_mask"], labels=words)
    assert by_place.loss.isfinite()
    converted.config.return_dict = False
    assert isinstance(converted(**inputs), tuple)


def test_t5_from_parts(labels) -> None:
    """The encoder's result is passed as an object or as a tuple, with the decoder's words."""
    converted, model = pair_of("t5")
    inputs = inputs_of("t5", labels)
    encoded = model.encoder(input_ids=inputs.pop("input_ids")).last_hidden_state.detach()
    states = encoded * 2
    for outputs in (
        (encoded,),
        (encoded, (states,)),
        transformers.modeling_outputs.BaseModelOutput(encoded, (states,)),
    ):
        actual, expected = (each(**inputs, encoder_outputs=outputs) for each in (converted, model))
        torch.testing.assert_close(actual.loss, expected.loss, atol=2e-5, rtol=2e-5)
        assert [*actual] == [name for name in expected if name != "logits"]
    other = {"decoder_input_ids": labels(CLASSES, 3, 7), "input_ids": labels(CLASSES, 3, 9)}
    assert_same(converted, model, inputs | other)


class Halved(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2


def other_loss(logits, labels, vocab_size, **_):
    return 2 * F.cross_entropy(logits.reshape(-1, vocab_size), labels.reshape(-1))


def with_hook(model):
    model.lm_head.register_forward_hook(lambda *_: _[2] * 2)


def with_other_head(model):
    model.lm_head.__class__ = Halved


def with_other_loss(model):
    model.loss_function = other_loss


def with_replaced_pass(model):
    model.lm_head.forward = lambda x: F.linear(x, model.lm_head.weight) * 3


class Negated(torch.nn.Module):
    """A weight that is computed; counts how often."""

    times = 0

    def forward(self, weight):
        self.times += 1
        return -weight


def with_computed_weight(model):
    torch.nn.utils.parametrize.register_parametrization(model.lm_head, "weight", Negated())


OTHERS = {
    "head": (with_hook, with_other_head, with_replaced_pass, with_computed_weight),
    "loss_function": (with_other_loss,),
}


@pytest.mark.parametrize("change", [each for group in OTHERS.values() for each in group])
def test_other_heads_and_losses_are_computed_as_they_are(labels, change) -> None:
    """Adapters, hooks, own losses: with their scores, and counted."""
    converted, model = pair_of("llama")
    for each in (converted, model):
        change(each)
    inputs = inputs_of("llama", labels)
    cto.torch.fallbacks(reset=True)
    actual, expected = converted(**inputs), model(**inputs)
    torch.testing.assert_close(actual.loss, expected.loss, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(actual.logits, expected.logits, atol=5e-5, rtol=5e-5)
    argument = next(name for name, group in OTHERS.items() if change in group)
    assert cto.torch.fallbacks() == {f"LlamaForCausalLM: {argument}": 1}


def test_a_part_of_the_scores_is_computed_by_transformers(labels) -> None:
    converted, model = pair_of("llama")
    inputs = inputs_of("llama", labels)
    inputs["labels"] = inputs["labels"][:, -4:]
    actual, expected = (each(**inputs, logits_to_keep=4) for each in (converted, model))
    torch.testing.assert_close(actual.loss, expected.loss, atol=2e-5, rtol=2e-5)
    assert actual.logits.shape == expected.logits.shape == (3, 4, CLASSES)


# ---- the model as an object ----------------------------------------------------------------------


@families
def test_undo_and_a_second_time(family) -> None:
    """Classes, parameters and keys are as before; a second time nothing is left to do."""
    model = model_of(family)
    kinds, parameters = [type(m) for m in model.modules()], [*model.parameters()]
    keys = [*model.state_dict()]
    conversion = convert(model)
    assert str(convert(model)).startswith("swapped nothing")
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert [*model.state_dict()] == keys
    assert [type(m).__name__ for m in model.modules()] == [kind.__name__ for kind in kinds]
    conversion.undo()
    assert [type(m) for m in model.modules()] == kinds
    assert convert(model).swapped == conversion.swapped


@families
def test_what_is_swapped_and_what_is_left(family) -> None:
    """Whole models, norms, gated layers, gelus; each class that is left has a reason."""
    model = model_of(family)
    conversion = convert(model)
    names = {type(m).__name__ for m in model.modules() if next(m.children(), None) is None}
    whole, gated = MODELS[family][0], family not in ("gpt2", "bert")
    assert conversion.swapped[""] == whole
    swapped = set(conversion.swapped.values())
    assert any("Norm" in name for name in swapped)
    assert any("MLP" in name or "Gated" in name for name in swapped) == gated
    assert names <= swapped | set(conversion.left_classes), names


def test_a_converted_model_is_copied_pickled_and_saved(labels, tmp_path) -> None:
    converted, _ = pair_of("gemma2")
    inputs = inputs_of("gemma2", labels)
    expected = converted(**inputs).loss
    buffer = io.BytesIO()
    torch.save(converted, buffer)
    buffer.seek(0)
    converted.save_pretrained(tmp_path)
    again = type(converted).from_pretrained(tmp_path, dtype=torch.float32).train()
    assert again.config.architectures == ["Gemma2ForCausalLM"]
    assert again(**inputs).loss.isclose(expected)
    for other in (
        copy.deepcopy(converted),
        pickle.loads(pickle.dumps(converted)),
        torch.load(buffer, weights_only=False),
    ):
        assert [type(m) for m in other.modules()] == [type(m) for m in converted.modules()]
        result = other(**inputs)
        assert result.logits is None
        assert torch.equal(result.loss, expected)


def test_generation_is_the_same(labels) -> None:
    converted, model = pair_of("llama")
    words = labels(CLASSES, 2, 5)
    given = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(words)}
    actual, expected = (each.eval().generate(words, **given) for each in (converted, model))
    assert torch.equal(actual, expected)


def test_a_checkpointed_model(labels) -> None:
    converted, model = pair_of("llama")
    for each in (converted, model):
        for layer in each.model.layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False)
    assert_same(converted, model, inputs_of("llama", labels))


def test_skip_names_models_and_their_layers() -> None:
    model = model_of("llama")
    conversion = convert(model, skip=("LlamaForCausalLM", "LlamaMLP", "LlamaRMSNorm"))
    assert set(conversion.swapped.values()) == {"Embedding"}
    assert conversion.left_classes["LlamaForCausalLM"] == "named in skip"
    assert type(model) is transformers.LlamaForCausalLM


def test_signatures_are_those_that_loops_look_up() -> None:
    """transformers' Trainer drops columns that no argument names."""
    import inspect

    converted, model = pair_of("llama")
    assert inspect.signature(converted.forward) == inspect.signature(model.forward)
    assert type(converted).__module__ == type(model).__module__
    assert isinstance(converted, type(model))


def test_models_whose_forward_pass_is_not_known_are_left_with_words() -> None:
    config = transformers.OPTConfig(
        vocab_size=CLASSES, hidden_size=16, ffn_dim=24, num_hidden_layers=1, num_attention_heads=2
    )
    conversion = convert(transformers.OPTForCausalLM(config))
    assert conversion.left[""].startswith("head and loss stay apart: none of the models")
    assert "Embedding" in conversion.swapped.values()


# ---- gated layers --------------------------------------------------------------------------------


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names.append(str(function))
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("model", ["phi3.Phi3", "glm.Glm", "glm4.Glm4"])
def test_gates_and_values_of_one_layer_are_not_copied(monkeypatch, model) -> None:
    """Halves of rows go to one kernel, their gradient comes from one; other gates stay apart."""
    home, name = model.split(".")
    models = importlib.import_module(f"transformers.models.{home}.modeling_{home}")
    cls = getattr(models, f"{name}MLP")
    config = types.SimpleNamespace(hidden_size=6, intermediate_size=5, hidden_act="silu")
    layer = cls(config).double()
    converted = copy.deepcopy(layer)
    conversion = convert(converted)
    assert conversion.swapped == {"": f"{name}MLP"}
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    calls, ours = [], functional.swiglu_halves
    monkeypatch.setattr(functional, "swiglu_halves", lambda x: calls.append(x.shape) or ours(x))
    expected, actual = layer(x), converted(x)
    torch.testing.assert_close(actual, expected)
    leaves = [
        torch.autograd.grad(y.square().sum(), (x, *m.parameters()), retain_graph=True)
        for y, m in ((actual, converted), (expected, layer))
    ]
    torch.testing.assert_close(*leaves)
    with Calls() as seen:
        torch.autograd.grad(actual.sum(), x)
    assert not any("cat" in each or "copy" in each or "clone" in each for each in seen.names)
    assert calls == [(2, 3, 10)]
    converted.activation_fn = torch.nn.Tanh()
    layer.activation_fn = torch.nn.Tanh()
    torch.testing.assert_close(converted(x), layer(x))
    conversion.undo()
    assert type(converted) is cls
    assert len(calls) == 1


def gated_layer(kind: str):
    """A gated layer in float32."""
    model = model_of(kind, torch.float32)
    if kind == "t5":
        return model.encoder.block[0].layer[1].DenseReluDense
    return model.model.layers[0].mlp


@pytest.mark.parametrize("kind", ["llama", "gemma", "t5"])
@pytest.mark.parametrize("hook", [False, True])
def test_under_autocast_both_layers_share_one_cast(kind, hook) -> None:
    """Bit by bit as two casts, gradients too; a layer that looks at its input gets its own."""
    layer = gated_layer(kind)
    converted = copy.deepcopy(layer)
    convert(converted)
    first = converted.wi_0 if kind == "t5" else converted.gate_proj
    seen = []
    if hook:
        first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    saved = {}

    def pack(x):
        if x.dtype == torch.bfloat16 and x.shape == (96, 16):
            saved[x.untyped_storage().data_ptr()] = x
        return x

    leaf = torch.randn(2, 48, 16, requires_grad=True)
    x = leaf.clone()  # autocast caches the casts of leaves
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        actual = converted(x)
    assert len(saved) == (2 if hook else 1)
    assert seen == [torch.float32] * hook
    dy = torch.randn_like(actual)
    (dx,) = torch.autograd.grad(actual, x, dy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_models, "_inputs_of_both", lambda x, *_: (x, x))
        with torch.autocast("cpu", torch.bfloat16):
            expected = converted(x)
    assert torch.equal(actual, expected)
    assert torch.equal(dx, torch.autograd.grad(expected, x, dy)[0])
    assert dx.dtype == torch.float32


class SiLU(torch.nn.Module):
    """Another activation of this name."""

    def forward(self, x):
        return x.tanh()


def with_own_pass(layer, name) -> None:
    getattr(layer, name).forward = torch.tanh


def with_own_class(layer, name) -> None:
    setattr(layer, name, SiLU())


def with_a_function(layer, name) -> None:
    delattr(layer, name)
    setattr(layer, name, torch.tanh)


@pytest.mark.parametrize("change", [with_own_pass, with_own_class, with_a_function])
@pytest.mark.parametrize("kind", ["llama", "phi3", "t5"])
def test_activations_that_are_known_by_name_alone_are_called(kind, change) -> None:
    layer = gated_layer(kind)
    converted = copy.deepcopy(layer)
    convert(converted)
    name = {"llama": "act_fn", "phi3": "activation_fn", "t5": "act"}[kind]
    for each in (layer, converted):
        change(each, name)
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(converted(x), layer(x))


@pytest.mark.parametrize("kind", ["llama", "phi3", "t5"])
def test_hooks_of_all_modules_see_what_they_see_in_the_plain_layer(kind) -> None:
    """The activation, and inputs as they are before autocast casts them."""
    layer = gated_layer(kind)
    converted = copy.deepcopy(layer)
    convert(converted)
    x, seen = torch.randn(2, 3, 16, requires_grad=True) * 2, []
    for each in (layer, converted):
        calls = []
        handle = torch.nn.modules.module.register_module_forward_hook(
            lambda m, inputs, _, calls=calls: calls.append((type(m).__name__, inputs[0].dtype))
        )
        with handle, torch.autocast("cpu", torch.bfloat16):
            each(x)
        seen.append(calls)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", ["llama", "phi3", "t5"])
def test_gated_layers_without_data(kind) -> None:
    """On the device meta, of which autocast knows nothing."""
    layer = gated_layer(kind).to("meta")
    convert(layer)
    x = torch.empty(2, 3, 16, device="meta", requires_grad=True) * 2
    assert layer(x).shape == (2, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).shape == (2, 3, 16)


def test_a_weight_that_is_computed_is_computed_once() -> None:
    """One with a parametrization, as a spectral norm, whose state each time changes."""
    layer = gated_layer("llama")
    convert(layer)
    torch.nn.utils.parametrize.register_parametrization(layer.gate_proj, "weight", Negated())
    (negated,) = layer.gate_proj.parametrizations.weight
    negated.times = 0
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(2, 3, 16, requires_grad=True) * 2)
    assert negated.times == 1


class Quantized(torch.nn.Module):
    """As torch.ao.quantization's linear layer, whose weight is a method."""

    def __init__(self, linear) -> None:
        super().__init__()
        self.packed = linear.weight.detach()

    def weight(self):
        return self.packed

    def forward(self, x):
        return F.linear(x, self.packed)


def test_a_gated_layer_whose_last_one_is_quantized() -> None:
    layer = gated_layer("t5")
    layer.wo = Quantized(layer.wo)
    converted = copy.deepcopy(layer)
    convert(converted)
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(converted(x), layer(x))


def test_gated_layers_under_autocast_are_transformed() -> None:
    layer = gated_layer("llama")
    converted = copy.deepcopy(layer)
    convert(converted)
    x = torch.randn(4, 16)

    def total(module, x):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x).float().square().sum()

    torch.testing.assert_close(
        torch.func.grad(functools.partial(total, converted))(x),
        torch.func.grad(functools.partial(total, layer))(x),
        atol=0.05,
        rtol=0.05,
    )


# ---- attention that `also` names -----------------------------------------------------------------

ALSO = language_models.ALSO
ROTATED = [family for family in MODELS if f"{MODELS[family][0][:-11]}Attention" in ALSO]
rotated = pytest.mark.parametrize("family", ROTATED)


@pytest.fixture
def rotations(monkeypatch):
    """Notes of each rotation whether it takes heads last, and whether that has no gaps."""
    noted, ours = [], functional.rotary

    def noting(x, cos, sin, heads_last):
        noted.append((heads_last, x.is_contiguous()))
        return ours(x, cos, sin, heads_last)

    monkeypatch.setattr(functional, "rotary", noting)
    return noted


def rotation_of(x, cos, sin, heads_last=False):
    """A rotation by its formula."""
    half = x.shape[-1] // 2
    cos, sin = (angles.to(x.dtype).unsqueeze(2 if heads_last else 1) for angles in (cos, sin))
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def attention_of(family: str, dtype=torch.float64, **changes):
    """A model's first attention layer, a converted copy, and arguments for one call."""
    model = model_of(family, dtype, attn_implementation="eager", **changes)
    layer = model.model.layers[0].self_attn
    converted = copy.deepcopy(layer)
    name = type(layer).__name__
    norms = ("Gemma3RMSNorm", "Qwen3RMSNorm")
    assert convert(converted, skip=norms, also=[name]).swapped == {"": name}
    x = torch.randn(3, 5, 16, dtype=dtype, requires_grad=True)
    angles = torch.rand(3, 5, 8, dtype=dtype)
    given = {"position_embeddings": (angles.cos(), angles.sin()), "attention_mask": None}
    return layer, converted, {"hidden_states": x, **given}


@rotated
def test_rotated_attention_is_that_of_the_model(labels, rotations, family) -> None:
    """Scores and gradients; queries and keys of each layer, of most models as they lie."""
    model = model_of(family, num_attention_heads=4, num_key_value_heads=2)
    inputs = inputs_of(family, labels)
    converted = copy.deepcopy(model)
    conversion = convert(converted, skip=[type(model).__name__], also=ALSO)
    name = f"{type(model).__name__[:-11]}Attention"
    assert [*conversion.swapped.values()].count(name) == 2
    cto.torch.fallbacks(reset=True)
    actual = converted(**inputs)
    assert not any("rotary" in each for each in cto.torch.fallbacks())
    last, has_gaps = family != "gemma3", family == "phi3"  # which norms heads that lie first
    assert rotations == [(last, not has_gaps)] * 4
    expected = model(**inputs)
    torch.testing.assert_close(actual.logits, expected.logits, atol=1e-5, rtol=1e-5)
    wanted = gradients(model, expected.loss)
    for name, gradient in gradients(converted, actual.loss).items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-5, rtol=1e-5, msg=name)
    conversion.undo()
    assert [type(m) for m in converted.modules()] == [type(m) for m in model.modules()]
    converted(**inputs)
    assert len(rotations) == 4


@rotated
def test_rotated_attention_lies_as_transformers(rotations, family) -> None:
    """Strides, which later operations may ask for."""
    layer, converted, given = attention_of(family)
    seen = []

    def interface(_, q, k, *__, **___):
        seen.append((q, k))
        return q.transpose(1, 2), None

    with pytest.MonkeyPatch.context() as patch:
        interfaces = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
        patch.setattr(type(interfaces), "get_interface", lambda *_: interface)
        results = [each(**given)[0] for each in (layer, converted)]
    assert len(rotations) == 2
    torch.testing.assert_close(*results)
    for plain, ours in zip(*seen, strict=True):
        torch.testing.assert_close(ours, plain)
        assert family == "phi3" or ours.stride() == plain.stride()  # which joins parts of heads


def test_attention_is_left_unless_it_is_named(rotations, labels) -> None:
    model = model_of("llama")
    convert(model)
    model(**inputs_of("llama", labels))
    assert not rotations
    assert set(convert(model, also={"LlamaAttention"}).swapped.values()) == {"LlamaAttention"}
    assert convert(model, also={"LlamaAttention", "Qwen3Attention"}).swapped == {}
    for wrong in (["LlamaMLP"], (n for n in ("LlamaAttention",)), None, [["LlamaAttention"]]):
        with pytest.raises(ArgumentError, match=r"convert: also: expected names of .*Attention"):
            convert(model, also=wrong)
    with pytest.raises(ArgumentError, match="convert: skip: expected names of"):
        convert(model, skip=(n for n in ("Dropout",)))
    assert "LlamaAttention" in convert(model_of("llama"), skip=["LlamaAttention"]).left_classes


class Derived(transformers.models.llama.modeling_llama.LlamaAttention):
    pass


def without_rotation(_, hidden_states):
    return hidden_states


def decorated(self, *arguments):
    return decorated.__wrapped__(self, *arguments)


def other_rotation(q, k, *_, position_ids=None):
    return q, k, position_ids


@pytest.mark.parametrize(
    "way", ["subclass", "part", "no rotation", "decorator", "another library", "signature"]
)
def test_attention_of_another_form_is_left_with_words(monkeypatch, way) -> None:
    home = transformers.models.llama.modeling_llama
    cls = home.LlamaAttention
    model = model_of("phi3" if way == "part" else "llama")
    layer = model.model.layers[0].self_attn
    if way == "subclass":
        layer.__class__ = Derived
    elif way == "part":
        layer.config.rope_parameters["partial_rotary_factor"] = 0.5
    elif way == "no rotation":
        monkeypatch.setattr(cls, "forward", without_rotation)
    elif way == "decorator":
        decorated.__wrapped__ = cls.forward
        monkeypatch.setattr(cls, "forward", decorated)
    else:
        other = other_rotation
        if way == "signature":  # of a function of the model's own module
            other = types.FunctionType(other.__code__, {"__name__": home.__name__})
        monkeypatch.setattr(home, "apply_rotary_pos_emb", other)
    messages = {
        "subclass": "a subclass of LlamaAttention",
        "part": "a part of each head is rotated",
        "no rotation": "its forward pass does not call apply_rotary_pos_emb",
        "decorator": "its forward pass is decorated",
        "another library": "apply_rotary_pos_emb is another library's, ",
        "signature": "apply_rotary_pos_emb is of a transformers with other arguments",
    }
    (reason,) = convert(layer, also=ALSO).left.values()
    assert reason.startswith(messages[way])


@pytest.mark.parametrize("name", ["forward", "eager_attention_forward"])
def test_what_is_patched_after_a_conversion_runs(monkeypatch, rotations, name) -> None:
    """A forward pass, and another function of its module, which still rotates in one pass."""
    home = transformers.models.llama.modeling_llama
    layer, converted, given = attention_of("llama")
    place = home.LlamaAttention if name == "forward" else home
    own = getattr(place, name)

    @functools.wraps(own)
    def doubled(*arguments, **named):
        first, *others = own(*arguments, **named)
        return 2 * first, *others

    before = converted(**given)[0]
    monkeypatch.setattr(place, name, doubled)
    torch.testing.assert_close(converted(**given)[0], layer(**given)[0])
    assert not torch.equal(converted(**given)[0], before)
    assert len(rotations) == 6


def test_a_function_that_another_library_sets_later_is_called(monkeypatch, rotations) -> None:
    _, converted, given = attention_of("llama")
    home, calls = transformers.models.llama.modeling_llama, []
    monkeypatch.setattr(home, "apply_rotary_pos_emb", lambda q, k, *_: calls.append(1) or (q, k))
    converted(**given)
    assert calls == [1]
    assert not rotations


def test_rotated_attention_by_a_deprecated_name(rotations) -> None:
    """Its decorators stay: a cache by the name that it had before is used, with a warning."""
    layer, converted, given = attention_of("llama")
    results = []
    for each in (layer, converted):
        cache = transformers.DynamicCache(config=layer.config)
        names = inspect.signature(inspect.unwrap(type(layer).forward)).parameters
        is_deprecated = "past_key_values" not in names  # transformers 5.17 has no other
        for _ in range(2):
            with (
                pytest.warns(FutureWarning, match="past_key_values")
                if is_deprecated
                else contextlib.nullcontext()
            ):
                results.append(each(**given, past_key_values=cache)[0])
        assert cache.get_seq_length() == 10
    assert len(rotations) == 4
    torch.testing.assert_close(results[:2], results[2:])
    by_place = converted(given["hidden_states"], given["position_embeddings"], None)[0]
    torch.testing.assert_close(by_place, results[0])


@pytest.mark.parametrize("way", ["angles", "float32", "torch.func"])
def test_what_no_kernel_rotates_transformers_do(rotations, way) -> None:
    """Gradients of angles, angles of another type, derivatives of torch.func: counted."""
    layer, converted, given = attention_of("llama")
    cos, sin = given["position_embeddings"]
    leaves = [given["hidden_states"]]
    if way == "float32":
        given["position_embeddings"] = cos.float(), sin.float()
    if way == "angles":
        leaves += [cos.requires_grad_(), sin.requires_grad_()]

    def derivative(module):
        def of_sum(x):
            return module(**{**given, "hidden_states": x})[0].square().sum()

        if way == "torch.func":
            return [torch.func.grad(of_sum)(leaves[0].detach())]
        return torch.autograd.grad(of_sum(leaves[0]), leaves)

    expected = derivative(layer)
    cto.torch.fallbacks(reset=True)
    torch.testing.assert_close(derivative(converted), expected)
    argument = "derivative" if way == "torch.func" else "cos"
    assert cto.torch.fallbacks() == {f"apply_rotary_pos_emb: {argument}": 1}
    assert not rotations


def test_angles_of_a_part_of_each_head_are_transformers(rotations) -> None:
    """Where the configuration did not say so when the layer was converted."""
    layer, converted, given = attention_of("phi3")
    given["position_embeddings"] = [each[..., :4] for each in given["position_embeddings"]]
    cto.torch.fallbacks(reset=True)
    torch.testing.assert_close(converted(**given)[0], layer(**given)[0])
    assert cto.torch.fallbacks() == {"apply_rotary_pos_emb: cos": 1}
    assert not rotations


def test_rows_of_odd_width_are_rotated_as_by_transformers() -> None:
    home = transformers.models.llama.modeling_llama
    x, cos, sin = torch.randn(2, 3, 4, 5), torch.randn(1, 4, 5), torch.randn(1, 4, 5)
    expected, _ = home.apply_rotary_pos_emb(x, x, cos, sin)
    torch.testing.assert_close(functional.rotary(x, cos, sin, False), expected)
    last = functional.rotary(x.transpose(1, 2).contiguous(), cos, sin, True)
    torch.testing.assert_close(last.transpose(1, 2), expected)


def test_rotated_attention_is_differentiated_twice(rotations) -> None:
    layer, converted, given = attention_of("qwen2")
    results = []
    for each in (layer, converted):
        x = given["hidden_states"]
        (dx,) = torch.autograd.grad(each(**given)[0].square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), x))
    assert len(rotations) == 2
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("part", ["norm", "gated", "activation", "head", "gelu"])
def test_a_forward_pass_that_is_put_into_a_class_runs(monkeypatch, labels, part, is_late) -> None:
    """Before the conversion, which leaves such a class, or after it."""
    family = "gpt2" if part == "gelu" else "llama"
    model, calls = model_of(family), []
    layer = None if part == "gelu" else model.model.layers[0]
    module = {
        "norm": lambda: layer.input_layernorm,
        "gated": lambda: layer.mlp,
        "activation": lambda: layer.mlp.act_fn,
        "head": lambda: model,
        "gelu": lambda: model.transformer.h[0].mlp.act,
    }[part]()
    cls, own = type(module), type(module).forward

    @functools.wraps(own)
    def noting(self, *arguments, **named):
        calls.append(self)
        return own(self, *arguments, **named)

    if not is_late:
        monkeypatch.setattr(cls, "forward", noting)
    result = convert(model)
    monkeypatch.setattr(cls, "forward", noting)
    model(**inputs_of(family, labels)).loss.backward()
    assert module in calls
    if part != "activation":
        names = [name for name, each in model.named_modules() if each is module]
        reason = f"another forward pass was put into the class {cls.__name__}"
        assert result.left.get(names[0]) == (None if is_late else reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotated_attention_under_autocast_and_in_16_bits(
    labels, rotations, dtype, monkeypatch
) -> None:
    """Under autocast queries are of 16 bits and angles of 32: transformers promotes what attention
    rounds again. So is it where nothing is trained, as a cache may be begun by it. What bfloat16
    rounds moves the gradients of some models by a tenth; each rotation is exact but for one."""
    ours = functional.rotary

    def compared(x, cos, sin, heads_last):
        y = ours(x, cos, sin, heads_last)
        exact = rotation_of(x.double(), cos, sin, heads_last)
        torch.testing.assert_close(y.double(), exact, rtol=2**-8 * 1.002, atol=1e-6)
        if y.requires_grad:
            dy = torch.randn_like(y)
            dx, exact_dx = (
                torch.autograd.grad(each, x, dy.to(each.dtype), retain_graph=True)[0]
                for each in (y, exact)
            )
            torch.testing.assert_close(dx, exact_dx, rtol=2**-7, atol=1e-6)  # each rounded
        return y

    monkeypatch.setattr(functional, "rotary", compared)
    model = model_of("llama", dtype)
    converted, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    convert(converted, skip=["LlamaForCausalLM"], also=ALSO)
    inputs = inputs_of("llama", labels)
    is_cast = dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        loss = converted(**inputs).loss
        assert len(rotations) == 4
        with torch.no_grad():
            converted(**inputs)
    assert len(rotations) == (4 if is_cast else 8)
    expected = exact(**inputs).loss
    torch.testing.assert_close(loss, expected, atol=0, rtol=2**-6)
    actual, wanted = (
        torch.cat([dw.double().flatten() for dw in torch.autograd.grad(y, [*each.parameters()])])
        for each, y in ((converted, loss), (exact, expected))
    )
    assert (actual - wanted).norm() <= 0.25 * wanted.norm()


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("trains_first", [True, False])
def test_a_cache_under_autocast_goes_on_without_gradients(labels, kind, trains_first) -> None:
    """Its memory may have the type of the first keys, rotated in training or not. Of some versions
    of transformers it has that of keys for values, too, and refuses both models' alike."""
    model = model_of("llama", torch.float32)
    converted = copy.deepcopy(model)
    convert(converted, also=ALSO)
    words, results = labels(CLASSES, 2, 9), []
    for each in (converted, model):
        named = {"max_cache_len": 12} if kind == "StaticCache" else {}
        cache = getattr(transformers, kind)(config=each.config, **named)
        known = inspect.signature(each.forward).parameters
        name = next(name for name in language_models._CACHES if name in known)
        try:
            for part, trains in ((words[:, :6], trains_first), (words[:, 6:], not trains_first)):
                with torch.set_grad_enabled(trains), torch.autocast("cpu", torch.bfloat16):
                    result: object = each(part, use_cache=True, **{name: cache}).logits
        except RuntimeError as error:
            result = str(error)
        results.append(result)
    if any(isinstance(result, str) for result in results):
        assert results[0] == results[1]
    else:
        torch.testing.assert_close(*results, atol=0.1, rtol=0.05)


def test_rotated_attention_of_a_model_without_memory() -> None:
    """Autocast knows nothing of the device "meta"."""
    model = model_of("llama", torch.float32).to("meta")
    convert(model, also=ALSO)
    scores = model(torch.empty(2, 5, dtype=torch.int64, device="meta")).logits
    assert scores.shape == (2, 5, CLASSES)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_angles_of_float32_rotate_rows_of_16_bits(leaf, kind) -> None:
    """Rounded once, to the type of the rows; the gradient, too."""
    x = leaf(2, 3, 4, 6).detach().to(kind).requires_grad_()
    cos, sin = (leaf(2, 4, 6, dtype=torch.float32).detach() for _ in range(2))
    y = functional.rotary(x, cos, sin)
    wide = x.detach().double().requires_grad_()
    exact = rotation_of(wide, cos, sin)
    dy = leaf(2, 3, 4, 6).detach().to(kind)
    (dx,) = torch.autograd.grad(y, x, dy)
    (exact_dx,) = torch.autograd.grad(exact, wide, dy.double())
    once = {"rtol": torch.finfo(kind).eps * 0.501, "atol": 1e-6}
    for result, expected in ((y, exact), (dx, exact_dx)):
        assert result.dtype == kind
        torch.testing.assert_close(result.double(), expected, **once)
    compiled = torch.compile(functional.rotary, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, cos, sin), y)
    assert functional.rotary(x, cos.double(), sin.double()).dtype == kind  # by PyTorch


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_generation_with_rotated_attention_is_the_same(labels, rotations, family) -> None:
    """With a cache, so that one row is rotated at a time."""
    model = model_of(family, use_cache=True)
    converted = copy.deepcopy(model)
    convert(converted, also=ALSO)
    words = labels(CLASSES, 2, 5)
    given = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(words)}
    actual, expected = (each.eval().generate(words, **given) for each in (converted, model))
    assert torch.equal(actual, expected)
    assert len(rotations) == 4 * (actual.shape[1] - 5)


def test_rotated_attention_is_copied_and_pickled(labels, rotations) -> None:
    """With its hooks."""
    model, calls = model_of("qwen3"), []
    convert(model, also=ALSO)
    keys = [*model.state_dict()]
    inputs = inputs_of("qwen3", labels)
    expected = model(**inputs).loss
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(model(**inputs).loss, expected)
    assert calls == [1]
    model.model.layers[0].self_attn._forward_hooks.clear()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
        assert [*other.state_dict()] == keys
        rotations.clear()
        assert torch.equal(other(**inputs).loss, expected)
        assert len(rotations) == 4


# ---- compiled and exported -----------------------------------------------------------------------


def noting(names):
    """A backend that notes what a graph calls, and runs it as it is."""

    def backend(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if "call" in node.op)
        return graph.forward

    return backend


@families
@pytest.mark.thorough
def test_a_converted_model_is_one_graph(labels, family) -> None:
    """Without a break, with its loss in it as one operator, and nothing else of ours but rows."""
    converted, _ = pair_of(family)
    inputs = inputs_of(family, labels)
    names: list[str] = []
    torch._dynamo.reset()
    compiled = torch.compile(converted, fullgraph=True, backend=noting(names))
    actual, expected = compiled(**inputs), converted(**inputs)
    assert actual.logits is None
    torch.testing.assert_close(actual.loss, expected.loss, atol=2e-5, rtol=2e-5)
    ours = {name for name in names if "cto" in name}
    assert {name.split(".")[1] for name in ours} <= {"linear_cross_entropy", "embedding"}
    assert any("linear_cross_entropy" in name for name in ours)
    wanted = gradients(converted, expected.loss)
    for name, gradient in gradients(converted, actual.loss).items():
        torch.testing.assert_close(gradient, wanted[name], atol=5e-5, rtol=5e-5, msg=name)


@pytest.mark.parametrize(
    "family",
    ["llama", *[pytest.param(f, marks=pytest.mark.thorough) for f in ROTATED if f != "llama"]],
)
def test_rotated_attention_is_one_graph_of_transformers_own(labels, rotations, family) -> None:
    """A compiler fuses its function with what is around it."""
    model, inputs = model_of(family, torch.float32), inputs_of(family, labels)
    convert(model, also=ALSO)
    names: list[str] = []
    torch._dynamo.reset()
    actual = torch.compile(model, fullgraph=True, backend=noting(names))(**inputs)
    assert not rotations
    assert not any("rotary" in name for name in names)
    torch.testing.assert_close(actual.loss, model(**inputs).loss, atol=2e-5, rtol=2e-5)
    assert len(rotations) == 4


def test_one_converted_model_is_one_graph(labels) -> None:
    test_a_converted_model_is_one_graph(labels, "gemma2")


class Alone(torch.nn.Module):
    """A model with tensors for inputs and outputs, as exporters want it."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, words, wanted):
        result = self.model(input_ids=words, labels=wanted, use_cache=False)
        return result.loss, result.logits


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "gemma2", "bert"])
def test_an_exported_model_is_transformers(labels, family) -> None:
    """In training too: with scores, and no operator of this package."""
    converted, model = pair_of(family)
    convert(converted, also=ALSO)
    words = labels(CLASSES, 3, 9)
    programs = [
        torch.export.export(Alone(m), (words, words), strict=False) for m in (converted, model)
    ]
    targets = [[str(n.target) for n in p.graph.nodes if n.op == "call_function"] for p in programs]
    assert targets[0] == targets[1]
    traced = torch.jit.trace(Alone(converted), (words, words), check_trace=False)
    assert "cto::" not in str(traced.inlined_graph)
    expected = Alone(model)(words, words)
    for program in (programs[0].module(), traced):
        for actual, wanted in zip(program(words, words), expected, strict=True):
            torch.testing.assert_close(actual, wanted, atol=5e-5, rtol=5e-5)


def norm_of(family: str, name: str):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    norm = getattr(module, name)(16)
    with torch.no_grad():
        norm.weight += 0.2 * torch.randn(16)
    return norm


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(
    ("kind", "kind_of_weight"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)],
)
@pytest.mark.parametrize("name", ["Llama", "Olmo2", "NemotronH", "T5"])
def test_results_of_norms_have_the_types_that_they_have_in_the_model(
    name, kind, kind_of_weight, compiles
) -> None:
    """As some cast to the type of the input, and others do not."""
    model = name.lower().replace("nh", "n_h")
    norm = norm_of(model, f"{name}LayerNorm" if name == "T5" else f"{name}RMSNorm")
    norm.to(kind_of_weight)
    x, dy = torch.randn(3, 5, 16).to(kind).requires_grad_(), torch.randn(3, 5, 16)
    expected = norm(x)
    assert convert(norm).swapped
    y = (torch.compile(norm, backend="aot_eager") if compiles else norm)(x)
    assert y.dtype == expected.dtype
    if not compiles:  # with mathematics, as theirs rounds before it multiplies
        wide, weight = x.double(), norm.weight.double()
        expected = F.rms_norm(wide, (16,), weight, norm.variance_epsilon)
    bound = {"atol": 2e-2, "rtol": 2e-2, "check_dtype": False}
    torch.testing.assert_close(y, expected, **bound)
    actual, wanted = (
        torch.autograd.grad(each, (x, norm.weight), dy.to(y.dtype).to(each.dtype))
        for each in (y, expected)
    )
    torch.testing.assert_close(actual, wanted, **bound)


def test_a_model_of_16_bits_with_norms_of_float32() -> None:
    """As they are where adapters train: its norms cast to the type of the input."""
    config = transformers.Olmo2Config(**SMALL)
    model = transformers.Olmo2ForCausalLM(config).bfloat16().train()
    for module in model.modules():
        if type(module).__name__ == "Olmo2RMSNorm":
            module.float()
    converted = copy.deepcopy(model)
    assert "Olmo2RMSNorm" in convert(converted).swapped.values()
    words = torch.randint(CLASSES, (2, 9))
    actual, expected = (each(words, labels=words).loss for each in (converted, model))
    torch.testing.assert_close(actual, expected, atol=0.02, rtol=0.02)
    actual.backward()
    assert all(p.grad.isfinite().all() for p in converted.parameters())

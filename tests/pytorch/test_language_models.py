# SPDX-License-Identifier: MIT
"""Language models of transformers, converted, beside the models as they were."""

from __future__ import annotations

import contextlib
import copy
import functools
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
    """In float64, beside PyTorch's loss of the scores; norms of theirs are float32."""
    model, inputs = model_of(family), inputs_of(family, labels)
    converted = copy.deepcopy(model)
    swapped = set(convert(converted).swapped.values())
    assert type(model).__name__ in swapped
    result = converted(**inputs)
    assert result.logits is None
    is_wide = family in ("bert", "t5")  # transformers compute other losses in float32
    assert result.loss.dtype == (torch.float64 if is_wide else torch.float32)
    expected = plain_loss(family, model, inputs)
    torch.testing.assert_close(result.loss.double(), expected, atol=1e-6, rtol=1e-6)
    found, wanted = gradients(converted, result.loss), gradients(model, expected)
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 1e-4 or name.endswith(WITHOUT_EFFECT), name
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-5, msg=name)


def assert_same(converted, model, inputs, **named) -> None:
    """Losses and gradients of both models are the same in float32."""
    found, expected = converted(**inputs, **named), model(**inputs, **named)
    assert found.logits is None
    assert found.loss.dtype == expected.loss.dtype
    torch.testing.assert_close(found.loss, expected.loss, atol=2e-5, rtol=2e-5)
    wanted = gradients(model, expected.loss)
    for name, gradient in gradients(converted, found.loss).items():
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
        found, expected = (each(**inputs).loss for each in (converted, model))
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.05)
    found.backward()
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
    found, expected = converted(**named), model(**named)
    assert type(found) is type(expected)
    assert [*found] == [name for name in expected if name != "logits"]
    kinds = [type(value) for name, value in expected.items() if name != "logits"]
    assert [*map(type, found.to_tuple())] == kinds
    for name in ("hidden_states", "encoder_hidden_states", "decoder_hidden_states"):
        for a, b in zip(found.get(name) or (), expected.get(name) or (), strict=True):
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
        found, expected = (each(**inputs, encoder_outputs=outputs) for each in (converted, model))
        torch.testing.assert_close(found.loss, expected.loss, atol=2e-5, rtol=2e-5)
        assert [*found] == [name for name in expected if name != "logits"]
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


OTHERS = {
    "head": (with_hook, with_other_head, with_replaced_pass),
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
    found, expected = converted(**inputs), model(**inputs)
    torch.testing.assert_close(found.loss, expected.loss, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(found.logits, expected.logits, atol=5e-5, rtol=5e-5)
    argument = next(name for name, group in OTHERS.items() if change in group)
    assert cto.torch.fallbacks() == {f"LlamaForCausalLM: {argument}": 1}


def test_a_part_of_the_scores_is_computed_by_transformers(labels) -> None:
    converted, model = pair_of("llama")
    inputs = inputs_of("llama", labels)
    inputs["labels"] = inputs["labels"][:, -4:]
    found, expected = (each(**inputs, logits_to_keep=4) for each in (converted, model))
    torch.testing.assert_close(found.loss, expected.loss, atol=2e-5, rtol=2e-5)
    assert found.logits.shape == expected.logits.shape == (3, 4, CLASSES)


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
    whole, gated = MODELS[family][0], family not in ("phi3", "gpt2", "bert")
    assert conversion.swapped[""] == whole
    swapped = set(conversion.swapped.values())
    assert any("Norm" in name for name in swapped)
    assert any("MLP" in name or "Gated" in name for name in swapped) == gated
    assert names <= swapped | set(conversion.left_classes), names
    if family == "phi3":
        lines = str(conversion).splitlines()
        (line,) = [each for each in lines if "its gate and its values lie in one array" in each]
        assert line.startswith("left model.layers.0.mlp and 1 more: ")


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
    found, expected = (each.eval().generate(words, **given) for each in (converted, model))
    assert torch.equal(found, expected)


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
    found = converted(**inputs)
    assert not any("rotary" in each for each in cto.torch.fallbacks())
    last, has_gaps = family != "gemma3", family == "phi3"  # which norms heads that lie first
    assert rotations == [(last, not has_gaps)] * 4
    expected = model(**inputs)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
    wanted = gradients(model, expected.loss)
    for name, gradient in gradients(converted, found.loss).items():
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


def test_rotated_attention_under_autocast_and_in_16_bits(labels) -> None:
    """Under autocast queries are of 16 bits and angles of 32, which transformers promote."""
    for dtype in (torch.float32, torch.bfloat16):
        model = model_of("llama", dtype)
        converted = copy.deepcopy(model)
        convert(converted, skip=["LlamaForCausalLM"], also=ALSO)
        inputs = inputs_of("llama", labels)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            found, expected = converted(**inputs), model(**inputs)
        torch.testing.assert_close(found.loss, expected.loss, atol=0.1, rtol=0.05)
        found.loss.backward()
        assert all(p.grad.isfinite().all() for p in converted.parameters())


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_generation_with_rotated_attention_is_the_same(labels, rotations, family) -> None:
    """With a cache, so that one row is rotated at a time."""
    model = model_of(family, use_cache=True)
    converted = copy.deepcopy(model)
    convert(converted, also=ALSO)
    words = labels(CLASSES, 2, 5)
    given = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(words)}
    found, expected = (each.eval().generate(words, **given) for each in (converted, model))
    assert torch.equal(found, expected)
    assert len(rotations) == 4 * (found.shape[1] - 5)


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
    found, expected = compiled(**inputs), converted(**inputs)
    assert found.logits is None
    torch.testing.assert_close(found.loss, expected.loss, atol=2e-5, rtol=2e-5)
    ours = {name for name in names if "cto" in name}
    assert {name.split(".")[1] for name in ours} <= {"linear_cross_entropy", "embedding"}
    assert any("linear_cross_entropy" in name for name in ours)
    wanted = gradients(converted, expected.loss)
    for name, gradient in gradients(converted, found.loss).items():
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
    found = torch.compile(model, fullgraph=True, backend=noting(names))(**inputs)
    assert not rotations
    assert not any("rotary" in name for name in names)
    torch.testing.assert_close(found.loss, model(**inputs).loss, atol=2e-5, rtol=2e-5)
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
        for found, wanted in zip(program(words, words), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=5e-5, rtol=5e-5)

# SPDX-License-Identifier: MIT
"""Language models of the library transformers: head and loss as one, norms, gated layers, gelus.

Attention layers, whose queries and keys are rotated in one pass, are swapped only if `also` of
`convert` names them, as their gain in a model is not measured yet.

A module's new class is a subclass of its own that has another forward pass. Where that pass does
not apply, in exported programs and for compilers that fuse it, the module's own pass runs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from . import functional, nn
from .to_pytorch import (
    DERIVATIVE,
    Unserved,
    call_pytorch,
    differentiates,
    is_transformed,
    records,
)

RMS_NORM = "RMSNorm"  # the end of class names

_Forward = Callable[..., Any]
_Module = Any  # of transformers, whose classes have no common type for their parts


def replacement(module: torch.nn.Module) -> Any:
    """Return the class that a module of transformers gets, a text that says why it is left, or None
    for others."""
    cls: Any = type(module)
    if not cls.__module__.startswith("transformers.") or nn.is_replacing(cls):
        return None
    name, parts = cls.__name__, {*vars(module), *module._parameters, *module._modules}
    if name in _FORMS or name.endswith(RMS_NORM):
        if not _FORMS.get(name, {"variance_epsilon", "weight"}) <= parts:
            return None
    elif name not in _GELUS and not name.endswith(_HEADED):
        return None
    reason = _head_reason(cls) if name.endswith(_HEADED) else ""
    if not reason and not nn.has_own_forward(cls):
        reason = f"another forward pass was put into the class {name}"
    return reason or subclass_of(cls)


def subclass_of(cls: Any) -> Any:
    """Return the subclass of a class of transformers whose forward pass is one of this module's."""
    return _subclass_in_place_of(cls, nn.own_pass(cls))


@functools.cache
def _subclass_in_place_of(cls: Any, own: Any) -> Any:
    """Return that subclass; own: the forward pass that it replaces."""
    name = cls.__name__
    make: Callable[[Any, Any], _Forward]
    if name.endswith(_HEADED):
        make = _headed_forward
    elif name in ALSO:
        make = _attention_forward
    elif name in _OFFSET_NORMS:
        make = _offset_norm_forward
    elif name == _GATED_T5:
        make = _gated_t5_forward
    elif name in _GATED_BY_HALVES:
        make = _halves_forward
    elif name in _GATED:
        make = _gated_forward
    else:
        make = _gelu_forward if name in _GELUS else _norm_forward
    return nn.replacing(cls, make(cls, own), subclass_of)


# ---- Norms, gelus, gated layers ------------------------------------------------------------------

_GEMMAS, _LLAMAS = ("Gemma", "Gemma2", "Gemma3"), ("Llama", "Mistral", "Qwen2", "Qwen3")
_OFFSET_NORMS = tuple(f"{name}RMSNorm" for name in _GEMMAS)  # scale by 1 + weight
_GATED = tuple(f"{name}MLP" for name in (*_GEMMAS, *_LLAMAS))
_GATED_BY_HALVES = ("Phi3MLP", "GlmMLP", "Glm4MLP")  # one layer computes gates and values
_GATED_T5 = "T5DenseGatedActDense"
# Parts of modules; a module of a class without them has another form than is known.
_FORMS = {
    "T5LayerNorm": {"variance_epsilon", "weight"},
    **dict.fromkeys(_OFFSET_NORMS, frozenset(("eps", "weight"))),
    **dict.fromkeys(_GATED, frozenset(("gate_proj", "up_proj", "down_proj", "act_fn"))),
    **dict.fromkeys(_GATED_BY_HALVES, frozenset(("gate_up_proj", "down_proj", "activation_fn"))),
    _GATED_T5: {"wi_0", "wi_1", "wo", "dropout", "act"},
}
# The `approximate` of torch.nn.functional.gelu, by class name.
_GELUS = {
    "GELUActivation": "none",
    "GELUTanh": "tanh",
    "NewGELUActivation": "tanh",
    "PytorchGELUTanh": "tanh",
}
# Functions of (gate, value) that compute activation(gate) * value, by the activation's class name.
_GATES = {
    **dict.fromkeys(("SiLU", "SiLUActivation"), functional.swiglu),
    **dict.fromkeys([name for name in _GELUS if _GELUS[name] == "tanh"], functional.geglu),
}


# Each returns a forward pass for a subclass of `cls`; where it does not apply, that of `cls` runs.
# So does another one that was put into `cls`: `own` is the pass that ours replaces, None if that is
# not known, as in a process that unpickles a module of a class with another pass.


def _norm_forward(cls: Any, own: Any) -> _Forward:
    """Return the forward pass of a subclass of `cls`, an RMS norm of transformers.

    Its result has the dtype that the pass of cls gives it: some promote x and weight, others cast
    to the type of x.
    """
    kinds: dict[Any, torch.dtype] = {}

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        if cls.forward is not own or nn.is_compiling() or nn.is_exported(hidden_states):
            return cls.forward(self, hidden_states)
        weight, kind = self.weight, hidden_states.dtype
        if weight.dtype != kind:
            types = kind, weight.dtype
            if types not in kinds:
                with torch.no_grad():
                    no_rows = hidden_states.new_empty(0, *weight.shape)
                    kinds[types] = cls.forward(self, no_rows).dtype
            kind = kinds[types]
            weight = nn.widened(weight, kind)
        y = functional.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)
        return y.to(kind)

    return forward


def _offset_norm_forward(cls: Any, own: Any) -> _Forward:
    """Return the pass of an RMS norm that scales by 1 + weight."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if cls.forward is not own or nn.is_compiling() or nn.is_exported(x):
            return cls.forward(self, x)
        weight = self.weight
        # 16 bits would round 1 + weight, as the module's own pass does not.
        scale = 1 + (weight.float() if weight.dtype.itemsize < 4 else weight)
        return functional.rms_norm(x, weight.shape, scale, self.eps).to(x.dtype)

    return forward


def _gelu_forward(cls: Any, own: Any) -> _Forward:
    """Return the pass of a GELU, of the form that _GELUS says."""
    approximate: Any = _GELUS[cls.__name__]

    def forward(self: Any, input: Tensor) -> Tensor:
        if cls.forward is not own or nn.is_compiling() or nn.is_exported(input):
            return cls.forward(self, input)
        return functional.gelu(input, approximate)

    return forward


def _has_hooks(module: torch.nn.Module) -> bool:
    before = module._forward_pre_hooks or module._backward_pre_hooks
    after = module._forward_hooks or module._backward_hooks
    return bool(before or after or _has_any_global_hook())


def _gate_of(activation: torch.nn.Module) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the function of (gate, value) for activation(gate) * value; None: they stay apart."""
    cls = type(activation)
    gate = _GATES.get(cls.__name__)
    if gate is None or not cls.__module__.startswith(("torch.nn.", "transformers.")):
        return None
    is_own = nn.has_own_forward(cls) and "forward" not in vars(activation)
    return gate if is_own and not _has_hooks(activation) else None


class _TwoCasts(torch.autograd.Function):  # type: ignore[misc]
    """Casts of x for two layers, in one memory.

    The gradient is the sum of both in x's type, as that of two casts is: autograd would add those
    of one cast in its narrow type.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.dtype = x.dtype
        cast = x.to(dtype)
        return cast, cast.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, second = gradients
        return first.to(ctx.dtype) + second, None


def _inputs_of_both(x: Tensor, first: Any, second: Any) -> tuple[Tensor, Tensor]:
    """Return x for two linear layers; under autocast, which would cast it for each, casts that
    share memory."""
    device = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(device):  # which does not know meta
        return x, x
    if x.dtype is not torch.float32 or is_transformed():
        return x, x
    dtype = torch.get_autocast_dtype(device)
    if dtype is x.dtype or type(x) is not Tensor or x.is_leaf:  # whose casts autocast caches
        return x, x
    if any(_unserved(layer, {}) is not None for layer in (first, second)):  # they may look at x
        return x, x
    casts: tuple[Tensor, Tensor] = _TwoCasts.apply(x, dtype)
    return casts


def _gated_forward(cls: Any, own: Any) -> _Forward:
    """Return the pass of down(activation(gate(x)) * up(x))."""

    def forward(self: Any, x: Tensor) -> Tensor:
        applies = cls.forward is own and not nn.is_compiling() and not nn.is_exported(x)
        gate = _gate_of(self.act_fn) if applies else None
        if gate is None:
            return cls.forward(self, x)
        for_gate, for_value = _inputs_of_both(x, self.gate_proj, self.up_proj)
        return self.down_proj(gate(self.gate_proj(for_gate), self.up_proj(for_value)))

    return forward


def _halves_forward(cls: Any, own: Any) -> _Forward:
    """Return the pass of down(value * silu(gate)), halves of rows of one layer's result."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        applies = cls.forward is own and not nn.is_compiling() and not nn.is_exported(hidden_states)
        if not applies or _gate_of(self.activation_fn) is not functional.swiglu:
            return cls.forward(self, hidden_states)
        return self.down_proj(functional.swiglu_halves(self.gate_up_proj(hidden_states)))

    return forward


def _gated_t5_forward(cls: Any, own: Any) -> _Forward:
    """Return the pass of wo(dropout(activation(wi_0(x)) * wi_1(x)))."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        applies = cls.forward is own and not nn.is_compiling() and not nn.is_exported(hidden_states)
        gate = _gate_of(self.act) if applies else None
        if gate is None:
            return cls.forward(self, hidden_states)
        for_gate, for_value = _inputs_of_both(hidden_states, self.wi_0, self.wi_1)
        hidden = self.dropout(gate(self.wi_0(for_gate), self.wi_1(for_value)))
        weight = self.wo.weight  # kept in float32 in a model of 16 bits; a method, if quantized
        if isinstance(weight, Tensor) and weight.is_floating_point():
            hidden = hidden.to(weight.dtype)
        return self.wo(hidden)

    return forward


# ---- Attention whose queries and keys are rotated in one pass ------------------------------------

ALSO = tuple(f"{name}Attention" for name in (*_GEMMAS, *_LLAMAS, "Phi3"))
_ROTATE = "apply_rotary_pos_emb"  # a function of each model's module


def attention_replacement(name: str, module: torch.nn.Module) -> Any:
    """Return the class for a module of the class `name`, why it is left, or None for others."""
    cls: Any = type(module)
    if nn.is_replacing(cls):
        return None
    model = name.removesuffix("Attention").lower()
    home = f"transformers.models.{model}.modeling_{model}"
    if (home, name) not in [(base.__module__, base.__name__) for base in cls.__mro__]:
        return None
    if (cls.__module__, cls.__name__) != (home, name):
        return f"a subclass of {name}, which may compute something else"
    parameters: Any = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    if parameters.get("partial_rotary_factor", 1) != 1:
        return "a part of each head is rotated (partial_rotary_factor)"
    return _rotation_reason(cls.forward, home) or subclass_of(cls)


def _rotation_reason(forward: Any, home: str) -> str:
    """Return why the function that rotates cannot be another one in a forward pass, or ""."""
    inner = forward
    while hasattr(inner, "__wrapped__"):
        cells = getattr(inner, "__closure__", None) or ()
        if not any(_has(cell, inner.__wrapped__) for cell in cells):
            return "its forward pass is decorated in a way that is not known"
        inner = inner.__wrapped__
    names = getattr(getattr(inner, "__code__", None), "co_names", ())
    theirs = getattr(inner, "__globals__", {}).get(_ROTATE)
    if _ROTATE not in names or not isinstance(theirs, FunctionType):
        return f"its forward pass does not call {_ROTATE}"
    if theirs.__module__ != home:
        return f"{_ROTATE} is another library's, {theirs.__module__}"
    if str(inspect.signature(theirs)) != "(q, k, cos, sin, unsqueeze_dim=1)":
        return f"{_ROTATE} is of a transformers with other arguments"
    return ""


def _has(cell: CellType, function: Any) -> bool:
    """Return True if a variable of a decorator is the function that it wraps."""
    try:
        return cell.cell_contents is function
    except ValueError:  # without a value
        return False


class _Globals(dict[str, Any]):
    """Globals of a module, as they are when they are read, but for the names that it has itself."""

    def __init__(self, names: dict[str, Any], **own: Any) -> None:
        super().__init__(own)
        self.names = names

    def __missing__(self, name: str) -> Any:
        return self.names[name]


def _with_rotation(forward: Any, rotate: Callable[..., Any]) -> Any:
    """Copy a forward pass and its decorators, with `rotate` as the function that rotates."""
    cells, names = forward.__closure__, forward.__globals__
    if hasattr(forward, "__wrapped__"):
        inner = forward.__wrapped__
        copied = CellType(_with_rotation(inner, rotate))
        cells = tuple(copied if _has(cell, inner) else cell for cell in cells)
    else:
        names = _Globals(names, **{_ROTATE: rotate})
    code, defaults = forward.__code__, forward.__defaults__
    result = FunctionType(code, names, forward.__name__, defaults, cells)
    result.__kwdefaults__ = forward.__kwdefaults__
    return result


@functools.cache
def _rotating(forward: Any, home: str, casts: bool) -> Any:
    """Return a copy of a forward pass that rotates in one pass; where that may not be, itself.

    casts: rows of 16 bits may be rotated by angles of float32, `_casts_rotated`.
    """
    if _rotation_reason(forward, home):
        return forward
    names = inspect.unwrap(forward).__globals__
    known = names[_ROTATE]

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        theirs = names[_ROTATE]
        if theirs is not known:  # another library's since
            return theirs(q, k, cos, sin, unsqueeze_dim)
        reason = _unrotated(q, k, cos, sin, unsqueeze_dim, casts)
        if reason is not None:
            return call_pytorch(_ROTATE, reason, theirs, q, k, cos, sin, unsqueeze_dim)
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    return _with_rotation(forward, rotate)


def _attention_forward(cls: Any, _: Any) -> _Forward:
    @functools.wraps(cls.forward)
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        own = cls.forward  # which may be another one since the module was converted
        hidden = arguments[0] if arguments else named.get("hidden_states")
        if nn.is_compiling() or nn.is_exported(hidden):
            return own(self, *arguments, **named)
        casts = not any(_has_one_type(each) for each in (*arguments, *named.values()))
        return _rotating(own, cls.__module__, casts)(self, *arguments, **named)

    return forward


def _has_one_type(argument: object) -> bool:
    """Return True if it is a cache whose memory may have one type of keys, as a StaticCache's: one
    that was begun in training gets others later. A DynamicCache promotes them."""
    return hasattr(argument, "get_seq_length") and type(argument).__name__ != "DynamicCache"


def _unrotated(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int, casts: bool
) -> Unserved | None:
    """Return the argument for which transformers' own function rotates."""
    if unsqueeze_dim != 1:
        return Unserved("unsqueeze_dim", "1", unsqueeze_dim)
    if differentiates():
        return DERIVATIVE
    for name, each in (("cos", cos), ("sin", sin)):
        is_cast = casts and each.dtype == torch.float32 and _casts_rotated(q)
        if q.dtype != k.dtype or not (q.dtype == each.dtype or is_cast):
            return Unserved(name, f"{q.dtype}, as queries", str(each.dtype))
        if each.requires_grad and torch.is_grad_enabled():
            return Unserved(name, "a constant", "a tensor that requires a gradient")
        if not each.shape[-1:] == q.shape[-1:] == k.shape[-1:]:
            return Unserved(name, f"{q.shape[-1]} angles, as of heads", f"{each.shape[-1]}")
    return None


def _casts_rotated(q: Tensor) -> bool:
    """Return True if autocast rounds queries that angles of float32 rotate to their type again.

    In training alone: a cache that tokens are generated with may have been begun by transformers'
    function, in float32.
    """
    kind = q.device.type
    is_training = records(q) and not q.is_meta and torch.is_autocast_enabled(kind)
    return is_training and torch.get_autocast_dtype(kind) == q.dtype


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (batch, heads, rows, width), which is mostly a view with the heads of a row in
    neighbouring places; so is the result then."""
    if x.is_contiguous():
        return functional.rotary(x, cos, sin, False)
    return functional.rotary(x.transpose(1, 2), cos, sin, True).transpose(1, 2)


# ---- Head and loss -------------------------------------------------------------------------------


def _run_decoder(model: _Module, named: dict[str, Any], _: Any = None) -> tuple[Tensor, Any]:
    """Return (input of a model's head, results of its body by name).

    named: arguments of the forward pass by name.
    """
    outputs = getattr(model, model.base_model_prefix)(**named, return_dict=True)
    return outputs[0], outputs


def _run_bert(model: _Module, named: dict[str, Any], _: Tensor) -> tuple[Tensor, Any]:
    """Return (input of the head's linear layer, results of the body by name) of BERT, whose head
    begins with a transform."""
    hidden, outputs = _run_decoder(model, named)
    return model.cls.predictions.transform(hidden), outputs


_CACHES = ("cache", "past_key_values")  # names of T5's cache, as transformers 5.24 and 5.17 call it


def _run_t5(model: _Module, named: dict[str, Any], labels: Tensor) -> tuple[Tensor, Any]:
    """Run T5's encoder, unless its outputs are arguments, then its decoder; return (input of the
    head, results of both by name).

    labels: shifted right, they are the decoder's tokens if it has no others. Changes `named`.
    """
    encoded = named.pop("encoder_outputs", None)
    of_encoder = {name: named.pop(name, None) for name in ("input_ids", "inputs_embeds")}
    mask = named.pop("attention_mask", None)
    cache = {name: named.pop(name) for name in _CACHES if name in named}
    of_decoder = {
        name: named.pop(f"decoder_{name}", None)
        for name in ("input_ids", "attention_mask", "inputs_embeds")
    }
    use_cache = named.pop("use_cache", None)
    if encoded is None:
        encoded = model.encoder(attention_mask=mask, **of_encoder, **named)
    if of_decoder["input_ids"] is None and of_decoder["inputs_embeds"] is None:
        of_decoder["input_ids"] = model._shift_right(labels)
    outputs = model.decoder(
        **of_decoder,
        **cache,
        encoder_hidden_states=encoded[0],
        encoder_attention_mask=mask,
        use_cache=use_cache,
        **named,
    )
    hidden = outputs[0]
    if model.config.scale_decoder_outputs:
        hidden = hidden * model.model_dim**-0.5
    others = dict(zip(("hidden_states", "attentions"), (*encoded[1:], None, None), strict=False))
    if isinstance(encoded, dict):
        others = encoded
    return hidden, {
        **{name: outputs[name] for name in _CACHES if name in outputs},
        "decoder_hidden_states": outputs.get("hidden_states"),
        "decoder_attentions": outputs.get("attentions"),
        "cross_attentions": outputs.get("cross_attentions"),
        "encoder_last_hidden_state": encoded[0],
        "encoder_hidden_states": others.get("hidden_states"),
        "encoder_attentions": others.get("attentions"),
    }


class _Model(NamedTuple):
    """How a class computes head and loss.

    output: name of its result's class. loss: name of its loss function, "" if it calls
    torch.nn.CrossEntropyLoss. head: the path of the linear layer. run(model, arguments by name,
    labels): returns the head's input, and the body's results. is_capped: the configuration may cap
    scores.
    """

    output: str = "CausalLMOutputWithPast"
    loss: str = "ForCausalLMLoss"
    head: str = "lm_head"
    run: Callable[[_Module, dict[str, Any], Tensor], tuple[Tensor, Any]] = _run_decoder
    is_capped: bool = False


_MODELS = {
    **{f"{name}ForCausalLM": _Model() for name in (*_GEMMAS, *_LLAMAS, "Phi3")},
    "Gemma2ForCausalLM": _Model(is_capped=True),
    "Gemma3ForCausalLM": _Model(is_capped=True),
    "GPT2LMHeadModel": _Model("CausalLMOutputWithCrossAttentions"),
    "BertForMaskedLM": _Model("MaskedLMOutput", "", "cls.predictions.decoder", _run_bert),
    "T5ForConditionalGeneration": _Model("Seq2SeqLMOutput", "", run=_run_t5),
}
_HEADED = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
# All that T5's forward pass has: what it gets goes to either of its halves.
_OF_T5 = frozenset(
    (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"),
        *("encoder_outputs", *_CACHES, "inputs_embeds", "decoder_inputs_embeds", "labels"),
        *("use_cache", "kwargs"),
    )
)


def _head_reason(cls: type) -> str:
    """Return a text that says why head and loss of a class stay apart, or ""."""
    if cls.__name__ not in _MODELS:
        return "head and loss stay apart: none of the models whose forward pass is known"
    kind = _MODELS[cls.__name__]
    if kind.loss and not hasattr(cls, "loss_function"):
        return "head and loss stay apart: of a transformers without loss functions (before 4.46)"
    others = set(_parameters(cls)) - _OF_T5
    if kind.run is _run_t5 and others:
        return f"head and loss stay apart: its forward pass takes {', '.join(sorted(others))}"
    return ""


def _parameters(cls: Any) -> list[str]:
    """Return the names of the parameters of a class's forward pass, without `self`."""
    return [*inspect.signature(cls.forward).parameters][1:]


def _headed_forward(cls: Any, own: Any) -> _Forward:
    """Return a forward pass whose head and loss are `functional.linear_cross_entropy`.

    With labels, in training or with skip_logits=True, its result has no logits.
    """
    kind, names = _MODELS[cls.__name__], _parameters(cls)
    outputs_of = importlib.import_module("transformers.modeling_outputs")
    output = getattr(outputs_of, kind.output)
    fields = [each.name for each in dataclasses.fields(output)]
    fields = [name for name in fields if name not in ("loss", "logits")]
    losses = kind.loss and importlib.import_module("transformers.loss.loss_utils")
    loss_function = losses and getattr(losses, kind.loss)

    @functools.wraps(cls.forward)
    def forward(self: Any, *arguments: Any, skip_logits: bool | None = None, **named: Any) -> Any:
        """Compute the loss without logits, or call the model's own pass, which returns both.

        arguments, named: of that pass. skip_logits: choose the first; None: in training.
        """
        named.update(zip(names, arguments, strict=False))
        labels = named.pop("labels", None)
        skips = self.training if skip_logits is None else skip_logits
        if labels is None or not skips or cls.forward is not own or nn.is_exported(labels):
            return cls.forward(self, labels=labels, **named)
        head = self.get_submodule(kind.head)
        reason = _unserved(head, named)
        if kind.loss and not _is_own_loss(self, loss_function):
            reason = Unserved("loss_function", f"transformers' {kind.loss}", "another")
        if reason is not None:
            return call_pytorch(cls.__name__, reason, cls.forward, self, labels=labels, **named)
        is_dict = named.pop("return_dict", None)
        named.pop("logits_to_keep", None)
        hidden, outputs = kind.run(self, named, labels)
        cap = self.config.final_logit_softcapping if kind.is_capped else None
        loss = _loss(head, hidden, labels, kind.loss, cap, named)
        result = output(loss=loss, **{name: outputs.get(name) for name in fields})
        is_dict = self.config.return_dict if is_dict is None else is_dict
        if is_dict:
            return result
        loss, *others = result.to_tuple()
        return loss, None, *others  # each where loops look it up

    return forward


def _is_own_loss(model: Any, loss_function: Any) -> bool:
    """Return True if nobody set another loss; the property that has it warns of unknown names."""
    has_type = getattr(model, "loss_type", None) in (None, "ForCausalLM")
    return has_type and getattr(model, "_loss_function", loss_function) is loss_function


def _unserved(head: Any, named: dict[str, Any]) -> Unserved | None:
    """Return an argument, or property of the head, for which scores have to be computed, or None.

    named: arguments of the forward pass by name.
    """
    keep = named.get("logits_to_keep", 0)
    if not isinstance(keep, int) or keep:
        return Unserved("logits_to_keep", "0 with labels", keep)
    ignored = named.get("ignore_index", -100)
    if not hasattr(type(ignored), "__index__"):
        return Unserved("ignore_index", "an integer", ignored)
    if type(head).forward is not torch.nn.Linear.forward or "forward" in head.__dict__:
        return Unserved("head", "a torch.nn.Linear", type(head).__name__)
    if _has_hooks(head):
        return Unserved("head", "a layer without hooks", "one with hooks")
    if hasattr(type(head), "weight"):  # computed anew each time, perhaps with another result
        return Unserved("head", "a weight that is a plain tensor", "one with a parametrization")
    if type(head.weight) not in (Tensor, torch.nn.Parameter):
        return Unserved("head", "a weight that is a plain tensor", type(head.weight).__name__)
    return None


def _loss(
    head: Any,
    hidden: Tensor,
    labels: Tensor,
    kind: str,
    cap: float | None,
    named: dict[str, Any],
) -> Tensor:
    """Return the loss that a loss function of transformers has, from its arguments in `named`.

    head: the linear layer; hidden: its input, (samples, tokens, features). labels: (samples,
    tokens). kind: the function's name; "": torch.nn.CrossEntropyLoss, which has none of these
    arguments. cap: of scores, or None.

    It is a mean, times the share of its rows in `num_items_in_batch`. The sum would be out of
    range where 16 bits have a narrow one.
    """
    ignored = named.get("ignore_index", -100) if kind else -100
    if kind:
        shifted = named.get("shift_labels")
        if shifted is None:
            shifted = torch.nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]
        labels = shifted  # each token predicts the next one
    labels = labels.reshape(-1).to(hidden.device)
    loss = functional.linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]),
        head.weight,
        labels,
        linear_bias=head.bias,
        ignore_index=ignored,
        softcap=cap,
        dtype=torch.float32 if kind else None,
    )
    n_items = named.get("num_items_in_batch") if kind else None
    if n_items is None:
        return loss
    if isinstance(n_items, Tensor):
        n_items = n_items.to(loss.device)
    return loss * ((labels != ignored).sum() / n_items)


# Of modules that `convert` replaces: `skip` may name them.
NAMES = frozenset((*_MODELS, *_FORMS, *_GELUS))

# SPDX-License-Identifier: MIT
"""Families of transformers' models that no other test names, converted, beside themselves."""

from __future__ import annotations

import copy
import importlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
transformers = pytest.importorskip("transformers", reason="transformers is in no extra")

from cupy_training_ops.torch import convert  # noqa: E402

SMALL = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}


@pytest.fixture(autouse=True)
def _seeded(seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)


def norm_of(family: str, name: str):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    norm = getattr(module, name)(16)
    with torch.no_grad():
        norm.weight += 0.2 * torch.randn(16)
    return norm


TYPES = [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(("kind", "kind_of_weight"), TYPES)
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
        expected = torch.nn.functional.rms_norm(wide, (16,), weight, norm.variance_epsilon)
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
    words = torch.randint(37, (2, 9))
    actual, expected = (each(words, labels=words).loss for each in (converted, model))
    torch.testing.assert_close(actual, expected, atol=0.02, rtol=0.02)
    actual.backward()
    assert all(p.grad.isfinite().all() for p in converted.parameters())

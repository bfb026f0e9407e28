# SPDX-License-Identifier: MIT
"""
A tour
======

Ten minutes through the package, on NumPy's arrays: codecs, operators, a training loop and an ONNX
model. Each cell was run when this page was made; with CuPy's arrays the same lines run on the GPU.
In a checkout ``python examples/tour.py`` runs them all.
"""

# %%
# Arrays become codes
# -------------------
# ``compress`` gives a ``Packed``: codes, and what decoding needs. Its codec says how far a value
# may be off.
import numpy as np

import cupy_training_ops as cto

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 512), np.float32)
packed = cto.compress(x, "msfp15")
print(packed.codec, packed.original_nbytes, "to", packed.nbytes, "bytes")
print("largest error", abs(packed.decompress() - x).max().round(4))

# %%
# All codecs on one array: a quarter of the memory at 38 dB, half of it at 74.
relu = np.maximum(x, 0)
for name in ("pack8", "fp10", "msfp15_signed", "int8_signed", "pack16", "sparse"):
    packed = cto.compress(relu, name)
    noise = np.mean((packed.decompress() - relu) ** 2) / np.mean(relu**2)
    quality = f"{-10 * np.log10(noise):5.1f} dB" if noise else "every bit"
    print(f"{name:14} {packed.ratio:4.1f} times smaller  {quality}")

# %%
# Operators are functions and classes
# -----------------------------------
# All of ONNX Runtime's training operators, and more. Inputs come by place or by name, attributes by
# name; ``out=`` writes into an array of yours, ``outputs=`` names the outputs that are wanted.
scores = rng.standard_normal((8, 10), np.float32)
labels = rng.integers(0, 10, 8)
loss, gradient = cto.cross_entropy_loss_and_grad(scores, labels)
print("loss", loss.round(3), "gradient", gradient.shape)

dx = np.empty_like(x)
cto.gelu_grad(np.ones_like(x), x, out=dx)
print("gelu'(0.5) is about", cto.gelu_grad(np.ones(1), np.array([0.5])).round(4))

# %%
# A call that does not fit is refused before anything is computed, and says what was expected.
try:
    cto.gelu_grad(np.ones(3, np.float32), np.ones(4, np.float32))
except cto.OpError as error:
    print(error)

# %%
# A network that learns from codes
# --------------------------------
# What the backward pass needs waits in an ``ActivationStash``: in a quarter of its memory, here.
weights = [0.1 * rng.standard_normal(shape, np.float32) for shape in ((16, 64), (64, 4))]
inputs = rng.standard_normal((256, 16), np.float32)
targets = np.argmax(inputs[:, :4], axis=1)
optimizer = cto.AdamW(weights, lr=0.01)
stash = cto.ActivationStash("default")
losses = []
for _ in range(60):
    with stash:
        hidden = np.maximum(inputs @ weights[0], 0)
        stash.put("hidden", hidden, need="linear")
        loss, d_scores = cto.cross_entropy_loss_and_grad(hidden @ weights[1], targets)
        losses.append(float(loss))
        hidden = stash.get("hidden")
        d_hidden = cto.relu_grad(d_scores @ weights[1].T, hidden)
        optimizer.step([inputs.T @ d_hidden, hidden.T @ d_scores], max_norm=1.0)
report = stash.report()
print("loss", round(losses[0], 3), "to", round(losses[-1], 3))
print("waited as", report["after"], "bytes in place of", report["before"])

# %%
# An ONNX model trains
# --------------------
# A folder of ONNX Runtime's training artifacts, or with ``TrainingSession.from_model`` any model.
session = cto.onnx.TrainingSession("examples/onnx_digits", np)
images = rng.random((20, 1, 8, 8), np.float32)
digits = rng.integers(0, 10, 20)
steps = [float(session.step(images, digits)) for _ in range(20)]
print("loss", round(steps[0], 3), "to", round(steps[-1], 3))

# %%
# What would run where
# --------------------
# The registry answers for every operator, type and provider.
kernel = cto.lookup("GatherGrad", dY="float16")
print(kernel.providers)
print(cto.GatherGrad.__doc__.partition("\n")[0])

# SPDX-License-Identifier: MIT
"""A PyTorch loop that keeps its activations as codes, with saved-tensor hooks written by hand.

    python examples/saved_activations.py --codec msfp15_signed

With msfp15 small results of ReLU become 0, and lose their gradients. A hook sees who made a tensor,
not who saves it, so this is for networks whose operations take what they save linearly;
`cto.torch.compressed_activations` looks at that, too.

What autograd saves for the backward pass is encoded, and decoded when the gradients need it. Two
layers may save the same activation, as a ReLU its output and the next layer its input: PyTorch
holds it once, so here it is encoded, and counted, once too.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Iterable, MutableMapping
from typing import TypeAlias

import torch
from torch.autograd.graph import saved_tensors_hooks

import cupy_training_ops as cto
from cupy_training_ops.typing import CodecName

CODECS = ("pack8", "pack16", "msfp15", "msfp15_signed")
Saved: TypeAlias = torch.Tensor | tuple[cto.Packed[torch.Tensor], torch.Size]


class SavedActivations:
    """The hooks of one training step, and the bytes of what they encoded."""

    def __init__(self, codec: CodecName, held: Iterable[torch.Tensor]) -> None:
        """held: tensors that stay in memory anyway, such as parameters."""
        self.codec: CodecName = codec
        self.original_nbytes = self.nbytes = 0
        self._held = {tensor.untyped_storage().data_ptr() for tensor in held}
        # Weak, so that codes go when autograd lets go of them.
        self._encoded: MutableMapping[tuple[object, ...], cto.Packed[torch.Tensor]] = (
            weakref.WeakValueDictionary()
        )

    def pack(self, x: torch.Tensor) -> Saved:
        """The activation's codes, with its shape; anything else as it is."""
        is_held = x.untyped_storage().data_ptr() in self._held
        if is_held or not x.is_floating_point() or not x.is_contiguous():
            return x
        if (
            type(x.grad_fn).__name__ == "LogSoftmaxBackward0"
        ):  # whose small errors are large factors
            return x
        key = self._key(x)
        packed = self._encoded.get(key)
        if packed is None:
            packed = self._encoded[key] = cto.compress(x, self.codec)
            self.original_nbytes += packed.original_nbytes
            self.nbytes += packed.nbytes
        return packed, x.shape

    def unpack(self, saved: Saved) -> torch.Tensor:
        """What gradients are computed from."""
        if isinstance(saved, torch.Tensor):
            return saved
        packed, shape = saved
        return packed.decompress().reshape(shape)

    def _key(self, x: torch.Tensor) -> tuple[object, ...]:
        """The same for tensors over the same memory, under whatever shapes, until it is written.

        Two weak references are equal while both storages live and are one: memory that is freed
        and given to another activation is not taken for the first. Writes that PyTorch does not
        count, as through `x.data`, are not seen; `cto.torch.compressed_activations` looks for them.
        """
        storage = weakref.ref(x.untyped_storage())
        return storage, x.storage_offset(), x.numel(), x.dtype, x._version


def train(codec: CodecName | None, steps: int) -> tuple[list[float], SavedActivations | None]:
    """The losses of a small network, and what was saved in the last step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 8 * 8, 10),
    )
    x, target = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, saved = [], None
    for _ in range(steps):
        if codec is None:
            loss = torch.nn.functional.cross_entropy(model(x), target)
        else:
            saved = SavedActivations(codec, [x, *model.parameters()])
            with saved_tensors_hooks(saved.pack, saved.unpack):
                loss = torch.nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, saved


def main() -> None:
    """Print both losses and the bytes of a step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--codec", choices=CODECS, default="msfp15_signed")
    parser.add_argument("--steps", type=int, default=30)
    codec, steps = parser.parse_args().codec, parser.parse_args().steps
    (plain, _), (losses, saved) = train(None, steps), train(codec, steps)
    assert saved is not None  # with a codec
    print(f"loss after {steps} steps: {plain[-1]:.4f} plain, {losses[-1]:.4f} with {codec}")
    before, after = saved.original_nbytes, saved.nbytes
    print(f"activations of a step: {before} bytes, {after} encoded: {before / after:.1f}")


if __name__ == "__main__":
    main()

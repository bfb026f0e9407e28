# SPDX-License-Identifier: MIT
# ruff: noqa: T201
# pyright: strict, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""Right uses, one a line: mypy --strict and pyright find nothing to say."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import cupy_training_ops as cto
from cupy_training_ops.typing import OperatorName


class Tensor:
    """An array of another library, which lends its memory."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        raise NotImplementedError


def numpy_arrays(x: NDArray[np.float32], i: NDArray[np.int64], mask: NDArray[np.bool_]) -> None:
    """Inputs by position or by name; results are NumPy's."""
    y: NDArray[np.float32] = cto.gelu(x)
    print(cto.gelu_grad(x, x).shape, cto.gelu_grad(dY=x, X=x).dtype)
    print(cto.gelu_grad(x, x, out=y) + 1.0)
    print(cto.gelu_grad(x, x, outputs=("dX",)).sum())
    print(cto.fast_gelu(x), cto.fast_gelu(x, None), cto.fast_gelu(x, bias=x[0]))
    print(cto.leaky_relu_grad(x, x, alpha=1), cto.leaky_relu_grad(x, x, alpha=np.float32(0.1)))
    print(cto.fake_quant_grad(x, mask), cto.is_finite(x).any())
    scaled, kept = cto.fake_quant(x, 0.5, 3)
    inside: NDArray[np.bool_] = kept
    print(scaled.mean(), inside.sum())
    print(cto.scale(x, 2), cto.scale(x, np.array([0.5]), scale_down=True))
    print(cto.gather_grad((4, 8), i, x, axis=1, deterministic=False))
    print(cto.slice_grad(x, x.shape, [0], np.array([2]), steps=None))
    print(cto.reduce_sum_training(x, (0, 1), keepdims=False))
    print(cto.resize_grad(x, x, mode="linear", coordinate_transformation_mode="align_corners"))
    first, second, third = cto.batch_scale(x, scale_0=1, scale_1=0.5, scale_2=None)
    print(first, second, third.shape)
    da, db = cto.div_grad(x, x, x, outputs=["dB"])
    print(da is None, db.shape)
    print(cto.all(mask)[0], cto.zero_gradient(x, x))


def lists(xs: list[NDArray[np.float32]], shapes: tuple[tuple[int, int], ...]) -> None:
    """A list goes in as any sequence, and comes back as a tuple."""
    joined, lengths = cto.concat_training([xs[0], xs[1]], axis=-1)
    print(joined.ndim, lengths.tolist())
    first, *_ = cto.split_training(xs[0], [1, 2], axis=0)
    print(first.shape, cto.split_training(xs[0], num_outputs=3)[2])
    for piece in cto.view(xs[0], [(2, 2), 4]) + cto.view(xs[0], shapes):
        print(piece.shape)
    print(cto.in_place_accumulator_list(xs, tuple(xs)), cto.is_all_finite(xs, isnan_only=True))
    print(cto.mixed_precision_scale(xs[0], xs, to=np.float16), cto.reduce_all_l2(xs))


def other_libraries(device: Any, tensor: Tensor, x: NDArray[np.float32]) -> None:
    """CuPy's arrays are of unknown type to checkers; others lend their memory."""
    own: Any = cto.gelu_grad(device, device, out=device)
    print(own.get())
    print(cto.gelu_grad(tensor, X=tensor, out=tensor), cto.relu_grad(tensor, device))
    print(cto.gather_grad(x.shape, tensor, tensor, workspace=x))


def protocols(tensor: cto.typing.Tensor[str], device: cto.typing.CupyArray) -> None:
    """Results are of the library that the inputs are of."""
    own: str = cto.gelu_grad(tensor, tensor, out=tensor)
    pieces: tuple[str, ...] = cto.split_training(tensor, [1, 2], axis=0)
    joined, lengths = cto.concat_training([device, device], axis=0)
    counts: NDArray[np.int64] = lengths
    print(own, pieces, joined.get(), counts, (joined + joined).get())
    print(cto.compress(device, "msfp15").decompress().get())
    print(cto.compress(device, "pack8").decompress(out=device).get())
    decoded: str = cto.compress(tensor, "msfp15", keep_nonfinite=True).decompress()
    print(decoded, cto.Packed.load("x.npz", "cuda").decompress().get())


def policy(name: str, dtype: str, shape: tuple[int, ...], need: str) -> str | None:
    """Codes for large arrays alone."""
    return "pack16" if name and len(dtype) + len(shape) > 8 and need == "value" else None


def training(x: NDArray[np.float32], device: Any, model: bytes) -> None:
    """Optimizers, stashes and sessions."""
    for optimizer in (cto.SGD([x]), cto.Adam((x, x), lr=np.float32(0.1)), cto.Lamb([x])):
        optimizer.step([None], lr=1, loss_scale=x[0], max_norm=1.0)
    cto.AdamW([device], lr=device, state="8bit", betas=(0.9, 0.99), names=["w"]).step([device])
    cto.AdamW([x], low_precision=[x, None], moment_dtype="bfloat16").save("state.npz")
    with cto.ActivationStash("small") as stash:
        stash.put("x", x, "sign")
        print(stash.get("x").sum(), stash.get("x", out=x).mean())
    print(cto.ActivationStash(policy).report())
    session = cto.onnx.TrainingSession.from_model(model, loss="mse", activations="default")
    print(session.step(x, labels=x).item(), session.parameters["w"].mean(), session.eval(x))
    print(cto.onnx.Session(model).run({"x": x, "y": [x]})["z"].mean())


def passes_on(session: cto.onnx.TrainingSession, packed: cto.Packed) -> NDArray[np.float32]:
    """Sessions and packed arrays are NumPy's where nothing else is said."""
    return session.step(packed.decompress())


def codecs(x: NDArray[np.float32], tensor: Tensor) -> None:
    """Codecs by name, also in a loop over all."""
    print([cto.compress(x, codec).ratio for codec in cto.CODECS])
    packed = cto.compress(tensor, "msfp15", keep_nonfinite=True)
    packed.save("packed.npz")
    print(packed.codec, cto.Packed.load("packed.npz", provider="cuda").decompress(out=x))
    print(cto.gist_pack8_decoder(x, to=packed.dtype, shape=packed.shape))
    print(cto.gist_pack16_decoder(x, to=x.dtype), cto.gist_pack1_decoder(x, to=1, shape=4))


def operators(x: NDArray[np.float32], i: NDArray[np.int64], name: OperatorName) -> None:
    """Operators as classes, by attribute and by name."""
    gather = cto.GatherGrad(axis=1)
    print(gather(dY=x, indices=i, shape=(4, 8)).nbytes, gather.axis + 1, gather.name)
    print(gather.workspace_nbytes((4, 8), i, x), gather.bound((4, 8), ..., ...)(dY=x, indices=i))
    decoder: cto.GistPack8Decoder = cto.get_op("GistPack8Decoder")(to="float32", shape=[3])
    print(decoder(x), decoder.to.itemsize, decoder.shape)
    print(cto.get_op("Scale")(scale_down=1)(x, 3.0), cto.get_op("Scale", version=1).since)
    print(cto.get_op(name)()(x), cto.get_op(name).inputs, cto.lookup(name, dY="float16").types)
    print(cto.get_op("GeluGrad", domain="com.microsoft")()(x, x).mean())


def errors(x: NDArray[np.float32]) -> str:
    """The errors are one family."""
    try:
        return f"{cto.__version__} {cto.gelu(x)}"
    except (cto.ArgumentError, cto.DtypeError, cto.ProviderError, cto.CompileError) as error:
        return str(error)
    except cto.OpError as error:
        return str(error)

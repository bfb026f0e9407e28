# SPDX-License-Identifier: MIT
"""`activation_codes`: options of torch.compile, their partitioner, and its report.

PyTorch's partitioner chooses what is saved; codes replace saved values as the policy allows.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch
import torch._inductor
from torch import _guards
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch.fx import GraphModule, Node

from ...errors import refuse
from .budget import NAME, Budget, Graphs, Partition, Partitioner, budget_of, within
from .plan import ANYWAY, Planner, Saved, nbytes_of, save_what_reads_written_inputs
from .policies import POLICIES
from .rewrite import rewrite

OPTION = "custom_partitioner_fn"
LEAST = 64 << 10  # bytes; smaller tensors are not worth an encoder
# A change of these files changes compiled graphs, and so the key of PyTorch's cache.
SOURCES = tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py")))


class CodesPartitioner(CustomPartitionerFn):  # type: ignore[misc]
    """Splits a joint graph of forward and backward pass for Inductor, activations saved as codes.

    policy: the format of codes for each use of a value. budget: limit of the saved bytes; None:
    encode all that the policy allows. least: bytes below which tensors are not encoded. account:
    the report; one from a pickle has its own. In calls: gm is the joint graph, joint_inputs are its
    inputs, settings the keyword arguments that PyTorch passes to its own partitioner.
    """

    def __init__(self, policy: str, budget: Budget | None, least: int) -> None:
        self.policy, self.budget, self.least = POLICIES[policy], budget, least
        self.account = Account()
        self._has_warned = False

    def __copy__(self) -> CodesPartitioner:
        """Return self: options and settings of PyTorch are copied, but there is one account."""
        return self

    def __deepcopy__(self, _: object) -> CodesPartitioner:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the same partitioner; PyTorch's caches have it in their keys."""
        return CodesPartitioner, (self.policy.name, self.budget, self.least)

    def uuid(self) -> object:
        """Return a key of all that a compiled graph depends on, for the cache of graphs' code.

        Refuse it to the cache of whole models, as one from there calls no partitioner, and would
        not be in the report: its key is asked for before any graph of the model is compiled.
        """
        context = _guards.TracingContext.try_get()
        if context is not None and getattr(context, "aot_graph_name", None) is None:
            from torch._inductor.codecache import BypassFxGraphCache  # PyTorch has imported it here

            raise BypassFxGraphCache(f"{NAME}: its report needs each graph's partition")
        settings = f"{self.policy.name} {self.budget} {self.least}"
        return get_hash_for_files(SOURCES, settings)

    def __call__(
        self, gm: GraphModule, joint_inputs: object, **settings: Any
    ) -> tuple[GraphModule, GraphModule]:
        """Return the forward and the backward graph, PyTorch's own ones after an error."""
        try:
            return self._partition(gm, joint_inputs, settings)
        except Exception as error:  # of whatever kind: training goes on without codes
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{NAME}: a graph has no codes, and is as PyTorch {torch.__version__} makes it "
                    f"(codes are tested with 2.11 and 2.13): {type(error).__name__}: {error}",
                    stacklevel=2,
                )
            plain: Graphs = min_cut_rematerialization_partition(gm, joint_inputs, **settings)
            return plain

    def _partition(
        self, gm: GraphModule, joint_inputs: object, settings: dict[str, Any]
    ) -> tuple[GraphModule, GraphModule]:
        """Choose a partition within the budget, put encoders and decoders into its graphs, and
        return these, (forward, backward)."""
        save_what_reads_written_inputs(gm.graph)
        planner = Planner(
            self.policy, self.least, settings.get("static_lifetime_input_indices") or ()
        )
        num_outputs = settings["num_fwd_outputs"]

        def split_graph(partitioner: Partitioner) -> Graphs:
            return partitioner(gm, joint_inputs, **settings)

        chosen = within(self.budget, split_graph, planner, num_outputs)
        rewrite(chosen.forward, chosen.backward, chosen.plan, num_outputs)
        self.account.note(chosen)
        return chosen.forward, chosen.backward


class Account:
    """A report with a line for each saved tensor of each compiled graph."""

    def __init__(self) -> None:
        self._graphs: list[list[dict[str, Any]]] = []  # the lines of each graph

    def note(self, chosen: Partition) -> None:
        """Add a graph's saved tensors, and those that are computed again."""
        lines = [_line(one, one.forward.name in chosen.added) for one in chosen.plan]
        self._graphs.append(lines + [_line_of_recomputed(node) for node in chosen.recomputed])

    def report(self) -> dict[str, Any]:
        """Return the sums of bytes over all graphs, and the lines of each.

        "before", "after": without parameters and inputs, whose memory is there in any case.
        "coded": {format: {"tensors": how many, "before": bytes, "after": bytes}}. "as_it_is": the
        same by the reason why tensors are not encoded. "graphs": a list of lines for each graph.
        """
        graphs = list(self._graphs)  # other threads add some
        lines = [line for graph in graphs for line in graph]
        counted = [line for line in lines if line["reason"] not in ANYWAY]
        stays = [line for line in lines if line["as"] == "itself"]
        return {
            "before": sum(line["before"] for line in counted if not line["added"]),
            "after": sum(line["after"] for line in counted),
            "coded": _by("as", [line for line in lines if line["as"] != "itself"]),
            "as_it_is": _by("reason", stays),
            "graphs": [[dict(line) for line in graph] for graph in graphs],
        }


def _line(one: Saved, is_added: bool) -> dict[str, Any]:
    """Return the report's line for a saved value, with its name, shape and dtype.

    one: its plan. "before", "after": bytes of the value, and of what is saved. "as": a format of
    codes, "itself", or "made again" if the backward pass computes it again. "in_place_of": if the
    codes are of another value, which is computed from this one, the name of that. "reason": why it
    has no codes, or the operator that needs it most exactly. "added", is_added: PyTorch's own
    choice would not save it.
    """
    form = "made again" if one.is_dropped else "itself" if one.format is None else one.format.name
    return {
        **_describe(one.forward),
        "before": one.nbytes,
        "after": one.saved_nbytes,
        "as": form,
        "in_place_of": "" if one.is_in_place else one.point.name,
        "reason": one.reason,
        "added": is_added,
    }


def _line_of_recomputed(node: Node) -> dict[str, Any]:
    """Return the report's line for a value that PyTorch's own choice would save, but that the
    backward pass computes again: "before" are its bytes, "after" 0; "added" is False, as the budget
    does not save it. Keys are those of `_line`. node: the value's in the forward graph.
    """
    return {
        **_describe(node),
        "before": nbytes_of(node.meta["val"]),
        "after": 0,
        "as": "made again",
        "in_place_of": "",
        "reason": "computed from others",
        "added": False,
    }


def _describe(node: Node) -> dict[str, Any]:
    """Return the name, shape (texts, as sizes may be symbolic) and dtype of a node's tensor."""
    value = node.meta["val"]
    return {
        "name": node.name,
        "shape": tuple(map(str, value.shape)),
        "dtype": str(value.dtype).removeprefix("torch."),
    }


def _by(key: str, lines: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return {value of `key` in lines: {"tensors": how many, "before": bytes, "after": bytes}}."""
    groups: dict[str, dict[str, int]] = {}
    for line in lines:
        sums = groups.setdefault(line[key], {"tensors": 0, "before": 0, "after": 0})
        sums["tensors"] += 1
        sums["before"] += line["before"]
        sums["after"] += line["after"]
    return groups


class ActivationCodes(dict[str, Any]):
    """Options of torch.compile, with a report of compiled graphs."""

    def report(self) -> dict[str, Any]:
        """Return the bytes that compiled graphs save: uncompressed, by reason, or as codes.

        `before` and `after` are sums over all graphs, without parameters and inputs: of what
        PyTorch's own choice saves, and of what is saved; `coded` has them by format, `as_it_is` by
        the reason why tensors have no codes. `graphs` has a line for each tensor of each graph;
        "added": a budget saves it, PyTorch's choice would not. Copies of the options share a
        report; options from a pickle have their own.
        """
        report: dict[str, Any] = self[OPTION].account.report()
        return report


def activation_codes(
    policy: Literal["default", "wide", "products", "small"] = "default",
    *,
    budget: float | str | None = None,
    mode: str | None = None,
    least: int = LEAST,
) -> ActivationCodes:
    """Options for torch.compile, with which activations are saved as codes.

        codes = cto.torch.activation_codes()
        step = torch.compile(step, options=codes)

    policy: `default`; `wide`, which also encodes queries and keys of attention; `products`, which
    encodes only operands of products; or `small`, with 4 bits for these.
    budget: bytes of each graph, as "4GB", or a share of what PyTorch's own choice saves, as 0.4:
    each tensor is saved, encoded or computed again, so that the step is short. None: encode all
    that the policy allows.
    mode: as torch.compile's, whose options are included; others can be merged.
    least: smaller tensors, in bytes, are not encoded.

    Raises ArgumentError for other values.
    """
    if policy not in POLICIES:
        refuse(NAME, "policy", f"one of {', '.join(POLICIES)}", repr(policy))
    modes = torch._inductor.list_mode_options()
    if mode is not None and mode not in modes:
        refuse(NAME, "mode", f"None or one of {', '.join(modes)}", repr(mode))
    options = ActivationCodes(modes[mode] if mode else {})
    options[OPTION] = CodesPartitioner(policy, budget_of(budget), least)
    return options

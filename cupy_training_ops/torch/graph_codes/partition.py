# SPDX-License-Identifier: MIT
"""The partitioner: PyTorch's own chooses what is saved, and codes stand in for what they may."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch.fx import GraphModule

from .budget import NAME, Budget, Graphs, Partitioner, within
from .plan import Planner
from .policies import GraphPolicy
from .report import Account
from .rewrite import rewrite

SOURCES = tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py")))


class CodesPartitioner(CustomPartitionerFn):  # type: ignore[misc]
    """Splits a joint graph for Inductor, and lets activations wait as codes."""

    def __init__(self, policy: GraphPolicy, budget: Budget | None, least: int) -> None:
        self.policy, self.budget, self.least = policy, budget, least
        self.account = Account()
        self._has_warned = False

    def __deepcopy__(self, _: object) -> CodesPartitioner:
        """Itself, as PyTorch copies its settings and the account is one."""
        return self

    def uuid(self) -> object:
        """All that a compiled graph depends on, for the caches of compiled code."""
        settings = f"{self.policy.name} {self.budget} {self.least}"
        return get_hash_for_files(SOURCES, settings)

    def __call__(
        self, gm: GraphModule, joint_inputs: object, **settings: Any
    ) -> tuple[GraphModule, GraphModule]:
        """The forward and the backward graph; PyTorch's own ones where this PyTorch is another."""
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
        planner = Planner(
            self.policy, self.least, settings.get("static_lifetime_input_indices") or ()
        )
        num_outputs = settings["num_fwd_outputs"]

        def split_graph(partitioner: Partitioner) -> Graphs:
            return partitioner(gm, joint_inputs, **settings)

        chosen = within(self.budget, split_graph, planner, num_outputs)
        rewrite(chosen.forward, chosen.backward, chosen.plan, num_outputs)
        self.account.note(chosen.plan, chosen.recomputed)
        return chosen.forward, chosen.backward

# SPDX-License-Identifier: MIT
"""What a group is made from: arguments, the variables of launchers, and NCCL where it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ranks import ROOT

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.process_group.address import Address, to_address
from cupy_training_ops.process_group.environment import placed

# ---- what the constructor takes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((2, 2), {}, "rank: expected an integer from 0 to 1, got 2"),
        ((0, 0), {}, "size: expected a number of ranks from 1 on, got 0"),
        ((True, 2), {}, "rank: expected an integer from 0 to 1, got True"),
        ((0, 2), {}, "address: expected 'host:port' where rank 0 listens, got None"),
        ((0, 2, "here"), {}, "address: expected 'host:port' with a port from 1 to 65535, got 'he"),
        ((0, 2, ("a", 0)), {}, "address: expected 'host:port' with a port"),
        ((0, 2, "a:1"), {"timeout": 0}, "timeout: expected seconds above 0, got 0"),
        ((0, 2, "a:1"), {"on_fault": "stop"}, "on_fault: expected 'exit' or 'raise', got 'stop'"),
    ],
)
def test_arguments_are_checked(arguments, keywords, message) -> None:
    with pytest.raises(ArgumentError, match=f"^ProcessGroup: {message}"):
        cto.ProcessGroup(*arguments, **keywords)


def test_addresses() -> None:
    assert to_address("[::1]:5") == Address("::1", 5)
    assert str(Address("::1", 5)) == "[::1]:5"
    assert to_address(("localhost", 29500)) == to_address("localhost:29500")


# ---- launchers -----------------------------------------------------------------------------------

TORCH = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCH |= {"MASTER_ADDR": "one", "MASTER_PORT": "29000"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "123456"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCH, (1, 4, 1, 2, "one:29000")),
        (TORCH | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, (1, 4, 1, 2, "one:29001")),
        (TORCH | {"CTO_ADDRESS": "two:1"}, (1, 4, 1, 2, "two:1")),
        (TORCH | {"MASTER_ADDR": "fe80::1"}, (1, 4, 1, 2, "[fe80::1]:29000")),
        (OPEN_MPI, (3, 4, 3, 4, "127.0.0.1:29500")),
        (OPEN_MPI | {"PMIX_NAMESPACE": "prterun-x-77@1"}, (3, 4, 3, 4, "127.0.0.1:20771")),
        (MPICH, (0, 2, 0, 2, "127.0.0.1:29500")),
        (SLURM | {"MASTER_ADDR": "n1"}, (5, 8, 1, None, "n1:23456")),
        (SLURM | {"SLURM_NNODES": "1"}, (5, 8, 1, 8, "127.0.0.1:23456")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, None, None)),
    ],
)
def test_launchers_variables(variables, expected) -> None:
    assert placed(variables) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {},
            r"expected variables of a launcher among torchrun's \(RANK, WORLD_SIZE\), .* got none",
        ),
        (SLURM, "Slurm does not say where rank 0 is: set MASTER_ADDR"),
        (TORCH | {"RANK": "one"}, "RANK: expected a number, got 'one'"),
    ],
)
def test_launchers_that_do_not_say_enough(variables, message) -> None:
    with pytest.raises(GroupError, match=f"^ProcessGroup.from_environment: {message}"):
        placed(variables)


# ---- without NCCL --------------------------------------------------------------------------------

QUIET = """
import sys, warnings
warnings.simplefilter("error")
import numpy as np, cupy_training_ops as cto
x = np.ones(3)
cto.nccl_all_reduce([x], group=cto.ProcessGroup(0, 1))
assert not any(name.startswith("cupy.") for name in sys.modules)
from cupy_training_ops.process_group import nccl
try:
    nccl.library()
    print("there is NCCL")
except cto.ProviderError as error:
    print(error)
"""


def test_without_the_library_nothing_warns_and_a_call_says_which_extra() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    command = [sys.executable, "-W", "error", "-c", QUIET]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "there is NCCL\n" or (
        "NCCL (libnccl.so.2) is not here; install it with: pip install 'cupy-training-ops[nccl1"
    ) in ran.stdout  # fmt: skip
    assert not ran.stderr

# SPDX-License-Identifier: MIT
"""srun on one machine, as its documentation has it: so many tasks, each with Slurm's variables.

    srun.py KIND TASKS COMMAND...

KIND: "mpiexec", the PMI of MPI's own launcher; "none", no PMI; "pmi2", PMI's variables without one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile

JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}


def variables(kind: str, rank: int, n: int) -> dict[str, str]:
    """Those of a task."""
    actual = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": n, "SLURM_NPROCS": n}
    actual |= {"SLURM_STEP_NUM_TASKS": n, "SLURM_STEP_TASKS_PER_NODE": n}
    if kind == "pmi2":
        actual |= {"PMI_RANK": rank, "PMI_SIZE": n, "PMI_JOBID": "77.0"}
    return JOB | {name: str(value) for name, value in actual.items()}


def main(kind: str, tasks: str, *command: str) -> int:
    n = int(tasks)
    if kind == "task":  # that mpiexec began
        rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
        os.execvpe(command[0], command, os.environ | variables(kind, rank, n))
    if kind == "mpiexec":
        from mpi import ALLOWED, launcher

        own = [launcher(), "-n", tasks, sys.executable, __file__, "task", tasks, *command]
        return subprocess.run(own, env=os.environ | ALLOWED).returncode
    with contextlib.ExitStack() as opened:  # what a task says stays together
        files = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(n)]
        began = [
            subprocess.Popen(
                command, env=os.environ | variables(kind, rank, n), stdout=file, stderr=file
            )
            for rank, file in enumerate(files)
        ]
        statuses = [process.wait() for process in began]
        for file in files:
            file.seek(0)
            sys.stdout.write(file.read())
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

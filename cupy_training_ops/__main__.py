# SPDX-License-Identifier: MIT
"""`python -m cupy_training_ops` is the command line `cupy-training-ops`."""

from .cli import main

main(prog_name="cupy-training-ops")

# SPDX-License-Identifier: MIT
"""From a plan to a running kernel: source, compiler, launch, workspace, backend."""

# SPDX-License-Identifier: MIT
"""Attacks on calls, files and commands, drawn by a session's seed and a case's number.

A case changes one thing of one sample, file or command line. What fails is printed with the line
that repeats it. `--hostile-cases N` draws N calls and a quarter as many files.
"""

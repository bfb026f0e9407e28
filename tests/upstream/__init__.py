# SPDX-License-Identifier: MIT
"""Compares the CPU provider with onnxruntime-training-cpu, which nobody here wrote.

It pins an old NumPy, so it lives in an environment of its own (`environment`), and some models end
the process they run in, so it runs in one of its own (`process` asks, `runner` answers).
"""

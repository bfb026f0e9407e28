# SPDX-License-Identifier: MIT
"""What can go wrong with an emulated kernel."""


class EmulatorError(RuntimeError):
    """A launch was refused, or a kernel did something that the emulator does not allow."""


class EmulatorCompileError(RuntimeError):
    """g++ did not compile a kernel source; the text is the compiler's log."""

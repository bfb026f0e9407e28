# SPDX-License-Identifier: MIT
"""Arrays of no library that the package knows."""


class Foreign:
    """An array of another library, lent through DLPack."""

    def __init__(self, array) -> None:
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

# SPDX-License-Identifier: Apache-2.0
"""Facts that identify a model's weights, so that states in files are never taken for those of other weights."""

from __future__ import annotations

import os

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")

Facts = list[list[object]]


def files_of(path: str) -> Facts | None:
    """Names, sizes and times of the weights at `path`, a file or a folder. None: nothing lies there."""
    if os.path.isfile(path):
        return [_facts(path, os.path.basename(path))]
    if not os.path.isdir(path):
        return None
    return [_facts(os.path.join(path, name), name) for name in sorted(os.listdir(path)) if name.endswith(_SUFFIXES)]


def _facts(path: str, name: str) -> list[object]:
    status = os.stat(path)  # follows links
    return [name, status.st_size, status.st_mtime_ns]

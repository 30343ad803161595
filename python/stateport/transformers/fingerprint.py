# SPDX-License-Identifier: Apache-2.0
"""A name of a model: models with equal names have equal states."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import transformers

_UNREAD = ("_name_or_path", "transformers_version")  # of a configuration: they change no result


def model_name(model: Any) -> str:
    """Names configuration, weights and version of transformers, by 256 bits of their hash. Reads every weight once."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _UNREAD}
    digest = hashlib.sha256(repr(sorted(config.items(), key=lambda item: item[0])).encode())
    digest.update(f"{type(model).__name__} {transformers.__version__}".encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return f"transformers:{digest.hexdigest()}"


def _bytes(tensor: torch.Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()

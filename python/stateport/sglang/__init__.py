# SPDX-License-Identifier: Apache-2.0
"""States and KV of SGLang's hybrid models below the device. Two doors of SGLang, no patch; take one of them:

* StateportLinker: SGLang's device pools straight to stateport's tiers, host memory and files.
* StateportStorage: files below SGLang's own host memory (HiCache)."""

from stateport.sglang.linker import StateportLinker
from stateport.sglang.storage import StateportStorage

__all__ = ["StateportLinker", "StateportStorage"]

# SPDX-License-Identifier: Apache-2.0
"""What an operator says in SGLang's configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stateport._weights import files_of
from stateport.errors import InvalidArgument
from stateport.hashing import seed_of_variable


@dataclasses.dataclass(frozen=True)
class Options:
    """folder: for images in files; the folder above it must be. file_bytes: of this process (each tensor-parallel
    rank) there. host_bytes: of pinned memory, for the linker alone. free_floor_bytes: left free in the file system.
    lanes: files at a time, 0: 2. revision: names the weights, where the model's path is no folder of theirs.
    keep_on_flush: of the linker: flush_cache forgets nothing. SGLang flushes its cache when weights change, when it
    gives memory back, and when it is asked to; it does not say why. Use it only where the weights stay as they are.
    False: no later prompt finds what was kept before a flush, and later images are this process's alone.
    hash_seed_variable: an environment variable with a secret number from 1 to 2^64 - 1, which enters the names of
    images (SGLang prints what is said here); the same for all that share a folder; empty: none. scrub: host memory
    is set to zero at the end, and bytes of files before they are given back. SGLang's own memory, on the device and
    on the host, is SGLang's. kv_events: SGLang's publisher of events announces the contents of the tiers,
    KV only up to the deepest state that can be restored. --kv-events-config has "publisher": "stateport" then."""

    folder: str = ""
    file_bytes: int = 0
    host_bytes: int = 0
    free_floor_bytes: int = 0
    lanes: int = 0
    revision: str = ""
    hash_seed_variable: str = ""
    scrub: bool = False
    keep_on_flush: bool = False
    kv_events: bool = False

    @classmethod
    def read(cls, where: str, given: Mapping[str, Any]) -> Options:
        """Raises InvalidArgument for unknown names, other types, negative numbers, and files without both of folder and
        file_bytes."""
        fields = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        for name, value in given.items():
            if name == "hash_seed":
                raise InvalidArgument(f"{where} has 'hash_seed', and SGLang would print the secret: name an "
                                      "environment variable by 'hash_seed_variable' instead")
            if name not in fields:
                raise InvalidArgument(f"{where} has {name!r}, and knows {', '.join(fields)}")
            if type(value) is not fields[name] or (isinstance(value, int) and value < 0):
                wanted = {str: "text", bool: "true or false"}.get(fields[name], "a number of at least 0")
                raise InvalidArgument(f"{where}: {name} is {value!r}, and must be {wanted}")
        options = cls(**given)
        if bool(options.folder) != bool(options.file_bytes):
            raise InvalidArgument(f"{where}: folder is {options.folder!r} and file_bytes is {options.file_bytes}, and "
                                  "files need both")
        return options

    def hash_seed(self) -> int:
        """0: none. Raises InvalidArgument for a variable that is not set, or is no such number."""
        return seed_of_variable("hash_seed_variable", self.hash_seed_variable) if self.hash_seed_variable else 0

    def weights(self, model: str) -> str:
        """What is known of the weights. Raises InvalidArgument where files would have nothing to tell them by."""
        files = files_of(model)
        if self.folder and files is None and not self.revision:
            raise InvalidArgument(f"revision is empty, and must name the weights of {model!r}, which is no folder of "
                                  "them")
        return repr((model, self.revision, files))

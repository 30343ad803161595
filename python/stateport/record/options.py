# SPDX-License-Identifier: Apache-2.0
"""The option `record` of adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateport.errors import InvalidArgument
from stateport.record.key import key_of_variable
from stateport.record.recorder import Recorder

_KEYS: Mapping[str, Any] = {"path": str, "block_tokens": int, "rotate_bytes": int, "total_bytes": int,
                            "queue_tokens": int, "sample": (int, float), "key_variable": str}


def check_record(record: Mapping[str, Any]) -> None:
    """record: {"path": …}, beside it arguments of a Recorder, and key_variable: the environment variable that has the
    key. Raises InvalidArgument for a key or a value that is none, and without a path."""
    if "key" in record:
        raise InvalidArgument("record has the key 'key', and engines print their options: name an environment "
                              "variable by record.key_variable instead")
    for name, value in record.items():
        if name not in _KEYS:
            raise InvalidArgument(f"record has the key {name!r}, and may have {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[name]) or isinstance(value, bool):
            wanted = "a number" if name == "sample" else _KEYS[name].__name__
            raise InvalidArgument(f"record.{name} is {value!r}, and must be {wanted}")
    if not record.get("path"):
        raise InvalidArgument("record has no path: name the files, for example /var/stateport/traffic.jsonl.gz")


def open_recorder(record: Mapping[str, Any], engine: str, **about: Any) -> Recorder:
    """record: that check_record has passed. engine, about: for the header. Raises InvalidArgument as a Recorder, and
    for a variable that has no key."""
    values = {name: value for name, value in record.items() if name != "key_variable"}
    if "key_variable" in record:
        values["key"] = key_of_variable("record.key_variable", record["key_variable"])
    return Recorder(values.pop("path"), engine=engine, **about, **values)

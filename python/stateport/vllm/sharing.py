# SPDX-License-Identifier: Apache-2.0
"""A store that several engines share, as an operator names it."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from stateport.errors import InvalidArgument
from stateport.model_layout import ModelLayout, SplitBand, TensorSplit
from stateport.mooncake_store import MooncakeStore
from stateport.remote_store import RemoteStore, ValkeyStore
from stateport.spec import StateSpec
from stateport.tiers import SharedLayout

_STORES: Mapping[str, Callable[..., RemoteStore]] = {"mooncake": MooncakeStore.connect, "valkey": ValkeyStore}
_QUEUES = {"queue_bytes": 0, "queue_requests": 0}  # of every store
_SECRET = "password"


def check_store(remote: Mapping[str, Any]) -> None:
    """remote: {"store": "mooncake" or "valkey", …}, beside it arguments of MooncakeStore.connect or of ValkeyStore, and
    for Valkey password_variable: the environment variable that has the password. Raises InvalidArgument for a key or a
    value that is none, and for a password: vLLM writes its configuration to its log."""
    store = str(remote.get("store"))
    if store not in _STORES:
        raise InvalidArgument(f"remote.store is {remote.get('store')!r}, and must be one of {', '.join(_STORES)}")
    if _SECRET in remote or "@" in str(remote.get("url", "")):
        raise InvalidArgument("remote has a password, or a user in its url, which vLLM would write to its log: name "
                              "the user by remote.user, and the environment variable of the password by "
                              "remote.password_variable")
    allowed = _arguments(store)
    for name, value in remote.items():
        if name == "store":
            continue
        if name not in allowed:
            raise InvalidArgument(f"remote has the key {name!r}, and for {store} may have {', '.join(allowed)}")
        wanted = type(allowed[name]) if allowed[name] is not None else str
        taken = isinstance(value, (int, float) if wanted is float else wanted)
        if not taken or (isinstance(value, bool) and wanted is not bool):
            raise InvalidArgument(f"remote.{name} is {value!r}, and must be {wanted.__name__}")


def _arguments(store: str) -> dict[str, Any]:
    """The arguments that a store takes, each with a value of its type."""
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = {name: one.default for name, one in inspect.signature(_STORES[store]).parameters.items()
             if one.kind in plain and name != _SECRET}
    found |= {} if store == "valkey" else _QUEUES
    # Connections have times with fractions; they are given as whole numbers, too.
    found |= {name: 0.0 for name in found if name.endswith("_s")}
    return found | ({"password_variable": None} if store == "valkey" else {})


def open_store(remote: Mapping[str, Any]) -> RemoteStore:
    """Raises InvalidArgument as check_store does, and for a variable that is not set; raises the errors of the store,
    too."""
    check_store(remote)
    values = {name: value for name, value in remote.items() if name not in ("store", "password_variable")}
    variable = remote.get("password_variable")
    if variable is not None:
        with contextlib.suppress(KeyError, UnicodeEncodeError):
            values[_SECRET] = os.environ[variable]
        if _SECRET not in values:  # perhaps the name is the password itself
            raise InvalidArgument("remote.password_variable = (not shown) is no environment variable here")
    return _STORES[remote["store"]](**values)


def unsplit(spec: StateSpec) -> SharedLayout:
    """Of images whose bytes mean something to equal ranks alone: no tensor is split."""
    return SharedLayout(ModelLayout(spec, [TensorSplit(0, (SplitBand(tensor.shape[0]),)) for tensor in spec.tensors]))

# SPDX-License-Identifier: Apache-2.0
"""A trace of SGLang's requests, for stateport-replay. SGLang finds this plugin by itself where stateport is installed:

    STATEPORT_SGLANG_RECORD='{"path": "/var/stateport/traffic.jsonl.gz"}' python -m sglang.launch_server …
"""

from __future__ import annotations

import collections
import importlib
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from stateport.errors import Error, InvalidArgument
from stateport.record.options import check_record, open_recorder
from stateport.record.recorder import Recorder, RequestFacts

logger = logging.getLogger(__name__)

VARIABLE = "STATEPORT_SGLANG_RECORD"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object"
_EXPORTERS = "sglang.srt.observability.request_metrics_exporter.RequestMetricsExporterManager._create_exporters"
_HEALTH_CHECK = "HEALTH_CHECK"  # SGLang's own requests have names that begin so
_REMEMBERED = 1 << 16  # prompts that run


def register() -> None:
    """The entry point of `sglang.srt.plugins`, which SGLang calls in each of its processes. Without the environment
    variable it does nothing. Never raises: SGLang serves without a record, and its log says why."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    try:
        traffic = SglangTraffic(_read_options(text))
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        hooks.HookRegistry.register(_TOKENIZER, traffic.tokenized, hooks.HookType.AFTER)
        hooks.HookRegistry.register(_EXPORTERS, traffic.add_exporter, hooks.HookType.AFTER)
    except Exception:
        logger.exception("stateport: %s records nothing", VARIABLE)


def _read_options(text: str) -> Mapping[str, Any]:
    """Raises InvalidArgument."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{VARIABLE} is no JSON: {error}") from None
    if not isinstance(options, dict):
        raise InvalidArgument(f"{VARIABLE} is {options!r}, and must be an object")
    check_record(options)
    return options


class SglangTraffic:
    """The requests of one process of SGLang, from their tokens to their end. None of its calls raises.

    SGLang's exporters of requests do not see the tokens of a prompt that came as text, so that a hook remembers them
    until the request ends. Prompts with images or sound, or of embeddings, are not recorded: their tokens do not tell
    them apart."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: that check_record has passed."""
        self._options = options
        self._tokens: collections.OrderedDict[str, Any] = collections.OrderedDict()
        self.recorder: Recorder | None = None  # from the first manager of exporters on
        self.unrecorded = 0  # requests without tokens, and those that the recorder did not take

    def tokenized(self, result: Any, manager: Any, obj: Any, input_text: Any = None, input_ids: Any = None,
                  input_embeds: Any = None, mm_inputs: Any = None, *_: Any, **__: Any) -> None:
        """After TokenizerManager._create_tokenized_object: result has the tokens."""
        if self.recorder is None or input_ids is None or input_embeds is not None or mm_inputs is not None:
            return
        self._tokens[str(getattr(obj, "rid", None))] = getattr(result, "input_ids", None)
        if len(self._tokens) > _REMEMBERED:
            self._tokens.popitem(last=False)

    def add_exporter(self, result: Any, manager: Any) -> None:
        """After RequestMetricsExporterManager._create_exporters."""
        try:
            if self.recorder is None:
                model = str(getattr(manager.server_args, "served_model_name", None) or "")
                self.recorder = open_recorder(self._options, "sglang", model=model)
            manager._exporters.append(self)
        except (Error, AttributeError):
            logger.exception("stateport: %s records nothing", VARIABLE)

    async def write_record(self, obj: Any, out_dict: Mapping[str, Any]) -> None:
        """As of SGLang's RequestMetricsExporter: a request has ended."""
        try:
            if not str(getattr(obj, "rid", "")).startswith(_HEALTH_CHECK):
                self.unrecorded += not self._add(obj, out_dict.get("meta_info") or {})
        except Exception as error:
            self.unrecorded += 1
            logger.debug("stateport: a request is not recorded: %s", error)

    def close(self) -> None:
        """As of an exporter."""
        if self.recorder is not None:
            self.recorder.close()

    def _add(self, obj: Any, meta: Mapping[str, Any]) -> bool:
        tokens = self._tokens.pop(str(obj.rid), None)
        if tokens is None or self.recorder is None:
            return False
        shared = [getattr(obj, name, None) for name in ("lora_path", "extra_key", "cache_salt")]
        session = getattr(obj, "session_id", None) or (getattr(obj, "session_params", None) or {}).get("id")
        cached = meta.get("cached_tokens")
        reason = meta.get("finish_reason")
        return self.recorder.add(RequestFacts(
            tokens, int(meta.get("completion_tokens") or 0), meta.get("request_received_ts"),
            session=None if session is None else str(session), namespace=repr(shared).encode() if any(shared) else None,
            hit_tokens=None if cached is None else int(cached),
            hit_tier=_slowest_tier(meta.get("cached_tokens_details") or {}) if cached else "",
            cancelled=isinstance(reason, dict) and reason.get("type") == "abort"))


def _slowest_tier(details: Mapping[str, Any]) -> str:
    """Of the parts of a hit. SGLang's storage is files of this machine, or anything else."""
    if details.get("storage"):
        return "file" if "file" in str(details.get("storage_backend", "")).lower() else "remote"
    return "host" if details.get("host") else "device"

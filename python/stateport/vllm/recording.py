# SPDX-License-Identifier: Apache-2.0
"""A trace of vLLM's requests, for stateport-replay."""

from __future__ import annotations

import logging
from typing import Any

from stateport.record import Recorder, RequestFacts
from stateport.vllm.prompts import media_of, namespace_of

logger = logging.getLogger(__name__)

class Traffic:
    """The requests of vLLM, from their admission to their end. None of its calls raises."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._admitted: dict[str, tuple[str, str]] = {}  # the slowest medium of the hit, and why it was not more

    def admitted(self, request: Any, medium: str, lost: str) -> None:
        """medium: that tokens behind vLLM's own hit came from; empty: there were none."""
        if getattr(request, "num_cached_tokens", -1) < 0:  # it was not preempted
            self._admitted[request.request_id] = medium, lost

    def ended(self, request: Any, resets: int) -> bool:
        """False: it is not recorded."""
        medium, lost = self._admitted.pop(request.request_id, ("", ""))
        try:
            return self.recorder.add(_facts(request, resets, medium, lost))
        except Exception as error:
            logger.debug("stateport: a request is not recorded: %s", error)
            return False


def _facts(request: Any, resets: int, medium: str, lost: str) -> RequestFacts:
    # vLLM counts the tokens that it took from caches when it runs a request first, and -1 before.
    hit_tokens = int(request.num_cached_tokens)
    namespace = namespace_of(request, resets)
    tokens = request.prompt_token_ids if getattr(request, "prompt_embeds", None) is None else ()
    return RequestFacts(
        tokens, int(request.num_output_tokens), float(request.arrival_time),
        session=getattr(request, "session_id", None),
        namespace=None if namespace is None else repr((namespace.extra_key, namespace.salt)).encode(),
        media=media_of(request, request.num_prompt_tokens), hit_tokens=hit_tokens if hit_tokens >= 0 else None,
        hit_tier=medium or "device" if hit_tokens > 0 else "", lost_reason=lost,
        cancelled=request.status.name == "FINISHED_ABORTED")

# SPDX-License-Identifier: Apache-2.0
"""The tokens of a generation while it samples."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer, TextStreamer

from stateport.errors import NoCapacity


class TokenStream(Iterator[Any]):
    """An iterator over the tokens (or the text) of one generation, which runs in a thread of its own.

    An exception of the generation is raised where the next token would be. timeout_s: how long to wait for one."""

    def __init__(self, cache: Any, input_ids: torch.Tensor, tokenizer: Any, timeout_s: float | None,
                 options: dict[str, Any]) -> None:
        self._timeout_s = timeout_s
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._done = False
        self.output: Any = None  # the answer of generate, when the iteration is over
        streamer = _Text(tokenizer, self._queue) if tokenizer is not None else _Tokens(self._queue)
        criteria = [_Stop(self._stop), *(options.pop("stopping_criteria", None) or [])]
        # The thread holds no reference to the stream, so an abandoned stream ends.
        self._thread = threading.Thread(
            target=_generate, name="stateport-stream", daemon=True,
            args=(cache, input_ids, {**options, "streamer": streamer, "stopping_criteria": criteria}, self._queue))
        self._thread.start()

    def __next__(self) -> Any:
        if self._done:
            raise StopIteration
        try:
            item = self._queue.get(timeout=self._timeout_s)
        except queue.Empty:
            raise NoCapacity(f"nothing was sampled for {self._timeout_s} seconds") from None
        if not isinstance(item, (_End, BaseException)):
            return item
        self._finish()
        if isinstance(item, _End):
            self.output = item.output
            raise StopIteration
        raise item

    def _finish(self) -> None:
        self._done = True
        self._thread.join()

    def close(self) -> None:
        """Ends the generation after the token that it computes now. Closing twice is fine."""
        self._stop.set()
        self._finish()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_stop"):
            self._stop.set()


class _End:
    """Comes after the last token."""

    def __init__(self, output: Any) -> None:
        self.output = output


def _generate(cache: Any, input_ids: torch.Tensor, options: dict[str, Any], into: queue.SimpleQueue[Any]) -> None:
    try:
        into.put(_End(cache.generate(input_ids, **options)))
    except BaseException as error:  # next() raises it
        into.put(error)


class _Stop(StoppingCriteria):  # type: ignore[misc]
    """Stops when its event is set."""

    def __init__(self, reported: threading.Event) -> None:
        self._told = reported

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), self._told.is_set(), dtype=torch.bool, device=input_ids.device)


class _Tokens(BaseStreamer):  # type: ignore[misc]
    """Puts token ids into a queue, but for those of the prompt, which come first."""

    def __init__(self, into: queue.SimpleQueue[Any]) -> None:
        self._into, self._prompt = into, True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            for token in value.reshape(-1).tolist():
                self._into.put(token)
        self._prompt = False

    def end(self) -> None:
        pass


class _Text(TextStreamer):  # type: ignore[misc]
    """Puts text into a queue, in whole words."""

    def __init__(self, tokenizer: Any, into: queue.SimpleQueue[Any]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._into = into

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self._into.put(text)

# SPDX-License-Identifier: Apache-2.0
"""Messages of the scheduler's side to the workers for a step, and their answers. Plain data: it crosses processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from stateport._arrays import IMAGE_KEY, TRANSFER_RESULT, Int32s, Records
from stateport.vllm.device_kv import DeviceCopies
from stateport.vllm.layout import KV


@dataclasses.dataclass
class PageCopies:
    """Copies of blocks between vLLM's pages and the pools of the host. pages[group]: int32 [n, 2], vLLM's block and the
    place on the host, by vLLM's number of the group. Places are those of PageGroup.places."""

    pages: dict[int, Int32s] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(pairs) for pairs in self.pages.values())


@dataclasses.dataclass
class PlaceClears:
    """Places in the pool of KV that were another tenant's, or slots in that of states of which a copy writes a part."""

    places: Int32s
    content: str = KV


@dataclasses.dataclass
class StepPlan:
    """One step. First `moves`, from vLLM's blocks to others of them (the second number of a pair), and `restores`, for
    the requests `restored`, which do not run in this step. Nothing is copied for the requests `refused`: the worker
    reports their restores as failed. After the forward, in their order: `saves`, each of them copies of pages to the
    host, places there that are set to zero before, or transfers between the host and files (TRANSFER [n]). removed:
    images that some worker lacks."""

    restores: PageCopies = dataclasses.field(default_factory=PageCopies)
    restored: list[str] = dataclasses.field(default_factory=list)
    refused: list[str] = dataclasses.field(default_factory=list)
    saves: list[PageCopies | PlaceClears | Records] = dataclasses.field(default_factory=list)
    removed: Records = dataclasses.field(default_factory=lambda: np.empty(0, IMAGE_KEY))
    moves: PageCopies = dataclasses.field(default_factory=PageCopies)


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """A worker's facts before the first step: its pools, the bytes of their contents, and the images in its files.
    window_block_bytes: of a block of each group of sliding windows, which state_bytes has, too."""

    kv_blocks: int
    states: int
    kv_block_bytes: int
    state_bytes: int
    kv_image_bytes: int
    state_image_bytes: int
    fingerprint: int
    images: Records
    window_block_bytes: tuple[int, ...] = ()

    @property
    def pools(self) -> tuple[int, ...]:
        """All but the images, which change while the engine runs."""
        return (self.kv_blocks, self.states, self.kv_block_bytes, self.state_bytes, self.kv_image_bytes,
                self.state_image_bytes, self.fingerprint, *self.window_block_bytes)


class StepBuilder:
    """Gathers the work of a step. Neighbouring saves go into one copy, unless they write the same place."""

    def __init__(self) -> None:
        self._restores: dict[int, list[Int32s]] = {}
        self._moves: dict[int, list[Int32s]] = {}
        self._saves: list[dict[int, list[Int32s]] | PlaceClears | Records] = []
        self._written: set[tuple[int, int]] = set()
        self.restored: list[str] = []
        self.refused: list[str] = []
        self.device_copies: list[DeviceCopies] = []  # wished for: plan_step decides
        self.removed = np.empty(0, IMAGE_KEY)

    def restore(self, group: int, pages: Any, places: Any) -> None:
        """places on the host to vLLM's blocks `pages`."""
        if len(pages):
            self._restores.setdefault(group, []).append(_pairs(pages, places))

    def move(self, group: int, sources: Any, targets: Any) -> None:
        """vLLM's blocks `sources` to its blocks `targets`."""
        if len(sources):
            self._moves.setdefault(group, []).append(_pairs(sources, targets))

    def transfer(self, transfers: Records) -> None:
        if len(transfers):
            self._saves.append(transfers)

    def clear(self, places: Int32s, content: str = KV) -> None:
        if len(places):
            self._saves.append(PlaceClears(places, content))

    def save(self, group: int, pages: Any, places: Any) -> None:
        """vLLM's blocks `pages` to places on the host."""
        pairs = _pairs(pages, places)
        if not len(pairs):
            return
        written = {(group, int(place)) for place in pairs[:, 1]}
        last = self._saves[-1] if self._saves else None
        if not isinstance(last, dict) or written & self._written:
            last = {}
            self._saves.append(last)
            self._written = set()
        last.setdefault(group, []).append(pairs)
        self._written |= written

    def build(self) -> StepPlan:
        saves = [PageCopies(_joined(save)) if isinstance(save, dict) else save for save in self._saves]
        return StepPlan(PageCopies(_joined(self._restores)), self.restored, self.refused, saves, self.removed,
                        PageCopies(_joined(self._moves)))


def _pairs(pages: Any, places: Any) -> Int32s:
    out = np.empty((len(pages), 2), np.int32)
    out[:, 0], out[:, 1] = pages, places
    return out


def _joined(groups: dict[int, list[Int32s]]) -> dict[int, Int32s]:
    return {group: np.concatenate(pairs) for group, pairs in groups.items()}


def agreed_images(infos: Sequence[WorkerInfo], block_size_tokens: int) -> tuple[Records, Records]:
    """The images that every worker has, by tokens, and those that only some have or that are no whole blocks: those are
    to be removed."""
    sets = [{row.tobytes() for row in info.images} for info in infos]
    everywhere, somewhere = set.intersection(*sets), set.union(*sets)
    images, lone = _images(everywhere), _images(somewhere - everywhere)
    whole = images["tokens"] % block_size_tokens == 0
    order = np.argsort(images["tokens"][whole], kind="stable")
    return images[whole][order], np.concatenate([images[~whole], lone])


def _images(rows: set[bytes]) -> Records:
    return np.frombuffer(bytearray(b"".join(sorted(rows))), IMAGE_KEY) if rows else np.empty(0, IMAGE_KEY)


class ResultCount:
    """Gathers the answers of the workers: a transfer ended when all of them answered, with the worst of their
    answers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._open: dict[int, tuple[int, int]] = {}

    def add(self, results: Records) -> Records:
        """Results of one or several workers. Answers those that are complete: TRANSFER_RESULT [n]."""
        done = []
        for number, status in zip(results["id"].tolist(), results["status"].tolist(), strict=True):
            count, worst = self._open.pop(number, (0, 0))
            if count + 1 == self._workers:
                done.append((number, max(worst, status), 0))
            else:
                self._open[number] = (count + 1, max(worst, status))
        return np.array(done, TRANSFER_RESULT)

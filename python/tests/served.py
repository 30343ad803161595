# SPDX-License-Identifier: Apache-2.0
"""An engine as small as can be: a RequestCache with StateTiers, and a model that adds."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import numpy as np

import stateport as sp

STATE, KV = (sp.TensorSpec("recurrent", "float32", (64,)), sp.TensorSpec("recurrent", "float32", (16,)))


def whole(tensor: sp.TensorSpec) -> sp.ModelLayout:
    """It is not split."""
    return sp.ModelLayout(sp.StateSpec([tensor]), [sp.TensorSplit(0, (sp.SplitBand(tensor.shape[0]),))])


class Served:
    """One request at a time over real stores: the state after n tokens is their sum, KV is the tokens. Below the device
    are a host and a folder, or a store that others share. cache: options of the RequestCache beside those of tiers."""

    def __init__(self, folder: pathlib.Path | None = None, remote: sp.RemoteStore | None = None,
                 cache: dict[str, Any] | None = None, **options: Any) -> None:
        states, kv = sp.StateSpec([STATE]), sp.StateSpec([KV])
        bytes_below: dict[str, Any] = {"state_image_bytes": states.image_bytes, "kv_image_bytes": kv.image_bytes}
        room: dict[str, Any] = {"host_bytes": 0 if remote else 1 << 20, "file_bytes": 1 << 22 if folder else 0}
        shared = None
        if remote:
            options |= {"remote_bytes": 1 << 22, "write_through": True}
            shared = sp.RemoteOptions(remote, [sp.SharedLayout(whole(STATE))], kv=sp.SharedLayout(whole(KV)),
                                      staging_bytes=4 << 20)
        self.cache = sp.RequestCache(
            "hash", sp.SlotLayout(states.fingerprint, checkpoints=2, scan_alignment_tokens=-1),
            max_requests=1, max_request_tokens=128, kv_tokens=192, block_size_tokens=16,
            tiers=sp.TierOptions(**room, **bytes_below, **options), **(cache or {}))
        self.states = sp.StateStore(states, self.cache.state_slots())
        self.kv = sp.StateStore(kv, self.cache.kv_blocks)
        self.tiers = sp.StateTiers(states=[self.states], kv=self.kv, model="sum", folder=folder, remote=shared, **room)
        self.computed_tokens = 0

    def serve(self, prompt: Any, namespace: sp.Namespace | None = None) -> sp.StartedRequest:
        started = self.cache.start(prompt, namespace=namespace)
        assert started is not None
        self.tiers.begin_transfers(self.cache, started.transfers)
        request, give_up = started.request, time.monotonic() + 60
        while self.cache.computed(request) < len(prompt):
            self.tiers.end_transfers(self.cache)
            tokens = self.cache.chunk([request], [64])
            if not tokens[0]:
                assert self.cache.loading([request])[0] and time.monotonic() < give_up
                continue
            self._pass(request, prompt, tokens)
        self.cache.finish(request)
        self.cache.check_invariants()
        self.tiers.check_invariants()
        return started

    def _pass(self, request: int, prompt: Any, tokens: Any) -> None:
        plan = self.cache.plan([request], tokens)
        group, start, kv = plan.groups[0], int(plan.start[0]), plan.kv(0)
        end = start + int(tokens[0])
        self.tiers.begin_transfers(self.cache, plan.transfers)
        self.states.clear(group.clear)
        self.states.copy(group.copies)
        sp.synchronize()
        state = self.states.tensor(0)
        assert (state[group.read_recurrent_slot[0]] == prompt[:start].sum()).all() if start else True
        for block in range(start // 16):
            assert np.array_equal(self.kv.tensor(0)[kv[block]], prompt[16 * block:16 * block + 16])
        for block in range(start // 16, -(-end // 16)):
            part = prompt[16 * block:min(16 * block + 16, end)]
            self.kv.tensor(0)[kv[block], :len(part)] = part
        state[group.write_slot[0]] = prompt[:end].sum()
        self.computed_tokens += int(tokens[0])
        assert not len(group.saves)
        last = end == len(prompt)
        commit = self.cache.commit(plan, [int(last)], [1] if last else [])
        self.tiers.begin_transfers(self.cache, commit.transfers)
        self.states.copy(commit.groups[0].copies)
        sp.synchronize()
        self.tiers.end_transfers(self.cache)

    def drain(self) -> None:
        give_up = time.monotonic() + 60
        while len(transfers := self.cache.drain()) or self.cache.transfers_under_way:
            self.tiers.begin_transfers(self.cache, transfers)
            self.tiers.end_transfers(self.cache)
            assert time.monotonic() < give_up
        self.cache.close()
        self.tiers.close()

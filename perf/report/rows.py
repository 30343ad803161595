# SPDX-License-Identifier: Apache-2.0
"""The rows of the report: which figure of which benchmark answers which performance goal.

A figure is named (program, benchmark, counter). Every ratio is above 1 when this library is faster."""
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Figure:
    program: str
    benchmark: str
    counter: str
    threads: Optional[int] = None  # None: as many as the machine lets the program use


@dataclass(frozen=True)
class Goal:
    """The bounds that a row must keep; None: there is no such bound."""

    ratio: Optional[float] = None  # peer / ours at least
    limit_share: Optional[float] = None  # limit / ours at least
    ns: Optional[float] = None  # ours at most

    def __str__(self):
        bounds = []
        if self.ratio is not None:
            bounds.append(f"ratio >= {self.ratio:.3g}")
        if self.limit_share is not None:
            bounds.append(f">= {self.limit_share:.2f} of limit")
        if self.ns is not None:
            bounds.append(f"<= {self.ns / 1000:g} us")
        return ", ".join(bounds) or "-"


@dataclass(frozen=True)
class Row:
    """Times of ours, a peer and a limit, all in ns, from one run of one program."""

    id: str
    metric: str
    ours: Figure
    peer: Optional[Figure] = None
    limit: Optional[Figure] = None
    goal: Goal = Goal()

    def figures(self):
        return [figure for figure in (self.ours, self.peer, self.limit) if figure]

    def measure(self, value):
        """Returns (ours, peer, limit, ratio), ratio = peer / ours. `value` gives a figure's number."""
        ours = value(self.ours)
        peer = value(self.peer) if self.peer else None
        limit = value(self.limit) if self.limit else None
        return ours, peer, limit, peer / ours if peer else None


@dataclass(frozen=True)
class SpeedupRow:
    """How much faster all threads are than one; ours and peer are speedups, and ratio = ours / peer."""

    id: str
    metric: str
    one: Figure
    all: Figure
    peer_one: Figure
    peer_all: Figure
    goal: Goal

    def figures(self):
        return [self.one, self.all, self.peer_one, self.peer_all]

    @property
    def ours(self):
        return self.all

    def measure(self, value):
        ours = value(self.one) / value(self.all)
        peer = value(self.peer_one) / value(self.peer_all)
        return ours, peer, None, ours / peer


def row(id, metric, program, benchmark, ours, peer=None, limit=None, **goal):
    """A row whose figures come from one benchmark."""

    def figure(counter):
        return Figure(program, benchmark, counter) if counter else None

    return Row(id, metric, figure(ours), figure(peer), figure(limit), Goal(**goal))


def copy_rows():
    manual = "/iterations:1/manual_time"
    for requests in (1, 2, 4, 8):
        yield row("C1", f"copy, chunks >= 1 MiB, {requests} requests | memcpy per chunk", "slot_copy_bench",
                  f"C1/{requests}{manual}", "ours_ns", "memcpy_ns", "contiguous_nontemporal_ns",
                  ratio=1.3, limit_share=0.92)
    for kib in (10, 20, 48, 80):
        name = f"C2/KiB:{kib}{manual}"
        yield row("C2", f"copy, {kib} KiB chunks | memcpy per chunk", "slot_copy_bench", name, "ours_ns", "memcpy_ns",
                  "contiguous_memcpy_ns", ratio=1.0)
        yield row("C2", f"copy, {kib} KiB chunks | deep_copy per chunk", "slot_copy_bench", name, "ours_ns",
                  "deep_copy_ns", ratio=1.2)
    for model in ("qwen3-next-80b-a3b", "qwen3.5-9b", "nemotron-h-8b-base",
                  "nemotron-3-super-120b-a12b"):
        yield row("mix", f"whole states, {model} | memcpy per chunk", "slot_copy_bench", f"mix/{model}{manual}",
                  "ours_ns", "memcpy_ns")
    yield row("pages", "whole states in huge pages (HostResource option) | in small pages", "slot_copy_bench",
              f"huge_pages{manual}", "ours_ns", "small_pages_ns")
    for mib, piece in ((32, 512), (32, 2048), (32, 16384), (1, 16384), (4, 16384)):
        for read_again, what in ((0, ""), (1, ", read again")):
            yield row("bypass", f"{piece} byte pieces past the caches, {mib} MiB{what} | memcpy", "nontemporal_bench",
                      f"bypass/MiB:{mib}/piece:{piece}/read_again:{read_again}{manual}", "bypass_ns", "memcpy_ns")
    for name in ("sd", "ds"):
        yield row("shift", f"in-place conv shift by 1, {name} | memmove per row", "conv_shift_bench",
                  f"shift/{name}{manual}", "ours_ns", "memmove_ns")
    yield row("convert", "fp32 -> bf16 slot copy | scalar loop, same threads", "slot_convert_bench",
              f"fp32_to_bf16{manual}", "ours_ns", "loop_ns", "copy_ns")
    for bench, what in (("fp32_to_blocks", "fp32 -> int8 blocks"), ("blocks_to_fp32", "int8 blocks -> fp32")):
        yield row("convert", f"{what} slot copy | memcpy of the fp32 states, same threads", "slot_convert_bench",
                  f"{bench}{manual}", "ours_ns", "memcpy_ns")
    for layout in ("sd", "ds"):
        yield row("reshard", f"a state of 4 ranks to 2, sd -> {layout} | memcpy per tensor, same threads",
                  "resharder_bench", f"four_to_two/sd_to_{layout}{manual}", "ours_ns", "memcpy_ns")
    for idle, what in ((0, "64 requests"), (63, "1 of 64 requests")):
        yield row("commit", f"states of accepted drafts, {what} | memcpy per chunk", "commit_step_bench",
                  f"commit_step/idle:{idle}{manual}", "ours_ns", "memcpy_ns")
    yield row("noop", "plan without a copy, 512 requests", "slot_copy_bench", f"noop{manual}", "ours_ns")
    for name, what in (("states", "4 states"), ("blocks", "256 KV blocks of 256 KiB")):
        for direction in ("to_host", "to_device"):
            yield row("T1", f"images of {what}, {direction.replace('_', ' ')} | one memcpy", "state_tiers_bench",
                      f"T1/{name}/{direction}{manual}", "ours_ns", "memcpy_ns", ratio=0.95)


def scaling_rows():
    def figure(counter, threads):
        return Figure("slot_copy_bench", "mix/qwen3.5-9b/iterations:1/manual_time", counter, threads)

    yield SpeedupRow("C3", "all threads against 1, whole states | the same of a contiguous copy",
                     figure("ours_ns", 1), figure("ours_ns", None),
                     figure("contiguous_nontemporal_ns", 1), figure("contiguous_nontemporal_ns", None),
                     Goal(ratio=0.9))


def bookkeeping_rows():
    manual = "/iterations:1/manual_time"
    for kind in ("sha256", "xxh3_128"):
        yield row("B1", f"prefix lookup, {kind}, 2,048 blocks | the same hash + flat-map find", "block_lookup_bench",
                  f"lookup/{kind}{manual}", "ours_ns", "loop_ns", "hash_ns", ratio=1 / 1.2)
    for nodes in ("1000", "1000000"):
        yield row("B2", f"match, 32k tokens in 8 edges, {nodes} nodes | memcmp", "prefix_tree_bench",
                  f"match_in_8_edges/{nodes}{manual}", "match_ns", "memcmp_ns", ratio=1 / 4)
        yield row("B2", f"the same with hix, {nodes} nodes | memcmp", "prefix_tree_bench",
                  f"match_in_8_edges/{nodes}{manual}", "hix_match_ns", "memcmp_ns", ratio=1 / 4)
    yield row("B2", "match, 2,048 one-page nodes | chain of flat-map finds", "prefix_tree_bench",
              f"match_in_pages{manual}", "match_ns", "chain_ns", ratio=1 / 1.5)
    def in_tree_of(nodes, matched_before=1):
        return f"match_in_tree_of/nodes:{nodes}/matched_before:{matched_before}{manual}"

    for nodes, small in (("2048", "2,048"), ("64", "1,000")):
        growth = "prefix_tree_bench", f"match_growth/prompt_nodes:{nodes}{manual}"
        yield row("B2", f"match, prompts of {int(nodes):,} nodes, tree of 1,000,000 | of {small}", *growth, "match_ns",
                  "small_match_ns", "lines_ns", ratio=1 / 2.5)
        yield row("B2", f"least work of a match, the same | of {small}", *growth, "lines_ns", "small_lines_ns")
    yield row("B2", "match, 64 nodes of 1,000,000 | chain of flat-map finds", "prefix_tree_bench",
              in_tree_of(1_000_000), "match_ns", "chain_ns")
    yield row("B2", "the same for the first time | chain of flat-map finds", "prefix_tree_bench",
              in_tree_of(1_000_000, 0), "match_ns", "chain_ns")
    touches = "prefix_tree_bench", f"use{manual}"
    yield row("B3", "LRU touch, 10^6 nodes, 64 a call | bare list", *touches, "touch_64_at_once_ns", "list_ns",
              ratio=1 / 1.3)
    yield row("B3", "LRU touch, 10^6 nodes, one a call | bare list", *touches, "touch_ns", "list_ns", ratio=1 / 1.3)
    yield row("B3", "LRU touch, one a call | list of nodes of one cache line", *touches, "touch_ns", "list_of_nodes_ns")
    yield row("B3", "LRU touch, one a call | list of nodes and as many no-ops", *touches, "touch_ns",
              "list_of_nodes_idle_ns")
    yield row("B3", "evict one, insert one, 10^6 nodes | flat map + list", "prefix_tree_bench",
              f"evict_one_insert_one{manual}", "tree_ns", "bare_ns", ratio=1 / 2)
    yield row("B3", "the same with 99 % locked | none locked", "prefix_tree_bench",
              f"evict_one_insert_one{manual}", "tree_99_locked_ns", "tree_ns")
    yield row("R2", "evict one, insert one with its state, 10^6 nodes, HIX | LRU", "prefix_tree_bench",
              f"evict_one_insert_one_with_states{manual}", "hix_ns_per_exchange", "lru_ns_per_exchange", ratio=1 / 2.5)
    yield row("evict", "block pool, 10^6 blocks: evict, allocate | flat-map erase + insert", "slot_allocator_bench",
              f"block_pool_evict/1000000{manual}", "ours_ns", "flat_map_ns", ratio=1 / 3)
    yield row("evict", "slot allocator, 10^6 slots | flat-map erase + insert", "slot_allocator_bench",
              f"slot_allocate_evict/1000000{manual}", "ours_ns", "flat_map_ns", ratio=1 / 3)
    for turns in (200, 3000):
        yield row("policy", f"HIX, one eviction of {turns} turns | node LRU", "budget_policy_bench", f"evict/{turns}{manual}",
                  "hix_ns_per_eviction", "node_lru_ns_per_eviction", ns=2_000)
    for index, name in enumerate(("hash_slots", "tree_slots", "hash_columns")):
        for drafts in (0, 3):
            goal = {"ns": 25_000} if name == "hash_columns" else {"ns": 10_000} if drafts == 0 else {}
            yield row("R1", f"plan and commit a decode step of 256 requests, {name}, {drafts} drafts | by hand",
                      "request_cache_bench", f"decode_step/cache:{index}/drafts:{drafts}{manual}", "ours_ns",
                      "by_hand_ns", **goal)
    # The goal is for 48 tensors, one group of them. Four groups hold 192.
    for groups, goal in ((1, {"ns": 50_000}), (4, {})):
        for crossing, what in ((0, "no boundary"), (1, "all cross")):
            yield row("B4", f"align plan, 512 requests, {groups} groups of 48 tensors, {what}", "align_plan_bench",
                      f"plan_step/groups:{groups}/crossing:{crossing}", "real_time", **goal)
    for what in ("write", "read"):
        yield row("T2", f"{what} an image of 64 MiB, durable and checked | plain loop", "image_file_bench",
                  f"{what}_image{manual}", "ours_ns", "plain_loop_ns", ratio=0.9)
    for what, plain in (("put", "set"), ("get", "get")):
        yield row("T4", f"{what} an object of 64 MiB, Valkey over loopback | hiredis' {plain.upper()}",
                  "valkey_store_bench", f"{what}_object/4{manual}", "ours_ns", f"plain_{plain}_ns", ratio=0.9)
        yield row("T4", f"{what} an object of 64 MiB in process | memcpy", "remote_store_bench",
                  f"{what}_in_process{manual}", "ours_ns", "memcpy_to_new_ns" if what == "put" else "memcpy_ns", ratio=0.9)
    for cold, what in ((0, "headers cached"), (1, "headers on the disk")):
        yield row("T3", f"open a folder of 10,000 images, {what} | list it", "image_folder_bench",
                  f"open_folder/images_per_file:1/cold:{cold}{manual}", "ours_ns", "list_ns", ns=1_000_000_000)
    for images in (10_000, 1_000_000):
        yield row("T3", f"look 1,000 keys of a prompt up among {images:,} images of host memory | hash map",
                  "state_tiers_bench", f"T3/lookup/images:{images}/mixed:0{manual}", "ours_ns", "map_ns", ns=20_000)


def gpu_rows():
    manual = "/iterations:1/manual_time"

    def gpu(id, metric, benchmark, ours="ours_ns", peer=None, limit=None, program="gpu_copy_bench", **goal):
        return row(id, metric, program, benchmark + manual, ours, peer, limit, **goal)

    for requests in (16, 32):
        what = f"copy, {requests} requests x 48 tensors"
        name = f"G1/{requests}"
        yield gpu("G1", f"{what} | CUB", name, peer="cub_ns", limit="limit_ns", ratio=1.15, limit_share=0.95)
        yield gpu("G1", f"{what} | batched async memcpy", name, peer="memcpy_batch_ns")
        yield gpu("G1", f"{what} | loop of async memcpy", name, peer="memcpy_loop_ns", limit="limit_ns",
                  limit_share=0.95)
        yield gpu("G7", f"{what} | twin without Kokkos", name, peer="twin_ns", ratio=0.99)
    for requests in (1, 4):
        yield gpu("G2", f"copy, {requests} requests, in a graph; limit: one memcpy of the same bytes", f"G2/{requests}",
                  limit="big_memcpy_ns", limit_share=0.94)
    for name, what, ns in (("plan", "plan on the device", 2500), ("align", "align step", 3000)):
        yield gpu("G3", f"{what} without work, 512 requests: time beyond an empty kernel", f"G3/{name}",
                  program="gpu_step_bench", ours="excess_ns", ns=ns)
    yield gpu("G11", "plan on the device, 11 of 512 rows have work", "idle_98", program="gpu_step_bench",
              limit="limit_ns", limit_share=0.93)
    yield gpu("G11", "align step that copies 1 x 48 tensors: time beyond the twin without Kokkos", "align/1",
              program="gpu_step_bench", ours="beyond_twin_ns", ns=2000)
    for requests in (1, 16):
        yield gpu("align", f"align step that copies {requests} x 48 tensors | twin without Kokkos", f"align/{requests}",
                  program="gpu_step_bench", peer="twin_ns", limit="limit_ns")
    for layout in ("sd", "ds"):
        for window, shift in ((3, 1), (3, 2), (4, 1), (4, 2), (4, 3), (6, 1), (6, 2), (6, 3)):
            # One kept token of sd takes less than 30 us: the cost of a launch weighs more.
            share = 1.0 if layout == "ds" else 0.8 if window - shift == 1 else 0.92
            yield gpu("G4", f"in-place conv shift by {shift}, window {window}, {layout}",
                      f"G4/{layout}/window:{window}/shift:{shift}", limit="limit_ns", limit_share=share)
    yield gpu("G5", "fp32 -> bf16 slot copy", "G5", limit="limit_ns", limit_share=0.97)
    for direction in ("to_device", "to_host"):
        yield gpu("G6", f"image of a state, pinned memory, {direction} | one async memcpy", f"G6/{direction}",
                  peer="memcpy_ns", ratio=0.97)
    yield gpu("G9", "commit_step, 256 requests x 48 layers | masked gather and scatter without Kokkos", "G9",
              program="gpu_step_bench", peer="twin_ns", limit="limit_ns", limit_share=0.95)
    # No goal without a vendor's launch: launch_cost_bench.cpp explains the numbers.
    costs = (("plan/1", "a plan of 1 row"), ("plan/16", "a plan of 16 rows"), ("device_plan", "a plan on the device"),
             ("align", "an align step of 16 requests"))
    for name, what in costs:
        yield gpu("G10", f"host cost of {what} | bare launch", f"G10/{name}", program="gpu_launch_cost_bench",
                  peer="bare_ns", ratio=1 / 1.5)
    for name, what in costs:
        yield gpu("cost", f"cost of {what}, CPU | bare launch", f"G10/{name}", program="launch_cost_bench",
                  peer="bare_ns")
    for name, what in costs[:2]:
        yield gpu("cost", f"cost of {what}, launches of GPUs on host threads | bare launch", f"G10/{name}",
                  program="stub_launch_cost_bench", peer="bare_ns")


def torch_rows():
    """Of torch_copy_bench.py: everybody works on the same torch tensors."""

    def rows(id, metric, benchmark, triton_ratio=None, torch=True, limit="limit_ns", **goal):
        yield row(id, f"{metric} | Triton kernel", "torch_copy_bench", benchmark, "ours_ns", "triton_ns", limit,
                  ratio=triton_ratio, **goal)
        if torch:
            yield row(id, f"{metric} | torch indexing", "torch_copy_bench", benchmark, "ours_ns", "torch_ns", limit)

    for requests in (1, 4, 16, 64, 256, 512):
        goal = {"limit_share": 0.97 if requests >= 64 else 0.95} if requests >= 16 else {}
        yield from rows("G1", f"torch tensors, copy, {requests} requests x 48 tensors", f"G1/{requests}", triton_ratio=1,
                        **goal)
    yield from rows("G3", "torch tensors, step with nothing to do, 512 requests", "G3", torch=False, limit="empty_ns")
    for layout in ("sd", "ds"):
        yield from rows("G4", f"torch tensors, in-place conv shift by 1, {layout}", f"G4/{layout}", triton_ratio=1)
    yield from rows("G5", "torch tensors, fp32 -> bf16 slot copy", "G5", triton_ratio=1, limit_share=0.97)


def transformers_rows():
    """Of transformers_bench.py: seconds to the first token of a model with random weights, prompts of 32,768 tokens."""
    for kind in ("dense", "moe"):
        for chunk in (4096, 16384):
            yield row("H1", f"transformers, {kind}, prompt that misses, passes of {chunk} tokens | generate",
                      "transformers_bench", f"H1/{kind}/32768/chunk:{chunk}", "ours_ns", "generate_ns",
                      ratio=1 / 1.05)
        for name, what in (("hit", "cached prompt and 64 tokens more"), ("again", "same prompt again"),
                           ("restart", "prompt from files after a restart")):
            yield row("H1", f"transformers, {kind}, {what} | generate", "transformers_bench", f"{name}/{kind}/32768",
                      "ours_ns", "generate_ns")


ROWS = [*copy_rows(), *scaling_rows(), *bookkeeping_rows(), *gpu_rows(), *torch_rows(),
        *transformers_rows()]

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/eviction-experiments.md: token hit % of stateport-replay, as Markdown on the standard output.

    eviction_tables.py --program build/openmp/bin/stateport-replay --traces FOLDER [--only budget,cells,small,hints,...]

FOLDER holds conversation.jsonl and agent_sessions.jsonl; without it only the generated workloads are replayed. One
replay runs at a time, and no state is made: all of it takes some minutes of one core, and `ends` and `tenants` half an
hour each. Standard library only."""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

OTHERS = ["every", "last", "branch", "node-lru", "gdsf"]
HINTS = [("told of last turns", ["--hint-last-turns"]), ("told of tool calls", ["--hint-tool-calls"]),
         ("told of idle times", ["--hint-idle-times"]),
         ("told of last turns and idle times", ["--hint-last-turns", "--hint-idle-times"]),
         ("told of sessions", ["--hint-sessions"]),
         *((f"told of chances, AUC {auc}", ["--hint-continues", auc]) for auc in ("0.2", "0.5", "0.75", "0.85", "0.95"))]
GENERATED = ["chat", "agent", "shared-prompt"]
ENDS = [("no tail", ["--tail=-1"]), ("learned", []), ("tail", ["--tail"]), ("learned, and names", ["--breakpoints"])]
SMALL_GIB = [8, 16, 24, 32]
ARENA_GIB = [32, 64, 128]
WALLS = [0.1, 0.2, 0.3, 0.4, 0.47, 0.6, 0.8]  # shares of states; 0.47 is SGLang's default
PREFILL_RATE = 20_000  # tokens of a second
FLOOD_TIMES = "10"
FLOOR_SHARE = 0.3
ORDERS = [("least recently used", "lru"), ("gdsf", "gdsf"), ("hix", "hix")]
KV_FOR_EVERYTHING = 2_000_000  # blocks: more than a trace has


class Replay:
    def __init__(self, program, traces, requests):
        self.program, self.traces, self.requests = program, traces, requests

    def workload(self, name):
        """The options of a trace or of a generated workload, its number of requests included."""
        if name in [*GENERATED, "template"]:
            return ["--workload", name, "--requests", str(self.requests or 6000)]
        limit = ["--requests", str(self.requests)] if self.requests else []
        return ["--trace", str(self.traces / f"{name}.jsonl"), *limit]

    def run(self, workload, *options):
        """The JSON of one replay. The first of `options` is the command."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.json"
            command = [self.program, options[0], *self.workload(workload), "--recurrent-dtype", "f32", "--json", out,
                       *options[1:]]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(str(part) for part in command)}\n{done.stderr}")
            return json.loads(out.read_text())

    def per_cent(self, workload, *options):
        return f"{100 * self.run(workload, *options, '--materialize', '0')['token_hit_rate']:.2f}"

    def swept(self, workload, budgets, *options):
        """{(policy, budget): token hit %} of every policy."""
        memory = ",".join(f"{gib}GiB" for gib in budgets)
        cells = self.run(workload, "sweep", "--memory", memory, *options)["capacities"]
        return {(cell["policy"], cell["budget_bytes"] >> 30): 100 * cell["token_hit_rate"] for cell in cells}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def heads(columns, unit):
    """chat 64 GiB | 256 | …: a name or unit that repeats is left out."""
    return ["", *(f"{name} {sizes[0]}{unit}" if i == 0 else str(size)
                  for name, _, sizes in columns for i, size in enumerate(sizes))]


def budget_columns(traces):
    if not traces:
        return [("chat", "chat", [16, 64])]
    return [("chat", "conversation", [64, 256, 1024]), ("agents", "agent_sessions", [32, 64, 160, 256])]


def budget_table(replay):
    columns = budget_columns(replay.traces)
    swept = [(sizes, replay.swept(workload, sizes)) for _, workload, sizes in columns]
    slots = [(sizes, replay.swept(workload, sizes, "--cache", "slots")) for _, workload, sizes in columns]

    def row(label, cells, value):
        return [label, *(f"{value(found, size):.2f}" for sizes, found in cells for size in sizes)]

    rows = [row("best of the others", swept, lambda found, size: max(found[name, size] for name in OTHERS))]
    rows += [row(f"`{name}`", swept, lambda found, size, name=name: found[name, size])
             for name in [*OTHERS, "hix-exact", "hix"]]
    rows += [row(f"slots, {order}", slots, lambda found, size, order=order: found[f"slots-{order}", size])
             for order in ("lru", "gdsf", "hix")]
    return table(heads(columns, " GiB"), rows)


def cell_table(replay):
    """Generated workloads with little memory."""
    rows = []
    for name in GENERATED:
        for seed in ("1", "2", "3"):
            found = replay.swept(name, SMALL_GIB, "--seed", seed)
            best = [max((found[other, gib], other) for other in OTHERS) for gib in SMALL_GIB]
            rows.append([f"{name}, seed {seed}",
                         *(f"{found['hix', gib]:.2f} / {found['hix-exact', gib]:.2f} / {rate:.2f} ({other})"
                           for gib, (rate, other) in zip(SMALL_GIB, best))])
    return table(["hix / hix-exact / best of the others", *(f"{gib} GiB" for gib in SMALL_GIB)], rows)


def small_state_table(replay):
    """Hit rates with and without sampling, where states are small."""
    columns = [*budget_columns(replay.traces), *((name, name, [8, 24]) for name in GENERATED)]
    swept = [(sizes, replay.swept(workload, sizes, "--model", "nemotron-h-8b-base")) for _, workload, sizes in columns]
    rows = [[f"`{policy}`", *(f"{found[policy, gib]:.2f}" for sizes, found in swept for gib in sizes)]
            for policy in ("hix-exact", "hix")]
    return table(heads(columns, " GiB"), rows)


def hint_rows(replay, columns):
    rows = []
    for label, options in [("told of nothing", []), *HINTS]:
        row = [label]
        for _, workload, sizes in columns:
            if options == ["--hint-sessions"] and workload == "conversation":
                row += ["not known"] * len(sizes)
                continue
            row += [replay.per_cent(workload, "budget", "--memory", f"{gib}GiB", "--policy", "hix", *options) for gib in sizes]
        rows.append(row)
    return rows


def hint_table(replay):
    columns = budget_columns(replay.traces)
    return table(heads(columns, " GiB"), hint_rows(replay, columns))


def generated_table(replay):
    columns = [(name, name, [16, 64, 128]) for name in GENERATED]
    return table(heads(columns, " GiB"), hint_rows(replay, columns))


def pool_table(replay, cache, columns, rows):
    """`columns`: (name, workload, [(slots, blocks)])."""
    lines = [[label, *(replay.per_cent(workload, "prompts", "--cache", cache, "--slots", str(slots), "--blocks", str(blocks),
                                       *options)
                       for _, workload, sizes in columns for slots, blocks in sizes)] for label, options in rows]
    named = [(name, workload, [slots for slots, _ in sizes]) for name, workload, sizes in columns]
    return table(["slots", *heads(named, "")[1:]], lines)


def slots_table(replay):
    sizes = [(slots, KV_FOR_EVERYTHING) for slots in (64, 256, 1024)]
    columns = [("chat", "conversation", sizes), ("agents", "agent_sessions", sizes)]
    if not replay.traces:
        columns = [("chat", "chat", sizes)]
    rows = [(label, ["--policy", order]) for label, order in ORDERS]
    return pool_table(replay, "slots", columns,
                      [*rows, ("hix, with rungs", ["--policy", "hix", "--checkpoint", "rungs"])])


def tree_table(replay):
    chat = [(64, 16384), (256, 16384), (1024, 65536)]
    columns = [("chat", "conversation", chat), ("agents", "agent_sessions", [(64, 8192), (256, 16384)])]
    if not replay.traces:
        columns = [("chat", "chat", chat)]
    return pool_table(replay, "tree", columns, [(label, ["--policy", order]) for label, order in ORDERS])


def ends_table(replay):
    """Where a prompt leaves its last state, in `serve`. Only of the workload `template` it is known what names would say."""
    pools = {"slots": [(slots, KV_FOR_EVERYTHING) for slots in (64, 256, 1024)],
             "tree": [(64, 16384), (256, 16384), (1024, 65536)]}
    traces = [("chat", "conversation"), ("agents", "agent_sessions")] if replay.traces else []
    columns = [*traces, ("g. chat", "chat"), ("g. agent", "agent"), ("g. shared", "shared-prompt"),
               ("template", "template")]
    rows = []
    for cache, sizes in pools.items():
        for order in ("lru", "hix"):
            for label, options in ENDS:
                row = [f"{cache}, {order}, {label}"]
                for _, workload in columns:
                    fine = ["--block-size", "16"] if workload == "template" else []
                    for slots, blocks in sizes:
                        if options == ENDS[-1][1] and workload != "template":
                            row.append("")
                            continue
                        row.append(replay.per_cent(workload, "serve", "--cache", cache, "--policy", order, "--slots", str(slots),
                                                   "--blocks", str(32 * blocks if fine else blocks), *fine, *options))
                print("|", " | ".join(row), "|", file=sys.stderr, flush=True)
                rows.append(row)
    return table(heads([(name, workload, [64, 256, 1024]) for name, workload in columns], ""), rows)


def arena_table(replay):
    """One memory in four ways: bytes that are counted together, an arena, and walls."""
    workloads = [("chat", "conversation"), ("agents", "agent_sessions")] if replay.traces else []
    columns = [(name, workload, ARENA_GIB) for name, workload in [*workloads, ("g. chat", "chat")]]
    ways = {"counted together": [], "arena": ["--arena", "2048"],
            **{f"walls {share}": ["--walls", str(share)] for share in WALLS}}
    rows = []
    for cache, policies in (("slots", ["slots-lru", "slots-gdsf", "slots-hix"]), ("tree", ["node-lru", "gdsf", "hix"])):
        found = [{way: replay.swept(workload, sizes, "--cache", cache, *options) for way, options in ways.items()}
                 for _, workload, sizes in columns]

        def row(label, value):
            return [label, *(value(cells, gib) for cells, (_, _, sizes) in zip(found, columns) for gib in sizes)]

        for policy in policies:
            for way in ("counted together", "arena", "walls 0.47"):
                rows.append(row(f"{cache}, {policy.removeprefix('slots-')}, {way}",
                                lambda cells, gib, way=way, policy=policy: f"{cells[way][policy, gib]:.2f}"))
            best = lambda cells, gib, policy=policy: max((cells[f"walls {share}"][policy, gib], share) for share in WALLS)
            rows.append(row(f"{cache}, {policy.removeprefix('slots-')}, best walls",
                            lambda cells, gib, best=best: "{:.2f} ({:g})".format(*best(cells, gib))))
    return table(heads(columns, " GiB"), rows)


def moves_table(replay):
    """What an arena moves while the prompts are computed."""
    workloads = [("chat", "conversation"), ("agents", "agent_sessions")] if replay.traces else [("g. chat", "chat")]
    rows = []
    for (name, workload), gib, (cache, order) in itertools.product(workloads, ARENA_GIB[1:], [
            ("slots", "lru"), ("slots", "hix"), ("tree", "node-lru"), ("tree", "hix")]):
        found = replay.run(workload, "budget", "--cache", cache, "--policy", order, "--memory", f"{gib}GiB", "--arena", "2048",
                           "--materialize", "0")
        passes_s = (found["input_tokens"] - found["hit_tokens"]) / PREFILL_RATE
        mapped, copied = (found[f"memory_{kind}_bytes"] / 2**20 for kind in ("mapped", "copied"))
        rows.append([f"{name}, {gib} GiB", f"{cache}, {order.removeprefix('node-')}", f"{passes_s:.0f}", f"{mapped / 1024:.0f}",
                     f"{copied / 1024:.0f}", f"{mapped / passes_s:.0f}", f"{copied / passes_s:.1f}"])
    return table(["workload", "order", "passes, s", "mapped, GiB", "copied, GiB", "mapped, MiB/s", "copied, MiB/s"], rows)


def tenants_table(replay):
    """A quiet tenant beside one that serves ten times as much: each alone, together, and with a floor of 30 %; the flood
    alone also on the memory that the floor leaves to it."""
    memories = [("chat", "conversation", [64, 256]), ("agents", "agent_sessions", [64, 256])] if replay.traces else []
    memories += [("g. chat", "chat", [16, 64]), ("g. agent", "agent", [16, 64])]
    flood = ["--flood", FLOOD_TIMES]
    rows = []
    for (name, workload, sizes), (cache, order) in itertools.product(memories, [
            ("slots", "lru"), ("slots", "gdsf"), ("slots", "hix"), ("tree", "node-lru"), ("tree", "gdsf"), ("tree", "hix")]):
        for gib in sizes:
            floor = str(round(FLOOR_SHARE * gib * 2**30))
            pools = ["--cache", cache, "--policy", order]
            both = ["budget", *pools, "--materialize", "0", "--memory", f"{gib}GiB", *flood]
            free, kept = ({tenant["name"]: tenant for tenant in replay.run(workload, *both, *shares)["tenants"]}
                          for shares in ([], ["--quiet-floor", floor]))
            flood_alone = [replay.run(workload, "fleet", *pools, "--nodes", "1", "--memory", memory, "--route", "session",
                                      "--prefill-rate", "1e9", "--load", FLOOD_TIMES)["routes"]["session"]["token_hit_rate"]
                           for memory in (str(gib * 2**30 - int(floor)), f"{gib}GiB")]
            rates = [free["quiet"]["token_hit_rate"], kept["quiet"]["token_hit_rate"]]
            shown = [*(f"{100 * rate:.2f}" for rate in rates),
                     replay.per_cent(workload, "budget", *pools, "--memory", floor),
                     *(f"{100 * run['flood']['token_hit_rate']:.2f}" for run in (free, kept)),
                     *(f"{100 * rate['value']:.2f}" for rate in flood_alone)]
            rows.append([f"{name}, {gib} GiB", f"{cache}, {order.removeprefix('node-')}", *shown])
            print("|", " | ".join(rows[-1]), "|", file=sys.stderr, flush=True)
    return table(["workload", "order", "quiet: no floor", "floor", "alone", "flood: no floor", "floor", "70 % alone",
                  "alone"], rows)


TABLES = {"budget": budget_table, "cells": cell_table, "small": small_state_table, "hints": hint_table, "generated": generated_table, "slots": slots_table,
          "tree": tree_table, "ends": ends_table, "arena": arena_table, "moves": moves_table, "tenants": tenants_table}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--traces", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(TABLES), help="tables, separated by commas")
    parser.add_argument("--requests", type=int, help="of each workload, at most [all of a trace, 6000 generated]")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    unknown = sorted(set(wanted) - set(TABLES))
    if unknown:
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    replay = Replay(arguments.program.resolve(), arguments.traces, arguments.requests)
    for name in wanted:
        print(f"<!-- {name} -->\n{TABLES[name](replay)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

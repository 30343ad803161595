# SPDX-License-Identifier: Apache-2.0
"""The results of each command of stateport-replay as a chapter of a page. `data` is the object of its JSON file."""
from collections.abc import Callable, Iterable
from typing import Any

from stateport_report.page import Page
from stateport_report.plots import Plot

Data = dict[str, Any]
GIB = 1 << 30
TOKENS = "% of prompt tokens"
MEDIA = {"device": "hit on the device", "host": "hit on the host", "file": "hit in files"}


def human_bytes(count: float) -> str:
    """1.5 GiB, 12.1 KiB, 17 B."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} PiB"


def share(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def age(seconds: float | None) -> str:
    if seconds is None:
        return "longer"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def workload_rows(data: Data) -> list[list[str]]:
    rows = [["workload", data["workload"]],
            ["model", f"{data['model']}, {human_bytes(data['state_bytes'])} a state"]]
    if data["checkpoint_dtype"] != "model":
        each = human_bytes(data["checkpoint_bytes"])
        rows.append(["checkpoints", f"recurrent states as {data['checkpoint_dtype']}, {each} each"])
    return rows


def tier_rows(data: Data) -> list[list[str]]:
    return [[label, human_bytes(data[key])] for label, key in
            (("host memory below", "host_bytes"), ("files below", "disk_bytes")) if data[key] > 0]


def request_rows(data: Data) -> list[list[str]]:
    return [["requests", f"{data['requests']}{' (interrupted)' if data.get('interrupted') else ''}"],
            ["input tokens", str(data["input_tokens"])]]


def recorded_rows(data: Data) -> list[list[str]]:
    """Of a trace with the hits of life."""
    if "recorded_requests" not in data:
        return []
    requests, tokens = data["recorded_requests"], data["recorded_input_tokens"]  # at least one of each
    return [[f"token hit % {where}, of {requests} recorded requests", f"{100 * data[key] / tokens:.2f}"]
            for where, key in (("in life", "recorded_hit_tokens"), ("here", "replayed_hit_tokens"))]


def memory_of(data: Data) -> str:
    if data["budget_bytes"]:
        return human_bytes(data["budget_bytes"])
    slots = "" if data["cache"] == "align" else f", {data['slots']:,} slots"  # there a slot is a block
    return f"{data['blocks']:,} blocks{slots}{' (unlimited)' if data['unlimited'] else ''}"


def add_run(page: Page, data: Data) -> None:
    """The settings and the figures of a run that served its requests."""
    page.table("run", [
        *workload_rows(data), *request_rows(data),
        ["cache", data["cache"]], ["memory", memory_of(data)], *tier_rows(data),
        ["hit tokens", str(data["hit_tokens"])],
        ["token hit %", f"{100 * data['token_hit_rate']:.2f}"], *recorded_rows(data),
        ["request hit %", f"{100 * data['request_hit_rate']:.2f}"],
        ["evicted states", str(data["evictions"])],
        ["verified states", f"{data['verified']}, {data['mismatches']} wrong"]])


def add_capacities(page: Page, data: Data) -> None:
    cells = data["capacities"]
    ceiling = 100 * data["token_hit_rate_ceiling"] if "token_hit_rate_ceiling" in data else None
    text = "Share of the prompt tokens that continued from a cached state, under each policy."
    if data.get("tiers"):
        text += " Only policies that have tiers, with the tiers of this run."
    if ceiling is not None:
        text += " The ceiling is a cache that keeps everything, with a state after every block."
    if data["command"] == "sweep" and data["interrupted"]:
        text += " Interrupted: only memories that every policy here has served are shown."
    page.section("Hit rate over memory", text)
    if not cells:
        return
    rates = {(cell["policy"], cell["budget_bytes"]): 100 * cell["token_hit_rate"] for cell in cells}
    policies = unique(cell["policy"] for cell in cells)
    budgets = [budget for budget in unique(cell["budget_bytes"] for cell in cells)
               if all((policy, budget) in rates for policy in policies)]
    plot = Plot("Token hit rate over memory", "memory for KV and states", TOKENS, [human_bytes(b) for b in budgets],
                {policy: [rates[policy, budget] for budget in budgets] for policy in policies},
                level=None if ceiling is None else ("ceiling", ceiling))
    page.plot_with_table("capacities", "memory", plot,
                         None if ceiling is None else {"ceiling": [f"{ceiling:.2f}"] * len(budgets)})


def media_of(data: Data) -> list[str]:
    return ["device", *(tier["name"] for tier in data["tiers"])]


def hits_by_medium(data: Data, parts: list[Data], tokens: Callable[[Data], int]) -> dict[str, list[float]]:
    """A series for each medium: hits by the slowest medium that a request loaded from."""
    def hits(part: Data, medium: str) -> int:
        below = {"host": int(part["host_hit_tokens"]), "file": int(part["file_hit_tokens"])}
        return below.get(medium, int(part["hit_tokens"]) - sum(below.values()))

    media = media_of(data)
    return {MEDIA[medium] if len(media) > 1 else "hit": [share(hits(part, medium), tokens(part)) for part in parts]
            for medium in media}


def add_tiers(page: Page, data: Data) -> None:
    page.section("Tiers below the device", "Hits by the slowest tier that a request loaded something from. The table "
                 "is of this run; a plot is of its policy with other memories of the device, and the same tiers.")
    timed = data["prefill_tokens_per_s"] > 0
    page.table("tiers", [
        [tier["name"], human_bytes(tier["bytes"]), f"{100 * tier['token_hit_rate']:.2f}", str(tier["loads"]),
         human_bytes(tier["bytes_read"]), human_bytes(tier["bytes_written"]), str(tier["dropped"]),
         str(tier["states"]), str(tier["blocks"]), *([f"{tier['seconds']:.2f}"] if timed else [])]
        for tier in data["tiers"]],
        ["tier", "memory", "token hit %", "loads", "read", "written", "images dropped", "states", "KV blocks",
         *(["seconds saved"] if timed else [])])
    cells = [cell for cell in data.get("capacities", []) if cell["policy"] == data["policy"]]
    if cells:
        page.plot_with_table("tier_capacities", "memory", Plot(
            "Token hit rate by tier over memory of the device", "memory for KV and states on the device", TOKENS,
            [human_bytes(cell["budget_bytes"]) for cell in cells],
            hits_by_medium(data, cells, lambda cell: data["input_tokens"]), "stacked"))


def add_losses(page: Page, data: Data) -> None:
    reasons = [reason for reason, tokens in data["lost_tokens"].items() if tokens or data["lost_hits"][reason]]
    requests = [data["lost_hits"][reason] for reason in reasons]
    if not any(data["lost_tokens"].values()):  # `serve` counts requests alone
        page.section("Lost hits by reason", "Requests whose hit ended before the end of the prompt.")
        page.plot_with_table("reasons", "reason", Plot("Lost hits by reason", "reason", "requests", reasons,
                                                       {"requests": requests}, "beside"), decimals=0)
        return
    page.section("Lost hits by reason", "Prompt tokens that were computed again, requests whose hit ended early, and "
                 "the computation that this took.")
    shares = [share(data["lost_tokens"][reason], data["input_tokens"]) for reason in reasons]
    page.plot_with_table("reasons", "reason", Plot("Lost hits by reason", "reason", TOKENS, reasons,
                                                   {TOKENS: shares}, "beside"), {
        "tokens": [str(data["lost_tokens"][reason]) for reason in reasons],
        "requests": [str(count) for count in requests],
        "FLOPs": [f"{data['lost_flops'][reason]:.3g}" for reason in reasons]})


def add_ages(page: Page, data: Data) -> None:
    page.section("Age of states at reuse and at eviction", "Time since a state was made or last continued from, when "
                 "a request continued from it and when it was evicted. Shares of all reuses, and of all evictions.")
    ages = data["ages"]
    totals = {key: sum(bucket[key] for bucket in ages) for key in ("reuses", "evictions")}
    page.plot_with_table("ages", "age below", Plot(
        "Ages of states at reuse and at eviction", "age below", "% of states", [age(b["below_s"]) for b in ages],
        {f"% of {key}": [share(bucket[key], total) for bucket in ages] for key, total in totals.items()}, "beside"),
        {key: [str(bucket[key]) for bucket in ages] for key in totals})


def add_timeline(page: Page, data: Data) -> None:
    parts = data["timeline"]
    hours = parts[-1]["end_s"] > 2 * 3600
    title = f"time since the first request ({'hours:minutes' if hours else 'minutes:seconds'})"
    units = [round(part["begin_s"] / (60 if hours else 1)) for part in parts]
    times = [f"{unit // 60}:{unit % 60:02}" for unit in units]

    def counts(key: str) -> list[str]:
        return [str(part[key]) for part in parts]

    page.section("Hits and lost hits over time", "Every prompt token was a hit, or was computed again for one of these "
                 "reasons. Shares of the tokens of an interval. All intervals have equally many requests; the time is "
                 "that of the first.")
    reasons = {reason: [share(part["lost_tokens"][reason], part["input_tokens"]) for part in parts]
               for reason, tokens in data["lost_tokens"].items() if tokens}
    page.plot_with_table("losses", "time", Plot(
        "Share of prompt tokens by their end", title, TOKENS, times,
        {**hits_by_medium(data, parts, lambda part: part["input_tokens"]), **reasons}, "stacked"),
        {"requests": counts("requests"), "prompt tokens": counts("input_tokens")})

    page.section("Memory by kind over time", "Memory of KV blocks and states at the end of each interval, at the "
                 "model's full state size.")
    page.plot_with_table("memory", "time", Plot(
        "Memory of KV and states", title, "GiB", times,
        {"KV": [part["kv_bytes"] / GIB for part in parts], "states": [part["state_bytes"] / GIB for part in parts]},
        "stacked", ("memory", data["budget_bytes"] / GIB)))

    measured = data["copy_s"] > 0
    page.section("Copy bandwidth", "Needed: bytes that restores and checkpoints read and write at the model's full "
                 "state size, per second of the workload. " + (
                     "Measured: speed of the copies that were really made, while they ran, at the size that states "
                     "have in this run." if measured else "No state was moved in this run: no speed was measured."))
    speeds = {"needed": [part["needed_gb_per_s"] for part in parts]}
    if measured:
        speeds["measured"] = [part["copied_gb_per_s"] for part in parts]
    page.plot_with_table("copies", "time", Plot("Copy bandwidth", title, "GB/s (read + written)", times, speeds),
                         {"states copied": counts("states_copied")})


def run_chapter(page: Page, data: Data) -> None:
    page.chapter("The worth of the cache")
    add_run(page, data)
    if "capacities" in data:
        add_capacities(page, data)
    if data["tiers"]:
        add_tiers(page, data)
    add_losses(page, data)
    if data.get("timeline"):
        add_timeline(page, data)
    if data["ages"]:
        add_ages(page, data)


def sweep_chapter(page: Page, data: Data) -> None:
    page.chapter("The worth of memory under each policy")
    page.table("run", [*workload_rows(data), *request_rows(data)])
    add_capacities(page, data)


def size_chapter(page: Page, data: Data) -> None:
    page.chapter("The memory to buy")
    blocks, states = data["mean_blocks"], data["mean_states"]
    page.table("run", [
        *workload_rows(data), *request_rows(data), ["memory", human_bytes(data["budget_bytes"])], *tier_rows(data),
        ["policy", data["policy"]],
        ["token hit %", f"{100 * data['token_hit_rate']:.2f}"], *recorded_rows(data),
        ["token hit % if nothing were evicted", f"{100 * data['ceiling']:.2f}"],
        ["as separate pools", f"{human_bytes(blocks * data['block_bytes'])} for KV ({blocks:.0f} blocks), "
         f"{human_bytes(states * data['checkpoint_bytes'])} for states ({states:.0f} slots)"]])
    for key, place in (("steps", "memory"), ("host_steps", "host memory below")):
        steps = data[key]
        if steps:
            page.section(f"Hit rate over {place}", "Tokens per GiB: additional hit tokens per additional GiB, compared "
                         "with the step before. The ceiling is a cache that never evicts.")
            page.plot_with_table(key, place, Plot(
                f"Token hit rate over {place}", place, TOKENS, [human_bytes(step["bytes"]) for step in steps],
                {"token hit %": [100 * step["token_hit_rate"] for step in steps]},
                level=("ceiling", 100 * data["ceiling"])),
                {"tokens per GiB": [f"{step['tokens_per_gib']:.0f}" for step in steps]})


def fleet_rows(data: Data) -> list[list[str]]:
    nodes = f"{data['nodes']} nodes, {human_bytes(data['budget_bytes'])} for KV and states each, {data['policy']}"
    remote = "none" if not data["remote_bytes"] else (
        f"{human_bytes(data['remote_bytes'])}, "
        f"{'checkpoints that nodes evict' if data['write_back'] else 'every checkpoint'}, "
        f"{data['link_bytes_per_s'] / 1e9:g} GB/s and {data['link_latency_s'] * 1e6:g} us to each node")
    rows = [*workload_rows(data), ["load", f"the workload {data['load']:g} times"], ["nodes", nodes], *tier_rows(data),
            ["prefill", f"{data['prefill_tokens_per_s']:g} tokens/s"], ["remote store", remote]]
    if data["sample_nodes"]:
        rows.append(["sampled", f"{data['sample_nodes']} of {data['nodes']} nodes, {data['samples']} times; bytes are "
                     "of a node, ± is the standard error"])
    if data["mean_life_s"] > 0:
        rows.append(["failures", f"every {data['mean_life_s']:g} s, for {data['down_s']:g} s"])
    return rows


def fleet_chapter(page: Page, data: Data) -> None:
    page.chapter("Hits, traffic and savings of many nodes")
    page.table("run", fleet_rows(data))
    routes = data["routes"]
    page.section("Hits by tier", "Share of the prompt tokens that were not computed: those up to a state that the "
                 "device had, and those that a load added, by the slowest tier that something was loaded from.")
    page.plot_with_table("hits", "route", Plot(
        "Token hit rate by tier and route", "route", TOKENS, list(routes),
        {label: [100 * route[f"{tier}_token_hit_rate"]["value"] for route in routes.values()] for label, tier in
         (("device", "device"), ("host", "host"), ("files", "file"), ("remote", "remote"))}, "stacked"))

    sample = " Of the first sample." if data["sample_nodes"] else ""
    page.section("Time to the first token", "From the arrival of a request to the end of its prompt, over the part of "
                 f"the requests that take no longer.{sample} Without cache: the same requests on the same nodes.")
    times = {}
    for name, route in routes.items():
        times[name] = route["first_token_quantiles_s"]
        times[f"{name}, no cache"] = route["uncached_first_token_quantiles_s"]
    add_quantiles(page, "first_token", "Time to the first token", "% of requests", "s", times, 1)
    if data["remote_bytes"]:
        page.section("Bytes over links", "Over the link of a node, both directions, over the part of the nodes that "
                     f"move no more.{sample}")
        add_quantiles(page, "links", "Bytes over the links of nodes", "% of nodes", "GB",
                      {name: route["link_bytes_quantiles"] for name, route in routes.items()}, 1e-9)

    page.section("All figures", "Of all requests.")

    def cell(route: Data, row: Data) -> str:
        figure = route[row["name"]]
        numbers = [figure["value"], *([figure["standard_error"]] if data["sample_nodes"] else [])]
        return " ± ".join(f"{number * row['scale']:.{row['decimals']}f}" for number in numbers)

    page.table("figures", [[row["label"], *(cell(route, row) for route in routes.values())] for row in data["figures"]],
               ["figure", *routes])


def add_quantiles(page: Page, table: str, title: str, x: str, y: str, quantiles: dict[str, dict[str, float]],
                  scale: float) -> None:
    places = list(next(iter(quantiles.values())))
    page.plot_with_table(table, x, Plot(title, x, y, places, {
        name: [scale * values[place] for place in places] for name, values in quantiles.items()}), decimals=3)


CHAPTERS: dict[str, Callable[[Page, Data], None]] = {
    "prompts": run_chapter, "serve": run_chapter, "budget": run_chapter, "sweep": sweep_chapter, "size": size_chapter,
    "fleet": fleet_chapter}

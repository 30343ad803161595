# SPDX-License-Identifier: Apache-2.0
"""The table: compare.py FOLDER. Exit code 1 if an engine with stateport answers otherwise than the cold one, or does
not reuse the tokens that it must."""
import json
import math
import pathlib
import sys
from typing import Any

ROW = "{:<28} {:>6} {:>6} {:>8} | {:>6} {:>6} {:<11} {:<9} {:>8} | {:>6} {:>6} {:<11} {:<9} {:>8}"


BATCH_DIFFERENCE_MAX = 1e-3  # of a log-probability, in kernels that serve several prompts at a time


def differs(row: dict[str, Any], cold: dict[str, Any]) -> tuple[str, float]:
    """0 only if all log-probabilities are equal; one that is no number makes it infinite."""
    text = "equal" if row["tokens"] == cold["tokens"] else "DIFFERENT"
    if row["logprobs"] == cold["logprobs"]:
        return text, 0.0
    worst = [abs(a - b) for a, b in zip(row["logprobs"], cold["logprobs"], strict=True)]
    return text, max(worst) if not any(map(math.isnan, worst)) else math.inf


def allowed(cold: dict[str, Any], plain: dict[str, Any]) -> float:
    """How much a log-probability may differ: of one prompt at a time not at all. Of several at a time kernels round
    otherwise, and those for short convolutions on a CPU do more than that: where plain vLLM is that far from its own
    answer to one prompt, nothing is compared."""
    if not cold["name"].startswith("4 at a time"):
        return 0.0
    return BATCH_DIFFERENCE_MAX if differs(plain, cold)[1] <= BATCH_DIFFERENCE_MAX else math.inf


def cells(row: dict[str, Any], cold: dict[str, Any], most: float) -> list[Any]:
    text, worst = differs(row, cold)
    tiers = "+".join(tier for tier, count in sorted(row["restored"].items()) if count)
    return [row["reused"], sum(row["restored"].values()), tiers or "-", text if most < math.inf else "-",
            "equal" if worst == 0 else f"{worst:.1e}"]


def problems(cold: dict[str, Any], plain: dict[str, Any], engines: dict[str, dict[str, Any]]) -> list[str]:
    name, most, found = cold["name"], allowed(cold, plain), []
    for engine, row in engines.items():
        text, worst = differs(row, cold)
        if most < math.inf and (text != "equal" or worst > most):
            found.append(f"{engine} engine, {name}: text {text}, log-probabilities differ by {worst:.1e}")
        if row["reused"] < plain["reused"]:
            found.append(f"{engine} engine, {name}: {row['reused']} tokens reused, plain vLLM reuses {plain['reused']}")
    first, second = engines["first"], engines["second"]
    if name == "shares 900 tokens" and not (plain["reused"] == 0 and first["reused"] == 896):
        found.append(f"{name}: plain vLLM reuses {plain['reused']} tokens and stateport {first['reused']}: 0 and 896")
    if name == "another salt" and not first["reused"] == 0 < second["reused"]:
        found.append(f"{name}: {first['reused']} and {second['reused']} tokens reused: 0, and its own in files")
    if name == "another salt again" and not first["reused"]:
        found.append(f"{name}: nothing reused")
    if name == "long prompt" and not second["restored"].get("file"):
        found.append("the second engine restored nothing from files")
    return found


def compare_kept(cold: list[dict[str, Any]], kept: dict[str, Any]) -> list[str]:
    """The engine with few blocks: the same bits, KV that was copied on the device, and no block that keeps an owner."""
    cold_of, found = {row["name"]: row for row in cold}, []
    for row in kept["rows"]:
        text, worst = differs(row, cold_of[row["name"]])
        if text != "equal" or worst != 0:
            found.append(f"engine with few blocks, {row['name']}: text {text}, log-probabilities differ by {worst:.1e}")
        if row["name"] == "shares 900 tokens" and row["restored"].get("host", 0) != 896:
            found.append(f"engine with few blocks, {row['name']}: restored {row['restored']}, not 896 tokens")
    for name in ("device_tokens", "device_bytes"):
        if not kept["counters"].get(name):
            found.append(f"engine with few blocks: {name} is 0")
    return found


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    names = ("cold", "plain", "first", "second", "kept")
    out = {name: json.loads((folder / f"{name}.out.json").read_text()) for name in names}
    found = []
    print(f"{folder.name}: tokens reused in all, and those restored by stateport (4 at a time: of all four), from "
          "which tier; text and log-probabilities against a cold run")
    print(" " * 52 + "| first engine" + " " * 37 + "| second engine, the same files")
    print(ROW.format("request", "tokens", "plain", "logprobs", *("reused", "ours", "tier", "text", "logprobs") * 2))
    for cold, plain, first, second in zip(*(out[name]["rows"] for name in names[:4]), strict=True):
        most = allowed(cold, plain)
        print(ROW.format(cold["name"], cold["prompt_tokens"], plain["reused"], f"{differs(plain, cold)[1]:.1e}",
                         *cells(first, cold, most), *cells(second, cold, most)))
        found += problems(cold, plain, {"first": first, "second": second})
    found += compare_kept(out["cold"]["rows"], out["kept"])
    found += [f"{name} engine: {count} blocks of vLLM have an owner at the end" for name in names
              if (count := out[name]["owned_blocks"])]
    for name in ("first", "second", "kept"):
        print(f"vLLM's metrics of the {name} engine: " +
              ", ".join(f"{key} {count:,}" for key, count in sorted(out[name]["counters"].items())))
    for line in found:
        print(f"PROBLEM: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The table: compare.py FOLDER. Exit code 1 if an engine with stateport answers otherwise than the cold one, or does
not reuse what it must."""
import json
import pathlib
import sys
from typing import Any

ROW = "{:<28} {:>6} {:>6} {:>8} | {:>6} {:>6} {:<11} {:<9} {:>8} | {:>6} {:>6} {:<11} {:<9} {:>8}"


def differs(row: dict[str, Any], cold: dict[str, Any]) -> tuple[str, float]:
    text = "equal" if row["tokens"] == cold["tokens"] else "DIFFERENT"
    return text, max(abs(a - b) for a, b in zip(row["logprobs"], cold["logprobs"], strict=True))


def together(row: dict[str, Any]) -> bool:
    """Of several prompts at a time vLLM's own kernels for CPUs make something else than of one, stateport or not: the
    column of plain vLLM says how much. Nothing is compared then."""
    return bool(row["name"].startswith("4 at a time"))


def cells(row: dict[str, Any], cold: dict[str, Any]) -> list[Any]:
    text, worst = differs(row, cold)
    if together(row):
        text = "-"
    tiers = "+".join(tier for tier, count in sorted(row["restored"].items()) if count)
    return [row["reused"], sum(row["restored"].values()), tiers or "-", text, "equal" if worst == 0 else f"{worst:.1e}"]


def problems(cold: dict[str, Any], plain: dict[str, Any], engines: dict[str, dict[str, Any]]) -> list[str]:
    name, found = cold["name"], []
    for engine, row in engines.items():
        text, worst = differs(row, cold)
        if not together(row) and (text != "equal" or worst > 0):
            found.append(f"{engine} engine, {name}: text {text}, log-probabilities differ by {worst:.1e}")
        if row["reused"] < plain["reused"]:
            found.append(f"{engine} engine, {name}: {row['reused']} tokens reused, plain vLLM reuses {plain['reused']}")
    first, second = engines["first"], engines["second"]
    if name == "shares 900 tokens" and not (plain["reused"] == 0 and first["reused"] == 896):
        found.append(f"{name}: plain vLLM reuses {plain['reused']} tokens and stateport {first['reused']}: 0 and 896")
    if name == "long prompt" and not second["restored"].get("file"):
        found.append("the second engine restored nothing from files")
    return found


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    names = ("cold", "plain", "first", "second")
    out = {name: json.loads((folder / f"{name}.out.json").read_text()) for name in names}
    found = []
    print(f"{folder.name}: tokens reused in all, and those restored by stateport, from which tier; text and "
          "log-probabilities against a cold run")
    print(" " * 52 + "| first engine" + " " * 37 + "| second engine, the same files")
    print(ROW.format("request", "tokens", "plain", "logprobs", *("reused", "ours", "tier", "text", "logprobs") * 2))
    for cold, plain, first, second in zip(*(engine["rows"] for engine in out.values()), strict=True):
        print(ROW.format(cold["name"], cold["prompt_tokens"], plain["reused"], f"{differs(plain, cold)[1]:.1e}",
                         *cells(first, cold), *cells(second, cold)))
        found += problems(cold, plain, {"first": first, "second": second})
    for name in ("first", "second"):
        print(f"vLLM's metrics of the {name} engine: " +
              ", ".join(f"{key} {count:,}" for key, count in sorted(out[name]["counters"].items())))
    for line in found:
        print(f"PROBLEM: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

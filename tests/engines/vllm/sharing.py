# SPDX-License-Identifier: Apache-2.0
"""Two engines that share a Mooncake Store, both running: sharing.py jobs FOLDER MODEL writes their jobs, and sharing.py
compare FOLDER prints the table. Exit code 1: an engine answers otherwise than the cold one, or does not find the states
that the other one computed.

    one    computes two prompts; when two has done its part, it asks for the prompts that two computed; then the store
    ends two    begins when one is done: its first request is a prompt that one has computed cold   plain vLLM, which
    computes all of that by itself"""
import json
import pathlib
import random
import sys
from typing import Any

from compare import differs
from models import DTYPES, VOCABULARY, WINDOWS
from scenario import BLOCK, LONG, OUTPUT, SHARED

ROW = "{:<34} {:>6} {:>7} {:>8} {:>10} {:<9} {:>9}"
WHOLE = (LONG - 1) // BLOCK * BLOCK


def calls(folder: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """By engine. wait_for, tell: files that the engines tell one another by; least: tokens from the shared store."""
    chance = random.Random(17)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(count)]

    def call(name: str, prompt: list[int], least: int, *, wait_for: str = "", tell: str = "") -> dict[str, Any]:
        signals = {key: str(folder / value) for key, value in (("wait_for", wait_for), ("tell", tell)) if value}
        return {"reset": False, "output_tokens": OUTPUT, "least": least, **signals,
                "requests": [{"name": name, "tokens": prompt, "after": ""}]}

    long, other, own = tokens(LONG), tokens(LONG), tokens(LONG)
    return {
        "one": [call("one: computes a long prompt", long, 0), call("one: and another", other, 0, tell="one.done"),
                call("one: prompts of two", own, WHOLE, wait_for="two.done", tell="store.stop"),
                call("one: the store has ended", tokens(700), 0, wait_for="store.stopped"),
                call("one: shares 900 of these", own[:SHARED] + tokens(200), 0)],
        "two": [call("two: prompts of one, at once", long, WHOLE, wait_for="one.done"),
                call("two: shares 900 tokens with it", other[:SHARED] + tokens(300), SHARED // BLOCK * BLOCK),
                call("two: computes a long prompt", own, 0, tell="two.done")]}


def write_jobs(folder: pathlib.Path, model: str) -> None:
    address = (folder / "address").read_text()
    stateport = {"host_bytes": 64 << 20, "checkpoint_tokens": BLOCK, "decode_checkpoint_tokens": 0,
                 "remote": {"store": "mooncake", "master": address, "buffer_bytes": 64 << 20}}
    served = calls(folder)
    both = [{**call, "reset": True, "wait_for": "", "tell": ""} for name in ("one", "two") for call in served[name]]
    for name, its_calls in {**served, "cold": both}.items():
        job = {"model": str(folder / "model"), "dtype": DTYPES[model], "windows": WINDOWS.get(model, {}),
               "stateport": None if name == "cold" else stateport,
               "batched_tokens": BLOCK if name == "cold" else 4096, "retention": BLOCK if name == "cold" else 0,
               "calls": its_calls, "out": str(folder / f"sharing-{name}.out.json")}
        (folder / f"sharing-{name}.json").write_text(json.dumps(job))


def compare(folder: pathlib.Path) -> list[str]:
    out = {name: json.loads((folder / f"sharing-{name}.out.json").read_text()) for name in ("one", "two", "cold")}
    least = {call["requests"][0]["name"]: call["least"] for name in ("one", "two") for call in calls(folder)[name]}
    cold_of = {row["name"]: row for row in out["cold"]["rows"]}
    problems = []
    print(f"{folder.name}: two engines share a Mooncake Store; tokens reused in all and from the store; text and "
          "log-probabilities against a cold run")
    print(ROW.format("request", "tokens", "reused", "store", "seconds", "text", "logprobs"))
    for row in (*out["one"]["rows"], *out["two"]["rows"]):
        cold, name, remote = cold_of[row["name"]], row["name"], row["restored"].get("remote", 0)
        text, worst = differs(row, cold)
        print(ROW.format(name, row["prompt_tokens"], row["reused"], remote, f"{row['seconds']:.2f}", text,
                         "equal" if worst == 0 else f"{worst:.1e}"))
        if text != "equal" or worst != 0:
            problems.append(f"{name}: text {text}, log-probabilities differ by {worst:.1e}")
        if remote < least[name]:
            problems.append(f"{name}: {remote} tokens came from the store, and {least[name]} must")
        if cold["reused"]:
            problems.append(f"{name}: the cold engine reused {cold['reused']} tokens")
    for name in ("one", "two"):
        print(f"vLLM's metrics of engine {name}: " +
              ", ".join(f"{key} {count:,}" for key, count in sorted(out[name]["counters"].items())))
    return problems


def main() -> int:
    folder = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "jobs":
        write_jobs(folder, sys.argv[3])
        return 0
    problems = compare(folder)
    for line in problems:
        print(f"PROBLEM: {line}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

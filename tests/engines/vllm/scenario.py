# SPDX-License-Identifier: Apache-2.0
"""The requests of the test: scenario.py FOLDER MODEL writes the jobs of five engines.

    cold    plain vLLM that computes every prompt; its chunks end where those of stateport's engines end. Only tokens
            that another request decoded are not computed again: vLLM's own cache has them, because it keeps a state of
            every block
    plain   vLLM as it is started usually: a prompt is one chunk
    first   the same with stateport, which forgets vLLM's own cache before most of the prompts
    second  a new process over the files of the first
    kept    with stateport without files, and few blocks of vLLM: KV of a prompt is there when its states are gone"""
import json
import pathlib
import random
import sys
from typing import Any

from models import DTYPES, VOCABULARY, WINDOWS

BLOCK = 128  # of vLLM on a CPU
SHARED, LONG, OUTPUT = 900, 2000, 16
# For the KV of a long prompt, and a part of its states.
KEPT_BLOCKS = {"lfm2": 50, "lfm2_windows": 110, "granite": 70, "qwen3_next": 70}
KEPT = ("long prompt", "shares nothing", "decodes 200 tokens", "shares 900 tokens", "continues them",
        "long prompt again")


def calls() -> list[dict[str, Any]]:
    """reset: vLLM's own cache is emptied before."""
    chance = random.Random(16)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(count)]

    long = tokens(LONG)
    rows: list[tuple[str, list[int], str, int, bool]] = [
        ("long prompt", long, "", OUTPUT, True),
        ("long prompt again", long, "", OUTPUT, False),
        ("long prompt, vLLM emptied", long, "", OUTPUT, True),
        ("shares 900 tokens", long[:SHARED] + tokens(200), "", OUTPUT, True),
        ("shares 900 tokens, another", long[:SHARED] + tokens(333), "", OUTPUT, True),
        ("shares nothing", tokens(700), "", OUTPUT, True),
        ("decodes 200 tokens", tokens(300), "", 200, True),
        ("continues them", tokens(100), "decodes 200 tokens", OUTPUT, True),
        ("and again", tokens(150), "continues them", OUTPUT, True),
    ]
    # Requests of another tenant, which shares nothing with the first one.
    salted = [{"reset": True, "output_tokens": OUTPUT,
               "requests": [{"name": name, "tokens": long, "after": "", "salt": "another"}]}
              for name in ("another salt", "another salt again")]
    out = [{"reset": reset, "output_tokens": output, "requests": [{"name": name, "tokens": new, "after": after}]}
           for name, new, after, output, reset in rows]
    together = [{"name": f"4 at a time, {i + 1}", "tokens": long[:SHARED + 10 * i] + tokens(400 + 100 * i), "after": ""}
                for i in range(4)]
    return [*out, *salted, {"reset": True, "output_tokens": OUTPUT, "requests": together}]


def alone(all_calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same requests, each by itself and computed anew, but for tokens that another one decoded."""
    return [{"reset": not request["after"], "output_tokens": call["output_tokens"], "requests": [request]}
            for call in all_calls for request in call["requests"]]


def kept(all_calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some of these requests, without a reset: vLLM has evicted the states of the first one when another one shares its
    tokens, and not their KV."""
    by_name = {call["requests"][0]["name"]: call for call in all_calls}
    return [{**by_name[name], "reset": False} for name in KEPT]


def main() -> None:
    folder, model = pathlib.Path(sys.argv[1]), sys.argv[2]
    stateport = {"host_bytes": 64 << 20, "checkpoint_tokens": BLOCK, "folder": str(folder / "images"),
                 "file_bytes": 1 << 30, "decode_checkpoint_tokens": BLOCK, "scrub": True,
                 "hash_seed_variable": "STATEPORT_TEST_HASH_SEED"}
    pools = {name: value for name, value in stateport.items() if name not in ("folder", "file_bytes")}
    engines = {"cold": (None, BLOCK, alone(calls())), "plain": (None, 4096, calls()),
               "first": (stateport, 4096, calls()), "second": (stateport, 4096, calls()),
               "kept": (pools, 4096, kept(calls()))}
    for name, (options, batched_tokens, served) in engines.items():
        job = {"model": str(folder / "model"), "dtype": DTYPES[model], "stateport": options,
               "batched_tokens": batched_tokens, "retention": BLOCK if name == "cold" else 0,
               "windows": WINDOWS.get(model, {}), "blocks": KEPT_BLOCKS[model] if name == "kept" else None,
               "calls": served, "out": str(folder / f"{name}.out.json")}
        (folder / f"{name}.json").write_text(json.dumps(job))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""compare.py SERVER.json REPLAYED.jsonl: the tokens that llama-server (server_peer.py --answers) and stateport-llama
replay computed for the same requests, as a table. Exit code 1: stateport computed more than the server did through
either endpoint, or gave another answer."""
from __future__ import annotations

import json
import pathlib
import sys
from typing import Any


def main(server: str, replayed: str) -> int:
    runs: dict[str, list[dict[str, Any]]] = json.loads(pathlib.Path(server).read_text())["runs"]
    ours = {row["id"]: row for row in map(json.loads, pathlib.Path(replayed).read_text().splitlines())}
    wrong = []
    print("| request | prompt | server, completion | server, chat | stateport |\n|---|---|---|---|---|")
    for completion, chat in zip(runs["completion"], runs["chat"], strict=True):
        row = ours[chat["id"]]
        print(f"| {chat['id']} | {chat['tokens']:,} | {completion['computed']:,} | {chat['computed']:,} | "
              f"{row['computed']:,} |")
        if row["computed"] > min(completion["computed"], chat["computed"]):
            wrong.append(f"{chat['id']}: {row['computed']} tokens, more than llama-server computes")
        if row["output"] != chat["answer"]:
            wrong.append(f"{chat['id']}: the answer is {row['output']}, that of llama-server {chat['answer']}")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

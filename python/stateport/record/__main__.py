# SPDX-License-Identifier: Apache-2.0
"""python -m stateport.record --help"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stateport.errors import InvalidArgument
from stateport.record.convert import convert
from stateport.record.key import key_of_variable


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m stateport.record", description="Traces for stateport-replay.")
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "convert", help="make a trace of what another program recorded")
    command.add_argument("kind", choices=("lmcache", "sglang"), help="lmcache: files of --lookup-hash-log-dir; sglang: "
                         "files of --export-metrics-to-file-dir, with input_ids")
    command.add_argument("sources", nargs="+", metavar="FILE", help="plain or in gzip")
    command.add_argument("--to", required=True, metavar="FILE", help="the trace; ending with .gz: in gzip")
    command.add_argument("--block-tokens", type=int, default=64, help="of a block; LMCache's are its chunks [64]")
    command.add_argument("--model", default="", help="a name for people")
    command.add_argument("--state-bytes", type=int, help="of one sequence, which neither program records")
    command.add_argument("--key-variable", metavar="NAME", help="an environment variable with the key of all names, 16 "
                         "to 64 bytes; without it each trace has a key of its own")
    given = parser.parse_args(arguments)
    try:
        key = key_of_variable("--key-variable", given.key_variable) if given.key_variable else None
        for name in ("block_tokens", "state_bytes"):
            value = getattr(given, name)
            if value is not None and value < 1:
                raise InvalidArgument(f"--{name.replace('_', '-')} is {value}, and must be at least 1")
        counts = convert(given.kind, given.sources, given.to, key=key, block_tokens=given.block_tokens,
                         model=given.model, state_bytes=given.state_bytes)
    except (InvalidArgument, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for reason, count in counts.items():
        print(f"{count} {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""python -m stateport.demo chat | page"""

from __future__ import annotations

import argparse
import pathlib
import sys

import transformers

from stateport.demo import chat, page
from stateport.demo.tiny import ARCHITECTURES
from stateport.errors import Error
from stateport.transformers import Tiers


def main(arguments: list[str] | None = None) -> int:
    """Runs one demonstration. Returns the exit status."""
    options = _parser().parse_args(arguments)
    transformers.logging.set_verbosity_error()  # tiny models need no kernels of their own
    try:
        tiers = None
        if options.folder is not None or options.host != "0":
            tiers = Tiers(host_bytes=options.host, folder=options.folder, file_bytes="1 GiB" if options.folder else 0)
        if options.demonstration == "chat":
            chat.talk(options.architecture, memory=options.memory, tiers=tiers, answer_tokens=options.tokens)
        else:
            page.write(options.out, options.architecture, memory=options.memory, tiers=tiers)
    except Error as error:
        print(f"stateport.demo: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stateport.demo", description=__doc__)
    demonstrations = parser.add_subparsers(dest="demonstration", required=True)
    talk = demonstrations.add_parser("chat", help="a conversation with a tiny random model, which reuses its prefixes")
    talk.add_argument("--tokens", type=int, default=60, help="of an answer (%(default)s)")
    plots = demonstrations.add_parser("page", help="a page of plots of many conversations, in one HTML file")
    plots.add_argument("--out", type=pathlib.Path, default=pathlib.Path("stateport-demo.html"),
                       help="the file (%(default)s)")
    for each in (talk, plots):
        each.add_argument("--architecture", choices=ARCHITECTURES, default="qwen3_next", help="(%(default)s)")
        each.add_argument("--memory", default="2 MiB", help="for states and KV (%(default)s)")
        each.add_argument("--host", default="0", help="bytes of a host tier (none)")
        each.add_argument("--folder", type=pathlib.Path, help="of a file tier: the next run continues with it (none)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What llama-server computes for the requests of scenario.py: server_peer.py MODEL [--answers FILE] prints it as JSON.

The installed llama-server serves a model of models.py with one slot, one thread and its defaults, once for each of two
endpoints:
    completion  prompts are token ids; the server keeps states near their ends
    chat        prompts are messages of the same tokens; the server also keeps a state where the last message of the
                user begins

A row has the tokens of the prompt, those that the server computed and those that it had (its timings.prompt_n and
timings.cache_n; its tokens_evaluated is the whole prompt), and the milliseconds until the first token.

--answers FILE: later prompts go on with the tokens that the server decoded, as in a chat, in place of the scenario's
fixed answers. FILE gets the requests of the endpoint `chat` as JSON lines {"id", "tokens", "output", "answer"}.

STATEPORT_LLAMA_SERVER names another llama-server. Exit code 77: there is none."""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import scenario

START_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 120, 600, 20


class Server:
    """Calls of a llama-server on a port of the loopback device."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def is_ready(self) -> bool:
        try:
            self._open(f"{self._address}/health", timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):  # 503 while it loads the model
            return False
        return True

    def complete(self, tokens: list[int]) -> dict[str, Any]:
        out = self._post("/completion", {"prompt": tokens, "n_predict": scenario.OUTPUT, "return_tokens": True})
        return {"answer": out["tokens"], "prompt": out["tokens_evaluated"], "timings": out["timings"]}

    def chat(self, messages: list[tuple[str, list[int]]], tokens: list[int]) -> dict[str, Any]:
        """`tokens`: those that the messages must become."""
        body = {"messages": [{"role": role, "content": scenario.text(words)} for role, words in messages]}
        text = self._post("/apply-template", body)["prompt"]
        if self._post("/tokenize", {"content": text, "parse_special": True})["tokens"] != tokens:
            raise SystemExit(f"llama-server makes other tokens of the messages than scenario.py:\n{text}")
        out = self._post("/v1/chat/completions", {**body, "max_tokens": scenario.OUTPUT})
        return {"answer": scenario.words_of(out["choices"][0]["message"]["content"]),
                "prompt": out["usage"]["prompt_tokens"], "timings": out["timings"]}

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps({**body, "temperature": 0, "cache_prompt": True}).encode()
        request = urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"})
        with self._open(request, timeout=ANSWER_SECONDS) as answer:
            out: dict[str, Any] = json.load(answer)
        return out


@contextlib.contextmanager
def serving(program: str, model: pathlib.Path) -> Iterator[Server]:
    """A llama-server of its own, until the end of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--parallel", "1",
               "--threads", "1", "--threads-batch", "1", "--no-webui", "--offline"]
    server, end = Server(port), time.monotonic() + START_SECONDS
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            while not server.is_ready():
                if process.poll() is not None or time.monotonic() > end:
                    raise OSError(f"it does not start within {START_SECONDS} s, or has ended: {process.returncode}")
                time.sleep(0.05)
            yield server
        except OSError as error:
            log.seek(0)
            raise SystemExit("".join([*log.readlines()[-20:], f"llama-server: {error}"])) from None
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def run(server: Server, endpoint: str, feed_back: bool) -> list[dict[str, Any]]:
    """Rows of all requests in their order."""
    answers: dict[str, list[int]] = {}
    answer = answers.__getitem__ if feed_back else scenario.fixed_answer
    rows = []
    for request in scenario.requests():
        tokens = request.prompt(answer)
        out = server.chat(request.messages(answer), tokens) if endpoint == "chat" else server.complete(tokens)
        computed, reused = out["timings"]["prompt_n"], out["timings"]["cache_n"]
        counted = (computed + reused, out["prompt"], len(out["answer"]))
        if counted != (len(tokens), len(tokens), scenario.OUTPUT):
            raise SystemExit(f"{request.name}, {endpoint}: llama-server counts {counted} tokens computed and reused, "
                             f"in the prompt, decoded; they are {len(tokens)}, {len(tokens)} and {scenario.OUTPUT}")
        answers[request.name] = out["answer"]
        rows.append({"id": request.name, "tokens": tokens, "answer": out["answer"], "computed": computed,
                     "reused": reused, "first_token_ms": out["timings"]["prompt_ms"]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens that llama-server computes for the requests of scenario.py.")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--answers", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    program = shutil.which(os.environ.get("STATEPORT_LLAMA_SERVER", "llama-server"))
    if program is None:
        print("NOT RUN: llama-server is not here (Debian package: llama.cpp-tools)", file=sys.stderr)
        sys.exit(77)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    runs = {}
    for endpoint in ("completion", "chat"):
        with serving(program, arguments.model) as server:
            runs[endpoint] = run(server, endpoint, arguments.answers is not None)
    if arguments.answers is not None:
        lines = [json.dumps({"id": row["id"], "tokens": row["tokens"], "output": scenario.OUTPUT,
                             "answer": row["answer"]}) for row in runs["chat"]]
        arguments.answers.write_text("\n".join(lines) + "\n")
    json.dump({"server": (version.stdout + version.stderr).splitlines()[0], "model": arguments.model.name,
               "runs": {name: [{**row, "tokens": len(row["tokens"])} for row in rows] for name, rows in runs.items()}},
              sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

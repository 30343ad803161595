# SPDX-License-Identifier: Apache-2.0
"""Records two turns of a chat, without a token of them. python record_traffic.py"""
import json
import pathlib
import tempfile

from stateport.record import Recorder, RequestFacts

folder = pathlib.Path(tempfile.mkdtemp())
prompt, answer, question = list(range(5000, 5200)), list(range(6000, 6060)), list(range(7000, 7040))

# docs: a recorder
recorder = Recorder(folder / "traffic.jsonl", engine="mine", model="my model", state_bytes=77_266_944,
                    kv_bytes_per_token=24_576)
# When a request has ended:
recorder.add(RequestFacts(prompt, output_tokens=60, session="a chat", hit_tokens=0))
recorder.add(RequestFacts(prompt + answer + question, output_tokens=80, session="a chat", hit_tokens=192,
                          hit_tier="host"))
# When the engine ends:
recorder.close()
# docs end

_, first, second = map(json.loads, (folder / "traffic-000001.jsonl").read_text().splitlines())
shared = sum(a == b for a, b in zip(first["hash_ids"], second["hash_ids"], strict=False))
print(f"{shared} of {len(second['hash_ids'])} blocks are those of the first turn; {recorder.counts}")

# SPDX-License-Identifier: Apache-2.0
"""Records the requests of an engine as a trace, from which stateport-replay says how much memory to buy.

A `Recorder` writes lines of JSON on a thread of its own. No token leaves the process: a line has lengths, and names of
the prompt's blocks that tell nothing to a reader without the recorder's key. vLLM's connector has the option `record`,
SGLang loads `stateport.record.sglang_plugin`. `python -m stateport.record convert` makes such a trace of the records of
LMCache and SGLang."""

from stateport.record.recorder import Recorder, RequestFacts
from stateport.record.trace_files import TraceHeader

__all__ = ["Recorder", "RequestFacts", "TraceHeader"]

# SPDX-License-Identifier: Apache-2.0
"""Prefix caching for hybrid models of transformers: KV and recurrent states of earlier prompts, in memory, on the host
and in files."""

from stateport.transformers.budget import Tiers
from stateport.transformers.chat import ChatPrompt, chat_prompt
from stateport.transformers.errors import UnsupportedModel
from stateport.transformers.layout import CacheLayout, probe
from stateport.transformers.prefix_cache import PrefixCache
from stateport.transformers.request import Request, Served
from stateport.transformers.speed import Speed
from stateport.transformers.streaming import TokenStream

__all__ = ["CacheLayout", "ChatPrompt", "PrefixCache", "Request", "Served", "Speed", "Tiers", "TokenStream",
           "UnsupportedModel", "chat_prompt", "probe"]

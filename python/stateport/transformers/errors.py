# SPDX-License-Identifier: Apache-2.0
"""What this adapter refuses, beside what the package does."""

from __future__ import annotations

from stateport.errors import InvalidArgument


class UnsupportedModel(InvalidArgument):
    """A model whose requests cannot be continued from a DynamicCache. The text names the architecture and why."""

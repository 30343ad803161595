# SPDX-License-Identifier: Apache-2.0
"""Errors of this adapter, beside those of the package."""

from __future__ import annotations

from stateport.errors import InvalidArgument


class UnsupportedModel(InvalidArgument):
    """A model whose requests cannot be continued from a DynamicCache. The text names the architecture and why."""

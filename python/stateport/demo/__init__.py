# SPDX-License-Identifier: Apache-2.0
"""Demonstrations that a person can run: python -m stateport.demo --help."""

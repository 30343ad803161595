# SPDX-License-Identifier: Apache-2.0
"""Pages and pictures of the results of stateport-replay."""

# SPDX-License-Identifier: Apache-2.0
"""Parsers of the output of adapters' tools and of ESXi. Pure; unknown lines are ignored."""

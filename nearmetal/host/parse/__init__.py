# SPDX-License-Identifier: Apache-2.0
"""Parsers of what adapters' tools and ESXi print. Pure; a line they do not know is not guessed."""

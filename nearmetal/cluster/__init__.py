# SPDX-License-Identifier: Apache-2.0
"""Clusters: their specs, plans, and backends. Start at spec/, then desired.py, diff.py and apply.py."""

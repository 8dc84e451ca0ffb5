# SPDX-License-Identifier: Apache-2.0
"""The health of the nodes of a cluster: snapshots are collected, and findings are made of them.

`collect` reaches nodes and writes a collection of snapshots. `analyse` is pure: snapshots in,
findings out. Each family of checks is one file in `families/`.
"""

# SPDX-License-Identifier: Apache-2.0
"""The local backend: a cluster of isolated containers on this machine."""

from nearmetal.backend.local.cluster import MEETING, LocalBackend

__all__ = ["MEETING", "LocalBackend"]

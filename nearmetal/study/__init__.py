# SPDX-License-Identifier: Apache-2.0
"""Studies: raw logs in, observations by arm and point, and sound judgements about them.

Everything here reads or computes; nothing starts a process.
"""

from nearmetal.study.model import Arm, Cell, Observation, Point, SourceFile

__all__ = ["Arm", "Cell", "Observation", "Point", "SourceFile"]

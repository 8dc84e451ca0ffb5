# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks on a cluster, arms interleaved, and keeps every raw output."""

from nearmetal.bench.collect import Collector, Progress
from nearmetal.bench.suite import ARMS, SUITES, Arm, Program, Step, Suite, schedule

__all__ = [
    "ARMS",
    "SUITES",
    "Arm",
    "Collector",
    "Program",
    "Progress",
    "Step",
    "Suite",
    "schedule",
]

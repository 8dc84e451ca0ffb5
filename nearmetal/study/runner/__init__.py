# SPDX-License-Identifier: Apache-2.0
"""Benchmarks and workloads on a cluster: arms interleaved, every raw output kept."""

from nearmetal.study.runner.collect import Collector, find_pairs, program_path
from nearmetal.study.runner.suite import (
    ARMS,
    SUITES,
    BenchArm,
    PlannedLaunch,
    Program,
    Suite,
    schedule,
)

__all__ = [
    "ARMS",
    "SUITES",
    "BenchArm",
    "Collector",
    "PlannedLaunch",
    "Program",
    "Suite",
    "find_pairs",
    "program_path",
    "schedule",
]

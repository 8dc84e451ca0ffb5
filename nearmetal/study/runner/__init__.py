# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks on a cluster, arms interleaved, and keeps every raw output."""

from nearmetal.study.runner.collect import Collector, Progress, find_pairs, program_path
from nearmetal.study.runner.suite import ARMS, SUITES, Arm, Program, Step, Suite, schedule

__all__ = [
    "ARMS",
    "SUITES",
    "Arm",
    "Collector",
    "Program",
    "Progress",
    "Step",
    "Suite",
    "find_pairs",
    "program_path",
    "schedule",
]

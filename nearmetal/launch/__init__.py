# SPDX-License-Identifier: Apache-2.0
"""Starts MPI jobs in a cluster with the MPI's own launcher, and proves what carried them."""

from nearmetal.launch.job import JobRequest, JobResult, Output, run_job
from nearmetal.launch.locality import Meeting, info_tool, measure_locality
from nearmetal.launch.stats import Proof, Verdict

__all__ = [
    "JobRequest",
    "JobResult",
    "Meeting",
    "Output",
    "Proof",
    "Verdict",
    "info_tool",
    "measure_locality",
    "run_job",
]

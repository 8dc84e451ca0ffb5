# SPDX-License-Identifier: Apache-2.0
r"""How each format is known by its text: the line with which a program names itself.

A pattern looks at one line: `[^\S\n]` is a blank, because `\s` would try all following empty lines
at each of them. So the work is linear in the size of the text.
"""

from __future__ import annotations

import re

_B = r"[^\S\n]"

SIGNATURES: dict[str, tuple[tuple[str, ...], str]] = {
    "nearmetal-bench": (("# nearmetal-bench ",), r"^# nearmetal-bench "),
    "osu": (("OSU ",), rf"^#{_B}*OSU (?:MPI|UPC|OpenSHMEM|NCCL)\S* .*Test{_B}+v\d"),
    "imb": (("MPI Benchmarks",), rf"^#{_B}+Intel\(R\) MPI Benchmarks"),
    "netpipe": (("Now starting",), rf"^Now starting the main loop{_B}*$"),
    "perftest": (
        (" Test\n", " Test\r\n", '"test_info"'),
        (
            rf"^{_B}+(?:RDMA_Write|RDMA_Read|Send|Atomic\S*|Write|Read)\b.* Test{_B}*$"
            rf'|^{_B}*"test_info"{_B}*:'
        ),
    ),
    "hpcc": (("HPC Challenge",), r"^This is the DARPA/DOE HPC Challenge Benchmark"),
    "hpl": (("HPLinpack ",), r"^HPLinpack \d"),
    "hpcg": (("HPCG-Benchmark",), rf"^HPCG-Benchmark{_B}*$"),
    "stream": (("STREAM version",), r"^STREAM version \$Revision"),
    "graph500": (("TEPS:", "SCALE:"), rf"^(?:bfs{_B}+)?harmonic_mean_TEPS:|^SCALE:{_B}+\d+{_B}*$"),
    "npb": (("NAS Parallel",), rf"^{_B}*NAS Parallel Benchmarks "),
    "gromacs": (
        ("GROMACS", "mdrun", "(ns/day)"),
        rf"^{_B}*:-\) GROMACS|^Finished mdrun on|^GROMACS version:|^{_B}+\(ns/day\)\s",
    ),
    "lammps": (("LAMMPS (", "Loop time"), r"^LAMMPS \(|^Loop time of \S+ on \d+ procs"),
    "namd": (("Info: ",), r"^Info: NAMD \d|^Info: Benchmark time: "),
    "openfoam": (("ExecutionTime",), rf"^ExecutionTime = \S+ s{_B}+ClockTime"),
    "wrf": (("Timing for main", "WRF V"), rf"^Timing for main: time |^{_B}*WRF V\S+ MODEL"),
    "qe": (("PWSCF",), rf"^{_B}*Program PWSCF v|^{_B}*PWSCF{_B}*:{_B}.*(?:WALL|wall time)"),
    "matrix": (("src,dst", "rank_a,"), r"^(?:src,dst|rank_a,rank_b),"),
    "nccl": (
        ("# nThread", "-tests version"),
        r"^# nThread:? \d+ nGpus:? \d+|^# nccl-tests version \d",
    ),
    "gpcnet": ((" Tests v",), rf"^Network(?:Load)? Tests v\d+\.\d+{_B}*$"),
    "reframe": (
        ("|reframe ", "job_completion_time|"),
        r"\|reframe \d+\.\d|^(?:result\|)?job_completion_time\|",
    ),
    "clck": (("Cluster Checker",), rf"^{_B}*Intel(?:\(R\)|®)?{_B}+Cluster Checker \d"),
}
"""By format: words of which a text must have one, and the pattern. A text may match several formats:
HPCC also prints HPL and STREAM. The words are only for speed: most texts match one format."""

CONTAINS = {"hpcc": {"hpl", "stream"}}

NOT_READ = {
    "the MPI library's version only": ("Open MPI", r"\AOpen MPI v?\d"),
}
"""Formats that are known by name, but not read: a word of the text, and a pattern."""


_WORDS = tuple(dict.fromkeys(word.rstrip() for words, _ in SIGNATURES.values() for word in words))


def candidates(text: str) -> list[int]:
    """Return where the lines begin that have a word of any format, in their order."""
    found: set[int] = set()
    for word in _WORDS:
        at = text.find(word)
        while at >= 0:
            found.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(word, end) if end >= 0 else -1
    return sorted(found)


def formats_of(text: str) -> list[str]:
    """Return the formats that fit a text."""
    found = [name for name in SIGNATURES if shows(name, text)]
    for name in list(found):
        found = [other for other in found if other not in CONTAINS.get(name, ())]
    return found


def shows(log_format: str, text: str) -> bool:
    """Return whether a text has the line by which a format is known."""
    words, pattern = SIGNATURES[log_format]
    return any(word in text for word in words) and bool(re.search(pattern, text, re.MULTILINE))

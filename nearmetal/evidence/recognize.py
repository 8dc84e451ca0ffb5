# SPDX-License-Identifier: Apache-2.0
r"""The program that printed a text, from the text alone; never from a file's name.

A pattern looks at one line: `[^\S\n]` is a blank, because `\s` would try all following empty lines
at each of them. So the work is linear in the size of the text.
"""

from __future__ import annotations

import re

from nearmetal.evidence.parse.reader import check_lines, fail

MAX_LOG_BYTES = 64 << 20

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
    "clck": (("Cluster Checker",), rf"^{_B}*Intel(?:\(R\)|®)?{_B}+Cluster Checker \d"),
}
"""By format: words of which a text must have one, and the pattern. A text may match several formats:
HPCC also prints HPL and STREAM. The words are only for speed: most texts match one format."""

CONTAINS = {"hpcc": {"hpl", "stream"}}

NOT_READ = {
    "GPCNet": ("Isolated Network Tests", rf"^Network Tests v\d+\.\d+{_B}*$"),
    "nccl-tests": ("# nThread", r"^# nThread \d+ nGpus \d+"),
    "a performance log of ReFrame": ("|reframe ", r"\|reframe \d"),
    "the MPI library's version only": ("Open MPI", r"\AOpen MPI v?\d"),
}
"""Formats that are known by name, but not read: a word of the text, and a pattern."""

CRASHES = (
    "Segmentation fault",
    "Process received signal",
    "BAD TERMINATION OF ONE OF YOUR",
    "MPI_ABORT was invoked",
    "MPI_Abort(",
    "exited on signal",
    "DUE TO TIME LIMIT",
    "Out Of Memory",
    "oom-kill",
    "(core dumped)",
    "srun: error:",
    "CANCELLED AT",
    "MPI_ERRORS_ARE_FATAL",
    "exited with non-zero status",
    "job aborted:",
    "Fatal error in MPI_",
    "Fatal error in PMPI_",
    "Fatal error in internal_",
)


def decode(raw: bytes, file: str) -> str:
    """Return a raw log as text without its byte order mark; raises LogError for a binary file."""
    if not raw.strip():
        raise fail(file, 1, "the file is empty", "the run printed nothing, or did not start")
    if len(raw) > MAX_LOG_BYTES:
        raise fail(file, 1, f"larger than {MAX_LOG_BYTES >> 20} MiB", "no benchmark prints so much")
    if b"\0" in raw:
        line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
        utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        why = "UTF-16? save it as UTF-8" if utf16 else "this is not text: it is a binary file"
        raise fail(file, line, "a zero byte", why)
    text = raw.decode("utf-8", "replace").removeprefix("\ufeff")
    check_lines(text, file)
    return text


def recognize(text: str, file: str) -> str:
    """Return the format; raises LogError unless exactly one fits."""
    found = [
        name
        for name, (words, pattern) in SIGNATURES.items()
        if any(word in text for word in words) and re.search(pattern, text, re.MULTILINE)
    ]
    for name in list(found):
        found = [other for other in found if other not in CONTAINS.get(name, ())]
    if len(found) == 1:
        return found[0]
    if found:
        raise fail(
            file,
            1,
            f"it holds the output of {' and '.join(found)}",
            "a file may have one format only: split it",
        )
    known = [
        name
        for name, (word, pattern) in NOT_READ.items()
        if word in text and re.search(pattern, text, re.MULTILINE)
    ]
    if known:
        raise fail(file, 1, f"this is {known[0]}", "which is not read")
    raise fail(file, 1, "the format is unknown", f"known: {', '.join(SIGNATURES)}")


def refuse_crash(text: str, file: str) -> None:
    """Raise LogError when the text says that the run crashed or was killed."""
    for words in CRASHES:
        where = text.find(words)
        if where >= 0:
            line = text.count("\n", 0, where) + 1
            raise fail(file, line, f"{words!r}", "the run crashed or was killed")

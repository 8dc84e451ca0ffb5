# SPDX-License-Identifier: Apache-2.0
"""Studies of up to eight arms, from logs as the programs write them, for tests of their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

FACTORS = (1.0, 1.02, 1.3, 1.09, 1.2, 0.9, 1.05, 1.6)
"""The times of the base and of the other arms, against the base."""

PLAIN = ("metal", "vm-ib", "vm-roce", "container", "vm-tcp", "metal-44", "vm-old", "vm-new")
_STEM = "vm-sriov-latency-sensitivity-high-44-of-48-cores-huge-pages-numa-2-fabric-"
LONG = (
    *(_STEM + end for end in ("ib", "roce", "ib-2", "roce-2", "ib-3", "tcp")),
    _STEM.replace("-", "_"),
    _STEM.replace("-", "").upper(),
)
"""Names of 60 to 80 characters that differ in their ends only, or have no place for a break."""

_HEAD = """\
format: 1
run: made
arms:
"""
_ARM = """\
  {name}: {{platform: {platform}, fabric: {fabric}, placement: one rank per node,
    cores_per_node: {cores}, facts: {{line_rate_gbit: 100, processor: 2 x Xeon Gold 6248R}}}}
"""
_SOURCES = """\
sources:
  - path: "{arm}/osu-{_}-{launch}.out"
    nodes: 2
  - path: "{arm}/pairs-{launch}.csv"
    nodes: 4
  - path: "{arm}/ft-{nodes}-{launch}.out"
"""


def _latency(factor: float) -> str:
    rows = "".join(f"{1 << i:<10d}{(1.2 + (1 << i) / 11000) * factor:>18.3f}\n" for i in range(23))
    return f"# OSU MPI Latency Test v7.2\n# Size          Latency (us)\n{rows}"


def _rates(factor: float) -> str:
    rows = []
    for i in range(23):
        seconds = (0.02 + (1 << i) / 11000) * factor * 1e-6
        rows.append(f"{1 << i:<10d}{(1 << i) / seconds / 1e6:>18.2f}{1 / seconds:>18.2f}\n")
    head = "# OSU MPI Multiple Bandwidth / Message Rate Test v7.2\n# [ pairs: 8 ] [ window size: 64 ]\n"
    return f"{head}# Size                  MB/s        Messages/s\n{''.join(rows)}"


def _pairs(factor: float) -> str:
    rows = [
        f"{a},{b},{factor * (1 + (3 * a + b) / 90):.4f}"
        for a in range(4)
        for b in range(4)
        if a != b
    ]
    return "\n".join(["rank_a,rank_b,lat_us", *rows]) + "\n"


def _ft(nodes: int, factor: float) -> str:
    seconds = 900 / nodes * factor * (1 + 0.03 * nodes)
    return f"""\
 NAS Parallel Benchmarks 3.4 -- FT Benchmark

 Size                :  512x 512x 512  (class C)
 Number of processes :{32 * nodes:15d}
 Result verification successful

 FT Benchmark Completed.
 Class           =                        C
 Time in seconds = {seconds:24.2f}
 Total processes = {32 * nodes:24d}
 Mop/s total     = {396000 / seconds:24.2f}
 Verification    =               SUCCESSFUL
 Version         =                    3.4.2
"""


def make_study(folder: Path, names: tuple[str, ...], *, launches: int = 8) -> Path:
    """Return a study with these arms; the first one is the base."""
    labels = [_HEAD]
    for name, factor in zip(names, FACTORS, strict=False):
        logs = folder / "logs" / name
        logs.mkdir(parents=True)
        platform = "VM" if name.startswith("vm") else "bare metal"
        fabric = "RoCE" if "roce" in name else "InfiniBand"
        cores = 48 if name == names[0] else 44
        labels.append(_ARM.format(name=name, platform=platform, fabric=fabric, cores=cores))
        for launch in range(1, launches + 1):
            slower = factor * (1 + launch / 500)
            (logs / f"osu-latency-{launch}.out").write_text(_latency(slower))
            (logs / f"osu-rate-{launch}.out").write_text(_rates(slower))
            (logs / f"pairs-{launch}.csv").write_text(_pairs(slower))
            for nodes in (1, 2, 4):
                (logs / f"ft-{nodes}-{launch}.out").write_text(_ft(nodes, slower))
    (folder / "logs" / "study-labels.yaml").write_text("".join(labels) + _SOURCES)
    assert main(["study", "import", str(folder / "logs"), "--output", str(folder / "s")]) == 0
    return folder / "s"


def make_page(study: Path, names: tuple[str, ...]) -> Path:
    """Return the page of the arms of a study; it is made once."""
    page = study / f"of-{len(names)}.html"
    if not page.exists():
        assert main(["study", "report", str(study), *names, "--output", str(page)]) == 0
    return page

# SPDX-License-Identifier: Apache-2.0
"""Logs of two arms, written line by line, and the study that is imported from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from nearmetal.cli.main import main

SIZES = tuple(1 << i for i in range(23))
LABELS = """\
format: 1
run: made
arms:
  a: {platform: bare metal, fabric: IB, placement: one rank per node, cores_per_node: 48,
      facts: {line_rate_gbit: 100}}
  b: {platform: VM, fabric: IB, placement: one rank per node, cores_per_node: 44,
      facts: {line_rate_gbit: 100}}
sources:
  - {path: "{arm}/{_}-{launch}.out", nodes: 2}
"""
Kind = Callable[[str, int, random.Random], str]
"""From the arm and the number of the launch to the text of a log."""


def latency(
    factor: float = 1.0, head: str = "# OSU MPI Latency Test v5.8", last: int = SIZES[-1]
) -> Kind:
    """Return logs of osu_latency."""

    def text(_arm: str, _launch: int, dice: random.Random) -> str:
        rows = "".join(
            f"{s:<10d}{(1.2 + s / 11000) * factor * dice.uniform(0.99, 1.01):>18.2f}\n"
            for s in SIZES
            if s <= last
        )
        return f"{head}\n# Size          Latency (us)\n{rows}"

    return text


def bandwidth(factor: float = 1.0, last: int = SIZES[-1], first: int = SIZES[0]) -> Kind:
    """Return logs of osu_bw of at most about 11 GB/s."""

    def text(_arm: str, _launch: int, dice: random.Random) -> str:
        rows = "".join(
            f"{s:<10d}{11000 * s / (s + 5000) * factor * dice.uniform(0.99, 1.01):>18.2f}\n"
            for s in SIZES
            if first <= s <= last
        )
        return f"# OSU MPI Bandwidth Test v5.8\n# Size      Bandwidth (MB/s)\n{rows}"

    return text


def many_pairs(window: int, factor: float = 1.0) -> Kind:
    """Return logs of osu_mbw_mr."""

    def text(_arm: str, _launch: int, dice: random.Random) -> str:
        lines = [
            "# OSU MPI Multiple Bandwidth / Message Rate Test v5.8",
            f"# [ pairs: 2 ] [ window size: {window} ]",
            "# Size                  MB/s        Messages/s",
        ]
        for size in SIZES:
            value = round(9000 * size / (size + 9000) * factor * dice.uniform(0.99, 1.01), 2)
            lines.append(f"{size:<10d}{value:>16.2f}{value * 1e6 / size:>20.2f}")
        return "\n".join(lines) + "\n"

    return text


PERFTEST_HEAD = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Mtu             : 4096[B]
 Link type       : IB
---------------------------------------------------------------------------------------
 local address: LID {local} QPN 0x092f PSN 0x3ff1bc RKey 0x080329 VAddr 0x007fc97ff50000
 remote address: LID {remote} QPN 0x092e PSN 0x3eb82d RKey 0x080228 VAddr 0x007f19adcbf000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
"""
DASHES = "-" * 87 + "\n"


def perftest(
    rate: float = 1.0, last: int = SIZES[-1], ports: tuple[str, str] = ("0x01", "0x02")
) -> Kind:
    """Return logs of ib_write_bw; with a smaller `last` they are cut off."""

    def text(_arm: str, _launch: int, dice: random.Random) -> str:
        made = PERFTEST_HEAD.format(local=ports[0], remote=ports[1])
        for size in SIZES[1:]:
            if size > last:
                return made
            value = round(10500 * size / (size + 5000) * dice.uniform(0.99, 1.01), 2)
            mpps = value * (1 << 20) / size / 1e6 * rate
            made += f" {size:<10d} 5000           {value:<18.2f} {value:<18.2f} {mpps:.6f}\n"
        return made + DASHES

    return text


def logs(folder: Path, arms: Mapping[str, Mapping[str, Kind]], launches: int) -> Path:
    """Write the logs of both arms, by names of files."""
    dice = random.Random(7)
    for arm, kinds in arms.items():
        (folder / "logs" / arm).mkdir(parents=True)
        for launch in range(1, launches + 1):
            for name, kind in kinds.items():
                path = folder / "logs" / arm / f"{name}-{launch}.out"
                path.write_text(kind(arm, launch, dice))
    (folder / "logs" / "study-labels.yaml").write_text(LABELS)
    return folder / "logs"


def study(
    folder: Path, arms: Mapping[str, Mapping[str, Kind]], launches: int = 8, code: int = 0
) -> Path:
    """Return the study of the logs; `code` is the exit code of the import."""
    words = ["study", "import", str(logs(folder, arms, launches)), "--output", str(folder / "s")]
    assert main(words) == code
    return folder / "s"

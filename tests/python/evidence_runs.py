# SPDX-License-Identifier: Apache-2.0
"""Run directories with known figures."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from nearmetal.evidence import (
    ChannelProof,
    Environment,
    Launch,
    Manifest,
    NodePair,
    NodePlace,
    write_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

COLUMNS = (
    "size_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us time_p98_us "
    "messages rate_p50_Mps bandwidth_p50_MBps"
)
SIZES = (0, 8, 1024, 65536, 1 << 20)


def row(size: int, time_us: float) -> str:
    times = " ".join(f"{time_us * f:.4f}" for f in (0.9, 0.95, 1.0, 1.1, 2.0))
    return f"{size} 50 64 {times} 1 {1 / time_us:.6f} {size / time_us:.2f}"


def own_log(
    program: str, tables: Mapping[str, Sequence[tuple[int, float]]], head: str = "# ranks 2"
) -> str:
    lines = [f"# nearmetal-bench 1 {program}", head]
    for name, points in tables.items():
        lines += [f"# table {name}", COLUMNS, *(row(s, t) for s, t in points), f"# end {name}"]
    return "\n".join([*lines, f"# done {program}"]) + "\n"


def limits_log(placement: str = "near") -> str:
    large = [(s, s / 20000) for s in (65536, 1 << 20)]
    text = own_log(
        "limits",
        {
            "cacheline": [(8, 0.06)],
            "slots": [(8, 0.004)],
            "memcpy": large,
            "one_copy": large,
            "two_copy": large,
        },
        "# cores 0 1",
    )
    return text.replace("# end cacheline", f"# placement {placement} half_rtt\n# end cacheline")


def patterns_log(latency_us: float, bandwidth_mbps: float) -> str:
    times = [(s, latency_us + s / bandwidth_mbps) for s in SIZES]
    streams = [(s, latency_us / 4 + s / bandwidth_mbps) for s in SIZES]
    head = "# ranks 2\n# library Open MPI v5"
    return own_log("patterns", {"pingpong": times, "uniband": streams}, head)


def make_launch(directory: Path, number: int, text: str, **fields: Any) -> Launch:
    stem = f"raw/{number:04}"
    for kind, content in (("out", text), ("err", "")):
        (directory / f"{stem}.{kind}").write_text(content, encoding="utf-8")
    settings: dict[str, Any] = {
        "block": 0,
        "program": "patterns",
        "log_format": "nearmetal-bench",
        "mpi": "openmpi5",
        "arm": "auto",
        "ranks": 2,
        "nodes": "n1:1,n2:1",
        "started": "2026-01-01T00:00:00Z",
        "seconds": 1.0,
        "exit_code": 0,
        "timed_out": False,
        "argv": ("mpirun", "x"),
        "env": {},
        "proof": ChannelProof(
            verdict="proven", reason="r", messages={"shm": 1000}, bytes={"shm": 10**9}
        ),
        "wire_bytes": 1000,
        "load": 0.5,
    }
    return Launch(
        number=number,
        stdout=f"{stem}.out",
        stderr=f"{stem}.err",
        stdout_sha256=hashlib.sha256(text.encode()).hexdigest(),
        stderr_sha256=hashlib.sha256(b"").hexdigest(),
        **(settings | fields),
    )


def pair(node: str, peer: str, channel: str, reason: str = "met in the same bytes") -> NodePair:
    return NodePair(
        node=node, peer=peer, relation="host", channel=channel, integrity="enforced", reason=reason
    )


def make_run(directory: Path, *, blocks: int = 3, reason: str = "met in the same bytes") -> Path:
    """Make a run: nearmetal takes 0.3 us and 10 GB/s, TCP 9 us and 2.5 GB/s, the network 10 us."""
    (directory / "raw").mkdir(parents=True)
    launches: list[Launch] = []
    arms = {"auto": (0.3, 10000.0), "net": (10.0, 2400.0), "stock": (9.0, 2500.0)}
    for block in range(blocks):
        beside = {"mpi": "", "arm": "", "program": "limits", "block": block}
        launches.append(make_launch(directory, len(launches) + 1, limits_log(), **beside))
        for arm, (latency, bandwidth) in arms.items():
            text = patterns_log(latency * (1 + block / 100), bandwidth)
            wire = 1000 if arm == "auto" else 10**9
            launches.append(
                make_launch(
                    directory, len(launches) + 1, text, arm=arm, block=block, wire_bytes=wire
                )
            )
    nodes = tuple(
        NodePlace(
            name=f"n{i}", host="h1", hostname=f"n{i}", address=f"10.0.0.{i}", cpus=(i,), slots=1
        )
        for i in (1, 2)
    )
    locality = (
        pair("n1", "n1", "self", "itself"),
        pair("n1", "n2", "shm", reason),
        pair("n2", "n1", "shm", reason),
        pair("n2", "n2", "self", "itself"),
    )
    write_manifest(
        directory,
        Manifest(
            name="c",
            suite="quick",
            blocks=blocks,
            started="2026-01-01T00:00:00Z",
            finished="2026-01-01T00:01:00Z",
            spec="{}",
            locality=locality,
            launches=tuple(launches),
            environment=Environment(
                machine=(("processor", "P"),), software=(("openmpi5", "x"),), nodes=nodes
            ),
        ),
    )
    return directory

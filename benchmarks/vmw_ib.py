# SPDX-License-Identifier: Apache-2.0
"""Section 3 of VMW-IB on a cluster that is up: verbs between nodes, checks, MPI benchmarks.

    python -m benchmarks.vmw_ib examples/two-by-two.yaml --output section-3

The study validates 16 virtual machines in three steps: two programs of ibverbs between two of them
against the line rate (3.1), Intel Cluster Checker (3.2), and OSU (3.3). Each step is a verb of
nearmetal here. The directory gets the unchanged output of each, `report.md` and `report.html` with
the figures of the study beside those of the cluster, and `performance.html` with the maps of `check
performance`. A step that cannot run says why, and the report says what is emulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.vmw_ib_page import Line, RawOutput, page, place_notes, raw_output, report
from nearmetal.check.collection import INDEX, Collection, open_collection
from nearmetal.check.performance.run import (
    MEASURED,
    PERFORMANCE,
    QUANTITIES,
    parse_run,
)
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.errors import ExitCode, LogError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.core.text import counted, printable
from nearmetal.evidence.line_rate import line_rate
from nearmetal.evidence.parse import parse_log
from nearmetal.evidence.published import find

ROOT = Path(__file__).resolve().parents[1]
IMB = ROOT / "build/mpi/impi/bin/IMB-MPI1"
STUDY = "vmw-ib"
LIMIT_S = 1800.0
PROFILES = {
    "health_base": "health_base",
    "health_extended": "health_extended_user",
    "hpc_platform": "intel_hpc_platform_compat-hpc-cluster-2.0",
    "simulation": "select_solutions_sim_mod_user_plus_2021.0",
}
"""Our profiles, and the definitions of Intel Cluster Checker that the study passed."""

BY_JOB = ("stream", "dgemm")
"""What the MPI job of `check performance` measures; IMB measures messages."""

OSU = {"osu_mbw_mr": "Figure 24", "osu_alltoall": "Figure 25"}
_CARRIED = "note: carried by nearmetal: "
_GRADES = ("fault", "warning", "note")
ENDED = (ExitCode.DONE, ExitCode.CHECKS_FAILED)
"""Exit codes of verbs that got to their end."""

Run = Callable[[str, Sequence[str]], Completed]


def printed(test: str, metric: str, **more: str) -> str:
    """Return the figures of the study, as it prints them; they differ between its nodes."""
    found = find(STUDY, test=test, metric=metric, **more)
    words = list(dict.fromkeys(number.printed for number in found))
    return f"{', '.join(words)} {found[0].unit}" if found else "not given"


def not_run(done: Completed) -> str:
    """Return why a verb has no result."""
    lines = [line for line in done.error_tail.splitlines() if not line.startswith("  hint:")]
    words = (lines or ["no reason given"])[-1]
    return f"not run: {'no end in time' if done.timed_out else words}"


def answer(done: Completed) -> dict[str, Any] | None:
    """Return the JSON document of a verb; None if it did not get to its end."""
    if done.code not in ENDED or done.timed_out:
        return None
    try:
        data = json.loads(done.stdout)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def verbs(run: Run, spec: str) -> Iterator[Line]:
    """Section 3.1: ib_send_bw and ib_send_lat of each pair."""
    done = run("verbs", ["host", "verify", spec, "--json"])
    data = answer(done)
    if data is None:
        yield Line("3.1", "ib_send_bw, ib_send_lat", "", not_run(done), raw="verbs")
        return
    for one in data["sends"]:
        pair = f"{one['client']} to {one['server']}"
        bandwidth = one["why"] if one["gbit"] is None else f"{one['gbit']:.4g} Gbit/s"
        bandwidth += _share(data, one)
        latency = f"{one['latency_us']:g} µs" if one["latency_us"] is not None else one["why"]
        size = f"{one['size']} B"
        yield Line(
            "3.1",
            f"ib_send_bw of {size}, {pair}",
            printed("ib_send_bw", "bandwidth", scale=size),
            bandwidth,
            raw="verbs",
        )
        yield Line(
            "3.1",
            f"ib_send_lat of 2 B, {pair}",
            printed("ib_send_lat", "latency", scale="2 B"),
            latency,
            raw="verbs",
        )
    if not data["sends"]:
        yield Line("3.1", "ib_send_bw, ib_send_lat", "", "not run: no pair of RDMA devices")
    for fault in data["findings"]:
        if fault["severity"] == "fault":
            yield Line("3.1", f"{fault['node']} {fault['about']}", "", fault["what"], fails=True)


def _share(data: dict[str, Any], sends: dict[str, Any]) -> str:
    """Return the share of the line that sends reached, in words; "" if the line is not known.

    The rate of the slower port is a data rate, so no generation of lanes is named: its encoding
    would be subtracted again.
    """
    if not sends["line_gbit"] or sends["gbit"] is None:
        return ""
    devices = data["nodes"].get(sends["client"], {}).get("devices", ())
    ports = [
        port
        for device in devices
        for port in device["ports"]
        if device["name"] == sends["device"] and port["state"] == "PORT_ACTIVE"
    ]
    layer, mtu = (ports[0]["link_layer"], ports[0]["active_mtu"]) if ports else ("InfiniBand", 0)
    fabric = "RoCE" if layer == "Ethernet" else "InfiniBand"
    line = line_rate(fabric, sends["line_gbit"], sends["gbit"], mtu or None, (4, ""))
    return f", {line.share:.1%} of the {line.payload:.4g} Gbit/s that {line.nominal:g} leave"


def checks(run: Run, spec: str, kept: Path) -> Iterator[Line]:
    """Section 3.2: one profile for each definition of the study, and the odd node in speed.

    `kept`: the new directory of the values.
    """
    asked = {
        f"check {profile}": (["check", spec, "--profile", profile], f"{theirs}: passed")
        for profile, theirs in PROFILES.items()
    }
    speed = ["check", "performance", spec, "--measure", ",".join((*MEASURED, *BY_JOB))]
    shown = kept.with_suffix(".html")
    asked["check performance"] = ([*speed, "--output", str(kept), "--report", str(shown)], "")
    for name, (words, study) in asked.items():
        raw = name.replace(" ", "-")
        done = run(raw, [*words, "--json"])
        data = answer(done)
        if data is None:
            # A small cluster has no classes of speed; each cluster can be checked.
            yield Line("3.2", name, study, not_run(done), fails=bool(study), raw=raw)
            continue
        found = data["findings"]
        counts = {grade: sum(f["severity"] == grade for f in found) for grade in _GRADES}
        here = ", ".join(counted(count, grade) for grade, count in counts.items())
        yield Line("3.2", name, study, here, fails=done.code != 0, raw=raw)
    yield from _speeds(kept)
    for test in ("HPCG 4-node", "HPCG 1-node"):
        yield Line("3.2", test, printed(test, "rate"), "not run: no package of Debian has HPCG")
    hpl = "not run: `check performance --measure hpl` takes nodes that share files"
    yield Line("3.2", "HPL 4-node", printed("HPL 4-node", "rate"), hpl)


def _speeds(kept: Path) -> Iterator[Line]:
    """Yield STREAM and DGEMM: the median of each node, and how it was measured."""
    file = kept / PERFORMANCE
    run = parse_run(file.read_bytes(), str(file)) if file.is_file() else None
    for test, quantity in (("STREAM", "stream"), ("DGEMM", "dgemm")):
        study = printed(test, "bandwidth" if test == "STREAM" else "rate")
        values: dict[str, list[float]] = {}
        for turn in run.screening if run else ():
            for item, value in turn.values.items() if turn.quantity == quantity else ():
                values.setdefault(item[0], []).append(value)
        if run and values:
            middles = ", ".join(f"{node} {median(found):.4g}" for node, found in values.items())
            here = f"{middles} {QUANTITIES[quantity].unit}: {run.setup[quantity]}"
        else:
            why = run.lacking.get(quantity, "") if run else ""
            here = f"not run: {why.partition('|')[0] or 'see `check performance`'}"
        yield Line("3.2", test, study, here, raw="check-performance")


def ping_pong(run: Run, spec: str, imb: Path) -> Iterator[Line]:
    """Section 3.2, its last report: IMB PingPong between two nodes."""
    job = ["run", spec, "--mpi", "impi", "-n", "2", "--map-by", "node", "--", str(imb), "PingPong"]
    done = run("imb", job)
    names = ("IMB PingPong, latency", "IMB PingPong, bandwidth")
    theirs = printed("IMB PingPong", "latency"), printed("IMB PingPong", "bandwidth")
    ours = [not_run(done)] * 2
    if done.code == 0:
        try:
            ours = [f"{best}{_carrier(done)}" for best in _best(done.text)]
        except LogError as error:
            ours = [f"not read: {error.message}"] * 2
    for name, study, here in zip(names, theirs, ours, strict=True):
        fails = done.code != 0 or here.startswith("not ")
        yield Line("3.2", name, study, here, fails=fails, raw="imb")


def _carrier(done: Completed) -> str:
    """Return what carried the messages, as `run` says it: nodes of one host need no fabric."""
    for line in done.stderr.decode("utf-8", "replace").splitlines():
        if line.startswith(_CARRIED):
            return f"; {line.removeprefix(_CARRIED)}"
    return ""


def _best(text: str) -> tuple[str, str]:
    """Return the lowest latency and the highest bandwidth of a log of PingPong."""
    table = parse_log(text, "imb", "imb").table("PingPong")
    if table is None:
        raise LogError("the output has no table of PingPong")
    values: list[Any] = [row.values for row in table.rows]
    latency = min(row["time"] for row in values)
    return f"{latency:g} µs", f"{max(row['bandwidth'] for row in values) / 1000:.3f} GB/s"


def osu(run: Run, spec: str, mpi: str, folder: Path | None) -> Iterator[Line]:
    """Section 3.3: two programs of OSU, whose results the study shows as plots."""
    for program, figure in OSU.items():
        study = f"{figure}, a plot without numbers in the text"
        if folder is None:
            yield Line("3.3", program, study, "not run: --osu DIR names its programs")
            continue
        done = run(program, ["run", spec, "--mpi", mpi, "--", str(folder / program)])
        here = not_run(done) if done.code else f"see raw/{program}.txt"
        yield Line("3.3", program, study, here, fails=done.code != 0, raw=program)


def validate(spec: str, output: Path, run: Run, *, imb: Path, mpi: str, osus: Path | None) -> int:
    """Run all steps and write the report; return 4 if the cluster is not as it should be."""
    lines: list[Line] = []
    raw: list[RawOutput] = []
    verified: dict[str, Any] = {}
    title = f"VMW-IB, section 3, on {Path(spec).stem}"
    # An interrupted run keeps what it measured.
    output.mkdir(mode=0o755)
    (output / "raw").mkdir()

    def kept(name: str, words: Sequence[str]) -> Completed:
        done = run(name, words)
        (output / "raw" / f"{name}.txt").write_bytes(done.stdout + done.stderr)
        raw.append(raw_output(name, done))
        if name == "verbs":
            verified.update(answer(done) or {})
        return done

    steps = (
        verbs(kept, spec),
        checks(kept, spec, output / "performance"),
        ping_pong(kept, spec, imb),
        osu(kept, spec, mpi, osus),
    )
    notes: list[str] = []

    def write() -> None:
        (output / "report.md").write_text(report(title, lines, notes), encoding="utf-8")
        (output / "report.html").write_text(page(title, lines, notes, raw), encoding="utf-8")

    for step in steps:
        for line in step:
            lines.append(replace(line, here=printable(line.here)))
            write()
        notes = list(place_notes(verified, _nodes(output / "performance")))
    write()
    return 4 if any(line.fails for line in lines) else 0


def _nodes(kept: Path) -> list[Snapshot]:
    """Return the snapshots of the collection of `check performance`; none if it has none."""
    if not (kept / INDEX).is_file():
        return []
    collection = open_collection(kept)
    return list(collection.snapshots()) if isinstance(collection, Collection) else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate the cluster of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("spec", help="specification of a cluster that is up")
    parser.add_argument("--output", required=True, type=Path, help="new directory of the report")
    parser.add_argument("--imb", default=IMB, type=Path, help="IMB-MPI1 of Intel MPI")
    parser.add_argument("--osu", type=Path, help="directory with the programs of OSU")
    parser.add_argument("--mpi", default="openmpi5", help="the MPI that OSU was built with")
    args = parser.parse_args(arguments)
    if args.output.exists() or not args.output.parent.is_dir():
        parser.error(f"{args.output}: give the name of a new directory in one that exists")
    runner = LocalRunner()

    def run(name: str, words: Sequence[str]) -> Completed:
        print(f"{name}: nearmetal {' '.join(words)}", file=sys.stderr, flush=True)
        command = Command((sys.executable, "-m", "nearmetal", *words))
        return runner.run(command, timeout_s=LIMIT_S)

    code = validate(args.spec, args.output, run, imb=args.imb, mpi=args.mpi, osus=args.osu)
    print((args.output / "report.md").read_text(encoding="utf-8"), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())

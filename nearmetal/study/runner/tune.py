# SPDX-License-Identifier: Apache-2.0
"""The cost of bulk copies on this machine, and the tuning file for the provider."""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearmetal.core.errors import LaunchError
from nearmetal.core.files import replace_file
from nearmetal.core.process import Command, Runner
from nearmetal.evidence.model import Log
from nearmetal.evidence.parse.own import Own

FORMAT = "nearmetal-tuning 1"
CLASSES = {64 << 10: "64K", 256 << 10: "256K", 1 << 20: "1M", 4 << 20: "more"}
PROTOCOLS = {"two_copy": "pool", "streamed": "past", "cma_read": "pull", "cma_both": "both"}
LOADS = ("lone", "stream")
_FACTS = ("cacheline", "slots", "memcpy", "one_copy")
_POINT_S = 0.004
_RUN_S = 300.0

Key = tuple[str, str, str]
"""Class, load, protocol."""


@dataclass(frozen=True)
class TunedMachine:
    """The identity of this machine in the C code, which refuses files of other machines."""

    cpu: str
    kernel: str
    caches: Mapping[int, int]


@dataclass
class Measured:
    """The measurements in one placement of the cores."""

    half_round_trips_ns: list[float] = field(default_factory=list)
    rates: defaultdict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    evidence: list[str] = field(default_factory=list)

    def rate(self, key: Key) -> int:
        """Return MB/s: the median of the rounds."""
        return max(1, round(statistics.median(self.rates[key])))


def machine(runner: Runner, info: Path) -> TunedMachine:
    """Return this machine as nearmetal-info sees it."""
    facts = _facts(runner, info, {})["machine"]
    caches = {int(level): size for level, size in facts["caches"].items() if size}
    if not facts["cpu"] or not facts["kernel"]:
        raise LaunchError(
            "the processor model or the kernel release of this machine is unknown",
            "check that /proc is mounted",
        )
    return TunedMachine(facts["cpu"], facts["kernel"], caches)


def _facts(runner: Runner, info: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the output of nearmetal-info with these variables."""
    done = runner.check(Command((str(info), "--json"), env=os.environ | dict(env)), timeout_s=60)
    data: dict[str, Any] = json.loads(done.text)
    return data


def in_force(runner: Runner, info: Path, path: Path | None) -> dict[str, Any]:
    """Return the state of the tuning file for the provider; `path` None: the file that it finds."""
    env = {} if path is None else {"NEARMETAL_TUNE_FILE": str(path)}
    tuning: dict[str, Any] = _facts(runner, info, env)["tuning"]
    return tuning


def measure(runner: Runner, program: Path, load: str, number: int) -> tuple[str, Log]:
    """Measure everything once; returns the placement of the cores and the log."""
    argv = [str(program), "-t", str(_POINT_S), *(("-w",) if load == "lone" else ())]
    done = runner.check(Command(tuple(argv)), timeout_s=_RUN_S)
    log = Own.parse(done.text, f"round {number}, {load}")
    placement = log.header.get("placement", "").split(" ")[0]
    if placement not in ("near", "far"):
        raise LaunchError("the measuring program did not say how the cores are placed")
    return placement, log


def collect(measured: Measured, load: str, log: Log) -> None:
    """Add the figures of one log."""
    for table in log.tables:
        for row in table.rows:
            size = int(row.values["size"])
            # A low percentile: other work on the cores is not a property of the machine.
            quick, usual = row.values["time_p2"], row.values["time_p50"]
            if table.test == "cacheline" and load == "stream":
                measured.half_round_trips_ns.append(quick * 1e3)
            protocol = PROTOCOLS.get(table.test)
            if protocol and size in CLASSES and quick > 0:
                measured.rates[CLASSES[size], load, protocol].append(size / quick)
            if size in CLASSES or table.test in _FACTS[:2]:
                measured.evidence.append(
                    f"{load} {table.test} {size} B p2_us {quick:.4f} p50_us {usual:.4f} "
                    f"samples {row.values['samples']:.0f}"
                )


def tuning_text(here: TunedMachine, date: str, found: Mapping[str, Measured]) -> str:
    """Return the file."""
    lines = [FORMAT, f"cpu {here.cpu}", f"kernel {here.kernel}"]
    lines += [f"cache {level} {size}" for level, size in sorted(here.caches.items())]
    lines.append(f"date {date}")
    for placement in ("near", "far"):
        if placement in found:
            lines += _placement_lines(placement, found[placement])
    return "\n".join([*lines, "end", ""])


def _placement_lines(placement: str, measured: Measured) -> Iterable[str]:
    yield f"placement {placement}"
    half = statistics.median(measured.half_round_trips_ns)
    yield f"evidence cache line, half round trip: {half:.1f} ns"
    for name in CLASSES.values():
        for load in LOADS:
            for protocol in PROTOCOLS.values():
                if (name, load, protocol) in measured.rates:
                    yield f"rate {name} {load} {protocol} {measured.rate((name, load, protocol))}"
    for line in measured.evidence:
        yield f"evidence {line}"


def write(path: Path, text: str) -> None:
    """Replace the file; raises LaunchError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode("ascii"), mode=0o644, sync=False, shared=True)
    except OSError as error:
        raise LaunchError(
            f"cannot write {path}: {error.strerror}", "give another file with --output"
        ) from error


def default_path(env: Mapping[str, str], user: int) -> Path:
    """Return where the provider looks: /etc for root, else the user's configuration."""
    named = env.get("NEARMETAL_TUNE_FILE", "")
    if named and named != "none":
        return Path(named)
    if user == 0:
        return Path("/etc/nearmetal/tuning")
    config = env.get("XDG_CONFIG_HOME", "")
    base = Path(config) if config.startswith("/") else Path(env.get("HOME", "/")) / ".config"
    return base / "nearmetal" / "tuning"

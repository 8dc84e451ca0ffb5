# SPDX-License-Identifier: Apache-2.0
"""The energy that hosts use during a launch, by the counters of their processors (RAPL).

Linux shows them in /sys/class/powercap (Documentation/power/powercap in its source). A *zone* is a
part of a processor with a counter in microjoules, which returns to 0 after `max_energy_range_uj`. A
`package` has all cores of a socket, and `dram` its memory, which the package does not contain. The
other zones are parts of a package, show it a second time (`intel-rapl-mmio`), or contain it (`psys`).

Counters belong to a kernel: nodes of one kernel share them, and all processes of a host count. They
are read while the launch runs, so often that none can pass through its range unseen.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from nearmetal.cluster.backend import Backend
from nearmetal.core.errors import NearmetalError
from nearmetal.core.process import Command, Runner
from nearmetal.study.model import JOULES

SCRIPT = r"""
read -r boot </proc/sys/kernel/random/boot_id && echo "boot $boot"
grep -q '^flags.* hypervisor' /proc/cpuinfo && echo virtual
for z in /sys/class/powercap/intel-rapl:*; do
	[ -r "$z/name" ] && read -r name <"$z/name" || continue
	uj= range=
	{ read -r uj <"$z/energy_uj" && read -r range <"$z/max_energy_range_uj"; } 2>/dev/null
	echo "zone ${z##*/} $name ${uj:--} ${range:--}"
done
exit 0
"""

WORDS = "energy"
"""The name of the fact that says what the sum contains, or why there is none."""

MOST_W = 1000
"""More than a zone uses: the largest packages are sold with about half of it."""

_READ_S = 20.0
_SECONDS = (5.0, 60.0)
_MAX_UJ = 1 << 63
_ZONE = re.compile(r"zone (intel-rapl:\d{1,4}(:\d{1,4})?) (\S{1,40}) (\d{1,20}|-) (\d{1,20}|-)")
_BOOT = re.compile(r"boot ([0-9a-f-]{36})")


class Zone(NamedTuple):
    """One counter; `energy_uj` None: it exists, and may not be read here."""

    name: str
    energy_uj: int | None
    range_uj: int


@dataclass(frozen=True)
class HostCounters:
    """The counters of one kernel, by zone."""

    boot: str
    zones: Mapping[str, Zone]
    is_virtual: bool = False

    @property
    def why_not(self) -> str:
        """Why they cannot be used; empty: they can."""
        if not self.zones:
            kind = "a virtual machine" if self.is_virtual else "its kernel"
            return f"{kind} shows no counters in /sys/class/powercap"
        if any(zone.energy_uj is None for zone in self.zones.values()):
            return "only root may read its counters in /sys/class/powercap"
        return ""


def parse_counters(text: str) -> HostCounters | None:
    """Return what one host answered, without the zones that do not count; None: no answer."""
    boot, zones = "", {}
    lines = text.splitlines()
    for line in lines:
        if found := _BOOT.fullmatch(line):
            boot = found[1]
        elif (found := _ZONE.fullmatch(line)) and _counts(found[3], is_part=bool(found[2])):
            energy, limit = (None if word == "-" else int(word) for word in found.group(4, 5))
            if energy is not None and (limit is None or not energy <= limit < _MAX_UJ):
                return None
            zones[found[1]] = Zone(found[3], energy, limit or 0)
    return HostCounters(boot, zones, "virtual" in lines) if boot else None


def _counts(name: str, *, is_part: bool) -> bool:
    return name == "dram" if is_part else name.startswith("package-")


class Reading(NamedTuple):
    """All counters at one time, by kernel and zone; `why_not`: they are not complete."""

    at_s: float
    zones: Mapping[tuple[str, str], Zone]
    why_not: str = ""


def read_hosts(
    runner: Runner, backend: Backend | None, nodes: Iterable[str], now: Callable[[], float]
) -> Reading:
    """Read the counters of the hosts of nodes. Without a backend, of this machine."""
    here = parse_counters(runner.run(Command(("/bin/sh", "-c", SCRIPT)), timeout_s=_READ_S).text)
    found = {} if here is None else {here.boot: here}
    wanted: dict[str, str] = {}
    if backend is not None:
        for node in nodes:
            argv = ["/bin/sh", "-c", SCRIPT]
            command = backend.on_node(node, argv, env={"PATH": "/usr/bin:/bin"})
            answer = parse_counters(runner.run(command, timeout_s=_READ_S).text)
            if answer is None:
                return Reading(now(), {}, f"{node} did not say its counters")
            # A container of this kernel may not read what this process may.
            found.setdefault(answer.boot, answer)
            wanted.setdefault(answer.boot, node)
    elif here is not None:
        wanted[here.boot] = "this machine"
    if not wanted:
        return Reading(now(), {}, "this machine did not say its counters")
    for boot, node in wanted.items():
        if why := found[boot].why_not:
            return Reading(now(), {}, f"{node}: {why}")
    zones = {(b, name): zone for b in wanted for name, zone in found[b].zones.items()}
    return Reading(now(), zones)


@dataclass
class Energy:
    """The sum of readings. Pure."""

    joules: float = 0.0
    why_not: str = ""
    last: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Add what the counters grew since the reading before."""
        before, self.last = self.last, reading
        self.why_not = self.why_not or reading.why_not
        if self.why_not or before is None:
            return
        if before.zones.keys() != reading.zones.keys():
            self.why_not = "the counters are not those of the start: did a host restart?"
            return
        passed = reading.at_s - before.at_s
        for key, zone in reading.zones.items():
            old = before.zones[key]
            if zone.range_uj != old.range_uj or zone.range_uj < passed * MOST_W * 1e6:
                self.why_not = f"no reading for {passed:.0f} s: {zone.name} may have passed its end"
                return
            grown = (zone.energy_uj or 0) - (old.energy_uj or 0)
            self.joules += (grown + zone.range_uj if grown < 0 else grown) / 1e6

    @property
    def next_s(self) -> float:
        """The time until the next reading: half of what the smallest range lasts."""
        ranges = [zone.range_uj for zone in self.last.zones.values()] if self.last else []
        shortest = min(ranges, default=0) / 1e6 / MOST_W / 2
        return min(max(shortest, _SECONDS[0]), _SECONDS[1])

    def facts(self) -> dict[str, str]:
        """Return the facts of the launch."""
        if not self.why_not and self.joules == 0:
            self.why_not = "the counters stand still"
        if self.why_not or self.last is None:
            return {WORDS: f"not measured: {self.why_not or 'nothing was read'}"}
        names = dict.fromkeys(zone.name for zone in self.last.zones.values())
        hosts = len({boot for boot, _ in self.last.zones})
        words = f"{', '.join(names)} of {hosts} host{'s' * (hosts > 1)}"
        return {JOULES: f"{self.joules:.3f}", WORDS: words}


@dataclass
class Meter:
    """Reads counters at the begin and end of a `with` block, and at times between.

    It never raises: an error of a reading becomes the reason why there is no sum.
    """

    read: Callable[[], Reading]
    energy: Energy = field(default_factory=Energy)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def _take(self) -> None:
        try:
            self.energy.add(self.read())
        except (NearmetalError, OSError) as error:
            self.energy.why_not = self.energy.why_not or f"a reading failed: {error}"

    def _watch(self) -> None:
        while not self.energy.why_not and not self._ended.wait(self.energy.next_s):
            self._take()

    def __enter__(self) -> Self:
        """Take the first reading; without counters nothing follows."""
        self._take()
        if not self.energy.why_not:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the last reading, unless the launch was interrupted."""
        self._ended.set()
        if kind is not None:
            self.energy.why_not = self.energy.why_not or "the launch was interrupted"
            return
        if self._thread is not None:
            self._thread.join()
        if not self.energy.why_not:
            self._take()


def meter(runner: Runner, backend: Backend | None = None, nodes: Iterable[str] = ()) -> Meter:
    """Return a meter of the hosts of nodes. Without a backend, of this machine."""
    names = tuple(nodes)
    return Meter(lambda: read_hosts(runner, backend, names, time.monotonic))

# SPDX-License-Identifier: Apache-2.0
"""A plan of hosts in a file: written after a look, and carried out only if nothing has changed.

The file holds the hosts file, the steps of each host, and one digest for each kind of fact. It
holds no secret: a hosts file names the places of passwords.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from threading import Lock
from typing import Any

from nearmetal.config import plan_file
from nearmetal.core.errors import NearmetalError
from nearmetal.core.files import read_tables, remove_file, replace_tables
from nearmetal.core.text import printable
from nearmetal.host.hosts_file import HostsFile, parse_hosts
from nearmetal.host.model import PlatformFacts
from nearmetal.host.names import failure
from nearmetal.host.plan import HostsPlan
from nearmetal.host.show import plan_data

KIND = "hosts"

_UNCOMPARED = {"name", "platform", "unread"}
"""Facts that say nothing about the state of a host: `unread` has the words of errors."""

_WORDS = {
    "boot": "it has booted",
    "bios": "BIOS",
    "cmdline": "kernel arguments",
    "iommu_groups": "IOMMU",
    "files": "files of nearmetal",
    "options": "options of modules",
    "esxi": "state in vCenter",
}


@dataclass(frozen=True)
class SavedHostsPlan:
    """The content of a plan file. `digest` names this plan. `facts`, `steps`: by host."""

    file: HostsFile
    source: str
    digest: str
    facts: Mapping[str, Mapping[str, str]]
    steps: Mapping[str, list[dict[str, Any]]]

    def check(
        self, plan: HostsPlan, facts: Mapping[str, PlatformFacts], begun: Collection[str]
    ) -> None:
        """Raise HostError for hosts that have changed since, or that need other steps now.

        `begun`: hosts that an interrupted run of this plan has changed; they may have fewer steps.
        """
        now = _steps(plan)
        source = shlex.quote(printable(self.source))
        hint = f"make a new plan and look at it: nearmetal host plan {source} --out FILE"
        faults = []
        for name, steps in now.items():
            if name in begun:
                known = {step["step"] for step in self._all_steps(name)}
                more = [s for phase in steps for s in phase["steps"] if s["step"] not in known]
                if more:
                    faults.append((name, f"needs another step now: {more[0]['text']}", hint))
                continue
            changed = _changed(self.facts.get(name, {}), facts_digests(facts[name]))
            if changed:
                faults.append((name, f"changed since the plan: {', '.join(changed)}", hint))
            elif steps != self.steps.get(name):
                faults.append((name, "needs other steps now", hint))
        if faults:
            raise failure("the plan is out of date, and nothing was written:", faults)

    def _all_steps(self, name: str) -> list[dict[str, Any]]:
        return [step for phase in self.steps.get(name, []) for step in phase["steps"]]


def facts_digests(facts: PlatformFacts) -> dict[str, str]:
    """Return a digest for each kind of facts of a host.

    The state of a link and the running machines are left out: they come and go, and each run looks
    at them itself.
    """
    cards = tuple(
        replace(card, ports=tuple(replace(port, state="") for port in card.ports))
        for card in facts.cards
    )
    esxi = facts.esxi and replace(facts.esxi, machines=(), bound=())
    values = asdict(replace(facts, cards=cards, esxi=esxi))
    names = (field.name for field in fields(facts) if field.name not in _UNCOMPARED)
    return {name: plan_file.digest(values[name])[:16] for name in names}


def save_plan(
    path: Path, file: HostsFile, source: Path, plan: HostsPlan, facts: Mapping[str, PlatformFacts]
) -> None:
    """Write a plan without refusals into a new file."""
    content = {
        "source": str(source.absolute()),
        "file": file.model_dump(mode="json", exclude_unset=True),
        "hosts": {
            name: {"facts": facts_digests(facts[name]), "phases": phases}
            for name, phases in _steps(plan).items()
        },
    }
    plan_file.write(path, KIND, content)


def open_plan(path: Path) -> SavedHostsPlan | None:
    """Return the plan in a file; None if the file is no plan. Raises NearmetalError."""
    content = plan_file.read(path, KIND)
    if content is None:
        return None
    try:
        hosts = {
            str(name): (_texts(host["facts"]), _phases(host["phases"]))
            for name, host in dict(content["hosts"]).items()
        }
        text = json.dumps(content["file"], ensure_ascii=False, indent=1)
        source = str(content["source"])
    except (KeyError, TypeError, ValueError) as error:
        raise plan_file.damaged(path, "a part is missing") from error
    try:
        file = parse_hosts(text, f"{path} (hosts file)")
    except NearmetalError as error:
        raise plan_file.damaged(path, error.message) from error
    if {name for name, _ in file.each()} != hosts.keys():
        raise plan_file.damaged(path, "its hosts and its hosts file differ")
    return SavedHostsPlan(
        file,
        source,
        plan_file.digest(content),
        {name: facts for name, (facts, _) in hosts.items()},
        {name: phases for name, (_, phases) in hosts.items()},
    )


class Begun:
    """The hosts that an unfinished run of a saved plan has begun, on disk before their first step.

    After a kill, the same plan file continues on them; the others must still be as they were.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "saved-plan.json"
        self._lock = Lock()

    def of(self, saved: SavedHostsPlan) -> set[str]:
        """Return the hosts that runs of this plan have begun."""
        found = self._read().get(saved.digest, {}).get("hosts")
        return {str(name) for name in found} if isinstance(found, list) else set()

    def add(self, saved: SavedHostsPlan, name: str) -> None:
        """Note a host; a note of another plan is dropped."""
        with self._lock:
            hosts = self.of(saved) | {name}
            replace_tables(self.path, {saved.digest: {"hosts": sorted(hosts)}})

    def forget(self) -> None:
        """Drop the notes: every host is as planned."""
        with self._lock:
            remove_file(self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        return read_tables(self.path, "move it away, and make a new plan")


def _steps(plan: HostsPlan) -> dict[str, list[dict[str, Any]]]:
    """Return the phases of each host as JSON has them."""
    data = json.loads(json.dumps(plan_data(plan)["hosts"]))
    return {host["host"]: host["phases"] for host in data}


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [_WORDS.get(name, name) for name in now if before.get(name) != now[name]]


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in dict(value).items()}


def _phases(value: Any) -> list[dict[str, Any]]:
    phases = [dict(phase) for phase in value]
    for phase in phases:
        for step in phase["steps"]:
            if not isinstance(step["step"], str):
                raise TypeError(step)
    return phases

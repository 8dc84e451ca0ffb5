# SPDX-License-Identifier: Apache-2.0
"""Listings of real cards, hosts and BIOS trees in tests/data/hosts, each with its source."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.host.model import BiosFacts
from nearmetal.host.parse.registry import parse_registry

ROOT = Path(__file__).parents[1] / "data" / "hosts"
_ROW = re.compile(r"^[* ]{1,12}([A-Z][A-Z0-9_x]+)\s+\S")


@dataclass(frozen=True)
class Listing:
    """One file: its name, the keys of its head, and the rest as a tool printed it."""

    name: str
    head: dict[str, str]
    text: str

    def __str__(self) -> str:
        return self.name

    @property
    def rows(self) -> list[str]:
        """The settings of a listing of mlxconfig, counted without the parser."""
        body = self.text.partition("Configurations:")[2].splitlines()
        return [match[1] for line in body if (match := _ROW.match(line))]


def listings(kind: str) -> list[Listing]:
    """Return the listings of one tool."""
    found = []
    for path in sorted((ROOT / kind).glob("*.txt")):
        lines = path.read_text().splitlines()
        marked = [line for line in lines if line.startswith("# ")]
        head = dict(line[2:].split(": ", 1) for line in marked)
        found.append(Listing(path.stem, head, "\n".join(lines[len(marked) :]) + "\n"))
    return found


def tree(name: str) -> tuple[BiosFacts, dict[str, Any]]:
    """Return the facts of a BIOS tree, and the whole file."""
    file = json.loads((ROOT / "bios" / f"{name}.json").read_text())
    allowed, locks = parse_registry(file["registry"], file["attributes"])
    facts = BiosFacts(file["manufacturer"], file["attributes"], allowed=allowed, locks=locks)
    return facts, file


def trees() -> list[str]:
    """Return the names of the BIOS trees."""
    return sorted(path.stem for path in (ROOT / "bios").glob("*.json"))

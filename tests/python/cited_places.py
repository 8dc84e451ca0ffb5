# SPDX-License-Identifier: Apache-2.0
"""Where cited words stand in published texts, known by digests: the texts are not in every clone.

PYTHONPATH=. build/venv/bin/python -m tests.python.cited_places    # beside the texts: write the file
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from nearmetal.study.reproduce.claims import CLAIMED, claims_of
from tests.python.study_shared import PAPERS, SEEDS

FILE = PAPERS / "places.tsv"
TEXTS = {"vmw-ib": "000", "vmw-adapter": "001", "vmw-gdr": "002", "sdsc": "003", "osu": "004"}
"""The first characters of the file of each text."""


class CitedPlace(NamedTuple):
    """Words in a line of a text: column from 1, number of characters, SHA-256 in UTF-8."""

    study: str
    line: int
    column: int
    length: int
    sha256: str


def digest(words: str) -> str:
    """Return the SHA-256 of words."""
    return hashlib.sha256(words.encode()).hexdigest()


def known() -> list[CitedPlace]:
    """Return the recorded places."""
    rows = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines()[1:]]
    return [CitedPlace(row[0], int(row[1]), int(row[2]), int(row[3]), row[4]) for row in rows]


_KNOWN = {(p.study, p.line, p.length, p.sha256) for p in known()} if FILE.exists() else set()


def stands_at(study: str, line: int, words: str) -> bool:
    """Return whether a line of a text has these words."""
    return (study, line, len(words), digest(words)) in _KNOWN


def lines_of(study: str) -> list[str]:
    """Return the lines of a text that lies beside this checkout."""
    (path,) = SEEDS.glob(TEXTS[study] + "_*")
    return path.read_text(encoding="utf-8").split("\n")


def cited() -> Iterator[tuple[str, int, str]]:
    """Return (study, line, words) of all excerpts of the advice and of all quotes of claims."""
    for row in (PAPERS / "cited.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        work, place, text = row.split("\t", 2)
        if work.lower() in TEXTS:
            for piece in text.split("\t"):
                yield work.lower(), int(place), piece
    for study in CLAIMED:
        for claim in claims_of(study):
            yield study, claim.line, claim.quote


def main() -> None:
    """Write the file from the texts."""
    places = set()
    for study, line, words in cited():
        column = lines_of(study)[line - 1].index(words) + 1
        places.add(CitedPlace(study, line, column, len(words), digest(words)))
    rows = ["\t".join(map(str, place)) for place in (CitedPlace._fields, *sorted(places))]
    FILE.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

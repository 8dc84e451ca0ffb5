# SPDX-License-Identifier: Apache-2.0
"""MPI profiles of applications: mpiP, IPM, Score-P and Open MPI's monitoring, known by content."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nearmetal.core.errors import LogError
from nearmetal.evidence.parse.reader import check_lines, fail
from nearmetal.evidence.profiles.calls import CallUse, Profile, SizedCalls
from nearmetal.evidence.profiles.ipm import IpmBanner, IpmXml
from nearmetal.evidence.profiles.monitoring import TITLE, Monitoring, joined
from nearmetal.evidence.profiles.mpip import MpiP
from nearmetal.evidence.profiles.reader import ProfileReader
from nearmetal.evidence.profiles.scorep import ScorePScore

__all__ = ["READERS", "CallUse", "Profile", "SizedCalls", "read_profile"]

READERS: dict[str, type[ProfileReader]] = {
    r"@ mpiP\s*$": MpiP,
    r"<ipm_job_profile>": IpmXml,
    r"##IPM": IpmBanner,
    re.escape(TITLE): Monitoring,
    r"\s*[Ff]lt\s+type\s+max_buf": ScorePScore,
}
"""By the beginning of a line that only this format has."""

_FIRST = {pattern: re.compile(pattern) for pattern in READERS}
MAX_FILES = 65_536
MAX_BYTES = 64 << 20
"""Bytes of all files of a profile."""


def _reader(text: str, file: str) -> type[ProfileReader]:
    check_lines(text, file)
    for line in text.split("\n"):
        for pattern, reader in READERS.items():
            if _FIRST[pattern].match(line):
                return reader
    known = "mpiP, IPM (XML or banner), scorep-score -r, Open MPI's monitoring"
    raise fail(file, 1, "not a known profile", f"known: {known}")


def read_profile(texts: Sequence[tuple[str, str]]) -> Profile:
    """Read a profile from its files: names and texts. Only monitoring has more than one.

    Raises LogError with file:line.
    """
    if not texts:
        raise LogError("no file of a profile: a directory needs files that end in .prof")
    ranks: list[Monitoring] = []
    for file, text in texts:
        reader = _reader(text, file)
        made = reader(text, file)
        made.run()
        if isinstance(made, Monitoring):
            ranks.append(made)
        elif len(texts) == 1:
            return made.made()
        else:
            raise fail(file, 1, f"a profile of {reader.format}", "give one file of this format")
    return joined(ranks)

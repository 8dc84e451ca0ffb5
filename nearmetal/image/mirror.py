# SPDX-License-Identifier: Apache-2.0
"""Where Debian packages come from: the mirrors this machine's own apt uses, or one that is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.core.errors import ImageError, UsageError
from nearmetal.core.process import Command

if TYPE_CHECKING:
    from nearmetal.core.process import Runner

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TIMEOUT_S = 60.0
_URI = re.compile(r"(https?|file|copy)://?[A-Za-z0-9._~:/@%+-]+")
_DEBIAN = re.compile(r"(bookworm|trixie|forky|sid)(-security)?")


@dataclass(frozen=True)
class Mirror:
    """A Debian archive, and the one with security updates where there is one."""

    archive: str
    security: str | None = None

    def sources(self, suite: str) -> list[str]:
        """Return lines for apt's list of sources; every index is checked by Debian's keys."""
        lines = [f"deb [signed-by={KEYRING}] {self.archive} {suite} main"]
        if self.security:
            lines.append(f"deb [signed-by={KEYRING}] {self.security} {suite}-security main")
        return lines


def named_mirror(uri: str) -> Mirror:
    """Return the archive at a URI; raises UsageError when it is none."""
    if not _URI.fullmatch(uri):
        raise UsageError(
            f"--mirror {uri!r} is no address of a Debian archive",
            "write for example http://mirror.example/debian",
        )
    return Mirror(uri)


def machine_mirror(runner: Runner) -> Mirror:
    """Return what this machine's apt uses; raises ImageError when that is no Debian archive."""
    format_ = "$(RELEASE) $(COMPONENT) $(REPO_URI)"
    command = Command(("apt-get", "indextargets", "--format", format_, "Created-By: Packages"))
    lines = runner.check(command, timeout_s=_TIMEOUT_S).text.splitlines()
    archive, security = mirrors_of(lines)
    if archive is None:
        raise ImageError(
            "this machine's apt sources name no Debian archive",
            "name one: nearmetal image build --mirror URI",
        )
    return Mirror(archive, security)


def mirrors_of(lines: list[str]) -> tuple[str | None, str | None]:
    """Return archive and security archive out of `release component uri` lines. Pure."""
    archive = security = None
    for line in lines:
        words = line.split()
        if len(words) != 3 or words[1] != "main" or not _URI.fullmatch(words[2]):  # noqa: PLR2004
            continue
        match = _DEBIAN.fullmatch(words[0])
        if match is None:
            continue
        if match[2]:
            security = security or words[2]
        else:
            archive = archive or words[2]
    return archive, security

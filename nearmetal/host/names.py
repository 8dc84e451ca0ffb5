# SPDX-License-Identifier: Apache-2.0
"""Many hosts by few words: chosen by patterns, and folded where they share one text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from nearmetal.core.errors import HostError, UsageError
from nearmetal.host.hosts_file import HostsFile, expand, fold, node_set

_MAX_LIMIT = 1024
_PARTS = re.compile(r",(?![^\[]*\])")
_SELF = "\0"
"""Stands for the name of the host in a text that is compared with those of others."""


def limited(file: HostsFile, text: str) -> HostsFile:
    """Return the file with only the hosts of a list of node sets and of patterns with * and ?.

    Raises UsageError for a text that is too long, and for a part that names no host of the file.
    """
    known = [name for name, _ in file.each()]
    chosen: set[str] = set()
    if len(text) > _MAX_LIMIT:
        raise UsageError(
            f"--limit: longer than {_MAX_LIMIT} characters",
            "use ranges and patterns, for example kvm[01-04] or kvm*",
        )
    for part in _PARTS.split(text):
        names = _named(part, known)
        if not names or not set(names) <= set(known):
            missing = fold([name for name in names if name not in known]) if names else part[:80]
            raise UsageError(
                f"--limit: {missing!r} is not in the file",
                f"use for example kvm[01-04] or kvm*; the file has {fold(known)}",
            )
        chosen.update(names)
    groups = [
        group.model_copy(update={"nodes": fold(names)})
        for group in file.hosts
        if (names := [name for name in expand(group.nodes) if name in chosen])
    ]
    canary = file.canary if file.canary in chosen else None
    return file.model_copy(update={"hosts": groups, "canary": canary})


def _named(part: str, known: list[str]) -> list[str]:
    if "*" in part or "?" in part:
        return [name for name in known if "[" not in part and fnmatchcase(name, part)]
    try:
        return list(expand(node_set(part)))
    except ValueError as error:
        why, _, hint = str(error).partition("|")
        raise UsageError(f"--limit: {part[:80]!r} {why}", hint) from error


def grouped(texts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return (host, text) as (node set, text): hosts with the same text together.

    Texts are the same if only the host's own name differs, which then becomes `{host}`.
    """
    found: dict[str, list[str]] = {}
    for name, text in texts:
        own = rf"(?<![\w.-]){re.escape(name)}(?![\w-])"
        found.setdefault(re.sub(own, _SELF, text), []).append(name)
    return [
        (fold(names), text.replace(_SELF, names[0] if len(names) == 1 else "{host}"))
        for text, names in found.items()
    ]


def failure(head: str, faults: Iterable[tuple[str, str, str]], rest: str = "") -> HostError:
    """Return one error for the faults (host, text, hint) of many hosts, grouped.

    `head` and `rest` stand before and after them. Different hints stand with their faults.
    """
    entries = list(faults)
    hints = list(dict.fromkeys(hint for _, _, hint in entries if hint))
    single = len(hints) <= 1
    joined = [
        (n, text if single or not hint else f"{text}\n    hint: {hint}")
        for n, text, hint in entries
    ]
    indent = "\n  " if head else "\n"
    lines = [f"{names}: {text}" for names, text in grouped(joined)]
    message = (f"{head}{indent}" if head else "") + indent.join(lines) + rest
    return HostError(message, hints[0] if hints and single else "")

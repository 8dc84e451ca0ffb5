# SPDX-License-Identifier: Apache-2.0
"""Profiles: which checks run, what they expect, and which findings are suppressed. Pure.

A profile is a YAML file of a user, or one of those that come with nearmetal.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from nearmetal.check.expect import KEYS, Expectations
from nearmetal.check.families import CHECKS
from nearmetal.check.model import CheckFinding
from nearmetal.check.nhc import FAILED
from nearmetal.check.node_pattern import NodePattern, node_pattern
from nearmetal.check.performance.checks import CHECKS as OF_PERFORMANCE
from nearmetal.config.document import Document, Key, dotted, parse, read_text
from nearmetal.core.errors import UsageError
from nearmetal.core.resources import share

BUILT_IN = ("health_base", "health_extended", "hpc_platform", "simulation")
WHAT = "a profile of nearmetal check"
PERFORMANCE = ("stream", "dgemm", "hpl", "hpcg", "perftest", "mpi")
"""Performance tests that a profile may name."""

_NOT_BUILT = "this version of nearmetal does not run it; `check performance` has tests of its own"
_KEYS = ("name", "base", "checks", "without", "expect", "suppress", "performance")
_MOST_PATTERNS = 200


@dataclass(frozen=True)
class Suppression:
    """Hides a finding on some nodes until a day, for a reason."""

    check: str
    reason: str
    until: date
    about: str = "*"
    nodes: NodePattern | None = None

    def split(self, finding: CheckFinding, today: date) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the nodes of a finding that it hides, and the others."""
        if (
            today > self.until
            or not fnmatch.fnmatchcase(finding.check, self.check)
            # `sysctl[vm.swappiness]` is the name of a place, and as a pattern a set of letters.
            or not (finding.about == self.about or fnmatch.fnmatchcase(finding.about, self.about))
        ):
            return (), finding.nodes
        if self.nodes is None:
            return finding.nodes, ()
        hidden = tuple(name for name in finding.nodes if self.nodes.has(name))
        return hidden, tuple(name for name in finding.nodes if name not in hidden)


@dataclass(frozen=True)
class CheckProfile:
    """A checked profile."""

    name: str
    checks: tuple[str, ...] = ()
    expectations: Expectations = field(default_factory=Expectations)
    suppressions: tuple[Suppression, ...] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)


def load_profile(text: str) -> CheckProfile:
    """Return a profile by its name or its path; raises UsageError, NearmetalError or SpecError."""
    if text in BUILT_IN:
        return _built_in(text)
    if "/" not in text and not text.endswith((".yaml", ".yml")) and not Path(text).exists():
        raise UsageError(
            f"no profile {text!r}", f"profiles: {', '.join(BUILT_IN)}, or the path of a YAML file"
        )
    path = Path(text)
    return parse_profile(read_text(path, WHAT), str(path))


def _built_in(name: str) -> CheckProfile:
    path = share("check", f"{name}.yaml")
    return parse_profile(read_text(path, WHAT), f"profile {name}")


def parse_profile(text: str, file: str) -> CheckProfile:
    """Return a profile; raises SpecError with all problems."""
    reader = _Reader(parse(text, file, WHAT))
    profile = reader.profile()
    reader.document.refuse_problems()
    return profile


class _Reader:
    """Takes the parts of a document, and notes each problem in it."""

    def __init__(self, document: Document) -> None:
        self.document = document
        data = document.data
        assert isinstance(data, dict)  # noqa: S101 - `parse` accepts nothing else
        self._data: Mapping[str, Any] = data

    def _refuse(self, path: tuple[Key, ...], why: str) -> None:
        reason, _, hint = why.partition("|")
        self.document.refuse(path, reason, hint)

    def profile(self) -> CheckProfile:
        """Return the profile, which is only complete if no problem was noted."""
        self._only(self._data, _KEYS, ())
        base = self._base()
        name = self._text("name", required=True)
        performance = self._words("performance")
        for index, word in enumerate(performance):
            if word not in PERFORMANCE:
                self._refuse(("performance", index), f"is not known|use {', '.join(PERFORMANCE)}")
        return CheckProfile(
            name=name,
            checks=self._checks(base.checks),
            expectations=self._expectations(base.expectations),
            suppressions=(*base.suppressions, *self._suppressions()),
            not_run={**base.not_run, **dict.fromkeys(performance, _NOT_BUILT)},
        )

    def _base(self) -> CheckProfile:
        base = self._text("base")
        if base and base not in BUILT_IN:
            self._refuse(("base",), f"is not a profile of nearmetal|use {', '.join(BUILT_IN)}")
            return CheckProfile("")
        return _built_in(base) if base else CheckProfile("")

    def _only(self, data: Mapping[str, Any], known: tuple[str, ...], at: tuple[Key, ...]) -> None:
        for key in data:
            if key not in known:
                position = self.document.keys.get((*at, key), (1, 1))
                what = f"unknown key {dotted((*at, key))!r}"
                hint = f"known here: {', '.join(known)}"
                self.document.complain(position, what, "it has no meaning here", hint)

    def _text(self, key: str, *, required: bool = False) -> str:
        value = self._data.get(key)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or not value or not value.isprintable():
            self._refuse((key,), "is not a text|write for example name: my-site")
            return ""
        return value

    def _words(self, key: str) -> list[str]:
        value = self._data.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._refuse((key,), "is not a list of words|write for example [base.*, storage.*]")
            return []
        return self._bounded((key,), value)

    def _checks(self, base: tuple[str, ...]) -> tuple[str, ...]:
        chosen = set(base)
        change: Callable[[set[str]], None]
        for key, change in (("checks", chosen.update), ("without", chosen.difference_update)):
            for index, pattern in enumerate(self._words(key)):
                found = set(fnmatch.filter(CHECKS, pattern))
                if not found:
                    self._refuse(
                        (key, index), "matches no check|`nearmetal check --list` shows the checks"
                    )
                change(found)
        return tuple(name for name in CHECKS if name in chosen)

    def _expectations(self, base: Expectations) -> Expectations:
        values, sources = dict(base.values), dict(base.sources)
        given = self._data.get("expect") or {}
        if not isinstance(given, dict):
            self._refuse(("expect",), "is not a table|write for example expect: {clock_s: 1}")
            given = {}
        self._only(given, tuple(KEYS), ("expect",))
        for key, value in given.items():
            if key not in KEYS:
                continue
            try:
                values[key] = None if value is None else KEYS[key].read(value)
            except ValueError as error:
                self._refuse(("expect", key), str(error))
            line = self.document.where(("expect", key))[0]
            sources[key] = f"{self.document.file}:{line}"
        return Expectations(values, sources)

    def _bounded(self, at: tuple[Key, ...], values: list[Any]) -> list[Any]:
        if len(values) > _MOST_PATTERNS:
            self._refuse(at, f"has more than {_MOST_PATTERNS} entries|join some by patterns")
        return values[:_MOST_PATTERNS]

    def _suppressions(self) -> list[Suppression]:
        given = self._data.get("suppress") or []
        if not isinstance(given, list):
            self._refuse(("suppress",), "is not a list|write `- check: fabric.state` below it")
            return []
        return [
            found
            for index, item in enumerate(self._bounded(("suppress",), given))
            if (found := self._suppression(("suppress", index), item)) is not None
        ]

    def _suppression(self, at: tuple[Key, ...], item: Any) -> Suppression | None:
        if not isinstance(item, dict):
            self._refuse(at, "is not a table|write check, until and reason")
            return None
        self._only(item, ("check", "about", "nodes", "until", "reason"), at)
        texts = {}
        for key in ("check", "until", "reason"):
            value = item.get(key)
            if not isinstance(value, str) or not value:
                self._refuse((*at, key), "is required|a suppression has check, until and reason")
                return None
            texts[key] = value
        try:
            until = date.fromisoformat(texts["until"])
        except ValueError:
            self._refuse((*at, "until"), "is not a day|write for example 2030-12-31")
            return None
        if not fnmatch.filter((*CHECKS, *OF_PERFORMANCE, FAILED.name), texts["check"]):
            self._refuse((*at, "check"), "matches no check|`nearmetal check --list` shows them")
        nodes = item.get("nodes")
        try:
            pattern = None if nodes is None else node_pattern(str(nodes))
        except ValueError as error:
            self._refuse((*at, "nodes"), str(error))
            return None
        about = item.get("about", "*")
        if not isinstance(about, str):
            self._refuse((*at, "about"), "is not text|write it in quotes")
            return None
        return Suppression(
            texts["check"],
            texts["reason"],
            until,
            about,
            pattern,
        )

# SPDX-License-Identifier: Apache-2.0
"""Labels: facts about logs that the logs do not contain, from patterns of paths.

nearmetal-study(1) has the format. The first pattern that matches the path of a file applies. `*`
matches any text within a name, `**/` any folders. The text that matches `{arm}`, `{launch}` and so
on becomes a label.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from nearmetal.config.document import Document, read_text
from nearmetal.config.explain import parse_yaml
from nearmetal.config.model import Model
from nearmetal.core.text import printable
from nearmetal.study.gate import FACTS
from nearmetal.study.model import Arm
from nearmetal.study.pattern import Pattern

FILE = "study-labels.yaml"
WHAT = "a file of labels"

_DIGITS = re.compile(r"\d+")
_KNOWN = re.compile(r"\{(\w+)\}")

MAX_RULES = 1000
"""Rules, and arms, in one file."""

MAX_FACTS = 200
"""Facts of an arm: each is compared with the known names."""

MAX_NUMBER = 10**9 - 1
"""A launch or a block: at most nine digits."""

Text = Annotated[str, Field(min_length=1, max_length=400)]


def _shown(text: str) -> str:
    """Refuse a name that tables and terminals cannot show as it is."""
    if not text.isprintable():
        raise ValueError(f"a character of '{printable(text)}' cannot be shown|use other characters")
    return text


Name = Annotated[Text, AfterValidator(_shown)]
Count = Annotated[int, Field(ge=1, le=100_000_000)]


class ArmLabels(Model):
    """The description of an arm. The comparability gate compares the `facts`."""

    platform: Name
    fabric: Name
    placement: Name
    cores_per_node: Count | None = None
    facts: dict[Name, str | int | float] = Field(default_factory=dict, max_length=MAX_FACTS)

    @field_validator("facts")
    @classmethod
    def _spelled(cls, facts: dict[str, str | int | float]) -> dict[str, str | int | float]:
        """Refuse a misspelled name of a fact that the gate compares; other facts are free."""
        for name, value in facts.items():
            near = difflib.get_close_matches(name, FACTS, 1, cutoff=0.75)
            if name not in FACTS and near:
                raise ValueError(f"the fact {name!r} is not known|did you mean {near[0]!r}?")
            if name == "line_rate_gbit" and not (isinstance(value, int | float) and value > 0):
                raise ValueError(f"line_rate_gbit is {value!r}|give a number above zero")
        return facts


class SourceRule(Model):
    """A pattern of paths, and the labels of the files that match it."""

    path: Text
    arm: Name | None = None
    nodes: Count | None = None
    ranks: Count | None = None
    block: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    launch: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | Literal["order"] | None = None
    ignore: Text | None = None
    repeated: bool = False
    """Whether files with equal bytes are separate launches."""

    @field_validator("path")
    @classmethod
    def _known(cls, path: str) -> str:
        Pattern(path)
        return path


class Labels(Model):
    """The whole file."""

    format: Literal[1]
    run: Name
    arms: Annotated[dict[Name, ArmLabels], Field(max_length=MAX_RULES)]
    sources: Annotated[list[SourceRule], Field(max_length=MAX_RULES)]


@dataclass(frozen=True)
class Label:
    """The labels of one file. `ignore` is a reason, or empty."""

    arm: str = ""
    nodes: int | None = None
    ranks: int | None = None
    launch: int | None = None
    block: int | None = None
    ignore: str = ""
    repeated: bool = False
    missing: tuple[str, ...] = ()


def natural(path: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts run-2 before run-10."""
    parts = _DIGITS.split(path)
    numbers = [int(digits) for digits in _DIGITS.findall(path)]
    return tuple(zip(parts, [*numbers, -1], strict=True))


@dataclass
class Labeller:
    """Applies labels to paths, in the order of the calls."""

    labels: Labels
    _rules: list[tuple[Pattern, SourceRule]] = field(init=False)
    _used: set[int] = field(default_factory=set)
    _orders: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rules = [(Pattern(rule.path), rule) for rule in self.labels.sources]

    def label(self, path: str) -> Label | None:
        """Return the labels of the first rule that matches; None: no rule matches."""
        for number, (pattern, rule) in enumerate(self._rules):
            found = pattern.match(path)
            if found is not None:
                self._used.add(number)
                if rule.ignore:
                    return Label(ignore=rule.ignore)
                words = {name: printable(word) for name, word in found.items()}
                return self._say(number, rule, words)
        return None

    def _say(self, number: int, rule: SourceRule, found: Mapping[str, str]) -> Label:
        arm = fill_in(rule.arm, found) if rule.arm else found.get("arm", "")
        launch = rule.launch if rule.launch is not None else _whole(found.get("launch"))
        if launch == "order":
            launch = self._orders[number, arm] = self._orders.get((number, arm), 0) + 1
        nodes = rule.nodes or _whole(found.get("nodes"))
        required = {"arm": arm, "launch": launch, "nodes": nodes}
        block = rule.block if rule.block is not None else _whole(found.get("block"))
        return Label(
            arm=arm,
            nodes=nodes,
            ranks=rule.ranks or _whole(found.get("ranks")),
            launch=launch,
            block=block,
            repeated=rule.repeated,
            missing=tuple(name for name, value in required.items() if value in (None, "")),
        )

    def check_use(self, document: Document, arms: Mapping[str, str]) -> None:
        """Raise SpecError for rules that match no file, and for arms that are not described."""
        for index, rule in enumerate(self.labels.sources):
            if index not in self._used:
                document.complain(
                    document.where(("sources", index, "path")),
                    f"no file matches {rule.path!r}",
                    "files are missing, or the pattern is misspelled",
                    "add the files, or correct the pattern",
                )
        for arm, path in arms.items():
            if arm not in self.labels.arms:
                document.complain(
                    document.where(("arms",)),
                    f"arm {arm!r} is not described",
                    f"{path} belongs to it",
                    "add its platform, fabric and placement below arms:",
                )
        document.refuse_problems()


def fill_in(template: str, words: Mapping[str, str]) -> str:
    """Return `{fabric}-vm` with its words; the braces of an unknown word stay.

    Not by `str.format`, whose templates reach the attributes of objects and set widths.
    """
    return _KNOWN.sub(lambda match: words.get(match[1], match[0]), template)


def _whole(word: str | None) -> int | None:
    return int(word) if word else None


def load_labels(path: Path) -> tuple[Labels, Document]:
    """Read a file of labels; raises NearmetalError or SpecError with file:line."""
    return parse_labels(read_text(path, WHAT), str(path))


def parse_labels(text: str, file: str) -> tuple[Labels, Document]:
    """Check a text as a file of labels; raises SpecError with file:line."""
    return parse_yaml(text, file, Labels, WHAT)


def arms_of(labels: Labels) -> dict[str, Arm]:
    """Return the arms by name."""
    return {
        name: Arm(
            name,
            arm.platform,
            arm.fabric,
            arm.placement,
            arm.cores_per_node,
            {key: str(value) for key, value in arm.facts.items()},
        )
        for name, arm in labels.arms.items()
    }


def draft(run: str, paths: Iterable[str]) -> str:
    """Return labels to fill in: files whose names differ only in the last number share a pattern."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        at = path.rfind("/") + 1
        digits = list(_DIGITS.finditer(path, at))[-1:]
        key = _quoted(path)
        if digits:
            key = _quoted(path[: digits[0].start()]) + "{launch}" + _quoted(path[digits[0].end() :])
        groups.setdefault(key, []).append(path)
    lines = [
        "# Fill in the empty values, remove files that are no part of the study, then import again.",
        "format: 1",
        f"run: {json.dumps(printable(run))}",
        "arms:",
        "  # one block for each arm that is used below",
        "  name-of-the-arm:",
        "    platform:   # bare metal, vSphere 8 VM, container",
        "    fabric:     # InfiniBand EDR, RoCE 100G, TCP",
        "    placement:  # nodes and ranks, for example one rank per node",
        "sources:",
    ]
    for key, members in groups.items():
        path = key if len(members) > 1 else _quoted(members[0])
        lines += [f'  - path: "{path}"', "    arm:", "    nodes:"]
        if len(members) == 1:
            lines.append("    launch:")
    return "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    """Return a path as a pattern within double quotes: `?` matches what would need an escape."""
    return "".join(c if c.isprintable() and c not in '"\\{}*' else "?" for c in path)

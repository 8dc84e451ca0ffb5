# SPDX-License-Identifier: Apache-2.0
"""Reports in JUnit's XML, for Jenkins, GitLab and others.

Jenkins shows the attribute `message` of a skipped case, and GitLab shows the text of an element. So
each message is in both places. Both read only the first failure of a case, so a case has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple
from xml.etree import ElementTree as ET

from nearmetal.core.text import printable, printable_lines


class JunitTag(StrEnum):
    """The meaning of a remark about a case, in order of gravity; the value is the element's name."""

    ERROR = "error"
    FAILURE = "failure"
    SKIPPED = "skipped"
    NOTE = "system-out"


_ORDER = list(JunitTag)


class JunitRemark(NamedTuple):
    """One remark: `message` is one line, `more` further lines, `kind` a word to filter by."""

    tag: JunitTag
    kind: str
    message: str
    more: str = ""

    @property
    def text(self) -> str:
        """All lines, without characters that XML forbids."""
        return printable_lines("\n".join(filter(None, (self.message, self.more))))


class JunitCase(NamedTuple):
    """A test case; without a remark, or with notes only, it passed."""

    group: str
    name: str
    remarks: tuple[JunitRemark, ...] = ()


def junit_report(name: str, suites: Mapping[str, Sequence[JunitCase]]) -> str:
    """Return the document. Cases of equal group and name get numbers: GitLab keeps one of them."""
    root = ET.Element("testsuites", name=printable(name))
    for of_suite, cases in suites.items():
        suite = ET.SubElement(root, "testsuite", name=printable(of_suite), tests=str(len(cases)))
        used: dict[tuple[str, str], int] = {}
        for case in cases:
            group, title = printable(case.group), printable(case.name)
            unique, nr = title, used.get((group, title), 1)
            while (group, unique) in used:
                nr += 1
                unique = f"{title} ({nr})"
            used[group, title] = nr
            used.setdefault((group, unique), 1)
            words = {"classname": group, "name": unique}
            _add_remarks(ET.SubElement(suite, "testcase", words), case.remarks)
        for attribute, tag in (
            ("errors", "error"),
            ("failures", "failure"),
            ("skipped", "skipped"),
        ):
            suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_remarks(case: ET.Element, remarks: Sequence[JunitRemark]) -> None:
    """Add one element, named after the gravest remark, and one for the notes."""
    notes = [remark for remark in remarks if remark.tag is JunitTag.NOTE]
    others = sorted(
        (r for r in remarks if r.tag is not JunitTag.NOTE), key=lambda r: _ORDER.index(r.tag)
    )
    if others:
        first, more = others[0], f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        words = {"type": printable(first.kind), "message": printable(first.message) + more}
        ET.SubElement(case, first.tag, words).text = "\n".join(one.text for one in others)
    if notes:
        ET.SubElement(case, JunitTag.NOTE).text = "\n".join(note.text for note in notes)

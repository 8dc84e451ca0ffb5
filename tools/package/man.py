# SPDX-License-Identifier: Apache-2.0
"""The manual as pages for man(1): `man.py FOLDER` writes FOLDER/man1/nearmetal.1 and so on.

The pages of nearmetal/share/man are the source. They use headings, paragraphs, lists, tables, code,
and lines that start with a colon, which define the term above.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

PAGES = Path(__file__).resolve().parents[2] / "nearmetal/share/man"
_TITLE = re.compile(r"# ([a-z_-]+)\(([1-9])\)")


def page(text: str, version: str) -> tuple[str, str, str]:
    """Return the name, the section and the roff source of a page; raises ValueError."""
    first, _, rest = text.partition("\n")
    title = _TITLE.fullmatch(first)
    if title is None:
        raise ValueError(f"the first line is not a title such as '# nearmetal(1)': {first!r}")
    name, section = title.groups()
    tokens = MarkdownIt("commonmark", {"html": False}).enable("table").parse(rest)
    # A page without a date is the same whenever it is built.
    head = [
        "'\\\" t",
        f'.TH {name.upper()} {section} "" "nearmetal {version}" nearmetal',
        ".nh",
        ".ad l",
    ]
    return name, section, "\n".join([*head, *_blocks(tokens)]) + "\n"


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return text.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")


def _line(text: str) -> str:
    """Return text for the start of a line, where a dot would be a request."""
    return "\\&" + text if text.startswith((".", "\\(aq")) else text


def _words(children: Sequence[Token]) -> str:
    """Return the words of a paragraph, with their fonts."""
    fonts = {"strong_open": "\\fB", "em_open": "\\fI", "strong_close": "\\fR", "em_close": "\\fR"}
    found = ""
    for token in children:
        if token.type == "text":
            found += _escaped(token.content)
        elif token.type == "code_inline":
            found += f"\\fB{_escaped(token.content)}\\fR"
        elif token.type in {"softbreak", "hardbreak"}:
            found += "\n"
        else:
            found += fonts.get(token.type, "")
    return found


def _paragraph(inline: Token, lead: str) -> Iterator[str]:
    """Yield a paragraph; `lead`: the request before it. Its second line may define its first."""
    lines = _words(inline.children or []).split("\n")
    if len(lines) > 1 and lines[1].startswith(": "):
        yield ".TP"
        yield _line(lines[0])
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    elif lead:
        yield lead
    yield from map(_line, lines)


def _blocks(tokens: Sequence[Token]) -> Iterator[str]:
    lists: list[str] = []
    marks = iter(tokens)
    lead = ".PP"
    for token in marks:
        if token.type == "heading_open":
            request = ".SH" if token.tag == "h2" else ".SS"
            yield f'{request} "{_words(next(marks).children or [])}"'
            lead = ""
            continue
        if token.type == "list_item_open":
            lead = f'.IP "{lists[-1] or token.info + "."}" 4'
            continue
        if token.type == "inline":
            yield from _paragraph(token, lead)
        elif token.type in {"code_block", "fence"}:
            yield from _code(token.content)
        elif token.type == "table_open":
            yield from _table(marks)
        elif token.type.startswith(("bullet_list", "ordered_list")):
            yield from _list_edge(token.type, lists)
        else:
            continue
        lead = ".PP"


def _code(text: str) -> Iterator[str]:
    yield from (".PP", ".in +4n", ".EX")
    yield from (_line(_escaped(line)) for line in text.rstrip("\n").split("\n"))
    yield from (".EE", ".in")


def _list_edge(kind: str, lists: list[str]) -> Iterator[str]:
    """Open or close a list; only one that is inside another is indented further."""
    if kind.endswith("_close"):
        lists.pop()
        if lists:
            yield ".RE"
        return
    if lists:
        yield ".RS"
    lists.append("\\(bu" if kind.startswith("bullet") else "")


def _table(marks: Iterator[Token]) -> Iterator[str]:
    rows: list[list[str]] = []
    for token in marks:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_words(token.children or []))
        elif token.type == "table_close":
            break
    columns = max(map(len, rows))
    # The last columns share the width that the first leaves.
    yield from (".PP", ".TS", "allbox;", "l " + "lx " * (columns - 1) + ".")
    for row in rows:
        yield "\t".join(f"T{{\n{_line(cell)}\nT}}" for cell in row)
    yield ".TE"


def main(folder: Path, version: str) -> None:
    """Write every page."""
    for source in sorted(PAGES.glob("*.md")):
        name, section, text = page(source.read_text(encoding="utf-8"), version)
        place = folder / f"man{section}" / f"{name}.{section}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 - a folder and a version
        sys.exit("usage: man.py FOLDER VERSION")
    main(Path(sys.argv[1]), sys.argv[2])

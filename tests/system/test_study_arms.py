# SPDX-License-Identifier: Apache-2.0
"""Pages of one to six arms, with short and with long names: on a desk, a telephone and paper."""

from __future__ import annotations

import json
from functools import partial
from itertools import combinations, pairwise
from math import dist
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.evidence import Unit
from nearmetal.report.page import standalone
from nearmetal.report.study_view import value_text
from nearmetal.report.svg import NARROW, WIDE, ChartLayout, Mark, Series, line_chart
from tests.system.arms_study import LONG, PLAIN, make_page, make_study
from tests.system.browser import Browser, browser, find_browser
from tests.system.need import lacking
from tests.system.page import PICTURES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

if find_browser() is None:
    lacking("Chromium is not installed")

NAMES = {"plain": PLAIN, "long": LONG}
MEDIA = {
    "desktop": (1280, 800, "screen"),
    "phone": (390, 844, "screen"),
    "paper": (718, 1016, "print"),
}
"""Width and height in pixels; paper is A4 between margins of one centimetre."""

ALIKE = 20.0
"""Colours that are nearer in CIELAB may be taken for each other in thin lines."""
GREY_ALIKE = 7.0
"""The same for two greys, in their lightness of 0 to 100."""
CONTRAST = 3.0
"""The least contrast of graphics that WCAG 2.1 (1.4.11) demands."""

SCRIPT = """
(() => {
  const shown = e => e.getClientRects().length > 0;
  const box = e => { const r = e.getBoundingClientRect();
    return [r.left, r.top, r.right, r.bottom].map(v => Math.round(v * 10) / 10); };
  const name = e => e.tagName + '.' + (e.getAttribute('class') || '') + ': '
    + e.textContent.trim().slice(0, 60);
  document.querySelectorAll('#raw details').forEach(e => e.remove());  // its lines may be scrolled
  document.querySelectorAll('details.grid').forEach(e => { e.open = true; });
  const texts = [], cut = [], covered = [], ticks = [];
  for (const chart of [...document.querySelectorAll('svg.chart')].filter(shown)) {
    const [left, top, right, bottom] = box(chart);
    const all = [...chart.querySelectorAll('text')];
    const boxes = all.map(box);
    all.forEach((e, i) => {
      const b = boxes[i];
      texts.push(e.textContent);
      if (b[0] < left - 1 || b[1] < top - 1 || b[2] > right + 1 || b[3] > bottom + 1)
        cut.push(name(e));
      for (let k = 0; k < i; k++) {
        const o = boxes[k];
        if (Math.min(b[2], o[2]) - Math.max(b[0], o[0]) > 1
            && Math.min(b[3], o[3]) - Math.max(b[1], o[1]) > 3)
          covered.push(name(e) + ' / ' + name(all[k]));
      }
    });
    if (chart.querySelector('.line')) {
      const found = [...chart.querySelectorAll('.tick')];
      ticks.push(['end', 'middle'].map(way => found
        .filter(e => e.getAttribute('text-anchor') === way).map(e => e.textContent)));
    }
  }
  const wide = [...document.querySelectorAll('body *')].filter(shown)
    .filter(e => !e.closest('svg, pre, nav') && e.scrollWidth > e.clientWidth + 1
      && getComputedStyle(e).display !== 'inline')
    .map(name);
  const verdicts = [...document.querySelectorAll(
    '.verdict, .card td:last-child, .numbers td.ACCEPT, .numbers td.REJECT, .numbers td.INCONCLUSIVE')]
    .filter(shown).map(e => [name(e), box(e), e.scrollWidth > e.clientWidth + 1]);
  const broken = [...document.querySelectorAll('thead th')].filter(shown)
    .filter(e => /^\\w+$/.test(e.textContent) && e.textContent.length < 14).filter(e => {
      const range = document.createRange();
      range.selectNodeContents(e);
      return range.getClientRects().length > 1;
    }).map(name);
  return {broken, texts, cut, covered, ticks, wide, verdicts,
    width: document.documentElement.scrollWidth};
})()
"""


@pytest.fixture(scope="module", params=sorted(NAMES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def study(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp(kind), NAMES[kind])


USUAL = (1, 4, 6)
"""Numbers of arms in `make test-system`; `make test-full` has all."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=() if n in USUAL else pytest.mark.full) for n in range(1, 7)],
)
def page(request: pytest.FixtureRequest, kind: str, study: Path) -> Path:
    return make_page(study, NAMES[kind][: request.param + 1])


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as made:
        yield made


def show(window: Browser, page: Path, medium: str) -> None:
    width, height, media = MEDIA[medium]
    window.open(page, width, height)
    window.call("Emulation.setEmulatedMedia", media=media)


@pytest.fixture(scope="module", params=MEDIA)
def medium(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def seen(window: Browser, page: Path, kind: str, medium: str) -> dict[str, Any]:
    """What a page with open tables shows in a medium; a picture of it is kept."""
    show(window, page, medium)
    PICTURES.mkdir(parents=True, exist_ok=True)
    window.picture(PICTURES / f"arms-{kind}-{page.stem}-{medium}.png")
    return dict(window.value(SCRIPT))


def test_no_text_is_cut_or_covered(seen: dict[str, Any], medium: str) -> None:
    assert len(seen["texts"]) > 50
    assert seen["cut"] == []
    assert seen["covered"] == []
    assert seen["broken"] == []
    assert seen["width"] <= MEDIA[medium][0]


def test_an_axis_names_no_value_twice(seen: dict[str, Any]) -> None:
    axes = [axis for chart in seen["ticks"] for axis in chart]
    assert len(axes) >= 6
    for axis in axes:
        assert len(axis) >= 2
        assert len(set(axis)) == len(axis)


def test_every_verdict_is_in_view(seen: dict[str, Any], medium: str) -> None:
    assert len(seen["verdicts"]) > 50
    for name, (left, _, right, _), spills in seen["verdicts"]:
        assert 0 <= left < right <= MEDIA[medium][0], name
        assert not spills, name


def test_nothing_must_be_scrolled_sideways(seen: dict[str, Any], medium: str) -> None:
    """A telephone scrolls wide tables in their own frame, not the page."""
    assert [name for name in seen["wide"] if medium != "phone" or "scroll" not in name] == []


@pytest.mark.parametrize("layout", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("least", [0.003, 40.0, 7e5])
def test_ticks_of_every_unit_can_be_told_apart(
    window: Browser, tmp_path: Path, layout: ChartLayout, least: float
) -> None:
    charts = []
    for unit in Unit:
        for most in (1.3, 40, 1e4):
            marks = tuple(Mark(8 << i, v, v, v, "") for i, v in enumerate((least, least * most)))
            series = [Series("a", "auto", marks)]
            show_value = partial(value_text, unit=unit)
            charts.append(line_chart("t", "v", series, show_value, layout=layout))
    page = tmp_path / "charts.html"
    page.write_text("<meta charset=utf-8>" + "".join(map(standalone, charts)))
    window.open(page, layout.width + 16, 800)
    found = window.value(SCRIPT)
    assert len(found["ticks"]) == len(charts)
    assert found["cut"] == []
    assert found["covered"] == []
    assert all(len(set(axis)) == len(axis) for chart in found["ticks"] for axis in chart)


def test_paper_has_the_tables_and_no_raw_lines(window: Browser, kind: str, study: Path) -> None:
    show(window, make_page(study, NAMES[kind][:3]), "paper")
    rows = "[...document.querySelectorAll('#tables tbody tr')]"
    assert window.value(f"{rows}.length") > 20
    assert window.value(f"{rows}.every(e => e.getBoundingClientRect().height > 0)") is True
    assert window.value("document.querySelector('#raw pre').getClientRects().length") == 0
    assert "not on paper" in window.value("document.querySelector('#raw').innerText")


def test_the_first_screen_has_the_verdict_of_every_arm(
    window: Browser, kind: str, study: Path
) -> None:
    names = NAMES[kind][:6]
    window.open(make_page(study, names), 1280, 800)
    rows = window.value(
        "[...document.querySelectorAll('#verdict .overview tbody tr')].map(e => "
        "[e.innerText, e.getBoundingClientRect().bottom])"
    )
    assert len(rows) == len(names)
    for name, (text, bottom) in zip(names, rows, strict=True):
        assert name in text
        assert bottom <= (800 if kind == "plain" else 1000)
    words = [text.split("\t")[1] for text, _ in rows]
    assert words == ["base", "ACCEPT", "REJECT", "INCONCLUSIVE", "REJECT", "ACCEPT"]


def in_view(window: Browser, element: str) -> bool:
    """Return whether no part of an element is outside of the window or below the menu."""
    menu = window.value("document.querySelector('nav').getBoundingClientRect().bottom")
    top, bottom = window.value(f"(r => [r.top, r.bottom])({element}.getBoundingClientRect())")
    return bool(menu - 1 <= top < bottom <= window.value("innerHeight"))


def test_a_verdict_leads_to_its_row_and_the_row_to_its_raw_lines(
    window: Browser, kind: str, study: Path
) -> None:
    names = NAMES[kind][:6]
    window.open(make_page(study, names), 1280, 800)
    window.value("document.querySelectorAll('#verdict .overview td a')[2].click()")
    row = f"document.getElementById({json.dumps(window.value('location.hash.slice(1)'))})"
    assert window.value(f"{row}.checkVisibility()") is True
    assert "INCONCLUSIVE" in window.value(f"{row}.innerText")
    header = f"{row}.closest('table').tHead"
    for name in (names[0], names[3]):
        assert name in window.value(f"{header}.innerText")
    assert in_view(window, f"{header}.rows[0].cells[1]")
    for side, arm in ((0, names[0]), (1, names[3])):
        window.value(f"{row}.querySelectorAll('a')[{side}].click()")
        target = "document.getElementById(location.hash.slice(1))"
        lines = list(filter(None, window.value(f"{target}.innerText").splitlines()))
        assert in_view(window, f"{target}.closest('details').querySelector('summary')")
        assert len(lines) == 8
        assert all(f"  {arm}/pairs-{n}.csv:" in line for n, line in enumerate(lines, 1))


def lab(colour: tuple[float, ...]) -> tuple[float, float, float]:
    """Return the CIELAB values (D65) of an sRGB colour of three parts from 0 to 255."""
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (part / 255 for part in colour)
    )
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (v ** (1 / 3) if v > (6 / 29) ** 3 else v / (3 * (6 / 29) ** 2) + 4 / 29 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def luminance(lightness: float) -> float:
    f = (lightness + 16) / 116
    return f**3 if f > 6 / 29 else 3 * (6 / 29) ** 2 * (f - 4 / 29)


def parts(colour: str) -> tuple[float, ...]:
    """Return the numbers of `rgb(1, 2, 3)`."""
    return tuple(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_eight_arms_differ_in_colour_in_grey_and_in_shape(
    window: Browser, kind: str, study: Path, *, dark: bool
) -> None:
    window.open(make_page(study, NAMES[kind]), 1280, 800, dark=dark)
    first = "document.querySelector('svg.chart:has(polyline)')"
    series = window.value(
        f"[...{first}.querySelectorAll('polyline')].map(e => getComputedStyle(e).stroke)"
    )
    marks = window.value(f"[...{first}.querySelectorAll('a path')].map(e => e.getAttribute('d'))")
    ground = luminance(
        lab(parts(window.value("getComputedStyle(document.body).backgroundColor")))[0]
    )
    colours = [lab(parts(colour)) for colour in series]
    assert len(colours) == 8
    assert len(set(marks)) == 8
    assert min(dist(one, other) for one, other in combinations(colours, 2)) >= ALIKE
    greys = sorted(colour[0] for colour in colours)
    assert min(b - a for a, b in pairwise(greys)) >= GREY_ALIKE
    for lightness in greys:
        low, high = sorted((ground, luminance(lightness)))
        assert (high + 0.05) / (low + 0.05) >= CONTRAST

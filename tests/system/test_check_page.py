# SPDX-License-Identifier: Apache-2.0
"""The page of `check performance` in a real browser: offline, without a complaint or a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.check.performance.classes import NodeClasses
from tests.python.check_performance_clusters import measure, names
from tests.python.test_check_page import page
from tests.system.browser import Browser, browser, find_browser
from tests.system.need import lacking
from tests.system.page import PICTURES, WINDOWS, assert_opens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

if find_browser() is None:
    lacking("Chromium is not installed")


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.mark.parametrize("name", WINDOWS)
def test_a_wide_heat_map_scrolls_in_its_own_frame(
    window: Browser, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    run = measure(names(20), lambda _, item: 1.5 if "n3" in item else 1.0)
    file.write_text(page(run, NodeClasses()))
    assert_opens(window, file, name, "h1")
    window.picture(PICTURES / f"check-{name}.png")
    # Text stands out from the colour of its cell: at least 4.5 to 1, as WCAG 2 asks.
    assert window.value(CONTRAST) >= 4.5


CONTRAST = """(() => {
  const light = text => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const cells = [...document.querySelectorAll('.chip')].filter(e => !e.classList.contains('none'));
  return Math.min(...cells.map(cell => {
    const style = getComputedStyle(cell);
    const pair = [light(style.color), light(style.backgroundColor)].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  }));
})()"""

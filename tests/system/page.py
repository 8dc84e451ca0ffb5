# SPDX-License-Identifier: Apache-2.0
"""What every page must be in a browser, whatever it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.system.local import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.browser import Browser

WINDOWS = {"phone": (390, 844), "desktop": (1280, 800)}
PICTURES = ROOT / "build/log/screenshots"


def assert_opens(window: Browser, page: Path, name: str, top: str) -> None:
    """No complaint, nothing loaded but the page, nothing cut off, `top` above the fold."""
    width, height = WINDOWS[name]
    window.complaints.clear()
    window.requests.clear()
    window.open(page, width, height)
    assert window.complaints == []
    assert window.requests == [page.resolve().as_uri()]
    assert window.value("document.documentElement.scrollWidth") <= width
    box = window.box(top)
    assert 0 <= box["top"] < box["bottom"] <= height
    PICTURES.mkdir(parents=True, exist_ok=True)


def assert_good_page(window: Browser, page: Path, name: str) -> None:
    """The page opens with its verdict above the fold, which a picture shows."""
    assert_opens(window, page, name, "#verdict .ratio")
    shown = window.picture(PICTURES / f"study-{name}.png").read_bytes()
    # A picture changes when what it shows is hidden, and only then.
    for selector, visible in (("#verdict .ratio", True), ("#raw", False)):
        hide = f"document.querySelector('{selector}').style.visibility"
        window.value(f"{hide} = 'hidden'")
        without = window.picture(page.with_name("without.png")).read_bytes()
        window.value(f"{hide} = ''")
        assert (without != shown) is visible, selector

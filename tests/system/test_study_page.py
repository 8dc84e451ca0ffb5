# SPDX-License-Identifier: Apache-2.0
"""The page of a study in a real browser: on a telephone and on a desk, offline, without a complaint."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.main import main
from tests.python import made_logs
from tests.system.browser import Browser, browser, find_browser
from tests.system.need import lacking
from tests.system.page import WINDOWS, assert_good_page

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

if find_browser() is None:
    lacking("Chromium is not installed")

LABELS = """\
format: 1
run: made
arms:
  bare-metal: {platform: bare metal, fabric: InfiniBand, placement: one rank per node,
               cores_per_node: 48, facts: {line_rate_gbit: 100}}
  vm-ib: {platform: VM, fabric: InfiniBand, placement: one rank per node, cores_per_node: 44,
          facts: {line_rate_gbit: 100, adapter: SRIOV, memory_gb: "144"}}
  vm-roce: {platform: VM, fabric: RoCE, placement: one rank per node, cores_per_node: 44,
            facts: {line_rate_gbit: 100, adapter: SRIOV, memory_gb: "144"}}
sources:
  - path: "{arm}/osu_latency-{launch}.out"
    nodes: 2
  - path: "{arm}/pairs-{launch}.csv"
    nodes: 4
"""


def latency(factor: float, launch: int) -> str:
    rows = "".join(
        f"{1 << i:<10d}{(1.2 + (1 << i) / 11000) * factor * (1 + launch / 500):>18.3f}\n"
        for i in range(23)
    )
    return f"# OSU MPI Latency Test v7.2\n# Size          Latency (us)\n{rows}"


def pairs(factor: float, launch: int) -> str:
    rows = [
        f"{a},{b},{factor * (1 + (3 * a + b + launch) / 90):.4f}"
        for a in range(4)
        for b in range(4)
        if a != b
    ]
    return "\n".join(["rank_a,rank_b,lat_us", *rows]) + "\n"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for arm, factor in (("bare-metal", 1.0), ("vm-ib", 1.04), ("vm-roce", 1.3)):
        (folder / "logs" / arm).mkdir(parents=True)
        for launch in range(1, 13):
            name = folder / "logs" / arm
            (name / f"osu_latency-{launch}.out").write_text(latency(factor, launch))
            (name / f"pairs-{launch}.csv").write_text(pairs(factor, launch))
    (folder / "logs" / "study-labels.yaml").write_text(LABELS)
    assert main(["study", "import", str(folder / "logs"), "--output", str(folder / "s")]) == 0
    assert main(["study", "report", str(folder / "s"), "bare-metal", "vm-ib", "vm-roce"]) == 0
    return folder / "s" / "report.html"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.mark.parametrize("name", WINDOWS)
def test_the_verdict_is_above_the_fold(window: Browser, page: Path, name: str) -> None:
    assert_good_page(window, page, name)


@pytest.mark.parametrize("name", WINDOWS)
def test_text_in_charts_can_be_read(window: Browser, page: Path, name: str) -> None:
    window.open(page, *WINDOWS[name])
    sizes = window.value(
        "[...document.querySelectorAll('svg.chart text')].map(e => e.getBoundingClientRect())"
        ".filter(r => r.height > 0).map(r => r.height)"
    )
    assert len(sizes) > 20
    assert min(sizes) >= 10


def test_a_number_leads_to_its_raw_lines(window: Browser, page: Path) -> None:
    window.open(page, *WINDOWS["desktop"])
    window.value("document.querySelector('#tables td a').click()")
    target = window.value("location.hash.slice(1)")
    assert window.value(f"document.getElementById('{target}').checkVisibility()") is True
    text = window.value(f"document.getElementById('{target}').innerText")
    assert "bare-metal/pairs-1.csv:2" in text
    box = window.box(f"#{target}")
    assert 0 <= box["top"] < WINDOWS["desktop"][1]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with refused points, points of one arm only, and lost launches."""
    folder = tmp_path_factory.mktemp("marked")
    usual = made_logs.latency()

    def lost(arm: str, launch: int, dice: random.Random) -> str:
        return "" if launch > 6 else usual(arm, launch, dice)

    arms = {
        "a": {"lat": usual, "mbw": made_logs.many_pairs(64), "bw": made_logs.bandwidth()},
        "b": {"lat": lost, "mbw": made_logs.many_pairs(1)},
    }
    made = made_logs.study(folder, arms, 12, 1)
    assert main(["study", "report", str(made), "a", "b"]) == 0
    return made / "report.html"


@pytest.mark.parametrize("name", WINDOWS)
def test_what_is_left_out_fits_the_page(window: Browser, marked: Path, name: str) -> None:
    assert_good_page(window, marked, name)
    assert window.value("document.querySelectorAll('#not-compared tbody tr').length") == 1
    assert window.value("document.querySelectorAll('#lost tbody tr').length") == 2


def test_short_words_in_heads_are_on_one_line(window: Browser, marked: Path) -> None:
    window.open(marked, *WINDOWS["desktop"])
    broken = window.value(
        "[...document.querySelectorAll('.numbers th')].filter(e => {"
        "if (e.textContent.trim().length > 9 || !e.textContent.trim() || !e.checkVisibility())"
        " return false; const r = document.createRange(); r.selectNodeContents(e);"
        "return new Set([...r.getClientRects()].map(b => Math.round(b.top))).size > 1})"
        ".map(e => e.textContent)"
    )
    assert broken == []
    heads = window.value("[...document.querySelectorAll('#refused th')].map(e => e.textContent)")
    assert "points" in heads


def test_a_script_in_a_log_does_not_run(window: Browser, page: Path) -> None:
    text = page.read_text().replace("<main>", "<main><script>document.title = 'owned'</script>")
    evil = page.with_name("evil.html")
    evil.write_text(text)
    window.open(evil, *WINDOWS["desktop"])
    assert window.value("document.title") != "owned"
    assert any("Content Security Policy" in said for said in window.complaints)


def test_spread_and_sign_are_shown(page: Path) -> None:
    text = page.read_text()
    assert "Jitter over all pairs" in text
    assert "Latency: vm-ib against vm-roce" in text
    assert "VM.44.144.IB.SRIOV" in text

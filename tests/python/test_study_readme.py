# SPDX-License-Identifier: Apache-2.0
"""The commands of README's "Judge my logs", run as they stand there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nearmetal.cli.main import main

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    section = (ROOT / "README.md").read_text().partition("## Judge my logs")[2]
    block = section.partition("```sh\n")[2].partition("```")[0]
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.strip()]


def test_four_commands_lead_from_logs_to_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arm, first in (("bare-metal", 1.0), ("vm", 1.05)):
        (tmp_path / "logs" / arm).mkdir(parents=True)
        for launch in range(1, 8):
            rows = "".join(
                f"{1 << i:<10}{first * (1 + i) + launch / 1000:>18.3f}\n" for i in range(4)
            )
            text = f"# OSU MPI Latency Test v7.4\n# Size          Latency (us)\n{rows}"
            (tmp_path / "logs" / arm / f"osu_latency-{launch}.out").write_text(text)
    draft, again, judge, report = commands()
    assert main(draft) == 0
    labels = tmp_path / "study-labels.yaml"
    text = labels.read_text()
    # What a person fills in; the draft has a rule per arm and one arm as a pattern.
    arm = text[text.index("  name-of-the-arm:") : text.index("sources:")]
    filled = "".join(
        f"  {name}:\n    platform: {name}\n    fabric: IB\n    placement: near\n"
        f"    cores_per_node: {cores}\n"
        for name, cores in (("bare-metal", 48), ("vm", 44))
    )
    text = text.replace(arm, filled)
    for name in ("bare-metal", "vm"):
        rule = f'  - path: "{name}/osu_latency-{{launch}}.out"\n'
        assert rule in text
        text = text.replace(
            f"{rule}    arm:\n    nodes:\n", f"{rule}    arm: {name}\n    nodes: 2\n"
        )
    labels.write_text(text)
    assert main(again) == 0
    assert main(judge) == 0
    assert main(report) == 0
    assert ">ACCEPT<" in (tmp_path / "my-study" / "report.html").read_text()

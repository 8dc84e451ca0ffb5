# SPDX-License-Identifier: Apache-2.0
"""All comparisons of a study as one CSV file, one point per line."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearmetal.report.study_view import StudyView

COLUMNS = (
    "base",
    "arm",
    "program",
    "test",
    "variant",
    "size_bytes",
    "ranks",
    "nodes",
    "metric",
    "unit",
    "base_n",
    "base_median",
    "arm_n",
    "arm_median",
    "ratio",
    "ratio_low",
    "ratio_high",
    "loss_percent",
    "margin",
    "verdict",
    "reason",
    "launches_needed",
)


def render_study_csv(view: StudyView) -> str:
    """Return the comparisons in their order; what is unknown is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for judged in view.judged:
        for one in judged.comparisons:
            point = one.point
            writer.writerow(
                (
                    *one.arms,
                    point.program,
                    point.test,
                    point.variant,
                    point.size,
                    point.ranks,
                    point.nodes,
                    point.metric,
                    point.unit.value,
                    one.base.n,
                    repr(one.base.median),
                    one.test.n,
                    repr(one.test.median),
                    *(one.ratio or (None, None, None)),
                    one.tax_percent,
                    one.margin and one.margin.limit,
                    one.verdict.value,
                    one.reason,
                    one.needed,
                )
            )
    return out.getvalue()

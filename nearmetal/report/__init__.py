# SPDX-License-Identifier: Apache-2.0
"""Turns a run's evidence into one offline page, Markdown and CSV. Pure: the same run, the same bytes."""

from nearmetal.report.analysis import Evidence, Headline, Quantity, headlines, primary_mpi
from nearmetal.report.csvfile import render_csv
from nearmetal.report.html import render_html
from nearmetal.report.markdown import render_markdown
from nearmetal.report.picture import locality_picture

__all__ = [
    "Evidence",
    "Headline",
    "Quantity",
    "headlines",
    "locality_picture",
    "primary_mpi",
    "render_csv",
    "render_html",
    "render_markdown",
]

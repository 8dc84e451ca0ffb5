# SPDX-License-Identifier: Apache-2.0
"""Turns the evidence of a run into one offline page, Markdown and CSV. The same run, the same bytes."""

from nearmetal.report.analysis import Evidence, Headline, Quantity, headlines
from nearmetal.report.matrix import locality_picture
from nearmetal.report.run_page import render_csv, render_html, render_markdown

__all__ = [
    "Evidence",
    "Headline",
    "Quantity",
    "headlines",
    "locality_picture",
    "render_csv",
    "render_html",
    "render_markdown",
]

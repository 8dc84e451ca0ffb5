# SPDX-License-Identifier: Apache-2.0
"""Studies in a notebook: import, list, judge and plot.

These are the functions behind `nearmetal study`, so their results are equal. Nothing here prints,
starts a process or needs a network. A notebook shows a `Judgement` as tables and a `Picture` as a
picture. Errors are `nearmetal.core.errors.NearmetalError`, with a `hint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from nearmetal.core.files import replace_file
from nearmetal.core.progress import Silent
from nearmetal.report.page import render, standalone
from nearmetal.report.study_charts import bars, curves
from nearmetal.report.study_page import render_study_csv, render_study_html, sentence
from nearmetal.report.study_tables import tables
from nearmetal.report.study_view import Anchors, StudyView, study_view
from nearmetal.study.arms import arms_in
from nearmetal.study.importer import import_study
from nearmetal.study.judge import Comparison, Verdict
from nearmetal.study.model import Arm, Cell
from nearmetal.study.physics import Violation
from nearmetal.study.store import Study

__all__ = ["Judgement", "OpenStudy", "Picture", "import_logs", "open_study"]


def import_logs(
    *folders: str | PathLike[str],
    output: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
) -> OpenStudy:
    """Import folders of logs into the study `output`, and open it.

    `output` is a new directory, or a study that is replaced. `labels` is the file with the labels of
    the logs; without it, `study-labels.yaml` of the first folder applies, if it exists. Raises
    NearmetalError if labels are missing; the message names each log and label.
    """
    chosen = None if labels is None else Path(labels)
    import_study([Path(folder) for folder in folders], chosen, Path(output), Silent())
    return open_study(output)


def open_study(directory: str | PathLike[str]) -> OpenStudy:
    """Open a study that `import_logs` or `nearmetal study import` has written.

    Raises LogError, a NearmetalError, if the directory is not a study.
    """
    return OpenStudy(Study(Path(directory)))


@dataclass(frozen=True)
class OpenStudy:
    """A study, for reading. `import_logs` and `open_study` return it."""

    study: Study

    @property
    def arms(self) -> Mapping[str, Arm]:
        """The arms by name, with what their labels say."""
        return arms_in(self.study)

    @property
    def tests(self) -> list[str]:
        """The names of the tests of all arms, sorted."""
        return sorted({cell.point.test for cell in self.study.cells()})

    @property
    def refused(self) -> Mapping[str, str]:
        """The logs that the import refused: path and reason."""
        return {s.path: s.reason for s in self.study.sources() if s.status == "refused"}

    def cells(self, *, arm: str | None = None, test: str | None = None) -> list[Cell]:
        """Return the cells of an arm, of a test, or of both; without either, all cells.

        A cell has one arm and one point: a test with its configuration, size, scale, metric and
        unit. `cell.values` has one value per launch.
        """
        wanted = {"arm": arm, "test": test}
        return list(self.study.cells(**{k: v for k, v in wanted.items() if v is not None}))

    def judge(
        self, base: str, arm: str, *, margin: float | None = None, test: str | None = None
    ) -> Judgement:
        """Compare `arm` with `base`, both by name, at every point that they have in common.

        `margin` is the acceptable loss in percent; without it, the core counts of the labels decide.
        `test` selects one test. Raises NearmetalError if an arm does not exist, if the two have no
        common point, or if the margin is below 0 or not below 100.
        """
        return Judgement(study_view(self.study, base, [arm], percent=margin, only=test))


@dataclass(frozen=True)
class Judgement:
    """An arm, compared with a base. `OpenStudy.judge` returns it."""

    view: StudyView

    @property
    def verdict(self) -> Verdict:
        """The headline: the verdict of the primary points."""
        (judged,) = self.view.judged
        return judged.conclusion.verdict

    @property
    def why(self) -> str:
        """The headline in words, with the number of points of each verdict."""
        return sentence(self.view)

    @property
    def points(self) -> list[Comparison]:
        """All compared points: each with `verdict`, `reason`, `ratio` and its interval."""
        return self.view.comparisons

    @property
    def primary(self) -> list[Comparison]:
        """The points that make the headline."""
        return [one for one in self.points if one.primary]

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The values that are physically impossible, or nearly so."""
        return self.view.violations

    def plots(self) -> list[Picture]:
        """Return the charts: curves over message sizes with their ratio, or bars."""
        anchors = Anchors(self.view, [])
        return [
            Picture(panel.title, panel.caption, standalone(chart.wide))
            for panel in (*curves(self.view, anchors), *bars(self.view, anchors))
            for chart in panel.charts
        ]

    def csv(self) -> str:
        """Return a table with one line per point, for example for pandas."""
        return render_study_csv(self.view)

    def page(self) -> str:
        """Return the page of `nearmetal study report`: charts, tables, and every raw line."""
        return render_study_html(self.view)

    def _repr_html_(self) -> str:
        """Show headline and tables in a notebook."""
        return render(
            "notebook.html",
            verdict=self.verdict.value,
            why=self.why,
            tables=tables(self.view, Anchors(self.view, [])),
        )


@dataclass(frozen=True)
class Picture:
    """A chart as SVG, complete in itself. `Judgement.plots` returns it."""

    title: str
    caption: str
    svg: str

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to a file."""
        replace_file(Path(path), self.svg, mode=0o644, sync=False)

    def _repr_svg_(self) -> str:
        """Show the picture in a notebook."""
        return self.svg

# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus has them: a name, a kind, and one sample for each set of labels. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

OTHER = "other"
"""The label of everything beyond a limit of labels."""

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True)
class Metric:
    """One metric. `name` has no prefix, and for a counter no `_total`.

    A sample is the values of `labels` in their order, and the number.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    samples: tuple[tuple[tuple[str, ...], float], ...] = ()

    @property
    def full_name(self) -> str:
        """The name in expressions."""
        return f"nearmetal_{self.name}{'_total' if self.kind == 'counter' else ''}"


def one(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return Metric(name, "gauge", text, (), (((), value),))


def as_data(metrics: Iterable[Metric]) -> list[dict[str, object]]:
    """Return metrics for JSON."""
    return [
        {
            "name": metric.full_name,
            "kind": metric.kind,
            "help": metric.text,
            "samples": [
                {"labels": dict(zip(metric.labels, labels, strict=True)), "value": value}
                for labels, value in metric.samples
            ],
        }
        for metric in metrics
    ]

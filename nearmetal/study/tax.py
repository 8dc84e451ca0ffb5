# SPDX-License-Identifier: Apache-2.0
"""The tax of virtualization, split: what the missing cores cost, and what is left. Pure.

Bare metal with all cores, bare metal with as many as the VM has, the VM:
1 - total = (1 - core loss) (1 - virtualization).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nearmetal.core.errors import NearmetalError
from nearmetal.study.stats import MIN_LAUNCHES, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence


class Share(NamedTuple):
    """A loss of throughput, as a share; limits from rounding or from an interval, if there are any."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Tax:
    """The three parts. `verdict` says why there is none, when there is none."""

    total: Share
    core_loss: Share
    virtualization: Share
    verdict: str = "no verdict: no variance was published"


def rounded(percent: float, digits: int = 1) -> Share:
    """Return a published percentage with the limits that its digits leave open."""
    half = 0.5 * 10**-digits
    return Share(percent / 100, (percent - half) / 100, (percent + half) / 100)


def decompose(total: Share, core_loss: Share) -> Tax:
    """Split a total loss against full bare metal by the loss of reduced bare metal."""
    if core_loss.high >= 1:
        raise NearmetalError("a core loss of 100 %", "nothing is left to compare with")
    return Tax(
        total,
        core_loss,
        Share(
            1 - (1 - total.value) / (1 - core_loss.value),
            1 - (1 - total.low) / (1 - core_loss.high),
            1 - (1 - total.high) / (1 - core_loss.low),
        ),
    )


def from_medians(full: float, reduced: float, vm: float, *, lower_is_better: bool) -> Tax:
    """Split the tax of three medians without their spread."""
    return from_values([full], [reduced], [vm], lower_is_better=lower_is_better)


def from_values(
    full: Sequence[float], reduced: Sequence[float], vm: Sequence[float], *, lower_is_better: bool
) -> Tax:
    """Split the tax of three cells; the limits are those of the ratios, where launches allow them."""
    total = _loss(vm, full, lower_is_better=lower_is_better)
    core = _loss(reduced, full, lower_is_better=lower_is_better)
    rest = _loss(vm, reduced, lower_is_better=lower_is_better)
    measured = all(share.low < share.high for share in (total, core, rest))
    verdict = "" if measured else f"no verdict: fewer than {MIN_LAUNCHES} launches of an arm"
    return Tax(total, core, rest, verdict)


def _loss(test: Sequence[float], base: Sequence[float], *, lower_is_better: bool) -> Share:
    found = ratio(base, test) if lower_is_better else ratio(test, base)
    if found is None:
        raise NearmetalError("a value that is not above zero", "there is no ratio of it")
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return Share(1 - found.value, 1 - high, 1 - low)

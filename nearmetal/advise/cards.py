# SPDX-License-Identifier: Apache-2.0
"""Models of network cards, and what each supports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import TypeAdapter


@dataclass(frozen=True)
class CardModel:
    """One model. A source is a work, a place in it, and the words of that place."""

    name: str
    rdma: frozenset[str]
    """Subset of ib and roce."""
    rdma_source: str
    vf_migration: bool
    """Whether a virtual function moves with a running machine, on KVM."""
    vf_migration_source: str
    vdpa: bool
    """Whether a driver offers vDPA devices."""
    vdpa_source: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The spellings of the name: Connect X-5, CX5, ConnectX-5 VPI."""
        words = re.sub(r"[ -]", r"[\\s_-]*", self.name)
        words = words.replace("ConnectX", r"(?:connect\s?x|\bcx)")
        return re.compile(words + r"(?![\d])", re.IGNORECASE)


_TABLE = yaml.safe_load(Path(__file__).with_name("cards.yaml").read_text(encoding="utf-8"))
CARDS = TypeAdapter(tuple[CardModel, ...]).validate_python(_TABLE["cards"])


def find_card(text: str) -> CardModel:
    """Return the model that a text names; raises ValueError with a hint for an unknown model."""
    named = [card for card in CARDS if card.pattern.search(text)]
    if not named:
        known = ", ".join(card.name for card in CARDS)
        raise ValueError(f"no facts about the card {text!r}|known: {known}; or leave it out")
    return max(named, key=lambda card: len(card.name))

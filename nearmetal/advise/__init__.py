# SPDX-License-Identifier: Apache-2.0
"""Advice: the adapters that meet given needs, with a reason for each yes and each no.

Pure: needs and facts in, a ranked answer out. Start at rank.py.
"""

from nearmetal.advise.adapters import ADAPTERS, AdapterKind, Source
from nearmetal.advise.needs import Fabric, Messages, Needs, Platform, load_trace
from nearmetal.advise.rank import Advice, Objection, Option, advise
from nearmetal.advise.tax import Tax, load_measured

__all__ = [
    "ADAPTERS",
    "AdapterKind",
    "Advice",
    "Fabric",
    "Messages",
    "Needs",
    "Objection",
    "Option",
    "Platform",
    "Source",
    "Tax",
    "advise",
    "load_measured",
    "load_trace",
]

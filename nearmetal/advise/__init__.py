# SPDX-License-Identifier: Apache-2.0
"""Advice: which adapter suits given needs, with a reason for every yes and every no.

Pure: needs and facts in, a ranked answer out. Start at rank.py.
"""

from nearmetal.advise.adapters import ADAPTERS, Adapter, Source
from nearmetal.advise.needs import Fabric, Messages, Needs, Platform
from nearmetal.advise.rank import Advice, Option, Refusal, advise
from nearmetal.advise.tax import Tax, load_measured
from nearmetal.advise.trace import load_trace

__all__ = [
    "ADAPTERS",
    "Adapter",
    "Advice",
    "Fabric",
    "Messages",
    "Needs",
    "Option",
    "Platform",
    "Refusal",
    "Source",
    "Tax",
    "advise",
    "load_measured",
    "load_trace",
]

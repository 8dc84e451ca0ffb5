# SPDX-License-Identifier: Apache-2.0
"""The claims of published studies as tests, fixed before anybody looks at the reader's data. Pure."""

from nearmetal.study.reproduce.claims import CLAIMED, Claim, Kind, claims_of, roles_of
from nearmetal.study.reproduce.decide import Outcome, Result, Tested, reproduce

__all__ = [
    "CLAIMED",
    "Claim",
    "Kind",
    "Outcome",
    "Result",
    "Tested",
    "claims_of",
    "reproduce",
    "roles_of",
]

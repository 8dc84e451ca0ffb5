# SPDX-License-Identifier: Apache-2.0
"""The linter of claims: sentences whose numbers disagree with each other, or with data.

Rules are arithmetic and wording, nothing of them knows a certain text. Each finding names the line,
what is claimed, and what contradicts it.
"""

from nearmetal.study.claims.finding import Finding
from nearmetal.study.claims.lint import lint

__all__ = ["Finding", "lint"]

# SPDX-License-Identifier: Apache-2.0
"""Where tests find real logs and papers.

Excerpts of logs and the numbers of papers are in tests/data and in every clone. Beside some
checkouts lie the whole logs and papers, which are not part of the repository: tests that want every
line run there too.
"""

import os
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
LOGS = DATA / "logs"
PAPERS = DATA / "papers"

SHARED = Path(os.environ.get("STUDY_SHARED", Path(__file__).parents[3] / "shared"))
SAMPLES = SHARED / "samples"
SEEDS = SHARED / "seeds"

# SPDX-License-Identifier: Apache-2.0
"""Where tests find real logs and papers, which are not part of the repository."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("STUDY_SHARED", Path(__file__).parents[3] / "shared"))
SAMPLES = SHARED / "samples"
SEEDS = SHARED / "seeds"

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no real logs (STUDY_SHARED)")
needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="no papers (STUDY_SHARED)")

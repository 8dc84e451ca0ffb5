# SPDX-License-Identifier: Apache-2.0
"""Property tests have no deadline: a busy machine makes no test wrong."""

from hypothesis import settings

settings.register_profile("without a clock", deadline=None)
settings.load_profile("without a clock")

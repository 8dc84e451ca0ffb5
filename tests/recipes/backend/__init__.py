# SPDX-License-Identifier: Apache-2.0
"""An empty backend: it accepts a spec and makes nothing."""

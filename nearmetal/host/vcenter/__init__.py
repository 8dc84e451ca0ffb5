# SPDX-License-Identifier: Apache-2.0
"""A vCenter: its address and trust in a spec, and the session with it."""

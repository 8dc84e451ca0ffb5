# SPDX-License-Identifier: Apache-2.0
"""A vCenter: how it is reached and trusted, one session, and look-ups in its inventory."""

# SPDX-License-Identifier: Apache-2.0
"""Advice: the adapters that meet given needs, with a reason for each yes and each no.

Pure: needs and facts in, a ranked answer out. Start at rank.py.
"""

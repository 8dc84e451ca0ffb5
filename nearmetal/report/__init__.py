# SPDX-License-Identifier: Apache-2.0
"""Turns the evidence of a run into one offline page, Markdown and CSV. The same run, the same bytes."""

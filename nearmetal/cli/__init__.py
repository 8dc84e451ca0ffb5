# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb; the only package that prints."""

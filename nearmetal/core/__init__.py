# SPDX-License-Identifier: Apache-2.0
"""The ground floor: errors, processes, files, locks and the journal. Every room may use it."""

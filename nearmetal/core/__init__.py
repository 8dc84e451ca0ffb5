# SPDX-License-Identifier: Apache-2.0
"""The ground floor: errors, processes, files, locks, progress, ssh and the journal."""

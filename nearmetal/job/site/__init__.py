# SPDX-License-Identifier: Apache-2.0
"""The MPIs of a site with their own launchers: detection, environment, diagnosis."""

# SPDX-License-Identifier: Apache-2.0
"""Planning: what is desired against what is there. Pure; reaches no process and no file."""

from nearmetal.plan.action import Action
from nearmetal.plan.desired import desired
from nearmetal.plan.diff import Change, Plan, make_plan, removal
from nearmetal.plan.wanted import Desired

__all__ = ["Action", "Change", "Desired", "Plan", "desired", "make_plan", "removal"]

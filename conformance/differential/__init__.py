"""Random sequences: the same calls on two kinds of engine, and everything compared after each.

`compare` finds a difference, shrinks it to the shortest sequence, and raises it with that sequence
as a ready-made check for ``conformance.engine``. Hypothesis makes the sequences, so this package
alone needs it.
"""

from __future__ import annotations

from conformance.differential.difference import Difference
from conformance.differential.machine import Plan
from conformance.differential.run import Effort, compare
from conformance.differential.sides import Served, Side

__all__ = ["Difference", "Effort", "Plan", "Served", "Side", "compare"]

"""From what was seen of a run to a verdict that nobody can fool."""

"""What the harness costs, as ratios against a reference that runs beside it on the same machine."""

"""Commands for those who write scenarios: new, list, explain, run --watch and --repeat, doctor.

One file a command; none of them imports torch, but `doctor`, which asks ``resync`` for its sums.
"""

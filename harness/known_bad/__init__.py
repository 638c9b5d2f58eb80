"""``resync-chaos known-bad``: whether the catalogue catches modules that have one thing wrong."""

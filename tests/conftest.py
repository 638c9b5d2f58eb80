"""Keeps the tests' own scenario files, good and broken, from being collected as scenarios."""

from __future__ import annotations

collect_ignore_glob = ["*.yaml"]  # of any depth: a star takes slashes too

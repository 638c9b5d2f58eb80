"""Targets with one thing wrong each, which the catalogue must catch. Never fix them."""

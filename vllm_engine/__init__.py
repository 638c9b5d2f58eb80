"""The real vLLM as an engine of the harness. Importing this package imports nothing of vLLM."""

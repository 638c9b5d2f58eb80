"""Writes ``messages.txt`` anew: what each broken file gets. Read the difference before you keep it.

python -m tests.harness.broken_files
"""

from __future__ import annotations

from .messages import GOLDEN, all_messages

if __name__ == "__main__":
    GOLDEN.write_text(all_messages(), encoding="utf-8")
    print(f"wrote {GOLDEN}")

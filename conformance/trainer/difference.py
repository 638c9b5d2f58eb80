"""Shows where two runs of the same push differ."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence

from conformance.trainer.contract import RankTrace

CONTEXT_LINES = 3


def difference(expected: Sequence[RankTrace], found: Sequence[RankTrace], *, payloads: bool) -> str:
    """Return a unified diff for each rank that differs; an empty string where none does.

    Args:
        expected: by rank.
        found: by rank.
        payloads: whether what the client's calls carried counts, too.
    """
    parts = []
    for rank, (wanted, was) in enumerate(zip(expected, found, strict=True)):
        lines = difflib.unified_diff(
            _written(wanted, payloads=payloads),
            _written(was, payloads=payloads),
            fromfile=f"rank {rank}, expected",
            tofile=f"rank {rank}, found",
            n=CONTEXT_LINES,
            lineterm="",
        )
        parts += list(lines)
    return "\n".join(parts)


def _written(trace: RankTrace, *, payloads: bool) -> list[str]:
    lines = [*trace.main, trace.ended, f"engine {trace.engine}"]
    lines += [f"side thread: {line}" for line in trace.side]
    if payloads:
        lines += [f"payload {json.dumps(payload, sort_keys=True)}" for payload in trace.payloads]
    return lines

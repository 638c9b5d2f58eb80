"""What a rank that is blocked waits for, asked from another of its threads.

Source: torch's Flight Recorder, which works for gloo when ``TORCH_FR_BUFFER_SIZE`` is set. Its
``state`` stays "scheduled" when a collective is done, so ``retired`` is what counts; and it does
not know the members of a group, so they are joined by the group's name.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.distributed.distributed_c10d import _world


def pending_collectives() -> list[dict[str, Any]]:
    """Return the collectives that this rank has entered and not left.

    Each has ``group`` (its name in this process), ``label`` (what it was made for), ``ranks`` (its
    members), ``op``, ``seq`` (number of the collective in its group) and ``sizes`` (input shapes).
    """
    # Not in torch's stubs; it is the one dump that works while the main thread is blocked.
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())  # type: ignore[attr-defined]
    # Copied first: the main thread may be making a group.
    members = {
        name: sorted(_world.pg_group_ranks[group]) for group, name in dict(_world.pg_names).items()
    }
    return [
        {
            "group": name,
            "label": label,
            "ranks": members.get(name, []),
            "op": entry["profiling_name"].removeprefix("gloo:"),
            "seq": entry["collective_seq_id"],
            "sizes": entry["input_sizes"],
        }
        for entry in dump.get("entries", [])  # absent before the first collective
        if not entry["retired"]
        for name, label in [entry["process_group"]]
    ]

"""What a rank that is blocked waits for, asked from another of its threads.

Source: torch's Flight Recorder, which works for gloo when ``TORCH_FR_BUFFER_SIZE`` is set. Its
``state`` stays "scheduled" when a collective is done, and its count of completed collectives may
lag behind, so ``retired`` is what counts; and it does not know the members of a group, so they are
joined by the group's name.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from torch.distributed.distributed_c10d import _world


def collectives() -> dict[str, list[Any]]:
    """Return the collectives that this rank is in, and how far it has come in each group.

    Returns:
        ``pending``: those that it has entered and not left, in the order of entering. Each has
        ``label`` (what its group was made for), ``ranks`` (the members), ``op``, ``seq`` (number
        of the collective in its group), ``sizes`` (input shapes), ``timeout_s`` of the group and
        ``age_s`` (seconds since it was entered).
        ``passed``: ``[ranks, label, seq]`` of the last collective that it has left in each group,
        of the groups that were used lately.

    Groups that were made outside torch's world (a data plane's) and transfers between two ranks,
    whose ends have different names, are left out.
    """
    # Not in torch's stubs; it is the one dump that works while the main thread is blocked.
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())  # type: ignore[attr-defined]
    # Copied first: the main thread may be making a group, which has a name before it has members.
    members = {
        name: sorted(ranks)
        for group, name in dict(_world.pg_names).items()
        if (ranks := _world.pg_group_ranks.get(group)) is not None
    }
    now_ns = time.time_ns()  # the recorder's clock
    pending: list[Any] = []
    passed: dict[str, list[Any]] = {}
    for entry in dump.get("entries", []):  # absent before the first collective
        name, label = entry["process_group"]
        seq = entry["collective_seq_id"]
        if name not in members or entry["is_p2p"]:
            continue
        if entry["retired"]:
            passed[name] = [members[name], label, seq]
            continue
        pending.append(
            {
                "label": label,
                "ranks": members[name],
                "op": entry["profiling_name"].removeprefix("gloo:"),
                "seq": seq,
                "sizes": entry["input_sizes"],
                "timeout_s": entry["timeout_ms"] / 1000,
                "age_s": (now_ns - entry["time_created_ns"]) / 1e9,
            }
        )
    return {"pending": pending, "passed": list(passed.values())}

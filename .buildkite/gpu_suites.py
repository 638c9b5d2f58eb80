"""The suites of a GPU validation night, and the Buildkite steps that run them.

Prints a pipeline with one step an entry, to be uploaded by ``buildkite-agent pipeline upload``. The
shape is that of vime's GPU suites: name -> entries of what to run, how many GPUs, arguments and
environment. To add one, add a line here and say in its scenario file what it proves.
"""

from __future__ import annotations

import json
from typing import Any

QUEUE = "mithril-h100-pool"
MINUTES = 60

# What to run, GPUs so that nothing is left out and every worker has its own, further arguments of
# `resync-chaos run`, environment of the job.
Entry = tuple[str, int, tuple[str, ...], dict[str, str]]

SUITES: dict[str, list[Entry]] = {
    "short": [
        ("scenarios/session/one_failure.yaml", 3, (), {}),
        ("scenarios/scrub", 2, (), {}),
    ],
    "nccl": [
        ("scenarios/data_plane", 4, (), {}),
        ("scenarios/degraded", 4, (), {}),
        ("scenarios/workers", 3, ("-k", "nccl"), {}),
    ],
    "ipc": [
        ("scenarios/late", 2, (), {}),
        ("scenarios/workers/buffer_in_use.yaml", 2, (), {}),
        ("scenarios/restart", 2, ("-k", "ipc"), {}),
    ],
}


def steps() -> list[dict[str, Any]]:
    """Return one Buildkite step for each entry of each suite."""
    return [
        {
            "label": f":crescent_moon: {suite} {path} {' '.join(arguments)}".rstrip(),
            "key": f"gpu-{suite}-{number}",
            "command": f".buildkite/job gpu_night {suite}:{number}",
            "timeout_in_minutes": MINUTES,
            "agents": {"queue": QUEUE},
            "env": {"NUM_GPUS": str(gpus), **environment},
            "artifact_paths": ["out/gpu_night/**/*"],
            "retry": {"automatic": [{"exit_status": -1, "limit": 1}]},
        }
        for suite, entries in SUITES.items()
        for number, (path, gpus, arguments, environment) in enumerate(entries)
    ]


if __name__ == "__main__":
    print(json.dumps({"steps": steps()}, indent=2))

"""What it costs to load scenario files: checked against the model, and as bare YAML."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from harness.scenario_file import load_file

FILES = 200
TEXT = """\
proves: A push that failed once is sent again.
source: https://example.org/{number}
transport: ipc
trainer: {{ranks: 4, tensor_parallel: 2}}
engines: {{count: 2}}
timeouts: {{request_s: 2}}
faults:
  - {{kind: reject, at: engine.update, engine: 1, push: 1, nth: 1}}
expect: {{outcome: resumed}}
"""


def measure(repeat: int) -> dict[str, float]:
    """Return the CPU seconds of loading 200 files, and of PyYAML's for the same; medians."""
    ours, bare = [], []
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.yaml" for number in range(FILES)]
        for number, path in enumerate(paths):
            path.write_text(TEXT.format(number=number), encoding="utf-8")
        for _ in range(repeat):
            ours.append(_cpu_s(_checked, paths))
            bare.append(_cpu_s(_bare, paths))
    return {"checked_s": statistics.median(ours), "bare_s": statistics.median(bare)}


def _checked(path: Path) -> None:
    errors = load_file(path).errors
    assert not errors, errors


def _bare(path: Path) -> None:
    yaml.safe_load(path.read_text(encoding="utf-8"))


def _cpu_s(load: Callable[[Path], None], paths: list[Path]) -> float:
    begun_s = time.process_time()
    for path in paths:
        load(path)
    return time.process_time() - begun_s


def rows(found: dict[str, float]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the row of the bench's table."""
    ours, bare = found["checked_s"], found["bare_s"]
    yield (
        f"{FILES} scenario files loaded and checked",
        f"{ours:.3f} s of CPU",
        f"{bare:.3f} s yaml.safe_load",
        f"{ours / bare:.2f} x",
    )

"""A training job's time-outs, read from its command line, a file or a running process.

Source: vime's flags, Megatron's ``--distributed-timeout-minutes``, torch's defaults for process
groups, and what vLLM 0.32 has fixed in its code.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError
from harness.wording import near, show

MINUTE_S = 60.0
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Known:
    """One time-out that a job has.

    Attributes:
        name: of ``--set NAME=SECONDS``.
        what: in words.
        default_s: where no flag sets it.
        default_of: whose default that is.
        flag: of the job, where it has one.
        unit_s: seconds of one unit of the flag.
    """

    name: str
    what: str
    default_s: float
    default_of: str
    flag: str | None = None
    unit_s: float = 1.0


KNOWN = (
    Known(name="request", what="a request of a push", default_s=1800.0, default_of="resync",
          flag="--update-weight-request-timeout"),
    Known(name="init", what="opening the channel", default_s=600.0, default_of="resync",
          flag="--update-weight-init-timeout"),
    Known(name="trainer_groups", what="the trainer's NCCL groups", default_s=10 * MINUTE_S,
          default_of="Megatron and torch", flag="--distributed-timeout-minutes", unit_s=MINUTE_S),
    Known(name="gloo_groups", what="the trainer's gloo groups", default_s=30 * MINUTE_S,
          default_of="torch"),
    Known(name="rendezvous", what="vLLM's rendezvous store", default_s=300.0,
          default_of="vLLM 0.32, fixed"),
    Known(name="health_interval", what="between two health checks", default_s=30.0,
          default_of="vime", flag="--rollout-health-check-interval"),
    Known(name="health_timeout", what="a health check's answer", default_s=30.0,
          default_of="vime", flag="--rollout-health-check-timeout"),
)  # fmt: skip
BY_NAME = {known.name: known for known in KNOWN}
OF_THE_CLIENT = ("request", "init")  # what sends a request bounds it


@dataclass(frozen=True, kw_only=True)
class Client:
    """What sends the requests of a job that pushes without resync.

    Attributes:
        limit_s: how long it waits for an answer.
        origin: of that limit.
    """

    limit_s: float
    origin: str


BARE = Client(limit_s=math.inf, origin="none, without resync")
# vllm/distributed/weight_transfer/clients.py, line 66; passed to `requests`, which starts it afresh
# at each read.
VLLM = Client(limit_s=300.0, origin="default of vLLM 0.32's HTTPVLLMWeightSyncClient")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One time-out of the job: seconds, and where it is from."""

    known: Known
    seconds: float  # math.inf: there is none
    origin: str


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """All that decides which time-out fires first.

    Attributes:
        limits: by name.
        is_colocated: whether trainer and engines share GPUs, so that weights go by IPC.
        is_supervised: whether a health monitor may restart engines.
        client: what sends the requests; ``None``: resync, whose pushes agree on a group of their
            own.
    """

    limits: Mapping[str, Limit]
    is_colocated: bool
    is_supervised: bool
    client: Client | None

    @property
    def has_resync(self) -> bool:
        """Whether pushes are those of resync."""
        return self.client is None

    def seconds(self, name: str) -> float:
        """Return one limit in seconds; ``inf`` where there is none."""
        return self.limits[name].seconds


def read_job(options: argparse.Namespace) -> JobLimits:
    """Return the job's time-outs from the options of ``doctor``.

    Raises:
        UsageError: nothing, or more than one job, is given, or it cannot be read.
    """
    sources = {
        "a command line after --": bool(options.job),
        "--file": options.file is not None,
        "--pid": options.pid is not None,
    }
    given = [name for name, is_given in sources.items() if is_given]
    if len(given) > 1:
        raise UsageError(
            f"expected one of {', '.join(sources)}, found {' and '.join(given)}. Keep one."
        )
    if options.file is not None:
        arguments, settings = _of_file(options.file)
        origin = str(options.file)
    elif options.pid is not None:
        arguments, settings, origin = _of_process(options.pid), {}, f"process {options.pid}"
    else:
        arguments, settings, origin = options.job, {}, "the command line"
    flags = _flags(arguments) | {_flag(key): value for key, value in settings.items()}
    chosen = _chosen(options.given)
    client = VLLM if options.vllm_client else BARE if options.without_resync else None
    limits = {known.name: _limit(known, flags, chosen, origin, client) for known in KNOWN}
    return JobLimits(
        limits=limits,
        is_colocated=_is_on(flags.get("--colocate")),
        is_supervised=_is_on(flags.get("--use-fault-tolerance")),
        client=client,
    )


def _limit(
    known: Known,
    flags: Mapping[str, Any],
    chosen: Mapping[str, float],
    origin: str,
    client: Client | None,
) -> Limit:
    if known.name in chosen:
        return Limit(known=known, seconds=chosen[known.name], origin="--set")
    if known.flag is not None and known.flag in flags:
        found = flags[known.flag]
        seconds = _positive(found, f"{origin}: {known.flag}") * known.unit_s
        return Limit(known=known, seconds=seconds, origin=f"{known.flag} {found}")
    if known.name in OF_THE_CLIENT and client is not None:
        return Limit(known=known, seconds=client.limit_s, origin=client.origin)
    return Limit(known=known, seconds=known.default_s, origin=f"default of {known.default_of}")


def _positive(found: Any, where: str) -> float:
    try:
        value = float(found)
    except (TypeError, ValueError):
        value = math.nan
    if isinstance(found, bool) or not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"{where}: expected a finite number above zero, found {show(found)}. Correct it."
        )
    return value


def _chosen(given: Sequence[str]) -> dict[str, float]:
    chosen = {}
    for each in given:
        name, equals, value = each.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in BY_NAME:
            raise UsageError(
                f"--set: expected NAME=SECONDS with a name of {', '.join(BY_NAME)}, found "
                f"{show(each)}. {near(name, BY_NAME)}"
            )
        chosen[name] = _positive(value, f"--set {name}")
    return chosen


def _flag(key: str) -> str:
    """Return the flag that a key of a file stands for."""
    return f"--{str(key).lstrip('-').replace('_', '-')}"


def _is_on(found: Any) -> bool:
    return found is not None and str(found).lower() not in ("false", "0", "no", "none", "")


def _flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the flags of a command line; one without a value is ``True``."""
    flags: dict[str, Any] = {}
    for number, word in enumerate(arguments):
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word.partition("=")
        following = arguments[number + 1] if number + 1 < len(arguments) else "--"
        if equals:
            flags[_flag(name)] = value
        else:
            flags[_flag(name)] = True if following.startswith("--") else following
    return flags


def _of_file(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the words of a script, or the settings of a YAML or JSON file.

    Raises:
        UsageError: it cannot be read, or is neither.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(
                f"--file {path}: expected at most {MAX_FILE_BYTES} bytes, found "
                f"{path.stat().st_size}. Name the script or the settings of the job."
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise UsageError(
            f"--file {path}: expected a file that can be read, found {found}. Check the path."
        ) from error
    if path.suffix in (".yaml", ".yml", ".json"):
        return [], _settings(path, text)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    try:
        return [word for line in lines for word in shlex.split(line, comments=True)], {}
    except ValueError:  # a quote over several lines
        return text.replace("\\\n", " ").split(), {}


def _settings(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"--file {path}: expected valid {path.suffix[1:].upper()}, found: {first}. Correct it."
        ) from error
    if not isinstance(found, dict):
        raise UsageError(
            f"--file {path}: expected a mapping of the job's options, found {show(found)}. Write "
            "for example update_weight_request_timeout: 600."
        )
    return _leaves(found)


def _leaves(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Return every scalar below the mapping by its own key: sections only group options."""
    leaves: dict[str, Any] = {}
    for key, value in settings.items():
        leaves |= _leaves(value) if isinstance(value, dict) else {str(key): value}
    return leaves


def _of_process(pid: int) -> list[str]:
    """Return the arguments of a running process.

    Raises:
        UsageError: there is none, or it may not be read.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError as error:
        raise UsageError(
            f"--pid {pid}: expected a running process whose arguments can be read, found "
            f"{error.strerror}. Check the number with ps."
        ) from error
    return [word for word in words if word]

"""The limits of a push: flags, defaults, validation, and the order against process groups."""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import pytest

from resync import (
    PushTimeouts,
    TimeoutOrderError,
    TimeoutOrderWarning,
    WeightUpdater,
    add_timeout_arguments,
    check_group_timeouts,
)
from resync.timeouts import MAX_IDLE_WAITS_BETWEEN_AGREEMENTS, MAX_REQUESTS_BETWEEN_AGREEMENTS

# fmt: off
FLAGS = [
    # arguments                                     init_s  request_s
    ([],                                            600.0,  1800.0),
    (["--update-weight-init-timeout", "7"],         7.0,    1800.0),
    (["--update-weight-request-timeout", "0.5"],    600.0,  0.5),
]
# fmt: on


@pytest.mark.parametrize(("arguments", "init_s", "request_s"), FLAGS)
def test_flags(arguments: list[str], init_s: float, request_s: float) -> None:
    """The two flags, their defaults, and how they are read."""
    parser = argparse.ArgumentParser()
    assert add_timeout_arguments(parser) is parser
    timeouts = PushTimeouts.from_args(parser.parse_args(arguments))
    assert (timeouts.init_s, timeouts.request_s) == (init_s, request_s)


def test_defaults() -> None:
    """Without flags the defaults are those of the flags."""
    timeouts = PushTimeouts()
    assert (timeouts.init_s, timeouts.request_s, timeouts.settle_s) == (600, 1800, 5)


@pytest.mark.parametrize("value", [0, -1, math.inf, -math.inf, math.nan, "60", None])
@pytest.mark.parametrize("name", ["init_s", "request_s", "settle_s"])
def test_limits_are_finite(name: str, value: Any) -> None:
    """A limit that is none is refused, with its name and value."""
    with pytest.raises(ValueError, match=name) as refused:
        PushTimeouts(**{name: value})
    assert str(refused.value) == f"{name}: expected a finite number of seconds > 0, found {value}."


# fmt: off
SUMS = [
    # init_s  request_s  settle_s  open_channel_s  idle_s
    (600,     1800,      5,        605,            3600),
    (10,      1,         5,        11,             20),  # unwinding: a tenth of the init time-out
]
# fmt: on


@pytest.mark.parametrize(("init_s", "request_s", "settle_s", "open_channel_s", "idle_s"), SUMS)
def test_sums(
    init_s: float, request_s: float, settle_s: float, open_channel_s: float, idle_s: float
) -> None:
    """An agreement outlasts all that the sender may do before it, waits for idle engines too."""
    timeouts = PushTimeouts(init_s=init_s, request_s=request_s, settle_s=settle_s)
    assert (timeouts.open_channel_s, timeouts.idle_s) == (open_channel_s, idle_s)
    requests_s = MAX_REQUESTS_BETWEEN_AGREEMENTS * request_s
    waits_s = MAX_IDLE_WAITS_BETWEEN_AGREEMENTS * idle_s
    assert timeouts.agreement_s > max(requests_s + waits_s, open_channel_s + settle_s)


LIMITS = PushTimeouts(init_s=60, request_s=100, settle_s=5)

# fmt: off
GROUPS = [
    # groups                     the ones that expire first
    ({},                         ""),
    ({"gloo": 1e6},              ""),
    ({"gloo": 50.0},             "gloo 50 s"),
    ({"tp": 600.5, "gloo": 2.0, "dp": 1e6, "a": 1.0}, "a 1 s, gloo 2 s"),
]
# fmt: on


def text(found: str) -> str:
    """The whole message about groups that are too short."""
    return (
        "expected process groups that outlast 2 requests of a weight push "
        f"(--update-weight-request-timeout 100 s each + 5 s), found {found}: the other ranks "
        "would die in a collective before a failed request is resent. Lower "
        "--update-weight-request-timeout or raise the groups' time-out."
    )


@pytest.mark.parametrize(("groups", "found"), GROUPS)
def test_group_order(groups: dict[str, float], found: str) -> None:
    """A group that expires before a request is warned about once, and refused under strict."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_group_timeouts(LIMITS, groups)
    assert [(w.category, str(w.message)) for w in caught] == (
        [(TimeoutOrderWarning, text(found))] if found else []
    )
    if not found:
        check_group_timeouts(LIMITS, groups, strict=True)
        return
    with pytest.raises(TimeoutOrderError) as refused:
        check_group_timeouts(LIMITS, groups, strict=True)
    assert str(refused.value) == text(found)


def test_updater_checks_the_groups() -> None:
    """An updater checks the groups that it is told of when it is built."""
    fields: dict[str, Any] = {
        "open_channel": None,
        "source": [],
        "transport": "nccl",
        "timeouts": LIMITS,
        "trainer_groups": {"gloo": 50.0},
    }
    with pytest.warns(TimeoutOrderWarning):
        WeightUpdater(**fields)
    with pytest.raises(TimeoutOrderError):
        WeightUpdater(**fields, strict=True)

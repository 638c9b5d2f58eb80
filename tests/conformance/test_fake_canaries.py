"""Whoever breaks one rule of the fake is told which: the rule's own check fails and names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import broken_fakes as broken
import pytest
from fake_engines import in_process

from conformance.engine import CHECKS
from conformance.engine.contract import EngineMaker
from fakes.engine.app import Engine

LIMIT_S = 10.0

# fmt: off
CANARIES: list[tuple[Callable[[Engine], None], str]] = [
    # how the engine is broken                    the rule that is broken
    (broken.init_needs_a_closed_session,           "transition[O-init]"),
    (broken.init_needs_a_closed_session,           "transition[FF-init]"),
    (broken.a_failed_init_ends_the_session,        "transition[O-init_raises]"),
    (broken.shutdown_ends_the_session,             "transition[O-shutdown]"),
    (broken.shutdown_needs_a_configuration,        "transition[N-shutdown]"),
    (broken.nothing_is_configured_and_all_works,   "transition[N-start]"),
    (broken.a_second_start_is_welcome,             "transition[O-start]"),
    (broken.a_second_start_is_welcome,             "transition[FF-start]"),
    (broken.a_second_start_is_welcome,             "transition[Od-start_draft]"),
    (broken.a_failed_start_opens,                  "transition[FS-start]"),
    (broken.start_forgets_progress,                "layers.a_straight_resend_is_torn"),
    (broken.a_draft_needs_no_model,                "transition[I-start_draft_without]"),
    (broken.a_draft_session_is_the_targets,        "transition[I-start_draft]"),
    (broken.an_update_needs_no_start,              "transition[I-update]"),
    (broken.an_update_needs_no_start,              "transition[FU-update]"),
    (broken.a_failed_update_keeps_the_session,     "transition[O-update_raises]"),
    (broken.a_failed_update_keeps_the_session,     "transition[FF-update_raises]"),
    (broken.a_failed_update_keeps_the_session,     "transition[Od-update_raises]"),
    (broken.a_failed_update_puts_the_weights_back, "transition[FU-finish]"),
    (broken.a_failed_update_puts_the_weights_back, "update_failure[unknown-name]"),
    (broken.unknown_names_are_skipped,             "update_failure[unknown-name]"),
    (broken.a_finish_needs_no_start,               "transition[I-finish]"),
    (broken.a_finish_needs_no_start,               "transition[FU-finish]"),
    (broken.a_failed_finish_ends_the_session,      "transition[O-finish_raises]"),
    (broken.a_failed_finish_ends_the_session,      "transition[FF-finish]"),
    (broken.a_failed_finish_puts_the_weights_back, "transition[FF-checksum]"),
    (broken.a_failed_lora_reset_keeps_the_session, "transition[O-finish_lora_raises]"),
    (broken.draft_sessions_reset_adapters,         "transition[Od-finish_lora_raises]"),
    (broken.checksums_read_what_is_behind_meta,    "transition[O-checksum]"),
    (broken.meta_is_served,                        "transition[O-completion]"),
    (broken.meta_is_served,                        "transition[FU-completion]"),
    (broken.publishing_needs_a_closed_session,     "transition[O-publish]"),
    (broken.pause_ends_the_session,                "transition[O-pause]"),
    (broken.resume_wakes_memory_up,                "pause[sleeping-resume]"),
    (broken.any_wake_up_resumes,                   "pause[sleeping-wake_up?tags=weights]"),
    (broken.unknown_tags_wake_all,                 "pause[sleeping-wake_up?tags=nonsense]"),
    (broken.a_pause_that_fails_has_not_paused,     "replies.a_pause_that_fails_has_paused"),
    (broken.a_timed_out_reply_is_dropped,          "replies.a_timed_out_call_shifts_from_there"),
    (broken.a_timed_out_reply_is_dropped,          "replies.no_ops_uncover_a_failed_finish"),
    (broken.a_timed_out_reply_is_dropped,          "replies.checksums_shift_too"),
    (broken.a_failed_finish_publishes,             "versions.a_failed_finish_does_not_set_it"),
    (broken.a_failed_finish_publishes,             "versions.a_finish_may_fail_after_the_weights"),
    (broken.a_draft_session_never_publishes,       "versions.a_draft_session_sets_it"),
    (broken.a_version_is_set_once,                 "versions.the_same_string_again"),
    (broken.publishing_needs_a_closed_session,     "versions.publish_asks_for_no_session"),
    (broken.the_version_skips_the_queue,           "blocked[weight_info]"),
    (broken.the_version_skips_the_queue,           "dead[weight_info]"),
    (broken.checksums_survive_death,               "dead[weight_checker]"),
    (broken.a_dead_engine_is_healthy,              "dead[health]"),
    (broken.refusals_end_the_session,              "refused[update_info-a-string]"),
]
# fmt: on


def complaint(name: str, make: EngineMaker) -> str:
    """Return what a rule says of an engine; empty where it has nothing to say."""
    try:
        asyncio.run(asyncio.wait_for(CHECKS[name](make), LIMIT_S))
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("spoil", "name"), CANARIES, ids=[f"{spoil.__name__}-{name}" for spoil, name in CANARIES]
)
def test_the_broken_rule_is_named(spoil: Callable[[Engine], None], name: str) -> None:
    """The rule fails, and says its name and what it was taken from before anything else."""
    told = f"{name} ({'; '.join(CHECKS[name].proves)}): "
    assert complaint(name, in_process(spoil)).startswith(told)


def test_the_next_profile_differs_where_it_says() -> None:
    """``vllm-next`` ends the session on a failed update or finish: just those cells fail."""
    make = in_process(profile="vllm-next")
    cells = [name for name in CHECKS if name.startswith("transition[")]
    ended = {name for name in cells if name.startswith(("transition[FU-", "transition[FF-"))}
    on_the_way = {
        "transition[O-update_raises]", "transition[O-finish_raises]", "transition[Od-finish_raises]"
    }  # fmt: skip
    failed = {name for name in cells if complaint(name, make)}
    assert failed == ended - {"transition[FU-start]"} | on_the_way

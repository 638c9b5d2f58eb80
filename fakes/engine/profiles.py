"""The session rules an engine can follow: today's vLLM, and the rules it is moving to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How one version of vLLM treats a weight-update session that fails.

    Attributes:
        name: what a scenario writes in ``profile``.
        failure_ends_session: whether a failed start, update or finish ends the session and puts
            the old parameters back. Where it does not, only a failed update ends it, and its
            layers stay on the meta device.
    """

    name: str
    failure_ends_session: bool


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="vllm-0.32", failure_ends_session=False),
        Profile(name="vllm-next", failure_ends_session=True),
    )
}


def profile_named(name: str) -> Profile:
    """Return the profile of that name.

    Raises:
        ValueError: no profile has that name.
    """
    if name not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise ValueError(f"profile: expected one of {known}, found {name!r}. Use a known profile.")
    return PROFILES[name]

"""What a failed request means on each transport.

A failed request must never leave a rank in a collective that another rank will not enter. Where
the other ranks are while the sender talks to the engines differs:

* IPC: every chunk ends in a gather of handles and a barrier of all ranks, so a sender that raises
  leaves the others there. The sender's client records the first failure and skips the rest of the
  session; every rank finishes its pass and its barriers, and then they agree.
* NCCL: the sender broadcasts to engines that receive inside ``/update_weights``. Once that request
  failed nobody receives, so the client raises and drops the sender's end of the channel, which
  frees a broadcast that is under way; the sender then completes the pass and they agree.

Source: vLLM 0.32, ``distributed/weight_transfer/ipc_engine.py`` and ``nccl_engine.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TransportPolicy:
    """How the sender behaves after a failed request.

    Attributes:
        name: ``ipc`` or ``nccl``.
        latch: the client records the first failure and skips the rest of the session instead of
            raising.
        coupled: engines wait for each other inside init and update, so that the first failure
            bounds the wait for the others.
    """

    name: str
    latch: bool
    coupled: bool


IPC = TransportPolicy(name="ipc", latch=True, coupled=False)
NCCL = TransportPolicy(name="nccl", latch=False, coupled=True)
POLICIES = {policy.name: policy for policy in (IPC, NCCL)}


def policy_for(transport: str) -> TransportPolicy:
    """Return the policy of a transport.

    Raises:
        ValueError: there is none of that name.
    """
    try:
        return POLICIES[transport]
    except KeyError:
        known = ", ".join(sorted(POLICIES))
        raise ValueError(f"transport: expected one of {known}, found {transport!r}.") from None

"""What travels in ``init_info`` and ``update_info``, validated with vLLM's exact texts.

The classes carry vLLM's names because its error messages do.

Source: ``distributed/weight_transfer/{base,nccl_common,nccl_engine,ipc_engine}.py`` of vLLM 0.32.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from harness.contracts import Json

DEFAULT_BUFFER_BYTES = 1024 * 1024 * 1024
DEFAULT_NUM_BUFFERS = 2
_UNIQUE_ID_BYTES = 128

Payload = TypeVar("Payload")


def parse_payload(
    cls: type[Payload], payload: Mapping[str, Json], *, what: str, engine: str
) -> Payload:
    """Return the payload as ``cls``.

    Args:
        cls: one of the classes below.
        payload: the request's object.
        what: ``init_info`` or ``update_info``.
        engine: name of vLLM's engine class.

    Raises:
        ValueError: unknown or missing fields, or whatever the class refuses.
    """
    try:
        return cls(**payload)
    except TypeError as error:
        raise ValueError(f"Invalid {what} for {engine}: {error}") from error


@dataclass(kw_only=True)
class NCCLWeightTransferInitInfo:
    """Where and as whom a worker joins the channel, and how the sender packs."""

    master_address: str | None = None
    master_port: int | None = None
    rank_offset: int
    world_size: int
    nccl_unique_id_b64: str | None = field(default=None, repr=False)
    packed: bool = False
    packed_buffer_size_bytes: int = DEFAULT_BUFFER_BYTES
    packed_num_buffers: int = DEFAULT_NUM_BUFFERS

    def __post_init__(self) -> None:
        ctx = "NCCLWeightTransferInitInfo"
        has_address = self.master_address is not None
        has_port = self.master_port is not None
        if self.nccl_unique_id_b64 and (has_address or has_port):
            raise ValueError(
                f"{ctx}: pass nccl_unique_id_b64 OR master_address/master_port, not both"
            )
        if self.nccl_unique_id_b64:
            _check_unique_id(self.nccl_unique_id_b64, ctx)
        elif not (has_address and has_port):
            raise ValueError(
                f"{ctx}: need nccl_unique_id_b64, or both master_address and "
                f"master_port (got master_address={self.master_address!r}, "
                f"master_port={self.master_port!r})"
            )


def _check_unique_id(text: str, ctx: str) -> None:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise ValueError(
            f"{ctx}: nccl_unique_id_b64 is not valid standard base64 "
            f"(URL-safe base64 is not accepted)"
        ) from error
    if len(decoded) != _UNIQUE_ID_BYTES:
        raise ValueError(
            f"{ctx}: nccl_unique_id_b64 must decode to {_UNIQUE_ID_BYTES} bytes, got {len(decoded)}"
        )


@dataclass
class NCCLWeightTransferUpdateInfo:
    """The tensors of one update, in the order of their broadcasts."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    def __post_init__(self) -> None:
        _check_lengths(self.names, self.dtype_names, self.shapes)


@dataclass
class IPCWeightTransferInitInfo:
    """How the sender packs."""

    packed: bool = False


@dataclass
class IPCWeightTransferUpdateInfo:
    """The tensors of one update and where each GPU's worker maps them.

    ``ipc_handles`` holds one ``{gpu uuid: handle}`` for each tensor, or a single one for the
    packed buffer. Handles are JSON here, so they need no pickling on their way over HTTP.
    """

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    ipc_handles: list[dict[str, Json]] | dict[str, Json] | None = None
    ipc_handles_pickled: str | None = None
    tensor_sizes: list[int] | None = None

    def __post_init__(self) -> None:
        if self.ipc_handles_pickled is not None:
            if self.ipc_handles is not None:
                raise ValueError("Cannot specify both `ipc_handles` and `ipc_handles_pickled`")
            raise ValueError(
                "Refusing to deserialize `ipc_handles_pickled` without "
                "VLLM_ALLOW_INSECURE_SERIALIZATION=1"
            )
        if self.ipc_handles is None:
            raise ValueError("Either `ipc_handles` or `ipc_handles_pickled` must be provided")
        _check_lengths(self.names, self.dtype_names, self.shapes)
        if isinstance(self.ipc_handles, list) and len(self.ipc_handles) != len(self.names):
            raise ValueError(
                f"`ipc_handles` should be of the same size as `names`: "
                f"got {len(self.ipc_handles)} and {len(self.names)}"
            )


def _check_lengths(names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
    for label, values in (("dtype_names", dtype_names), ("shapes", shapes)):
        if len(values) != len(names):
            raise ValueError(
                f"`{label}` should be of the same size as `names`: "
                f"got {len(values)} and {len(names)}"
            )

"""A process with vLLM imported that loads vLLM's plugins as an installed project's would be."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from harness.contracts import Channel
from vllm_engine import plugin


def main(config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]) -> None:
    """Tell which of our backends vLLM has after loading its plugins, without and with us asking.

    Args:
        config: ``installed``, a folder with the project's metadata.
        channel: gets the answer.
        sockets: none.
    """
    import vllm.plugins
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    sys.path.insert(0, config["installed"])
    found = {}
    for name, value in (("without", ""), ("with", "1")):
        os.environ[plugin.ENABLED_BY] = value
        vllm.plugins.plugins_loaded = False
        vllm.plugins.load_general_plugins()
        found[name] = sorted(plugin.BACKENDS.keys() & WeightTransferEngineFactory._registry)
    channel.send(found)

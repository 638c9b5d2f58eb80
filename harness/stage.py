"""The processes of one run of a scenario: engines and ranks, from their start to their end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import aiohttp

from harness.child import Child
from harness.contracts import EngineAddress, Json, Parts, ProcessSpec, Timeouts
from harness.engine_servers import EngineServers
from harness.gpus import place
from harness.journal import JournalWriter
from harness.launcher import Launcher
from harness.monitors import kernel
from harness.observation import UNKNOWN_WEIGHTS, EngineSeen
from harness.processes import ProcessIdentity, leftovers
from harness.processes import state as process_state
from harness.scenario import Scenario

TOKEN_INTERVAL_S = 0.005
SAMPLE = {"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0, "return_token_ids": True}
WORLD_SUFFIX = ".world"
READY_LIMIT_S = 60.0
TELL_LIMIT_S = 5.0  # milliseconds; a gateway waits a second for workers that do not answer
STOPPED = "T"  # of the process states of /proc
STARVED_SHARE = 0.5  # of a CPU; a thread that holds the GIL and loops takes more
BUSY_LIMIT_S = 0.2  # a worker that is inside one call for longer than this after a push is stuck


class StageError(Exception):
    """A process of the harness's own did not come up. Shown with the end of its log."""


class Stage:
    """One run's processes and directories.

    Args:
        launcher: forks them.
        parts: the processes' entries and the oracle.
        scenario: what to start.
        out_dir: receives the journal and the logs.
        servers: the real ones behind the engines, where their kind has any.
        doing: told what the run waits for.
    """

    def __init__(
        self,
        launcher: Launcher,
        parts: Parts,
        scenario: Scenario,
        *,
        out_dir: Path,
        servers: EngineServers | None = None,
        doing: Callable[[str], None] = lambda what: None,
    ) -> None:
        out_dir.mkdir(parents=True, exist_ok=True)
        self.scenario = scenario
        self.journal_path = out_dir / "journal.jsonl"
        self.journal_path.unlink(missing_ok=True)  # of an earlier run into the same folder
        self.scratch_dir = launcher.scratch.subdirectory("run")
        self.record = JournalWriter(self.journal_path, "harness")
        self.addresses: tuple[EngineAddress, ...] = ()
        self.engines: dict[int, Child] = {}
        self.ranks: dict[int, Child] = {}
        self._kind = parts.engines[scenario.engines.kind]
        self._placement = place(scenario, parts.gpus)
        limit = aiohttp.ClientTimeout(total=self._kind.state_limit_s)
        self.http = aiohttp.ClientSession(timeout=limit)
        self._launcher = launcher
        self._parts = parts
        self._out_dir = out_dir
        self._processes: list[ProcessIdentity] = []
        self._children: list[Child] = []
        self._starting: list[Child] = []  # ranks that have not said that they are up
        self._servers = servers
        self._doing = doing
        self._behind: dict[int, Json] = {}  # engine -> its server
        self._worlds = itertools.count()
        self._orphaned: set[Path] = set()  # memory of ranks that were killed, which cannot free it

    # ---- engines ----

    async def prepare(self) -> None:
        """Have real servers ready behind the engines, where their kind has any.

        Raises:
            EngineServerError: one did not come up.
        """
        await self._acquire_servers(range(self.scenario.engines.count))

    async def start(self) -> None:
        """Start every engine, and the trainer of the first push beside them.

        Returns once the engines serve; ranks take longer, and `ranks_ready` waits for them. They
        are forked first, since joining their world is the longest way.
        """
        engines, listeners = self._engine_specs(range(self.scenario.engines.count))
        ranks = self._rank_specs(push=0)
        children = await self._launcher.start([*ranks, *engines], sockets=listeners)
        await self._take(children)

    async def start_engines(self, indexes: Sequence[int]) -> None:
        """Start engines again, each on its port, and wait until they serve."""
        await self._acquire_servers(indexes)
        specs, listeners = self._engine_specs(indexes)
        await self._take(await self._launcher.start(specs, sockets=listeners))

    async def start_ranks(self, *, push: int) -> None:
        """Fork a fresh trainer; ``push`` is the one that its connect belongs to."""
        await self._take(await self._launcher.start(self._rank_specs(push=push)))

    async def _acquire_servers(self, indexes: Iterable[int]) -> None:
        """Have a server ready behind each engine, one after the other: each start takes all cores.

        Raises:
            EngineServerError: one did not come up.
        """
        if self._servers is not None:
            for index in indexes:
                self._behind[index] = await self._servers.acquire(
                    index=index,
                    workers=self.scenario.engines.workers,
                    gpus=self._placement.of_engine(index),
                    doing=self._doing,
                )

    async def _take(self, children: Mapping[str, Child]) -> None:
        """Keep new processes, and wait until each engine among them serves."""
        engines = []
        for name, child in children.items():
            role, _, index = name.partition(":")
            if role == "engine":
                self.engines[int(index)] = child
                engines.append(child)
            else:
                self.ranks[int(index)] = child
                self._starting.append(child)
            self._children.append(child)
            self._processes.append(child.identity)
        await asyncio.gather(*(self._await_message(child) for child in engines))

    async def ranks_ready(self) -> None:
        """Wait until every rank that was started has joined its world and built its target.

        Raises:
            StageError: one ended instead.
        """
        starting, self._starting = self._starting, []
        await asyncio.gather(*(self._await_message(child) for child in starting))

    def _engine_specs(
        self, indexes: Sequence[int]
    ) -> tuple[list[ProcessSpec], dict[str, list[socket.socket]]]:
        """Return engines' specs and listeners; addresses are settled before the processes are."""
        known = {address.index: address for address in self.addresses}
        ports = {index: address.port for index, address in known.items()}
        listeners = {index: self._launcher.listener(ports.get(index, 0)) for index in indexes}
        for index, listener in listeners.items():
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            known[index] = EngineAddress(
                index=index, url=url, workers=self.scenario.engines.workers
            )
        self.addresses = tuple(known[index] for index in sorted(known))
        specs = [self._engine_spec(index) for index in indexes]
        return specs, {f"engine:{index}": [sock] for index, sock in listeners.items()}

    def _engine_spec(self, index: int) -> ProcessSpec:
        scenario = self.scenario
        config = {
            "index": index,
            "workers": scenario.engines.workers,
            "gpu_offset": index * scenario.engines.workers,
            "gpus": list(self._placement.of_engine(index)),
            "seed": scenario.seed,
            "draft": scenario.draft,
            "backend": scenario.transport,
            "profile": scenario.engines.profile,
            "model": scenario.model,
            "rendezvous_s": scenario.timeouts.rendezvous_s,
            "journal": str(self.journal_path),
            "faults": scenario.faults_for("engine", index),
            "token_interval_s": TOKEN_INTERVAL_S,
            "server": self._behind.get(index),
        }
        return self._spec(f"engine:{index}", self._kind.entry, config)

    async def kill_engines(self, indexes: Iterable[int]) -> None:
        """End engines as a crash does, each with the server behind it."""
        killed = list(indexes)
        await self._launcher.end([self.engines.pop(i) for i in killed])
        if self._servers is not None:
            for index in killed:
                await self._servers.discard(self._behind.pop(index))

    async def tell_engines(self, message: dict[str, Any]) -> None:
        """Send every living engine a command and wait until it has taken it.

        One that dies, or is frozen, does not take it; its state says so.
        """

        async def tell(child: Child) -> None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await child.send(message)
                async with asyncio.timeout(TELL_LIMIT_S):
                    while (reply := await child.receive()) is not None:
                        if reply.get("cmd") == message["cmd"]:  # not a late one to another
                            return

        living = [child for child in self.engines.values() if child.exit_status is None]
        await asyncio.gather(*(tell(child) for child in living))

    async def see_engines(self) -> tuple[EngineSeen, ...]:
        """Read every engine's state, past its front end and its queue."""
        seen = await asyncio.gather(*(self._see(address) for address in self.addresses))
        return tuple(seen)

    async def _see(self, address: EngineAddress) -> EngineSeen:
        process = self.engines[address.index].pid
        before_s, begun_s = kernel.cpu_s(process), time.monotonic()
        state = await self._state(address)
        if state is None and _is_starved(process, before_s, time.monotonic() - begun_s):
            state = await self._state(address)
        if state is not None and _busy(state):
            await asyncio.sleep(BUSY_LIMIT_S)
            state = await self._state(address)
        if state is None and process_state(process) == STOPPED:
            return EngineSeen(index=address.index, process=process, alive=True, stuck=True)
        if state is None or state["dead"]:
            return EngineSeen(index=address.index, process=process, alive=False)
        return EngineSeen(
            index=address.index,
            process=process,
            alive=True,
            label=state["version"],
            paused=state["paused"],
            stuck=_busy(state),
            sessions=tuple(worker["active"] for worker in state["workers"]),
            fingerprint=self._fingerprint(state["checksums"]),
            draft_fingerprint=self._fingerprint(state["draft_checksums"]),
        )

    async def sample(self, seen: Sequence[EngineSeen]) -> tuple[EngineSeen, ...]:
        """Have every engine that generates serve one token, and note which do.

        The load may be between two requests; what an engine serves after a push must not be left
        to that.
        """
        return tuple(await asyncio.gather(*(self._sample(engine) for engine in seen)))

    async def _sample(self, seen: EngineSeen) -> EngineSeen:
        if seen.paused is not False or seen.stuck:
            return seen
        url = f"{self.addresses[seen.index].url}/v1/completions"
        try:
            async with self.http.post(url, json=SAMPLE) as answer:
                return replace(seen, serves=answer.status == 200)
        except (aiohttp.ClientError, OSError):
            return replace(seen, serves=False)

    async def post(self, address: EngineAddress, route: str) -> None:
        """Send an engine one request without a body; its answer does not matter."""
        async with self.http.post(f"{address.url}{route}") as answer:
            await answer.read()

    def _fingerprint(self, checksums: dict[str, str] | str | None) -> str | None:
        """Name the weights that an engine shows; one that cannot show them says ``unknown``."""
        if isinstance(checksums, str):
            return UNKNOWN_WEIGHTS
        return None if checksums is None else self._parts.oracle.fingerprint(checksums)

    async def _state(self, address: EngineAddress) -> dict[str, Any] | None:
        try:
            async with self.http.get(f"{address.url}/harness/state") as answer:
                state: dict[str, Any] = await answer.json()
        except (aiohttp.ClientError, OSError):  # a time-out is an OSError
            return None
        return state

    # ---- ranks ----

    def _rank_specs(self, *, push: int) -> list[ProcessSpec]:
        store = self.scratch_dir / f"{next(self._worlds)}{WORLD_SUFFIX}"
        return [
            self._spec(f"rank:{rank}", self._parts.rank_entry, self._rank_config(rank, store, push))
            for rank in range(self.scenario.trainer.ranks)
        ]

    def _rank_config(self, rank: int, store: Path, push: int) -> dict[str, Any]:
        scenario, trainer = self.scenario, self.scenario.trainer
        timeouts = Timeouts(**scenario.timeouts.model_dump())
        loop = self._parts.send_loop(scenario.engines.kind, trainer.send_loop)
        environment = self._placement.of_rank(rank)
        return {
            "environment": environment,
            "rank": rank,
            "model": scenario.model,
            "senders": trainer.senders,
            "opener": loop.cuda_opener if environment else loop.opener,
            "layout": {
                "tensor": trainer.tensor_parallel,
                "pipeline": trainer.pipeline_parallel,
                "expert": trainer.expert_parallel,
                "data": trainer.data_parallel,
            },
            "store": str(store),
            "seed": scenario.seed,
            "engines": [asdict(address) for address in self.addresses],
            "transport": scenario.transport,
            "packed": scenario.packed,
            "draft": scenario.draft,
            "timeouts": asdict(timeouts),
            "scratch": str(self.scratch_dir),
            "journal": str(self.journal_path),
            "faults": scenario.faults_for("rank", rank),
            "push": push,
            "target": scenario.target or self._parts.target,
            "target_options": dict(scenario.target_options),
        }

    async def kill_ranks(self) -> None:
        """End every rank as a crash of the whole job does."""
        ranks, self.ranks = self.ranks, {}
        await self._launcher.end(ranks.values())
        self._orphaned.update(self._memory())

    def exported(self) -> list[Path]:
        """Return the shared memory that living ranks have handed out and not released."""
        return [path for path in self._memory() if path not in self._orphaned]

    def _memory(self) -> list[Path]:
        own = (".log", WORLD_SUFFIX)  # the rendezvous files of the worlds are the stage's own
        return [path for path in self.scratch_dir.iterdir() if path.suffix not in own]

    # ---- the end ----

    async def end_engines(self) -> None:
        """End the engines, before everything else ends."""
        await self._launcher.end(self.engines.values())

    async def end(self, *, memory_released: bool) -> list[str]:
        """End everything and return a sentence for each thing left behind.

        Args:
            memory_released: every rank had the chance to release its shared memory; a killed one
                cannot, and the scratch directory takes it along.
        """
        await self.http.close()
        await self._launcher.end(self._children)
        if self._servers is not None:
            for server in self._behind.values():
                await self._servers.release(server)
        self.record.close()
        remaining = self._memory()
        for path in self.scratch_dir.iterdir():
            path.unlink()
        self.scratch_dir.rmdir()
        ports = [address.port for address in self.addresses]
        left = leftovers(self.scratch_dir, self._processes, ports)
        if memory_released:
            left += [f"shared memory {path.name} was not released" for path in remaining]
        return left

    def _spec(self, name: str, entry: str, config: dict[str, Any]) -> ProcessSpec:
        log_path = self._out_dir / f"{name.replace(':', '-')}.log"
        return ProcessSpec(name=name, entry=entry, config=config, log_path=log_path)

    async def _await_message(self, child: Child) -> None:
        try:
            if await child.receive(READY_LIMIT_S) is not None:
                return
            found = f"ended with status {await child.wait(READY_LIMIT_S)}"
        except TimeoutError:
            found = f"silent after {READY_LIMIT_S:g} s"
        raise StageError(
            f"{child.name}: expected it to come up, found it {found}. "
            f"The end of {child.log_path}:\n{child.log_tail()}"
        )


def _is_starved(pid: int, before_s: float | None, waited_s: float) -> bool:
    """Whether a process that did not answer wanted a CPU and was not given one."""
    after_s = kernel.cpu_s(pid)
    if before_s is None or after_s is None or not kernel.is_runnable(pid):
        return False
    return after_s - before_s < STARVED_SHARE * waited_s


def _busy(state: dict[str, Any]) -> bool:
    return any(worker["busy"] is not None for worker in state["workers"])

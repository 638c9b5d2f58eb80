"""The values that fields of a scenario take: their types, and what each word means.

The meanings are shown by editors and stand in ``docs/scenario-reference.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
)
from pydantic_core import PydanticCustomError, core_schema

from harness.contracts import Json

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler

RANDOM: Final = (
    "random"  # of an index or a tensor: drawn from the scenario's seed when it is loaded
)


STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class Section(BaseModel):
    """One mapping of a scenario file. Nothing is coerced and nothing unknown is taken."""

    model_config = ConfigDict(frozen=True, extra="forbid", **STRICT)


@dataclass(frozen=True, eq=False)  # pydantic hashes it
class Words:
    """Metadata of a field that takes words: each with its meaning, in the order of the type."""

    meanings: Mapping[str, str]

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Json]:
        """Add what each word means to the field's JSON Schema, where editors look for it."""
        found = handler(schema)
        return {**found, **_words({word: self.meanings[word] for word in found["enum"]})}


def _index(value: Any, *words: str) -> Any:
    if value in words or (type(value) is int and value >= 0):
        return value
    known = ", ".join(("a number from 0", *words[:-1]))
    raise PydanticCustomError("expected", "{known}, or {last}", {"known": known, "last": words[-1]})


def _nth(value: Any) -> Any:
    if value == "always":
        return value
    counts = value if isinstance(value, list | tuple) else [value]
    if counts and all(type(count) is int and count >= 1 for count in counts):
        return tuple(counts)
    raise PydanticCustomError("expected", "a count from 1, a list of counts, or always")


@dataclass(frozen=True, eq=False)
class Schema:
    """Metadata of a field whose JSON Schema does not follow from its type."""

    schema: Mapping[str, Json]

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Json]:
        """Return the schema as it was given."""
        return dict(self.schema)


@dataclass(frozen=True, eq=False)
class Reasons:
    """Metadata of a mapping from words to the reason for each."""

    meanings: Mapping[str, str]

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Json]:
        """List the words as keys, so that editors complete them."""
        reasons = {
            word: {"type": "string", "minLength": 1, "description": f"Why: {meaning}."}
            for word, meaning in self.meanings.items()
        }
        return {"type": "object", "properties": reasons, "additionalProperties": False}


@dataclass(frozen=True, eq=False)
class EachOf:
    """Metadata of a list of words."""

    meanings: Mapping[str, str]

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Json]:
        """Say what each word of the list means."""
        return {"type": "array", "items": {"type": "string", **_words(self.meanings)}}


@dataclass(frozen=True, eq=False)
class EachEngine:
    """Metadata of a field that takes one string for all engines, or a list of them (a tuple)."""

    meanings: Mapping[str, str]  # the words that it takes; empty: any string

    def _check(self, value: Any) -> Any:
        words = self.meanings
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if all(isinstance(each, str) and (not words or each in words) for each in values):
            return values if isinstance(value, list | tuple) else value
        known = f"one of {', '.join(words)}" if words else "a string"
        step = f"Put it in quotes{' and use one of the words' if words else ''}."
        context = {"known": known, "step": step}
        raise PydanticCustomError("expected", "{known}, or a list of them", context)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Check before the types do, whose messages would name each of them."""
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Json]:
        """One string, or a list of them, each word with its meaning."""
        one: dict[str, Json] = {
            "type": "string",
            **(_words(self.meanings) if self.meanings else {}),
        }
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _words(meanings: Mapping[str, str]) -> dict[str, Json]:
    return {"enum": [*meanings], "enumDescriptions": [*meanings.values()]}


def _index_schema(meanings: Mapping[str, str]) -> Schema:
    return Schema({"anyOf": [{"type": "integer", "minimum": 0}, _words(meanings)]})


_EVERY = {"all": "every one of them"}
_DRAWN = {RANDOM: "one of them, drawn from the scenario's seed when the file is loaded"}
_COUNTS = {"type": "integer", "minimum": 1}

Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
IndexOrAll = Annotated[
    int | Literal["all"],
    BeforeValidator(lambda value: _index(value, "all")),
    _index_schema(_EVERY),
]
Nth = Annotated[
    tuple[int, ...] | Literal["always"],
    BeforeValidator(_nth),
    Schema(
        {
            "anyOf": [
                _COUNTS,
                {"type": "array", "items": _COUNTS, "minItems": 1},
                _words({"always": "every visit"}),
            ],
            "default": 1,  # as people write it, not as it is stored
        }
    ),
]
Selected = Annotated[
    int | Literal["all", "random"],
    BeforeValidator(lambda value: _index(value, "all", RANDOM)),
    _index_schema(_EVERY | _DRAWN),
]

Transport = Annotated[
    Literal["ipc", "nccl"],
    Words(
        {
            "ipc": "colocated: tensors travel as handles to memory that the engines share",
            "nccl": "separate GPUs: the sender broadcasts every tensor to the engines' workers",
        }
    ),
]
SendLoops = Annotated[
    Literal["auto", "ours", "vllm"],
    Words(
        {
            "auto": "the one that belongs to the kind of the engines",
            "ours": "`fakes/send_loops`, which make vLLM's calls in vLLM's order",
            "vllm": "vLLM's own trainer classes, which need vLLM to be installed",
        }
    ),
]
Senders = Annotated[
    Literal["one", "slots", "stages"],
    Words(
        {
            "one": "rank 0 sends everything to every engine",
            "slots": "the ranks are divided among the engines, and the first of each engine's slot "
            "sends to it: expert routing, on `ipc`",
            "stages": "the first rank of each pipeline stage sends that stage's layers, in turn "
            "and inside one session, on `nccl`",
        }
    ),
]
EngineKinds = Annotated[
    Literal["fake", "vllm"],
    Words(
        {
            "fake": "our fakes, which have vLLM's routes, bodies and session rules",
            "vllm": "real vLLM servers on CPU, which need vLLM to be installed",
        }
    ),
]
Profile = Annotated[
    Literal["vllm-0.32", "vllm-next"],
    Words(
        {
            "vllm-0.32": "a failed update ends the worker's session, a failed finish does not",
            "vllm-next": "a failed start, update or finish ends the session",
        }
    ),
]
Session = Annotated[
    Literal["target", "draft"],
    Words({"target": "the model itself", "draft": "the draft model of speculative decoding"}),
]
Restarted = Annotated[
    Literal["trainer", "engine"],
    Words({"trainer": "every rank", "engine": "the one that `engine` names"}),
]
Request = Annotated[
    Literal["pause", "start", "start_draft", "finish"],
    Words(
        {
            "pause": "POST /pause: generation is paused",
            "start": "POST /start_weight_update: a session of the target is left open",
            "start_draft": "POST /start_draft_weight_update: one of the draft is left open",
            "finish": "POST /finish_weight_update: the open session is ended",
        }
    ),
]
Outcome = Annotated[
    Literal["resumed", "raised", "degraded", "deadlock", "mixed"],
    Words(
        {
            "resumed": "every rank returned: the push succeeded and generation runs",
            "raised": "every surviving rank raised",
            "degraded": "every rank returned, and an engine is left out of service until it is "
            "restarted",
            "deadlock": "the ranks wait for each other for ever: for negative controls",
            "mixed": "some ranks raised and others did not: for negative controls",
        }
    ),
]
Stall = Annotated[
    Literal["deadlock", "waiting", "crashed", "frozen", "busy", "slow", "stuck"],
    Words(
        {
            "deadlock": "a cycle of waits, or a wait for somebody who has left",
            "waiting": "a time-out of the target will end the wait",
            "crashed": "a process died",
            "frozen": "a process was stopped",
            "busy": "a process runs and answers nothing, as when a thread holds the GIL",
            "slow": "somebody kept the others waiting, and then went on",
            "stuck": "nobody moves, and no graph of waits shows why",
        }
    ),
]

PerEngine = str | tuple[str, ...] | None
Versions = Annotated[PerEngine, EachEngine({})]
Generations = Annotated[
    PerEngine,
    EachEngine(
        {
            "running": "it generates",
            "paused": "it answers, and generates nothing until it is resumed",
            "dead": "it does not answer",
            "stuck": "a call inside it never ends",
        }
    ),
]
Bytes = Annotated[
    PerEngine,
    EachEngine(
        {
            "unchanged": "nothing was written",
            "dirty": "something was written: only a whole push may follow",
            "committed": "the whole push was loaded",
            "stuck": "the engine cannot be asked until it is restarted",
        }
    ),
]

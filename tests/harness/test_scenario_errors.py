"""Broken scenario files, each with every error that it gets: where, what was expected and found."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario import INVARIANTS, FaultSpec, Scenario
from harness.scenario_file import load_file

HEAD = b"proves: It holds.\ntransport: ipc\n"
OK = HEAD + b"expect: {outcome: resumed}\n"
LISTS = {
    "<keys>": [*Scenario.model_fields, "matrix"],
    "<fault keys>": FaultSpec.model_fields,
    "<points>": FAULT_POINTS,
    "<kinds>": FAULTS,
    "<invariants>": INVARIANTS,
}


def _fault(fields: str) -> bytes:
    return OK + f"faults:\n  - {{{fields}}}\n".encode()


# fmt: off
CASES = [
    # id, content of the file, errors (without the path; long lists stand as <points>)
    ("empty", b"",
     ["1:1: expected a mapping with at least proves, transport and expect, found an empty "
      "file. Start with `resync-chaos new`."]),
    ("only-a-comment", b"# nothing yet\n",
     ["1:1: expected a mapping with at least proves, transport and expect, found an empty "
      "file. Start with `resync-chaos new`."]),
    ("a-list", b"- proves: It holds.\n",
     ["1:1: expected a mapping with at least proves, transport and expect, found "
      '[{"proves": "It holds."}]. Start with `resync-chaos new`.']),
    ("a-word", b"hello\n",
     ['1:1: expected a mapping with at least proves, transport and expect, found "hello". '
      "Start with `resync-chaos new`."]),
    ("syntax", b"proves: [It holds.\n",
     ["2:1: expected valid YAML, found: while parsing a flow sequence did not find expected"
      " ',' or ']'. Correct the syntax here or just above."]),
    ("tab", b"proves: It holds.\n\ttransport: ipc\n",
     ["2:1: expected valid YAML, found: while scanning a plain scalar found a tab character"
      " that violates indentation. Correct the syntax here or just above."]),
    ("not-utf8", b"proves: It holds.\ntransport: \xff\n",
     ["2:12: expected UTF-8 text, found byte 0xff. Save the file as UTF-8."]),
    ("control-character", b"proves: \x00\n",
     ["1:1: expected valid YAML, found: unacceptable character #x0000: control characters "
      "are not allowed. Write the file anew as plain text."]),
    ("two-documents", OK + b"---\n" + OK,
     ["4:1: expected valid YAML, found: expected a single document in the stream but found "
      "another document. Correct the syntax here or just above."]),
    ("deep", b"proves: " + b"[" * 25 + b"]" * 25,
     ["1:1: expect: expected the key expect, found none. Add it.",
      "1:1: transport: expected the key transport, found none. Add it.",
      "1:29: proves.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0: expected a flat file, found "
      "more than 20 levels. Remove the brackets."]),
    ("deeper", b"proves: " + b"[" * 5000,
     ["1:1008: expected valid YAML, found: while increasing flow level exceeded maximum "
      "nesting depth. Correct the syntax here or just above."]),
    ("duplicate-key", OK + b"seed: 1\nseed: 2\n",
     ["5:1: seed: expected each key once, found seed again (first in line 4). Remove one of"
      " them."]),
    ("alias", OK + b"seed: &a 1\npushes: *a\n",
     ["5:1: pushes: expected a value written out, found an alias of what stands in line "
      "4. Repeat the value."]),
    ("tag", OK + b"seed: !!python/object:os.system 1\n",
     ["4:1: seed: expected plain values, found the tag "
      "tag:yaml.org,2002:python/object:os.system. Remove the tag."]),
    ("nested-key", OK + b"? [a]\n: 1\n",
     ["1:1: expected plain keys, found a nested one. Write a single word before ':'."]),
    ("nothing-required", b"seed: 1\n",
     ["1:1: expect: expected the key expect, found none. Add it.",
      "1:1: proves: expected the key proves, found none. Add it.",
      "1:1: transport: expected the key transport, found none. Add it."]),
    ("unknown-key", OK + b"enginse: {count: 2}\n",
     ['4:1: enginse: expected a key of <keys>, found "enginse". Did you mean engines?']),
    ("unknown-nested-key", OK + b"trainer: {rank: 2}\n",
     ["4:11: trainer.rank: expected a key of ranks, pipeline_parallel, expert_parallel, senders, "
      'send_loop, tensor_parallel, found "rank". Did you mean ranks?']),
    ("wrong-types",
     b"proves: 3\n"
     b"transport: [ipc]\n"
     b"seed: one\n"
     b"packed: yes\n"
     b"expect: {outcome: resumed}\n",
     ["1:9: proves: expected text, found 3. Put it in quotes.",
      '2:12: transport: expected one of ipc, nccl, found ["ipc"]. Did you mean ipc?',
      '3:7: seed: expected a whole number, found "one". Write it without quotes and units.',
      '4:9: packed: expected true or false, found "yes". Write one of the two, without quotes.']),
    ("not-a-mapping", OK + b"trainer: 4\nfaults: {kind: kill}\nrestarts: [engine]\n",
     ["4:10: trainer: expected a mapping, found 4. Write key: value pairs.",
      '5:9: faults: expected a list of mappings, found {"kind": "kill"}. Write - before '
      "each entry.",
      '6:12: restarts.0: expected a mapping, found "engine". Write key: value pairs.']),
    ("no-value", OK + b"faults:\n",
     ["4:8: faults: expected a list of mappings, found null. Write - before each entry."]),
    ("limits", OK + b"timeouts: {init_s: 0, request_s: .inf, rendezvous_s: 1s}\n",
     ["4:20: timeouts.init_s: expected a number greater than 0, found 0. Raise it.",
      "4:34: timeouts.request_s: expected a finite number, found Infinity. Write a number "
      "of seconds.",
      '4:54: timeouts.rendezvous_s: expected a number, found "1s". Write it without quotes '
      "and units."]),
    ("float-ranks", OK + b"trainer: {ranks: 2.5}\n",
     ["4:18: trainer.ranks: expected a whole number, found 2.5. Write it without quotes and"
      " units."]),
    ("ranks-range", OK + b"trainer: {ranks: 0}\nengines: {count: 65}\n",
     ["4:18: trainer.ranks: expected a number from 1, found 0. Raise it.",
      "5:18: engines.count: expected a number up to 64, found 65. Lower it."]),
    ("layout", OK + b"trainer: {ranks: 4, tensor_parallel: 3}\nengines: {workers: 3}\n",
     ["4:18: trainer.ranks: expected a multiple of tensor_parallel x pipeline_parallel = 3,"
      " found 4. Change one of the three.",
      "4:38: trainer.tensor_parallel: expected a number that divides 16, the model's "
      "narrowest split dimension, found 3. Use 1, 2, 4, 8 or 16.",
      "5:20: engines.workers: expected a number that divides 16, the model's narrowest "
      "split dimension, found 3. Use 1, 2, 4, 8 or 16."]),
    ("experts", OK + b"trainer: {expert_parallel: 2}\n",
     ["4:28: trainer.expert_parallel: expected a divisor of 1, since 4 experts are spread over 1 "
      "data parallel ranks, found 2. Change it, or the number of ranks."]),
    ("unknown-engines", OK + b"engines: {kind: vlm, profile: vllm-0.31}\n",
     ['4:17: engines.kind: expected one of fake, vllm, found "vlm". Did you mean vllm?',
      '4:31: engines.profile: expected one of vllm-0.32, vllm-next, found "vllm-0.31". Did '
      "you mean vllm-0.32?"]),
    ("real-engines", OK + b"engines: {kind: vllm, workers: 4, count: 8, profile: vllm-next}\n"
     b"draft: true\n",
     ["4:32: engines.workers: expected 1 to 2, since kind is vllm, found 4. Change it, or use "
      "kind: fake.",
      "4:42: engines.count: expected 1 to 3, since kind is vllm, found 8. Change it, or use "
      "kind: fake.",
      "4:54: engines.profile: expected vllm-0.32, the rules that it has, since kind is vllm, "
      "found vllm-next. Change it, or use kind: fake.",
      "5:8: draft: expected false, since the real engines serve a model without a draft, found "
      "true. Leave the key out, or use kind: fake."]),
    ("process-of-a-thread", _fault("kind: kill, at: worker.start, engine: 0, process: core"),
     ["5:56: faults.0.process: expected worker at worker.start, where a thread strikes its own "
      "process, found core. Remove it, or place the fault at a point of engine.*."]),
    ("process-of-a-rank", _fault("kind: kill, at: rank.gather, rank: 0, process: worker"),
     ["5:53: faults.0.process: expected no process at rank.gather, where a thread strikes its own "
      "process, found worker. Remove it, or place the fault at a point of engine.*."]),
    ("no-kind", _fault("at: engine.start, engine: 0"),
     ["5:5: faults.0.kind: expected the key kind, found none. Add one of <kinds>."]),
    ("unknown-kind", _fault("kind: rejct, at: engine.start, engine: 0"),
     ['5:12: faults.0.kind: expected one of <kinds>, found "rejct". Did you mean reject?']),
    ("no-point", _fault("kind: reject, engine: 0"),
     ["5:5: faults.0.at: expected the key at, found none. Add it."]),
    ("unknown-point", _fault("kind: reject, at: engine.strat, engine: 0"),
     ['5:24: faults.0.at: expected a fault point of <points>, found "engine.strat". Did you'
      " mean engine.start?"]),
    ("cannot-strike", _fault("kind: stale_version, at: engine.start, engine: 0"),
     ["5:31: faults.0.at: expected a point that stale_version can strike (engine.publish), "
      "found engine.start. Did you mean engine.publish? engine.start can be struck by disconnect, "
      "freeze, gil, hang, kill, lie, lock, loop, reject, reply_lost, request_lost, slow, "
      "swallow."]),
    ("field-of-another-kind", _fault("kind: hang, at: engine.start, engine: 0, status: 500"),
     ['5:47: faults.0.status: expected a key of <fault keys>, found "status". Use one of '
      "those."]),
    ("own-fields", _fault("kind: reject, at: engine.start, engine: 0, status: 200, text: 1"),
     ["5:57: faults.0.status: expected a number from 400, found 200. Raise it.",
      "5:68: faults.0.text: expected text, found 1. Put it in quotes."]),
    ("no-seconds", _fault("kind: slow, at: engine.start, engine: 0"),
     ["5:5: faults.0.seconds: expected the key seconds, found none. Add it."]),
    ("no-address", _fault("kind: kill, at: rank.gather"),
     ["5:5: faults.0.rank: expected the key rank beside rank.gather, found none. Add a "
      "number or all."]),
    ("wrong-address", _fault("kind: kill, at: rank.gather, engine: 0"),
     ["5:5: faults.0.rank: expected the key rank beside rank.gather, found none. Add a "
      "number or all.",
      "5:35: faults.0.engine: expected rank beside rank.gather, found engine. Write rank "
      "instead."]),
    ("engine-range", _fault("kind: kill, at: engine.start, engine: 2"),
     ["5:44: faults.0.engine: expected an engine from 0 to 0 (engines.count is 1), found 2."
      " Lower it, or raise engines.count."]),
    ("rank-range", _fault("kind: kill, at: rank.gather, rank: 2"),
     ["5:41: faults.0.rank: expected a rank from 0 to 1 (trainer.ranks is 2), found 2. "
      "Lower it, or raise trainer.ranks."]),
    ("worker-range", _fault("kind: raise, at: worker.load, engine: all, worker: 1"),
     ["5:57: faults.0.worker: expected a worker from 0 to 0 (engines.workers is 1), found "
      "1. Lower it, or raise engines.workers."]),
    ("address-type", _fault("kind: kill, at: engine.start, engine: any"),
     ['5:44: faults.0.engine: expected a number from 0, all, or random, found "any". Correct the '
      "value."]),
    ("nth", _fault("kind: kill, at: engine.start, engine: 0, nth: [1, 0]"),
     ["5:52: faults.0.nth: expected a count from 1, a list of counts, or always, found [1, "
      "0]. Correct the value."]),
    ("several-in-one-fault",
     _fault("kind: kill, at: engine.start, engine: 7, nth: never, push: 4"),
     ["5:44: faults.0.engine: expected an engine from 0 to 0 (engines.count is 1), found 7."
      " Lower it, or raise engines.count.",
      "5:52: faults.0.nth: expected a count from 1, a list of counts, or always, found "
      '"never". Correct the value.',
      "5:65: faults.0.push: expected a push from 0 (the connect) to 1, found 4. Lower it, "
      "or raise pushes."]),
    ("selectors", _fault("kind: kill, at: engine.init, engine: 0, session: target, tensor: x"),
     ["5:46: faults.0.session: expected session only at engine.start, engine.update, "
      "engine.finish, worker.start, worker.receive, worker.load, worker.finish, found it at"
      " engine.init. Remove it.",
      "5:63: faults.0.tensor: expected tensor only at worker.receive, worker.load, "
      "rank.gather, rank.broadcast, found it at engine.init. Remove it."]),
    ("no-draft", _fault("kind: kill, at: engine.start, engine: 0, session: draft"),
     ["5:56: faults.0.session: expected target, since draft is false, found draft. Set "
      "draft: true."]),
    ("push-range", _fault("kind: kill, at: engine.start, engine: 0, push: 2"),
     ["5:53: faults.0.push: expected a push from 0 (the connect) to 1, found 2. Lower it, "
      "or raise pushes."]),
    ("expectation-count", HEAD + b"pushes: 3\nexpect: [{outcome: resumed}, {outcome: raised}]\n",
     ["4:9: expect: expected one mapping, or a list of 3 (one for each push), found 2 "
      "entries. Add or remove some, or change pushes."]),
    ("no-expectation", HEAD + b"expect: []\n",
     ["3:9: expect: expected a mapping, or a list of them, found []. Write - before each "
      "entry."]),
    ("expectations",
     HEAD + b"expect: {outcome: resume, version: 1, generation: stopped, attempts: -1}\n",
     ["3:19: expect.outcome: expected one of resumed, raised, degraded, deadlock, mixed, "
      'found "resume". Did you mean resumed?',
      "3:36: expect.version: expected a string, or a list of them, found 1. Put it in quotes.",
      "3:51: expect.generation: expected one of running, paused, dead, stuck, or a "
      'list of them, found "stopped". Put it in quotes and use one of the words.',
      "3:70: expect.attempts: expected a number from 0, found -1. Raise it."]),
    ("per-engine", HEAD + b"expect: {outcome: raised, bytes: [dirty, dirty], names_engine: 1}\n",
     ["3:34: expect.bytes: expected one value, or a list of 1 (engines.count), found "
      '["dirty", "dirty"]. List one for each engine.',
      "3:64: expect.names_engine: expected an engine from 0 to 0 (engines.count is 1), "
      "found 1. Lower it, or raise engines.count."]),
    ("error-of-success", HEAD + b"expect: {outcome: resumed, error: no}\n",
     ["3:28: expect.error: expected no error beside outcome: resumed, found one. Remove it:"
      " a push that resumed raises nothing."]),
    ("restarts",
     OK + b"restarts:\n"
     b"  - {what: engine, before_push: 2}\n"
     b"  - {what: trainer, engine: 0, before_push: 1}\n"
     b"  - {what: engine, engine: 1, before_push: 1}\n",
     ["5:5: restarts.0.engine: expected the key engine beside what: engine, found none. Say"
      " which.",
      "5:33: restarts.0.before_push: expected a push from 1 to 1, found 2. Lower it, or "
      "raise pushes.",
      "6:21: restarts.1.engine: expected no engine beside what: trainer, found one. Remove it.",
      "7:28: restarts.2.engine: expected an engine from 0 to 0 (engines.count is 1), found "
      "1. Lower it, or raise engines.count."]),
    ("before-connect",
     OK + b"before_connect:\n"
     b"  - {engine: 1, request: start_draft}\n"
     b"  - {request: resume}\n",
     ["5:14: before_connect.0.engine: expected an engine from 0 to 0 (engines.count is 1), "
      "found 1. Lower it, or raise engines.count.",
      "5:26: before_connect.0.request: expected a request without draft, found start_draft."
      " Set draft: true.",
      "6:15: before_connect.1.request: expected one of pause, start, start_draft, finish, "
      'found "resume". Use one of those.']),
    ("invariants", OK + b"waive: {rank_agree: so, clean_push: so}\nbreaks: [clean_push, torn]\n",
     ['4:9: waive.rank_agree: expected an invariant of <invariants>, found "rank_agree". '
      "Did you mean ranks_agree?",
      "5:10: breaks.0: expected clean_push in waive or in breaks, found it in both. Remove "
      "one.",
      '5:22: breaks.1: expected an invariant of <invariants>, found "torn". Use one of those.']),
    ("waive-without-reason", OK + b"waive: {clean_push: ''}\n",
     ['4:21: waive.clean_push: expected some text, found "". Say something, or remove the key.']),
    ("addresses", OK + b"source: www.example.org\ntarget: my_module\n",
     ['4:9: source: expected the address of a public report, found "www.example.org". Start'
      " it with https://.",
      '5:9: target: expected package.module:factory, found "my_module". Name the factory '
      "after a colon."]),
    ("matrix-empty", OK + b"matrix: {}\n",
     ["4:9: matrix: expected a mapping of dotted places to lists of values, found {}. Write"
      " for example: matrix: {transport: [ipc, nccl]}."]),
    ("matrix-no-list", OK + b"matrix: {transport: ipc}\n",
     ['4:21: matrix.transport: expected a list of values, found "ipc". List every value '
      "that transport takes."]),
    ("matrix-place",
     OK + b"matrix: {faults.0.at: [engine.start], transport.x: [1], 3: [1]}\n"
     b"faults: []\n",
     ["4:10: matrix.faults.0.at: expected an entry of faults, which has 0, found 0. Add it,"
      " or correct the number.",
      "4:39: matrix.transport.x: expected a place inside a mapping or a list, found that "
      'transport is "ipc". End the place there.',
      "4:57: matrix.3: expected a key in the file, found the number 3. Name a key, or make "
      "it a list."]),
    ("matrix-values", OK + b"matrix: {transport: [ipc, tcp], engines.count: [1, two]}\n",
     ['4:27: matrix.transport.1: expected one of ipc, nccl, found "tcp". Use one of those.',
      '4:52: matrix.engines.count.1: expected a whole number, found "two". Write it without'
      " quotes and units."]),
    ("matrix-twice", OK + b"matrix: {transport: [ipc, ipc]}\n",
     ["4:9: matrix: expected cells with different names, found [ipc] twice. Remove the "
      "value that is there again."]),
    ("matrix-exclude",
     OK + b"matrix: {transport: [ipc, nccl], exclude: [{transprot: ipc}, {transport: tcp}, "
     b"{}, ipc]}\n",
     ['4:45: matrix.exclude.0.transprot: expected transport, found "transprot". Write that.',
      '4:74: matrix.exclude.1.transport: expected one of the values "ipc", "nccl", found '
      '"tcp". Exclude only what the matrix has.',
      "4:80: matrix.exclude.2: expected a mapping of the matrix's places to one value each,"
      " found {}. Name at least one place.",
      "4:84: matrix.exclude.3: expected a mapping of the matrix's places to one value each,"
      ' found "ipc". Name at least one place.']),
    ("matrix-all-excluded", OK + b"matrix: {transport: [ipc], exclude: [{transport: ipc}]}\n",
     ["4:37: matrix.exclude: expected at least one cell, found that all are excluded. "
      "Shorten exclude."]),
    ("matrix-exclude-type", OK + b"matrix: {transport: [ipc], exclude: ipc}\n",
     ['4:37: matrix.exclude: expected a list of mappings, found "ipc". Write for example: '
      'exclude: [{transport: "ipc"}].']),
    ("matrix-and-more", OK + b"matrix: {transport: ipc}\nsede: 1\n",
     ['4:21: matrix.transport: expected a list of values, found "ipc". List every value '
      "that transport takes.",
      '5:1: sede: expected a key of <keys>, found "sede". Did you mean seed?']),
]
# fmt: on


@pytest.mark.parametrize(
    ("content", "errors"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_errors(content: bytes, errors: list[str], tmp_path: Path) -> None:
    """A broken file yields all its errors at once, each at its line and column, and no scenario."""
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    for short, names in LISTS.items():
        errors = [error.replace(short, ", ".join(names)) for error in errors]
    loaded = load_file(path)
    assert [str(error) for error in loaded.errors] == [f"{path}:{error}" for error in errors]
    assert loaded.scenarios == ()


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_unreadable(name: str, tmp_path: Path) -> None:
    """What cannot be read is an error of that file, too."""
    path = tmp_path / name
    expected = {
        "missing.yaml": "expected a readable file, found: No such file or directory. "
        "Check the path and its rights.",
        ".": "expected a file, found a directory. Name a file inside it.",
    }
    assert [str(error) for error in load_file(path).errors] == [f"{path}:1:1: {expected[name]}"]

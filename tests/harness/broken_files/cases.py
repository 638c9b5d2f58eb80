"""Broken scenario files, each with what it is called; the messages stand in ``messages.txt``."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Mapping
from pathlib import Path

HEAD = b"proves: It holds.\ntransport: ipc\n"
OK = HEAD + b"expect: {outcome: resumed}\n"


def fault(fields: str) -> bytes:
    """Return a file that is whole but for one fault."""
    return OK + f"faults:\n  - {{{fields}}}\n".encode()


def _expanding() -> bytes:
    """Ten levels of aliases, nine to a level: a gigabyte of text if anybody wrote it out."""
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    return (
        OK + "\n".join(["target_options:", "  a0: &a0 lol", *(f"  {x}" for x in levels)]).encode()
    )


# What stands in broken.yaml.
CONTENTS: Mapping[str, bytes] = {
    # ---- what is no YAML, or not the YAML of a scenario ----
    "empty": b"",
    "only a comment": b"# nothing yet\n",
    "only the separator": b"---\n",
    "a list at the top": b"- proves: It holds.\n",
    "a word": b"hello\n",
    "a number": b"42\n",
    "two documents": OK + b"---\n" + OK,
    "an open bracket": b"proves: [It holds.\n",
    "an open quote": b'proves: "It holds.\n',
    "an open brace": OK + b"trainer: {ranks: 2\n",
    "a colon in the text": b"proves: Negative control: it holds.\n",
    "an unknown directive": b"%HARNESS 1\n---\n" + OK,
    "a tab as indentation": OK + b"trainer:\n\tranks: 2\n",
    "uneven indentation": OK + b"trainer:\n    ranks: 2\n  send_loop: ours\n",
    "a value and a mapping": OK + b"trainer: 2\n  ranks: 2\n",
    "a duplicate key": OK + b"seed: 1\nseed: 2\n",
    "a duplicate key inside": OK + b"trainer: {ranks: 2, ranks: 4}\n",
    "an alias": OK + b"seed: &a 1\npushes: *a\n",
    "an alias of nothing": OK + b"seed: *nothing\n",
    "an alias of itself": OK + b"target_options: &a {a: *a}\n",
    "a merge key": OK + b"trainer: &t {ranks: 2}\nengines: {<<: *t}\n",
    "aliases that expand hugely": _expanding(),
    "a tag that builds an object": OK + b"seed: !!python/object/apply:os.system [ls]\n",
    "a tag of our own": OK + b"seed: !seed 1\n",
    "a nested key": OK + b"? [a, b]\n: 1\n",
    "deep nesting": OK + b"target_options: " + b"{a: " * 30 + b"1" + b"}" * 30 + b"\n",
    "deeper nesting than a parser takes": b"proves: " + b"[" * 20000 + b"\n",
    "a control character": b"proves: It\x07 holds.\n",
    "a null byte": b"proves: \x00\n",
    "a binary file": bytes(range(256)) * 16,
    "an archive": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff",
    "Latin-1": "proves: Es gilt für alle.\n".encode("latin-1"),
    "UTF-16": OK.decode().encode("utf-16"),
    "a BOM, and an error behind it": codecs.BOM_UTF8 + b"prove: It holds.\n" + OK[18:],
    "Windows line ends, and an error": OK.replace(b"\n", b"\r\n") + b"seeed: 1\r\n",
    "a file of 10 MB": b"# " + b"x" * 10_000_000 + b"\n" + OK,
    "a file just too long": OK + b"#" * (128 * 1024),
    # ---- keys ----
    "nothing that is required": b"seed: 1\n",
    "an unknown key": OK + b"fautls: []\n",
    "an unknown key like no other": OK + b"zzz: 1\n",
    "an unknown key inside": OK + b"engines: {conut: 2}\n",
    "an endless key": OK + b"k" * 1000 + b": 1\n",
    "a key that prints badly": OK + b'"\\e[31m\\nred": 1\n',
    "a number as a key": OK + b"1: 2\n",
    # ---- values ----
    "wrong types": OK.replace(b"It holds.", b"3").replace(b"ipc", b"[ipc]")
    + b"seed: one\npacked: yes\n",
    "lists and mappings mixed up": OK
    + b"trainer: [2]\nfaults: {kind: kill}\nwaive: [clean_push]\n",
    "no value": OK + b"trainer:\nfaults:\n",
    "an unknown word": b"proves: It holds.\ntransport: ncll\nexpect: {outcome: resumd}\n",
    "a word like no other": HEAD + b"expect: {outcome: exploded}\n",
    "NaN seconds": OK + b"timeouts: {request_s: .nan}\ndeadline_s: .nan\n",
    "infinite seconds": OK + b"timeouts: {request_s: .inf}\ndeadline_s: -.inf\n",
    "negative seconds": OK + b"timeouts: {request_s: -1}\ndeadline_s: -0.5\n",
    "no seconds at all": OK + b"timeouts: {init_s: 0}\n",
    "seconds with their unit": OK + b"timeouts: {init_s: 10s, request_s: '2'}\n",
    "half a rank": OK + b"trainer: {ranks: 2.5}\n",
    "no rank": OK + b"trainer: {ranks: 0}\n",
    "a million ranks": OK + b"trainer: {ranks: 1000000}\n",
    "a number longer than numbers are": OK + b"seed: " + b"9" * 40 + b"\n",
    "ranks that do not divide": OK + b"trainer: {ranks: 6, tensor_parallel: 4}\n",
    "a version without quotes": HEAD + b"expect: {outcome: resumed, version: 1}\n",
    "an empty sentence": b"proves: ''\ntransport: ipc\nexpect: {outcome: resumed}\n",
    "a source that is no address": OK + b"source: see the wiki\n",
    "a target without a factory": OK + b"target: my.module\n",
    # ---- faults ----
    "a fault without anything": fault(""),
    "an unknown kind": fault("kind: rejct, at: engine.start, engine: 0"),
    "a kind that is a list": fault("kind: [kill], at: engine.start, engine: 0"),
    "an unknown point": fault("kind: reject, at: engine.finsh, engine: 0"),
    "a point that is a mapping": fault("kind: reject, at: {engine: start}, engine: 0"),
    "a pair that is impossible": fault("kind: stale_version, at: engine.start, engine: 0"),
    "a raise at a request": fault("kind: raise, at: engine.update, engine: 0"),
    "a reject in a thread": fault("kind: reject, at: rank.gather, rank: 0"),
    "a point of the other transport": fault("kind: kill, at: rank.broadcast, rank: 0"),
    "a barrier on NCCL": fault("kind: kill, at: rank.barrier, rank: 0").replace(b"ipc", b"nccl"),
    "a peer at the sender's point": fault("kind: kill, at: rank.update_call, rank: 1"),
    "a rank out of range": fault("kind: kill, at: rank.gather, rank: 7"),
    "an engine out of range": fault("kind: reject, at: engine.start, engine: 3"),
    "a negative engine": fault("kind: reject, at: engine.start, engine: -1"),
    "a worker out of range": fault("kind: raise, at: worker.load, engine: 0, worker: 1"),
    "a push out of range": fault("kind: reject, at: engine.start, engine: 0, push: 2"),
    "no visit": fault("kind: reject, at: engine.start, engine: 0, nth: []"),
    "the wrong address": fault("kind: kill, at: rank.gather, engine: 0"),
    "an option of another kind": fault("kind: hang, at: engine.start, engine: 0, status: 500"),
    "a kind without what it needs": fault("kind: slow, at: engine.start, engine: 0"),
    "a delay without end": fault("kind: slow, at: engine.start, engine: 0, seconds: .inf"),
    "a negative jitter": fault("kind: slow, at: engine.start, engine: 0, seconds: 1, jitter: -1"),
    "a random tensor of a chunk": OK.replace(b"ipc", b"nccl")
    + b"faults:\n  - {kind: kill, at: rank.broadcast, rank: 0, tensor: random}\n",
    # ---- the matrix ----
    "an empty matrix": OK + b"matrix: {}\n",
    "a matrix that is a list": OK + b"matrix: [ipc, nccl]\n",
    "an axis without values": OK + b"matrix: {transport: []}\n",
    "an axis that is no list": OK + b"matrix: {transport: nccl}\n",
    "an unknown place": OK + b"matrix: {trainer.rank: [2, 4]}\n",
    "an unknown place at the top": OK + b"matrix: {trianer.ranks: [2, 4]}\n",
    "a place in a fault that is not there": OK + b"matrix: {faults.0.at: [engine.start]}\n",
    "a place inside a word": OK + b"matrix: {transport.x: [1]}\n",
    "a number where a key goes": OK + b"matrix: {trainer.0: [1]}\n",
    "the same value twice": OK + b"matrix: {transport: [ipc, ipc]}\n",
    "too many cells": OK + b"matrix: {seed: [%s]}\n" % b", ".join(b"%d" % n for n in range(1001)),
    "a wrong value among others": OK + b"matrix: {engines.count: [1, two, 65]}\n",
    "everything excluded": OK + b"matrix: {seed: [1], exclude: [{seed: 1}]}\n",
    "an exclusion of what is not there": OK
    + b"matrix: {seed: [1, 2], exclude: [{sede: 1}, {seed: 3}]}\n",
    "more errors than anybody reads": OK + b"".join(b"key%d: 1\n" % n for n in range(150)),
    # ---- what must agree ----
    "too few expectations": HEAD + b"pushes: 3\nexpect: [{outcome: resumed}, {outcome: raised}]\n",
    "no expectation": HEAD + b"expect: []\n",
    "an unknown invariant": OK + b"waive: {clean_pus: so}\nbreaks: [nothing]\n",
    "a waiver without a reason": OK + b"waive: {clean_push: ''}\n",
    "a restart of nobody": OK + b"restarts:\n  - {what: engine, before_push: 1}\n",
}  # fmt: skip


def _folder(path: Path) -> None:
    path.mkdir()


def _unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")  # opens for anybody, and gives nobody its first byte


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _defaults_with_a_list(path: Path) -> None:
    path.with_name("defaults.yaml").write_text("[]\n")
    path.write_bytes(OK)


def _defaults_that_expect(path: Path) -> None:
    path.with_name("defaults.yaml").write_text("trainer: {ranks: 0}\nexpect: {outcome: resumed}\n")
    path.write_bytes(OK)


def _defaults_against_the_file(path: Path) -> None:
    path.with_name("defaults.yaml").write_text("trainer:\n  ranks: 4\n")
    path.write_bytes(OK + b"trainer: {tensor_parallel: 8}\n")


def _defaults_that_do_not_parse(path: Path) -> None:
    path.with_name("defaults.yaml").write_text("transport: [ipc\n")
    path.write_bytes(b"proves: It holds.\nexpect: {outcome: resumed}\nsede: 1\n")


# What makes broken.yaml something else than a file with some content.
MAKERS: Mapping[str, Callable[[Path], None]] = {
    "a folder without scenarios": _folder,
    "a file that cannot be read": _unreadable,
    "a pipe": _pipe,
    "defaults that are a list": _defaults_with_a_list,
    "defaults that say too much": _defaults_that_expect,
    "defaults that do not parse": _defaults_that_do_not_parse,
    "defaults that do not fit the file": _defaults_against_the_file,
}
# Other paths than broken.yaml.
PATHS: Mapping[str, str] = {
    "nothing there": "nowhere.yaml",
    "a name that is too long": "x" * 300,
    "the defaults themselves": "defaults.yaml",
}
NAMES = (*CONTENTS, *MAKERS, *PATHS)


def lay_out(name: str, folder: Path) -> str:
    """Make the broken file of this name in an empty folder, and return its path there."""
    if name in PATHS:
        (folder / "defaults.yaml").write_text("seed: 2\n")
        return PATHS[name]
    path = folder / "broken.yaml"
    if name in MAKERS:
        MAKERS[name](path)
    else:
        path.write_bytes(CONTENTS[name])
    return path.name

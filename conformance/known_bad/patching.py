"""Puts one wrong thing in the place of a right one of the good module, in the target's process.

A trainer rank is a process of its own, so nothing that is put in place outlives the scenario. It is
put in place when the target is built, not when its module is imported: the process that all ranks
are forked from imports it too.
"""

from __future__ import annotations


def put(owner: object, name: str, wrong: object) -> None:
    """Replace an attribute of a module, class or mapping of the good module.

    Args:
        owner: what has the attribute.
        name: of it.
        wrong: takes its place.

    Raises:
        AttributeError: there is none of that name, so replacing it would change nothing.
    """
    if not hasattr(owner, name):
        raise AttributeError(
            f"{getattr(owner, '__name__', owner)!s}: expected an attribute {name!r} to replace, "
            "found none: the good module has changed. Put the wrong thing where its like is now."
        )
    setattr(owner, name, wrong)

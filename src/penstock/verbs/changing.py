"""Delete or cancel documents together with those inside them."""

from functools import partial

from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import children, runs
from penstock.model.nouns import DocumentId
from penstock.verbs.scope import Scope

CHANGED_AT_ONCE = 1_000
"""The maximum number of documents that one transaction deletes or cancels."""
CHANGED_ON_A_FULL_DISK = 20
"""The same with the space of the reserve."""


async def change(scope: Scope, verb: Verb[runs.Selected, set[DocumentId]], chosen: runs.Selected) -> set[DocumentId]:
    """Change documents and those inside them, in several transactions. A single one could last longer than a lease, and
    would block all other writers. The innermost come first: what a worker adds meanwhile is changed with its parent."""
    done: set[DocumentId] = set()
    at_once = [CHANGED_AT_ONCE, CHANGED_ON_A_FULL_DISK]
    levels = [list(chosen.documents)]
    while inner := await _children(scope, levels[-1]):
        levels.append(inner)
    named = frozenset(chosen.documents)
    inside = [document for level in reversed(levels[1:]) for document in level if document not in named]

    async def change_rest() -> set[DocumentId]:
        size = at_once.pop(0)
        parts = [
            tuple(rest[i : i + size])
            for some in (inside, chosen.documents)
            for rest in [[document for document in some if document not in done]]
            for i in range(0, len(rest), size)
        ]
        for part in parts:
            # Only what the call names is forgotten: a new version of a parent may bring its children back.
            forget = chosen.forget and named.issuperset(part)
            changed = await scope.ledger.write(verb, runs.Selected(chosen.owner, part, forget))
            done.update(changed)
        return done

    return await scope.ledger.despite_full_disk(change_rest)


async def _children(scope: Scope, parents: list[DocumentId]) -> list[DocumentId]:
    found: list[DocumentId] = []
    for i in range(0, len(parents), CHANGED_AT_ONCE):
        found += await scope.ledger.read(partial(children.of, scope.owner), parents[i : i + CHANGED_AT_ONCE])
    return found

"""Why documents of an ingest did not become searchable."""

from collections import Counter
from collections.abc import Mapping

from penstock.client.connection import Connection, segment
from penstock.client.errors import NotThere
from penstock.model.states import DocumentStatus
from penstock.verbs.dead_letters import DeadLetters
from penstock.verbs.summary import REMARKS, TEXTLESS_REASONS, FailureNote, Summary
from penstock.verbs.views import DocumentDetails

LETTERS = 500


async def explain(connection: Connection, statuses: Mapping[str, str], summary: Summary) -> None:
    """Add the number of documents for each reason, and some examples. Of more than 500 failures, the reasons of the
    newest are told."""
    reasons: Counter[str] = Counter()
    if summary.failed:
        query = {"limit": LETTERS}
        found: DeadLetters = await connection.json("GET", "dead-letters", DeadLetters, query=query)
        for letter in found.letters:
            if letter.document_id is not None and statuses.get(letter.document_id) == DocumentStatus.FAILED:
                reasons[letter.reason] += 1
                if reasons[letter.reason] <= REMARKS:
                    summary.remarks.append(
                        FailureNote(
                            letter.document_id, letter.name or "", DocumentStatus.FAILED, letter.reason, letter.error
                        )
                    )
    for end, (reason, why) in TEXTLESS_REASONS.items():
        ended = [document for document, status in statuses.items() if status == end]
        reasons[reason] += len(ended)
        for document in ended[:REMARKS]:
            try:
                details: DocumentDetails = await connection.json(
                    "GET", f"documents/{segment(document)}", DocumentDetails
                )
            except NotThere:
                continue
            notes = [str(step.meta[key]) for step in details.steps for key in ("note", "error") if key in step.meta]
            summary.remarks.append(
                FailureNote(document, details.name, end, reason, notes[0] if notes else why(details))
            )
    summary.reasons = dict((+reasons).most_common())

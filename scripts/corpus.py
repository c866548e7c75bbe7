"""Write tests/acceptance/corpus.tsv: how each file of ../shared/corpus ends with the present code. Look at what changed
before you commit it: `git diff tests/acceptance/corpus.tsv`."""

import asyncio
import tempfile

from tests.kit import corpus

from penstock import open_app


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        async with open_app(home=home) as app:
            await app.ingest([str(path) for path in corpus.files()])
            found = await corpus.ends(app)
    lines = ["file\tstatus\treason\tpages\tcharacters at least"]
    for end in found:
        # Less than today: a new version of a library may read a little less.
        least = end.characters * 95 // 100
        lines.append("\t".join((end.name, end.status, end.reason, str(end.pages), str(least))))
    corpus.LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())

"""`penstock` with the pages that it hands to parser processes written down: LOG ARGUMENTS…"""

import os
import sys
from pathlib import Path
from typing import Any

from penstock.cli.main import main
from penstock.extractors.base import Raw
from penstock.worker.parsers.pool import ParserPool


class LoggedPool(ParserPool):
    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        os.write(LOG, b"%d %d\n" % (arguments["first"], arguments["count"]))
        return await super().call(reader, arguments, source=source, document=document)


if __name__ == "__main__":
    import penstock.worker.parsers.pool

    LOG = os.open(sys.argv.pop(1), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    vars(penstock.worker.parsers.pool)["ParserPool"] = LoggedPool
    main()

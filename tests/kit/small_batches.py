"""The command line with small calls to embedding providers: EMBEDDING_BATCH texts at most."""

import os

from penstock.cli.main import main
from penstock.embedders import providers
from penstock.stages import embed

if __name__ == "__main__":
    embed.BATCH = providers.OpenAI.max_texts = int(os.environ["EMBEDDING_BATCH"])
    main()

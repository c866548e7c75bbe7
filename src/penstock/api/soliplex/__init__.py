"""The calls of Soliplex's clients. Their nouns are singular, so that both sets of paths fit below one prefix."""

from penstock.api.soliplex import batches, documents, rest, workflows

ROUTERS = (batches.router, documents.router, documents.status_router, workflows.router, rest.router)

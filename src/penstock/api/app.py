"""The API as an ASGI app."""

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from penstock import __version__
from penstock.api.callers import Authority
from penstock.api.edge import Edge
from penstock.api.idempotency import Idempotency
from penstock.api.problems import add_handlers
from penstock.api.routes import documents, health, keys, uploads
from penstock.api.service import Service
from penstock.app import App

PREFIX = "/api/v1"

ROUTERS = (uploads.router, documents.router, keys.router)
"""The routers under PREFIX, one for each noun."""


def make_api(app: App, *, authority: Authority | None = None) -> FastAPI:
    """Return the API of an open app. `authority` decides who calls; by default, while there is no key, everybody on
    this machine is the configured owner."""
    service = Service(app, authority)
    api = FastAPI(title="Penstock", version=__version__, redirect_slashes=False)
    api.state.service = service
    add_handlers(api)
    if service.settings.origins:
        api.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    api.add_middleware(Idempotency, service=service, prefixes=(PREFIX,))
    # Added last, so that it is the outermost.
    api.add_middleware(Edge, runtime=app.runtime)
    for router in ROUTERS:
        api.include_router(router, prefix=PREFIX)
    api.include_router(health.router)
    return api

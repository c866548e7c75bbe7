"""The API as an ASGI app."""

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from penstock import __version__
from penstock.api import mcp
from penstock.api.answers import problems
from penstock.api.callers import Authority
from penstock.api.edge import Edge
from penstock.api.hosts import Hosts
from penstock.api.idempotency import Idempotency
from penstock.api.methods import Heads
from penstock.api.openai import PREFIX as OPENAI_PREFIX
from penstock.api.openai import ROUTERS as OPENAI
from penstock.api.openapi import describe
from penstock.api.problems import add_handlers
from penstock.api.routes import (
    actions,
    catalog,
    dead_letters,
    documents,
    events,
    groups,
    health,
    intake,
    keys,
    offers,
    ops,
    quotas,
    resumable,
    search,
    uploads,
    webhooks,
)
from penstock.api.service import Service
from penstock.api.soliplex import ROUTERS as SOLIPLEX
from penstock.app import App
from penstock.metrics.registry import Registry

PREFIX = "/api/v1"

ROUTERS = (
    uploads.router, offers.router, documents.router, search.router, groups.router, dead_letters.router,
    catalog.router, keys.router, ops.router, resumable.router, events.router, actions.router, webhooks.router,
    intake.router, quotas.router, *SOLIPLEX,
)  # fmt: skip
"""The routers under PREFIX, one for each noun."""


STATUSES = (400, 401, 403, 404, 408, 409, 410, 413, 415, 416, 422, 429, 500, 503, 507)


def make_api(app: App, *, authority: Authority | None = None, registry: Registry | None = None) -> FastAPI:
    """Return the API of an open app. `authority` decides who calls; by default, while there is no key, everybody on
    this machine is the configured owner."""
    service = Service(app, authority, registry)
    api = FastAPI(title="Penstock", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None)
    api.state.service = service
    add_handlers(api)
    describe(api)
    api.add_middleware(Heads, routes=api.routes)
    if service.settings.origins:
        api.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    api.add_middleware(Idempotency, service=service, prefixes=(PREFIX, OPENAI_PREFIX))
    if service.settings.hosts:
        api.add_middleware(Hosts, hosts=service.settings.hosts)
    # Added last, so that it is the outermost.
    api.add_middleware(Edge, runtime=app.runtime)
    for router in ROUTERS:
        api.include_router(router, prefix=PREFIX, responses=problems(*STATUSES))
    for router in OPENAI:
        api.include_router(router, prefix=OPENAI_PREFIX, responses=problems(*STATUSES))
    api.include_router(health.router)
    api.router.routes.append(mcp.route())
    return api

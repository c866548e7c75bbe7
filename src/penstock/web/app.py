"""The dashboard and the API as one ASGI app."""

from fastapi import FastAPI

from penstock.api.app import make_api
from penstock.app import App
from penstock.metrics.registry import Registry
from penstock.web.originals import Originals
from penstock.web.routes import (
    actions,
    document,
    documents,
    engine,
    groups,
    keys,
    letters,
    overview,
    search,
    session,
    static,
    upload,
)

ROUTERS = (
    static.router,
    session.router,
    overview.router,
    documents.router,
    document.router,
    search.router,
    upload.router,
    letters.router,
    groups.router,
    engine.router,
    actions.router,
    keys.router,
)


def make_site(app: App, *, registry: Registry | None = None) -> FastAPI:
    """Return the API of an open app, with the dashboard."""
    api = make_api(app, registry=registry)
    api.state.originals = Originals()
    for router in ROUTERS:
        api.include_router(router)
    return api

"""The dashboard and the API as one ASGI app."""

from fastapi import FastAPI

from penstock.api.app import make_api
from penstock.app import App
from penstock.metrics.registry import Registry
from penstock.web import oidc
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
    webhooks,
)
from penstock.web.routes import oidc as oidc_routes

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
    oidc_routes.router,
    webhooks.router,
)


def make_site(app: App, *, registry: Registry | None = None) -> FastAPI:
    """Return the API of an open app, with the dashboard."""
    api = make_api(app, registry=registry)
    api.state.originals = Originals()
    oidc.check(app.config.serve.oidc)
    api.state.oidc = signing_in = oidc.Oidc(app, api.state.service.keys.authenticator)
    api.state.service.closing.append(signing_in.close)
    for router in ROUTERS:
        api.include_router(router)
    return api

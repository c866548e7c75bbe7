"""What all requests share."""

import asyncio

from penstock.api.callers import Authority, WithoutKeys
from penstock.app import App
from penstock.config_serve import ServeConfig


class Service:
    def __init__(self, app: App, authority: Authority | None = None) -> None:
        self.app = app
        self.runtime = app.runtime
        self.settings: ServeConfig = app.config.serve
        self.authority: Authority = authority or WithoutKeys(app)
        self.stopping = asyncio.Event()
        """Set when the server is told to stop: streams and long polls end by themselves then."""

"""What all requests share."""

import asyncio

from penstock.api.callers import Authority
from penstock.api.keys import Keys
from penstock.api.limits import RequestLimits, UploadLimits
from penstock.app import App
from penstock.config_serve import ServeConfig
from penstock.verbs.accepting import Gatherer


class Service:
    def __init__(self, app: App, authority: Authority | None = None) -> None:
        self.app = app
        self.runtime = app.runtime
        self.settings: ServeConfig = app.config.serve
        self.keys = Keys(app)
        self.authority: Authority = authority or self.keys
        self.requests = RequestLimits(app, self.settings)
        self.uploads = UploadLimits(app, self.settings)
        self.gatherer = Gatherer()
        self.stopping = asyncio.Event()
        """Set when the server is told to stop: streams and long polls end by themselves then."""

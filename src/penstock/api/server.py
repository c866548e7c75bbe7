"""The server: the API, and by default a worker, in one process."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from penstock.api.app import make_api
from penstock.api.connection import connection_class
from penstock.api.service import Service
from penstock.app import App
from penstock.config_serve import ServeConfig
from penstock.errors import ConfigError
from penstock.metrics.registry import Registry
from penstock.verbs.jobs import Summary

GRACE_S = 0.8
"""How long requests may go on after the server was told to stop."""
BACKLOG = 2_048


class _Server(uvicorn.Server):
    """Leaves the signals to the command line."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Open the socket. Raise ConfigError with a sentence if that is not possible."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(BACKLOG)
        except OSError:
            opened.close()
            raise
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot listen on {host} port {port}: {why}") from error
    return opened


async def serve(
    app: App,
    *,
    worker: bool = True,
    host: str | None = None,
    port: int | None = None,
    pools: str | None = None,
    registry: Registry | None = None,
    started: Callable[[str], None] = lambda url: None,
    report: Callable[[str], None] = lambda text: None,
    make: Callable[..., FastAPI] = make_api,
) -> Summary:
    """Serve until `app.stop` is called. Return what the worker did. `started` is called with the URL. `make` makes what
    is served."""
    api = make(app, registry=registry)
    service: Service = api.state.service
    settings = service.settings
    chosen = settings.host if host is None else host
    await service.authority.check_bind(chosen)
    opened = listen(chosen, settings.port if port is None else port)
    try:
        server = _Server(_config(api, settings))
        scheme = "https" if settings.tls_certificate is not None else "http"
        started(f"{scheme}://{_shown(chosen)}:{opened.getsockname()[1]}")
        return await _until_stopped(app, service, server, opened, worker, pools, report)
    finally:
        opened.close()
        for close in service.closing:
            await close()
        await service.keys.authenticator.close()


async def _until_stopped(
    app: App,
    service: Service,
    server: uvicorn.Server,
    opened: socket.socket,
    worker: bool,
    pools: str | None,
    report: Callable[[str], None],
) -> Summary:
    """Run server and worker. The end of one, for whatever reason, is the end of the other."""
    serving = asyncio.create_task(server.serve([opened]))
    stopping = asyncio.create_task(app.resources.stopped.wait())
    working = asyncio.create_task(app.work(pools=pools, report=report)) if worker else None
    tasks = {task for task in (serving, stopping, working) if task is not None}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        service.stopping.set()
        server.should_exit = True
        app.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.gatherer.close()
    for task in (serving, working):
        if task is not None and (error := task.exception()) is not None:
            raise error
    return working.result() if working is not None else Summary(interrupted=app.resources.stopping)


def _config(api: FastAPI, settings: ServeConfig) -> uvicorn.Config:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ConfigError("serve: set both tls_certificate and tls_key, or neither")
    config = uvicorn.Config(
        api,
        http=connection_class(settings.idle_s),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,  # type: ignore[arg-type]
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"serve: the certificate cannot be read: {error}") from error
    return config


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host

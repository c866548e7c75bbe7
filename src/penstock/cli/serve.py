"""`serve`: the API, and a worker, until stopped."""

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, note
from penstock.cli.work import summary_line


@click.command()
@click.option("--host", metavar="ADDRESS", help="The address to listen on  [default: 127.0.0.1]")
@click.option("--port", metavar="P", type=click.IntRange(0, 65535), help="The port; 0: any free port  [default: 8440]")
@click.option("--no-worker", is_flag=True, help="Only serve; other processes do the work (penstock worker).")
@click.option("--pools", metavar="SIZES", help="Slots of the worker, as for penstock worker.")
@body
async def serve(call: Call, host: str | None, port: int | None, no_worker: bool, pools: str | None) -> Answer:
    """Serve the API and the dashboard over HTTP, with a worker in the same process.

    Ctrl-C or SIGTERM ends open requests and releases the running steps within three seconds. Uploads that were
    answered are safe.
    """
    import msgspec

    from penstock.errors import ConfigError

    try:
        from penstock.api.server import serve
        from penstock.web.app import make_site
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the service is not installed ({error.name} is missing): pip install 'penstock-rag[serve]'"
        ) from error
    call.signals.is_service = True
    if pools is not None:
        from penstock.verbs.working import pool_sizes

        pool_sizes(pools)

    def started(url: str) -> None:
        note(f"Serving {url}")

    from penstock.cli.metrics import registry_for

    registry = registry_for(pools)
    async with call.working_app(registry, for_ever=True) as app:
        summary = await serve(
            app,
            worker=not no_worker,
            host=host,
            port=port,
            pools=pools,
            registry=registry,
            started=started,
            report=note,
            make=make_site,
        )
    stopped = call.signals.received is not None
    summary.interrupted = stopped
    return Answer(msgspec.to_builtins(summary), summary_line(summary), call.signals.code_of_stop if stopped else 0)

"""`config` and `db`: the effective settings, and migration of the ledger."""

from typing import Any
from urllib.parse import urlsplit

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer
from penstock.redaction import masked


@click.group(cls=InOrder, no_args_is_help=False)
def config() -> None:
    """Settings: show, check."""


@click.group(cls=InOrder, no_args_is_help=False)
def db() -> None:
    """The ledger's database: migrate."""


@config.command()
@body
async def show(call: Call) -> Answer:
    """Show the effective settings.

    They come from penstock.yaml, PENSTOCK_* variables and options. Passwords and secrets are masked.
    """
    import msgspec
    import yaml

    chosen = call.settings()
    effective = msgspec.to_builtins(chosen) | {
        "home": str(chosen.home_path),
        "database": chosen.database_url,
        "blobs": f"file://{path}" if (path := chosen.blobs_path) else chosen.blobs_url,
        "index": f"lancedb://{path}" if (path := chosen.index_path) else chosen.index_url,
    }
    shown = _masked(effective)
    for webhook in shown["webhooks"].values():
        # The path of a webhook URL often contains a secret.
        parts = urlsplit(webhook["url"])
        webhook.update(secret="…", url=f"{parts.scheme}://{parts.hostname}/…")
    if shown["serve"]["oidc"]["client_secret"]:
        shown["serve"]["oidc"]["client_secret"] = "…"
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=False).rstrip()
    return Answer(shown, text)


@config.command()
@body
async def check(call: Call) -> Answer:
    """Verify the settings without changing anything."""
    from penstock import wiring
    from penstock.app import App
    from penstock.runtime import Failpoints, Runtime
    from penstock.worker.parsers.isolation import gap

    chosen = call.settings()
    runtime = Runtime(Failpoints(chosen.failpoints))
    App(chosen, runtime)
    wiring.make_embedder(chosen, runtime)
    if chosen.index_path is None:
        wiring.make_index(chosen, runtime)
    hints = [sentence] if (sentence := gap()) else []
    return Answer(
        {"ok": True, "index": str(chosen.index_path or masked(chosen.index_url)), "isolated": not hints},
        "ok",
        hints=hints,
    )


@db.command()
@body
async def migrate(call: Call) -> Answer:
    """Migrate the ledger to the schema of this version."""
    from penstock import app

    version = await app.migrate(call.settings())
    return Answer({"version": version}, f"the schema version of the ledger is {version}")


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    if isinstance(value, str):
        return masked(value)
    return value

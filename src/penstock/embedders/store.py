"""Models that a user added to the home, from a folder, a zip file or a wheel, which is not installed."""

import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from penstock.embedders.folder import SMALL, WEIGHTS, ModelFolder
from penstock.errors import UsageError

_WANTED = (*SMALL, *WEIGHTS)
_MADE = ".adding-"


class AddedModel(msgspec.Struct, frozen=True):
    name: str
    folder: str
    dimensions: int | None
    """None: unknown. Such a model can only rerank."""
    max_tokens: int
    megabytes: float
    fingerprint: str


def add(home: Path, name: str, source: Path, part: str | None = None) -> AddedModel:
    """Copy the files of a model to the home. `part` is the folder in the source, if it holds several models. The model
    appears at once and complete; one with the same name is not replaced."""
    if not name or name != Path(name).name or name.startswith("."):
        raise UsageError(f"{name!r} cannot be the name of a model: use letters, digits, dots and hyphens")
    target = home / "models" / name
    if target.exists():
        raise UsageError(f"there is a model {name!r} already: `penstock model remove {name}` removes it")
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.parent / f"{_MADE}{name}"
    shutil.rmtree(made, ignore_errors=True)
    try:
        if source.is_dir():
            files = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
            _copy(made, files, lambda path: path.open("rb"), part, source)
        elif zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                entries = {entry.filename: entry for entry in archive.infolist() if not entry.is_dir()}
                _copy(made, entries, archive.open, part, source)
        else:
            raise UsageError(f"{source} is not a folder, a zip file or a wheel")
        described = _described(ModelFolder(made, name), target)
        os.rename(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return described


def listed(home: Path) -> list[AddedModel]:
    folder = home / "models"
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [_described(ModelFolder(one), one) for one in found if not one.name.startswith(".")]


def remove(home: Path, name: str) -> None:
    folder = home / "models" / name
    if name != Path(name).name or name.startswith(".") or not folder.is_dir():
        known = ", ".join(one.name for one in listed(home)) or "none"
        raise UsageError(f"there is no model {name!r}; added models: {known}")
    gone = folder.with_name(f"{_MADE}{name}")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(folder, gone)
    shutil.rmtree(gone)


def _described(files: ModelFolder, folder: Path) -> AddedModel:
    size = files.weights.stat().st_size / 1e6
    return AddedModel(files.name, str(folder), files.stated_dimensions, files.max_tokens, round(size, 1), files.digest)


def _copy(
    made: Path, files: Mapping[str, Any], open_file: Callable[[Any], IO[bytes]], part: str | None, source: Path
) -> None:
    root = _root(files, part, source)
    for wanted in _WANTED:
        if (entry := files.get(root + wanted)) is not None:
            (made / wanted).parent.mkdir(parents=True, exist_ok=True)
            with open_file(entry) as incoming, (made / wanted).open("wb") as outgoing:
                shutil.copyfileobj(incoming, outgoing, 1 << 20)
                os.fsync(outgoing.fileno())


def _root(names: Iterable[str], part: str | None, source: Path) -> str:
    """The folder of the model in the source, "" or with a slash at its end."""
    known = set(names)
    roots = sorted(
        name.removesuffix("tokenizer.json")
        for name in known
        if name == "tokenizer.json" or name.endswith("/tokenizer.json")
    )
    models = [root for root in roots if any(root + weights in known for weights in WEIGHTS)]
    if part is not None:
        models = [
            root for root in models if root.rstrip("/") == part.strip("/") or root.endswith(f"/{part.strip('/')}/")
        ]
    if len(models) == 1:
        return models[0]
    if not models:
        raise UsageError(
            f"{source} holds no model{f' in {part}' if part else ''}: tokenizer.json and weights are needed"
        )
    choices = ", ".join(root.rstrip("/").rpartition("/")[2] or "." for root in models)
    raise UsageError(f"{source} holds several models: choose one with --part ({choices})")

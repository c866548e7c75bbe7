"""Sidecars: files with the metadata of the file beside them, such as `notes.pdf.meta.yaml` for `notes.pdf`."""

import json
from datetime import date, datetime
from typing import Any

from penstock.errors import SourceError

SUFFIXES = (".meta.yaml", ".meta.yml", ".meta.json")
LARGEST = 1 << 20
"""Bytes of a sidecar. A larger one is refused."""


def subject(name: str) -> str | None:
    """The name of the file that a sidecar with this name belongs to; None if it is not the name of a sidecar."""
    for suffix in SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix)
    return None


def parse(data: bytes, name: str) -> dict[str, Any]:
    """The metadata in a sidecar. Raises SourceError that says what is wrong."""
    try:
        text = data.decode("utf-8-sig")
        found = json.loads(text) if name.endswith(".json") else _yaml(text)
        found = {} if found is None else _plain(found)
        json.dumps(found, allow_nan=False).encode()
    except RecursionError:
        raise SourceError("its values are nested too deep") from None
    except ValueError as error:
        raise SourceError(f"it is not {'JSON' if name.endswith('.json') else 'YAML'}: {error}") from None
    if not isinstance(found, dict):
        raise SourceError("expected a mapping of names to values")
    return found


def _yaml(text: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # A few aliases can stand for any amount of data.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader)):
            raise ValueError("aliases are not allowed")
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{getattr(error, 'problem', None) or error}{where}") from None


def _plain(value: Any) -> Any:
    """YAML has dates, which JSON does not have. They become text in ISO form."""
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case dict():
            return {_key(key): _plain(one) for key, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"{type(value).__name__} is not a value of JSON")


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise ValueError(f"the key {key!r} is not text: quote it")

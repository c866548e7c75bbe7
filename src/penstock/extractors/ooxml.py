"""Parts and relations of Office files: a zip file whose parts name each other."""

import posixpath
import zipfile
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element


class Relation(NamedTuple):
    kind: str
    """The last word of its type, such as `slide`."""
    target: str
    """The name of the part in the archive."""


def read_part(archive: zipfile.ZipFile, name: str | None) -> Element | None:
    """The root of a part; None if the archive has no such part."""
    if name is None or name not in archive.NameToInfo:
        return None
    with archive.open(name) as stream:
        return ElementTree.parse(stream).getroot()


def relations(archive: zipfile.ZipFile, name: str) -> dict[str, Relation]:
    """The relations of a part by their id. `name` is empty for those of the whole file."""
    folder, file = posixpath.split(name)
    root = read_part(archive, posixpath.join(folder, "_rels", f"{file}.rels"))
    found: dict[str, Relation] = {}
    for relation in root if root is not None else ():
        if relation.get("TargetMode") == "External":
            continue
        target = posixpath.normpath(posixpath.join("/", folder, relation.get("Target", ""))).lstrip("/")
        found.setdefault(relation.get("Id", ""), Relation(relation.get("Type", "").rpartition("/")[2], target))
    return found


def by_kind(related: dict[str, Relation]) -> dict[str, str]:
    """The first part of each kind of relation."""
    found: dict[str, str] = {}
    for relation in related.values():
        found.setdefault(relation.kind, relation.target)
    return found

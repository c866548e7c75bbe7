"""Manifests: a CSV file that names files, with a column for each key of their metadata."""

import csv
import os
from pathlib import Path
from typing import Any

from penstock.errors import UsageError
from penstock.search.filters import typed
from penstock.sources.folder import source_of

_COLUMNS = ("path", "source")


class Manifest:
    """The files that a manifest names, and their metadata by source URI. Paths are relative to its folder."""

    def __init__(self, file: Path) -> None:
        self.uri = source_of(file.absolute())
        self.paths: list[Path] = []
        self.metadata: dict[str, dict[str, Any]] = {}
        self.problems: list[str] = []
        """Files that do not exist, as `URI: reason`."""
        try:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                reader = csv.DictReader(stream, delimiter="\t" if file.suffix.lower() == ".tsv" else ",", strict=True)
                self._read(file, reader)
        except OSError as error:
            raise UsageError(f"manifest {file}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"manifest {file}: it is not UTF-8 text ({error.reason} at byte {error.start})") from None
        except csv.Error as error:
            raise UsageError(f"manifest {file}:{reader.line_num}: not CSV ({error})") from None

    def _read(self, file: Path, reader: "csv.DictReader[str]") -> None:
        names = [(name or "").strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        column = next((name for name in _COLUMNS if name in names), None)
        if column is None:
            raise UsageError(f"manifest {file}: the first line needs a column `path`, and names the other columns")
        if len(set(names)) < len(names) or "" in names:
            raise UsageError(f"manifest {file}: every column needs a name of its own")
        for row in reader:
            where = f"manifest {file}:{reader.line_num}"
            if None in row:
                raise UsageError(f"{where}: more cells than the first line has columns")
            if not (row[column] or "").strip() or "\0" in row[column]:
                raise UsageError(f"{where}: it names no file in column `{column}`")
            path = Path(os.path.normpath(file.absolute().parent / row[column].strip()))
            uri = source_of(path)
            if uri in self.metadata:
                raise UsageError(f"{where}: {row[column]} is named twice")
            self.metadata[uri] = {
                name: typed(value) for name, value in row.items() if name != column and value and value.strip()
            }
            if os.path.lexists(path):
                self.paths.append(path)
            else:
                self.problems.append(f"{uri}: no such file ({where})")

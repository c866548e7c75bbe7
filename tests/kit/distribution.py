"""An installed package that adds adapters to Penstock: a module, and the metadata that pip would write for it."""

import textwrap
from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, code: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """`folder` is to be on `sys.path`. `entry_points`: by group, then by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder

"""Metadata that is made when the package is built: addresses, and a README whose links work on an index page.

`[tool.hatch.metadata.hooks.custom]` in pyproject.toml names the repository, in one place."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!\w+:|#)([^)\s]+)\)")
"""A Markdown link, or an image, to a file of the repository."""


class PackageMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository, version = str(self.config["repository"]), f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository, version)}
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/blob/{version}/docs/quickstart.md",
            "Changelog": f"{repository}/blob/{version}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }


def absolute(text: str, repository: str, version: str) -> str:
    """The text with links to the files of this version instead of relative ones."""

    def link(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        return f"{image}{label}{repository}/{'raw' if image else 'blob'}/{version}/{target})"

    return _LINK.sub(link, text)

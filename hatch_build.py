"""Asked by hatchling when it builds: the README as a package index can show it."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!\w+:|#)([^()\s]+)\)")  # to a path of the repository


class ReadmeHook(MetadataHookInterface):
    """Sets the metadata's readme, which pyproject.toml declares dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the project's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        text = for_an_index(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def for_an_index(text: str, repository: str | None, ref: str) -> str:
    """The text with links that lead somewhere outside the repository, too.

    Args:
        text: Markdown whose links to files are relative to the repository's root.
        repository: the repository's address, under which `/blob/REF/PATH` is a page and `/raw/REF/PATH` a file. Where
            there is none, a link is left as its words and an image as its description.
        ref: a tag, a branch or a commit.

    Returns:
        The text; what stands in code is as it was.
    """

    def outside(link: re.Match[str]) -> str:
        image, words, path = link.groups()
        if repository is None:
            return f"*[Figure: {words}]*" if image else words
        return f"{image}[{words}]({repository.rstrip('/')}/{'raw' if image else 'blob'}/{ref}/{path})"

    parts = _CODE.split(text)
    return "".join(part if i % 2 else _LINK.sub(outside, part) for i, part in enumerate(parts))

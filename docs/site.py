"""Hook of MkDocs: links to files outside `docs`, such as `openapi.yaml`, work on the site as well.

The site gets a copy of each such file below `files/`, so that the same relative link works in the
repository and on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
_LINK: Final = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads each link that leaves `docs` to a copy of its file."""
    folder = (DOCS / page.file.src_uri).parent

    def replace(found: re.Match[str]) -> str:
        target = (folder / found[1]).resolve()
        if target.is_relative_to(DOCS) or not target.is_file():
            return found[0]
        # A page of Markdown would be rendered, and its own links would lead nowhere.
        copy = f"files/{target.relative_to(ROOT)}".removesuffix(".md") + (
            ".txt" if target.suffix == ".md" else ""
        )
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, abs_src_path=str(target)))
        up = "../" * page.file.src_uri.count("/")
        return f"]({up}{copy})"

    return _LINK.sub(replace, markdown)

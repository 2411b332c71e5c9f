"""Hooks of MkDocs for links out of `docs`, and for a search that needs no network.

The site gets a copy of each linked file outside of `docs`, such as `openapi.yaml`, below `files/`.
So the same relative link works in the repository and on the site. Pages that are opened as files
load `search-from-files.js` in place of a script of another host.
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
_SHIM: Final = "https://unpkg.com/iframe-worker/shim"
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


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Leads the page to the site's own script for a search from files."""
    return output.replace(_SHIM, "../" * page.file.dest_uri.count("/") + "search-from-files.js")


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:  # noqa: ARG001
    """The same for pages that are no documents, such as `404.html`."""
    return output_content.replace(_SHIM, "search-from-files.js")

"""XML as elements with their lines, without anything that is dangerous in XML.

A document type is refused, and with it every entity that a file could define; so are files above
a megabyte and elements in elements above 50 deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from logstore.errors import InvalidInput

_MOST_BYTES: Final = 1 << 20
_MOST_DEPTH: Final = 50


@dataclass(slots=True)
class Element:
    """An element; `tag` begins in lower case, as logback takes both. `line` is from 1."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    text_line: int = 0
    """The line where its text begins, without space before it."""

    @property
    def text(self) -> str:
        """Its text, without space around it."""
        return "".join(self.texts).strip()

    def child(self, tag: str) -> Element | None:
        """The last child of that name: it counts in logback too."""
        return next((one for one in reversed(self.children) if one.tag == tag), None)

    def all(self, *tags: str) -> Iterator[Element]:
        """The children of these names."""
        return (one for one in self.children if one.tag in tags)


def parse(body: bytes) -> Element:
    """The root element. Raises `InvalidInput` that names the line."""
    if len(body) > _MOST_BYTES:
        raise InvalidInput(f"the file has {len(body)} bytes, and {_MOST_BYTES} at most are read")
    parser = expat.ParserCreate()
    root = Element("", {}, 0)
    open_ = [root]

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_) > _MOST_DEPTH:
            raise InvalidInput(f"line {parser.CurrentLineNumber}: elements are too deep")
        found = Element(tag[:1].lower() + tag[1:], attributes, parser.CurrentLineNumber)
        open_[-1].children.append(found)
        open_.append(found)

    def text(piece: str) -> None:  # of one line, as long as they are not put together
        open_[-1].texts.append(piece)
        if piece.strip() and not open_[-1].text_line:
            open_[-1].text_line = parser.CurrentLineNumber

    def refuse(*_: object) -> None:
        raise InvalidInput(
            f"line {parser.CurrentLineNumber}: a document type is not read",
            hint="Take <!DOCTYPE …> out: logback needs none.",
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise InvalidInput(f"the file is no XML: {error}") from None
    (found,) = root.children
    if found.tag != "configuration":
        raise InvalidInput(f"line {found.line}: the file is <{found.tag}>, not <configuration>")
    return found

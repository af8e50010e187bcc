"""A page as a browser's parser sees it: its elements, and the text of its scripts."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

from tracelens.render.templates import part


class Parsed(HTMLParser):
    """Counts elements and keeps attributes' names, scripts and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def only_ours(page: str) -> Parsed:
    """Fail where a name from a trace became markup: our own script only, no handler, nothing fetched."""
    found = Parsed(page)
    assert [script.strip() for script in found.scripts] == [part("report.js").strip()]
    assert not found.elements.keys() & {"img", "iframe", "object", "embed", "link", "base", "form", "image"}
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "srcdoc")}
    assert not any(one in page for one in ("\x1b", "\u202e", "\u2028"))
    return found


__all__ = ["Parsed", "only_ours"]

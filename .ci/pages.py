"""Makes a site of the README, the notebooks and the API reference: `python .ci/pages.py DIR`.

Every local file that the README links to becomes a page at the same path, Markdown and notebooks as HTML; so do the
files that these link to. A link that leads nowhere on the site is an error.
"""

from __future__ import annotations

import html
import html.parser
import os
import re
import shutil
import sys
import urllib.parse
from pathlib import Path

import markdown2
import nbconvert
import nbformat

from jaxmesh.drawing.html import page

ROOT = Path(__file__).resolve().parent.parent
_EXTRAS = ["fenced-code-blocks", "tables", "header-ids", "code-friendly", "highlightjs-lang"]
_STYLE = """<style>
body{max-width:62rem;margin:1.5rem auto;padding:0 1rem;line-height:1.5;overflow-wrap:break-word}
pre{overflow-x:auto;padding:.6rem .8rem;border-radius:4px;background:rgba(128,128,128,.14)}
code,pre{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{border:1px solid rgba(128,128,128,.4);padding:.25rem .6rem;text-align:left;vertical-align:top}
img{max-width:100%}a{color:#0072b2}
@media (prefers-color-scheme:dark){a{color:#56b4e9}}
</style>"""


class Page(html.parser.HTMLParser):
    """The links of a page and the places in it that a link can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects `href` and `src`, `id` and `name`."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


def is_local(link: str) -> bool:
    """Returns True for a link to the same site."""
    found = urllib.parse.urlsplit(link)
    return not found.scheme and not found.netloc


def broken_links(folder: Path) -> list[str]:
    """Returns the local links of all pages that lead to no file of the folder, or to no place in a page."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    broken: list[str] = []
    for path, found in pages.items():
        for link in filter(is_local, found.links):
            parts = urllib.parse.urlsplit(link)
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            inside = target.is_relative_to(folder.resolve()) and target.is_file()
            place = urllib.parse.unquote(parts.fragment)
            if not inside or (place and target in pages and place not in pages[target].places):
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    return broken


def on_site(path: Path) -> Path:
    """Returns where a file of the repository is on the site: texts and notebooks as HTML, the README as the index."""
    if path == Path("README.md"):
        return Path("index.html")
    return path.with_suffix(".html") if path.suffix in (".md", ".ipynb") else path


def write_site(folder: Path) -> None:
    """Writes the page of the README, and of every file that it, and what it links to, links to."""
    waiting, done = [Path("README.md")], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        target = folder / on_site(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix not in (".md", ".ipynb"):
            shutil.copyfile(ROOT / path, target)
            continue
        text, found = with_links_to_pages(to_html(path), path)
        target.write_text(text, encoding="utf-8")
        waiting += found


def to_html(path: Path) -> str:
    """Returns a Markdown file or a notebook as a page."""
    home = os.path.relpath(".", path.parent)
    bar = f'<p><a href="{home}/README.md">jaxmesh</a> · <a href="{home}/reference/index.html">API reference</a></p>'
    if path.suffix == ".ipynb":
        body, _ = nbconvert.HTMLExporter().from_notebook_node(nbformat.read(ROOT / path, as_version=4))
        return re.sub(r"(<body[^>]*>)", rf'\1<div class="jp-Notebook">{bar}</div>', body, count=1)
    body = str(markdown2.markdown((ROOT / path).read_text(encoding="utf-8"), extras=_EXTRAS))
    return page("jaxmesh", f"{_STYLE}\n{bar}\n{body}")


def with_links_to_pages(text: str, path: Path) -> tuple[str, list[Path]]:
    """Returns a page with links to pages in place of links to files, and these files."""
    files: list[Path] = []

    def replace(match: re.Match[str]) -> str:
        link = html.unescape(match[2])
        parts = urllib.parse.urlsplit(link)
        file = Path(os.path.normpath(path.parent / urllib.parse.unquote(parts.path)))
        if not is_local(link) or not parts.path or not (ROOT / file).is_file():
            return match[0]
        files.append(file)
        target = os.path.relpath(on_site(file), on_site(path).parent)
        place = f"#{parts.fragment}" if parts.fragment else ""
        return f'{match[1]}="{html.escape(target + place)}"'

    return re.sub(r'\b(href|src)="([^"]*)"', replace, text), files


def main(folder: Path) -> None:
    """Writes the site with the reference, and checks its links."""
    import reference  # beside this script

    write_site(folder)
    reference.main(folder / "reference")
    broken = broken_links(folder)
    if broken:
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    print(f"{len(list(folder.rglob('*.html')))} pages in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

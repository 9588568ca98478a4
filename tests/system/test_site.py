"""The site of README, notebooks and reference: every link on it leads somewhere."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

for _needed in ("markdown2", "nbconvert", "pdoc"):
    pytest.importorskip(_needed, reason="the tests of the site need tt-jaxmesh[dev]")


def _pages() -> Any:
    spec = importlib.util.spec_from_file_location("pages", ROOT / ".ci" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = _pages()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "error", str(ROOT / ".ci" / "pages.py"), str(folder)]
    known = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=known, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    names = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    notebooks = {f"notebooks/{path.stem}.html" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert (
        names
        >= {"index.html", "tests/README.html", "reference/jaxmesh.html", "reference/jaxmesh/ttnn.html"} | notebooks
    )
    index = (site / "index.html").read_text()
    assert 'href="notebooks/01_quick_start.html"' in index
    assert ".ipynb" not in index
    assert "data:image/svg+xml" in (site / "notebooks" / "01_quick_start.html").read_text()


def test_the_reference_has_what_classes_inherit(site: Path) -> None:
    text = (site / "reference" / "jaxmesh.html").read_text()
    for name in ("estimate", "judge", "as_text", "record", "explain"):
        assert f'id="Lowered.{name}"' in text


def test_every_link_leads_somewhere(site: Path) -> None:
    assert pages.broken_links(site) == []
    # Each kind of wrong link is found.
    index = site / "index.html"
    whole = index.read_text()
    for wrong in ("notebooks/none.html", "tests/README.html#none", "#none", "../outside.html", "notebooks"):
        index.write_text(whole.replace("</body>", f'<a href="{wrong}">x</a></body>'))
        assert pages.broken_links(site) == [f"index.html: {wrong}"]
    index.write_text(whole)


def test_a_link_to_a_file_that_is_not_there_stays_and_is_broken(tmp_path: Path) -> None:
    text, files = pages.with_links_to_pages(
        '<a href="none.md">x</a><a href="tests/README.md#what-holds">y</a>', Path("README.md")
    )
    assert files == [Path("tests/README.md")]
    assert text == '<a href="none.md">x</a><a href="tests/README.html#what-holds">y</a>'
    (tmp_path / "a.html").write_text(text.replace("tests/README.html#what-holds", "a.html"))
    assert pages.broken_links(tmp_path) == ["a.html: none.md"]

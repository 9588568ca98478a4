"""The name of the distribution, and a folder that another package shares."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import jaxmesh
from tests import ROOT


def test_the_distribution_is_not_named_as_another_package() -> None:
    assert importlib.metadata.version("tt-jaxmesh") == jaxmesh.__version__
    assert f"## {jaxmesh.__version__}\n" in (ROOT / "docs" / "CHANGELOG.md").read_text()


def test_files_of_the_other_package_are_named(tmp_path: Path) -> None:
    package = tmp_path / "jaxmesh"
    (package / "isosurface").mkdir(parents=True)
    for path in Path(jaxmesh.__file__).parent.iterdir():
        (package / path.name).symlink_to(path)
    # The link to the module would lead to its own folder.
    (package / "__init__.py").unlink()
    (package / "__init__.py").write_text(Path(jaxmesh.__file__).read_text())
    done = subprocess.run([sys.executable, "-c", "import jaxmesh"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install tt-jaxmesh" in done.stderr

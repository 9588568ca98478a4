"""The folder list is the architecture: imports run one way, and only the pass knows a direction."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "jaxmesh"
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = [
    {"errors"},
    {"validate"},
    {"jaxprs"},
    {"sharding"},
    {"dialects"},
    {"frontends", "passes", "runtime", "emit"},
    {"drawing"},
    {"ttnn"},
    {"analysis"},
    {"stages"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: i for i, layer in enumerate(LAYERS) for room in layer}


def room_of(path: Path) -> str:
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = node.module == "jaxmesh"
            names = (
                [
                    f"jaxmesh.{a.name}"
                    if (inside and (ROOT / a.name).exists()) or (ROOT / f"{a.name}.py").exists()
                    else node.module
                    for a in node.names
                ]
                if inside
                else [node.module]
            )
        for name in names:
            if name == "jaxmesh":
                rooms.add("__init__")
            elif name.startswith("jaxmesh."):
                rooms.add(name.split(".")[1])
    return rooms


def test_every_room_has_a_layer() -> None:
    assert {room_of(f) for f in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    room = room_of(path)
    for other in imported_rooms(path) - {room}:
        assert LEVEL[other] < LEVEL[room], f"{path.name} ({room}) imports {other}"


def words_below_the_pass() -> list[Path]:
    code = [p for p in FILES if room_of(p) in {"runtime", "ttnn", "emit"}]
    return [*code, *sorted((ROOT / "emit").rglob("*.hpp")), *sorted((ROOT / "emit").rglob("*.txt"))]


DIRECTION = re.compile(r"full_to_shard|shard_to_full|direction", re.IGNORECASE)


@pytest.mark.parametrize("path", words_below_the_pass(), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_direction_below_the_pass(path: Path) -> None:
    assert not DIRECTION.findall(path.read_text())


def test_only_the_pass_and_the_dialect_read_a_direction() -> None:
    readers = {str(p.relative_to(ROOT)) for p in FILES if "ShardDirection." in p.read_text()}
    assert readers == {
        "dialects/ttir/mesh_shard.py",
        "dialects/ttir/mesh_shard_reference.py",
        "passes/mesh_shard/lower_mesh_shard.py",
    }


def test_only_some_files_know_jax_internals() -> None:
    inside = re.compile(r"jax\._src|jax\.extend|from jax\.extend|jax\.__version__")
    knowing = {p for p in FILES if inside.search(p.read_text())}
    assert {room_of(p) for p in knowing} == {"jaxprs"}


def test_core_needs_only_jax_jaxlib_numpy() -> None:
    allowed = {"jax", "jaxlib", "numpy", "jaxmesh", "rich", "matplotlib"}
    standard = __import__("sys").stdlib_module_names
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            for module in modules:
                top = module.split(".")[0]
                assert top in standard or top in allowed, f"{path.name} imports {module}"
    import_time = (ROOT / "__init__.py").read_text()
    assert "rich" not in import_time
    assert "matplotlib" not in import_time


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400

"""The folder list is the architecture: rooms in their order, no cycles, and the rules that hold in each room."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from jaxmesh.dialects.definitions import DEFINITIONS

# Each room imports only the rooms above it; rooms on one line do not know each other.
ROOMS = """
errors
validate
jaxprs
sharding
dialects
frontends passes runtime emit
drawing
tensor
ttnn
analysis
stages
__init__
cli
__main__
"""
LEVEL = {room: level for level, line in enumerate(ROOMS.split("\n")) for room in line.split()}
RULES = "jaxmesh.ttnn.rules"
"""What the functions of the real library accept, in its words."""
LARGEST = 400
"""Lines of a module."""

PACKAGE = Path(__file__).parents[1] / "jaxmesh"
FILES = {
    ".".join(("jaxmesh", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of the package that a module imports, at its top or in a function."""
    found: set[str] = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {full if (full := f"{node.module}.{a.name}") in FILES else node.module for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return frozenset(found & FILES.keys()) - {module}


def places(pattern: str, outside: str = "") -> list[str]:
    """Lines of the package's files that match a pattern, in all rooms but one."""
    return [
        f"{module}:{number}: {line.strip()}"
        for module, path in FILES.items()
        if room_of(module) != outside
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_the_root_has_no_other_module() -> None:
    assert {p.stem for p in PACKAGE.glob("*.py")} == {"errors", "validate", "__init__", "__main__"}
    assert {room_of(m) for m in FILES} == set(LEVEL)


def test_the_unit_tests_mirror_the_rooms() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    unit = Path(__file__).parent / "unit"
    assert rooms == {path.name for path in unit.iterdir() if list(path.rglob("test_*.py"))}


def test_imports_run_one_way() -> None:
    wrong = {
        (module, other)
        for module in FILES
        for other in imports_of(module)
        if room_of(module) != room_of(other) and LEVEL[room_of(other)] >= LEVEL[room_of(module)]
    }
    assert not wrong


def cycles() -> Iterator[list[str]]:
    """The strongly connected components of more than one module, as Tarjan finds them."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(imports_of(module)):
            if other not in index:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                yield sorted(component)

    for module in FILES:
        if module not in index:
            yield from visit(module)


def test_no_cycle_between_files() -> None:
    assert not list(cycles())


def test_modules_stay_small() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in FILES.items()}
    assert not {module: length for module, length in lengths.items() if length > LARGEST}


def test_only_one_room_knows_jax_internals_and_versions() -> None:
    assert not places(r"jax\._src|jax\.extend|jax import extend|jax\.__version__|jaxlib\.__version__", outside="jaxprs")


def test_nothing_asks_whether_an_attribute_exists() -> None:
    assert not places(r"\bhasattr\(")


def strings_of(node: ast.expr) -> set[str]:
    """The strings of a literal that has nothing else in it."""
    values = [e.value if isinstance(e, ast.Constant) else None for e in getattr(node, "elts", [])]
    return {v for v in values if isinstance(v, str)} if all(isinstance(v, str) for v in values) else set()


def sets_of_names(module: str) -> Iterator[tuple[int, set[str]]]:
    """Literals that are sets, or that membership is tested in, also by name: the line, and the strings."""
    tested = {
        ast.unparse(node.comparators[-1]).partition("[")[0]
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.In | ast.NotIn)
    }
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in tested:
            yield node.lineno, strings_of(node.value)
        if isinstance(node, ast.Set):
            yield node.lineno, strings_of(node)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.In | ast.NotIn):
            yield node.lineno, strings_of(node.comparators[-1])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset"):
            yield from ((node.lineno, strings_of(a)) for a in node.args if not isinstance(a, ast.Set))


def test_facts_about_ops_stand_at_their_definitions() -> None:
    """No set of op names outside of the dialects and of the rules of the real functions: such a fact is a trait."""
    plain = {op.name for op in DEFINITIONS.values()}
    known = {*plain, *(f"{dialect}.{name}" for dialect in ("ttir", "ttnn") for name in plain)}
    others = {frozenset({"sum", "max", "min"}): "reductions of a window"}
    wrong = [
        f"{module}:{line}: {sorted(names)}"
        for module in FILES
        if room_of(module) != "dialects" and not module.startswith(RULES)
        for line, names in sets_of_names(module)
        if len(names) >= 3 and names <= known and frozenset(names) not in others
    ]
    assert not wrong, "\n".join(wrong)


# --- what an op's direction is ---------------------------------------------------------------------------------------

BELOW_THE_PASS = [
    *(
        path
        for module, path in FILES.items()
        if room_of(module) in {"runtime", "tensor", "ttnn", "emit"} and not module.startswith(RULES)
    ),
    *sorted((PACKAGE / "emit").rglob("*.hpp")),
    *sorted((PACKAGE / "emit").rglob("*.txt")),
]


def test_no_direction_below_the_pass() -> None:
    named = re.compile(r"full_to_shard|shard_to_full|direction", re.IGNORECASE)
    assert not [path for path in BELOW_THE_PASS if named.search(path.read_text())]


DIRECTIONS = {"shard_direction", "full_to_shard", "shard_to_full"}
PASSED_ON = {
    "jaxmesh.dialects.ttir.collectives": "the attributes of ttir.mesh_shard",
}


def reads_a_direction(module: str) -> bool:
    """Returns True if a module has the class of directions, or a string or an attribute with the name of one."""
    return any(
        (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in DIRECTIONS)
        or (isinstance(node, ast.Attribute) and node.attr == "shard_direction")
        or (isinstance(node, ast.Name) and node.id == "ShardDirection")
        for node in ast.walk(tree_of(module))
    )


def test_only_the_pass_and_the_dialect_read_a_direction() -> None:
    readers = {module for module in FILES if reads_a_direction(module)}
    dialect = {"jaxmesh.dialects.ttir.mesh_shard", "jaxmesh.dialects.ttir.mesh_shard_reference"}
    passes = {m for m in readers if m.startswith("jaxmesh.passes.mesh_shard.")}
    assert "jaxmesh.passes.mesh_shard.lower_mesh_shard" in passes
    assert readers == {*dialect, *passes, *PASSED_ON}


# --- where transfers are written -------------------------------------------------------------------------------------


def test_no_pass_over_flat_programs_knows_a_config_of_a_transfer() -> None:
    """A flat program has the transfers of its jaxpr: to add one takes a config."""
    flat = [m for m in FILES if m.startswith("jaxmesh.passes.") and not m.startswith("jaxmesh.passes.mesh_shard.")]
    makers = r"replicate_mapper|plan_distribute|plan_aggregate|Mesh(Mapper|Composer)Config\("
    # It writes the configs that a program has for a mesh of more dims.
    respelled = "jaxmesh.passes.layouts.mesh_rank"
    assert [m for m in flat if re.search(makers, FILES[m].read_text())] == [respelled]


# --- dependencies ----------------------------------------------------------------------------------------------------


def test_core_needs_only_jax_jaxlib_numpy() -> None:
    allowed = {"jax", "jaxlib", "numpy", "jaxmesh", "rich", "matplotlib", *sys.stdlib_module_names}
    for module in FILES:
        for node in ast.walk(tree_of(module)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in allowed, f"{module} imports {name}"
    at_import = (PACKAGE / "__init__.py").read_text()
    assert "rich" not in at_import
    assert "matplotlib" not in at_import

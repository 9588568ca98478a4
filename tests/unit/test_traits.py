"""Facts about operations stand on their definitions; no other module keeps a set of their names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jaxmesh
from jaxmesh.dialects import textual, ttir, ttnn
from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.memory import MEMORY_OPS
from jaxmesh.jaxprs import primitives
from jaxmesh.passes.flatten import flatten
from jaxmesh.passes.rules import Rules
from jaxmesh.passes.ttir_to_ttnn import patterns, upstream

ROOT = Path(jaxmesh.__file__).parent
NAMES = ttir.OPS.keys() | ttnn.OPS.keys() | MEMORY_OPS.keys()
DEFINED = ("dialects/",)
"""Folders whose files define operations."""
SPELLINGS = {"ttnn/signatures.py"}
"""Files with names that users write as strings, such as an activation's."""


def tables_of(module: Any, name: str, kind: type) -> list[Mapping[str, Any]]:
    """The tables of one name of a module's families."""
    families = [v for v in vars(module).values() if type(v) is type(module)]
    tables = [t for family in families for n, t in vars(family).items() if n == name]
    return [t for t in tables if isinstance(t, kind)]


def test_no_family_defines_an_operation_of_another_one() -> None:
    for module, joined, name, kind in (
        (ttir, ttir.OPS, "OPS", dict),
        (ttnn, ttnn.OPS, "OPS", dict),
        (flatten, flatten.RULES, "RULES", Rules),
        (patterns, patterns.PATTERNS, "PATTERNS", Rules),
    ):
        tables = tables_of(module, name, kind)
        assert len(tables) > 4
        assert sum(map(len, tables)) == len(joined), module.__name__


def test_every_pattern_lowers_an_operation_of_ttir() -> None:
    named = ttir.OPS.keys() | {name.removeprefix("ttir.") for name in textual.OPS}
    assert {**patterns.PATTERNS, **upstream.PATTERNS}.keys() <= named


def test_every_operation_of_ttir_without_a_pattern_has_a_definition_in_ttnn() -> None:
    like = {op.like for op in ttnn.OPS.values()}
    own = {name for name, op in ttir.OPS.items() if Trait.NOT_UPSTREAM not in op.traits}
    assert own - patterns.PATTERNS.keys() - ttnn.OPS.keys() - like == {"mesh_shard", "get_dimension_size"}


def test_every_primitive_that_moves_data_takes_keys() -> None:
    assert primitives.MOVES - {"copy_p"} <= flatten.RULES.keys()


def is_of_operations(node: ast.AST) -> bool:
    """Returns True for the literal of a set most of whose elements name operations."""
    if not isinstance(node, ast.Set):
        return False
    names = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    known = [n for n in names if n.removeprefix("ttir.").removeprefix("ttnn.") in NAMES]
    return len(known) > 1 and 2 * len(known) > len(node.elts)


def test_no_module_keeps_a_set_of_operation_names() -> None:
    found: list[str] = []
    for file in ROOT.rglob("*.py"):
        name = file.relative_to(ROOT).as_posix()
        if name.startswith(DEFINED) or name in SPELLINGS or name == "jaxprs/primitives.py":
            continue
        found += [f"{name}:{n.lineno}" for n in ast.walk(ast.parse(file.read_text())) if is_of_operations(n)]
    assert found == []


def test_what_traits_imply() -> None:
    for name in [f"ttir.{n}" for n in ttir.OPS] + [f"ttnn.{n}" for n in (*ttnn.OPS, *MEMORY_OPS)]:
        if has_trait(name, Trait.VIEW):
            assert has_trait(name, Trait.MOVES), name
        if has_trait(name, Trait.SENDS) or has_trait(name, Trait.TRANSFERS):
            assert has_trait(name, Trait.COLLECTIVE), name
        definition = definition_of(name)
        if has_trait(name, Trait.CREATES) and name != "ttir.get_dimension_size":
            assert definition is not None, name
            assert definition.operands == (0, 0), name

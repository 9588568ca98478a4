"""What depends on `--every` is found in the source of a test, through helpers, decorators, fixtures and generators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import ROOT
from tests.generators.further_cases import scaled_names

SOURCE = """
from hypothesis import given

from tests.generators.oracles import cases, count_of as number, oracle_shard

SEEDS = range(number(40, 10))
OTHERS = range(10)

@pytest.fixture
def seeds():
    return list(SEEDS)

def check(seed):
    assert seed in SEEDS

@given(...)
@cases(100)
def test_decorated(): ...

@pytest.mark.parametrize("seed", SEEDS)
def test_parametrized(seed): ...

def test_fixture(seeds): ...

def test_helper():
    check(1)

def test_same():
    oracle_shard(OTHERS)
"""


def test_names_that_depend_on_every(tmp_path: Path) -> None:
    (file := tmp_path / "test_it.py").write_text(SOURCE)
    tests = {name for name in scaled_names(file) if name.startswith("test_")}
    assert tests == {"test_decorated", "test_parametrized", "test_fixture", "test_helper"}


@pytest.mark.parametrize(
    ("file", "name", "grows"),
    [
        ("api/test_visualize.py", "test_every_mesh_and_rank_is_legible", True),
        ("api/test_visualize.py", "test_slices_are_the_oracles", True),
        ("api/test_explain.py", "test_bytes_are_those_of_the_optimized_hlo", False),
        ("generators/process_checks.py", "meshes", True),
    ],
)
def test_names_of_this_suite(file: str, name: str, grows: bool) -> None:
    assert (name in scaled_names(ROOT / "tests" / file)) == grows

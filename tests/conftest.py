"""The one place where the suite's devices are emulated, and the sizes of its random parts."""

from __future__ import annotations

import os
from collections.abc import Generator

import hypothesis
import pytest

import jaxmesh as jm

# Copies that no type proves equal are compared in every test, in subprocesses too.
os.environ["JAXMESH_CHECK_REPLICATION"] = "1"

FEW = 8
"""Tests of fewer cases always run all of them."""

DEVICES = 16
# Looked at, so that JAX's backend starts with them and no test can ask for more.
DEVICE_LIST = list(jm.emulate(DEVICES))

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci")


@pytest.fixture(autouse=True)
def compared_copies() -> Generator[None]:
    """A difference between copies that no call has waited for fails the test in which it was found."""
    with jm.check_replication():
        yield


@pytest.fixture
def unequal_copies(compared_copies: None) -> Generator[None]:
    """For tests in which copies are taken to be equal and are not."""
    with jm.check_replication(False):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=None, help="cases per random test, instead of its own number")
    parser.addoption(
        "--every",
        action="store_true",
        help="every program of the suite in every way, and every mesh; the suite alone takes a part of them",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "part(n): without `--every` one in n of the cases runs, of a test that has many")
    if config.getoption("--every"):
        os.environ["JAXMESH_EVERY"] = "1"
    cases = config.getoption("--cases")
    if cases is not None:
        # Workers of pytest-xdist inherit the environment; strategies read it when they are imported.
        os.environ["JAXMESH_CASES"] = str(cases)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--every") or any("::" in argument for argument in config.args):
        return
    groups: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        groups.setdefault((str(item.path), getattr(item, "originalname", item.name)), []).append(item)
    left_out: set[pytest.Item] = set()
    for group in groups.values():
        marker = group[0].get_closest_marker("part")
        if marker is not None and len(group) >= FEW:
            left_out |= set(group) - set(group[:: marker.args[0]])
    config.hook.pytest_deselected(items=[i for i in items if i in left_out])
    items[:] = [i for i in items if i not in left_out]

"""The emulated devices, the sizes of random tests, shared fixtures, and which tests a run takes.

Three sets of tests, from small to large:

- by default, the tests that answer quickly: unit, api, regressions, a part of equivalence;
- with `-m "slow or not slow"`, also the tests marked `slow`: all of equivalence, models and system, and the tests that
  another folder marks so. A slow test also runs where the command names its file or its folder;
- with `--every`, also the cases that `part` leaves out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest.register_assert_rewrite("tests.generators")

import jaxmesh as jm  # noqa: E402
from jaxmesh import ttnn  # noqa: E402
from jaxmesh.ttnn import beyond  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.generators.quick_compilation import quick_compilation  # noqa: E402

# Every test, also in subprocesses, compares copies that are taken to be equal although no type proves it.
os.environ["JAXMESH_CHECK_REPLICATION"] = "1"

SLOW_FOLDERS = [ROOT / "tests" / name for name in ("equivalence", "models", "system")]
FEW = 8
"""`part` leaves out no case of a test with fewer cases."""

DEVICES = 16
# Starts JAX's backend with the devices, so that no test can ask for more.
DEVICE_LIST = list(jm.emulate(DEVICES))

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci")


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def compared_copies() -> Generator[None]:
    """Fails the test in which copies differ, also if no call has waited for the comparison."""
    with jm.check_replication():
        yield


@pytest.fixture(autouse=True)
def beyond_ttnn(request: pytest.FixtureRequest) -> Generator[None]:
    """Emulates what goes beyond the real `ttnn` in tests marked `beyond`."""
    with beyond.enabled() if request.node.get_closest_marker("beyond") else contextlib.nullcontext():
        yield


@pytest.fixture
def unequal_copies(compared_copies: None) -> Generator[None]:
    """For tests of copies that are taken to be equal and are not."""
    with jm.check_replication(False):
        yield


@pytest.fixture(scope="module")
def mesh() -> Any:
    """Eight devices with the axes y=2 and x=4, where a module has no mesh of its own."""
    return jm.make_mesh((2, 4))


@pytest.fixture(scope="module")
def device() -> ttnn.MeshDevice:
    """An open mesh device of 2 x 4 devices."""
    return ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape((2, 4)), l1_small_size=65536)


@pytest.fixture(scope="module")
def quickly_compiled() -> Iterator[None]:
    """For tests of many programs, whose optimization by XLA is not what they check."""
    with quick_compilation():
        yield


# --- which tests run -------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=None, help="cases per random test, instead of its own number")
    parser.addoption("--every", action="store_true", help="every test, in every case, on every mesh")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "beyond: jaxmesh.ttnn emulates also what the real library refuses",
        "part(n): without `--every`, one in n of the test's cases runs",
        "quick(n): one in n of the test's cases is quick; the others are slow",
        "slow: runs with `--every`, with a `-m` that names slow, or where the command names the file or its folder",
    ):
        config.addinivalue_line("markers", line)
    if config.getoption("--every"):
        os.environ["JAXMESH_EVERY"] = "1"
    cases = config.getoption("--cases")
    if cases is not None:
        # Workers of pytest-xdist inherit the environment; strategies read it when they are imported.
        os.environ["JAXMESH_CASES"] = str(cases)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        groups.setdefault((str(item.path), getattr(item, "originalname", item.name)), []).append(item)
    left_out: set[pytest.Item] = set()
    named = named_paths(config)
    for group in groups.values():
        part = group[0].get_closest_marker("part")
        if part is not None and len(group) >= FEW and not config.getoption("--every"):
            left_out |= set(group) - set(group[:: part.args[0]])
        mark_slow([item for item in group if item not in left_out])
        if config.getoption("--every"):
            continue
        if "slow" not in config.getoption("-m") and not is_named(group[0].path, named):
            left_out |= {item for item in group if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=[i for i in items if i in left_out])
    items[:] = [i for i in items if i not in left_out]
    config.stash[LEFT_OUT] = len(left_out)


def mark_slow(group: list[pytest.Item]) -> None:
    """Marks the slow ones among the cases of one test that `part` leaves in."""
    quick = group[0].get_closest_marker("quick")
    if quick is not None:
        slow = set(group) - set(group[:: quick.args[0]])
    else:
        slow = set(group) if any(folder in group[0].path.parents for folder in SLOW_FOLDERS) else set[pytest.Item]()
    for item in slow:
        item.add_marker(pytest.mark.slow)


def named_paths(config: pytest.Config) -> list[Path]:
    return [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]


def is_named(path: Path, named: list[Path]) -> bool:
    """Returns True if the command names a test file, or the slow folder that it is in."""
    folders = [folder for folder in SLOW_FOLDERS if folder in path.parents]
    return path in named or any(folder in (name, *name.parents) for name in named for folder in folders)


# --- how many were left out ------------------------------------------------------------------------------------------

LEFT_OUT = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes the number from a worker of pytest-xdist; all workers collect the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(
            f"{left_out} slow tests and further cases were left out; --every runs them all, "
            '-m "slow or not slow" the slow tests.'
        )

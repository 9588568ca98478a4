"""The emulated devices, the sizes of random tests, shared fixtures, and which tests a run takes.

Three sets of tests, from small to large:

- by default, the tests that answer quickly: unit, api, regressions, a part of equivalence; unless they are marked
  `full`, XLA optimizes their programs little, and modules are not tried in another process first;
- with `-m "slow or not slow"`, also the tests marked `slow`: all of equivalence, models and system, and the tests that
  another folder marks so. A slow test also runs where the command names its file or its folder;
- with `--every`, also the cases that `part` leaves out.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest.register_assert_rewrite("tests.generators")

import jaxmesh as jm  # noqa: E402
from jaxmesh import ttnn  # noqa: E402
from jaxmesh.frontends.stablehlo import shardy  # noqa: E402
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


@pytest.fixture(autouse=True)
def cheaply(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Saves work where quick tests alone run: XLA optimizes little, and no process tries Shardy's passes first."""
    if runs_slow(request.path, request.config) or any(map(request.node.get_closest_marker, ("full", "slow"))):
        yield
        return
    monkeypatch.setattr(shardy, "fatal_error", lambda *_: None)
    with quick_compilation():
        yield


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
        "full: a quick test whose programs XLA optimizes, and whose modules another process tries first",
        "part(n): without `--every`, one in n of the test's cases runs",
        "quick(n): one in n of the test's cases, or of a slow folder's file, is quick; the others are slow",
        "slow: runs with `--every`, with a `-m` that names slow, or where the command names the file or its folder",
    ):
        config.addinivalue_line("markers", line)
    if config.getoption("--every"):
        os.environ["JAXMESH_EVERY"] = "1"
    cases = config.getoption("--cases")
    if cases is not None:
        # Workers of pytest-xdist inherit the environment; strategies read it when they are imported.
        os.environ["JAXMESH_CASES"] = str(cases)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files of slow folders unread in which no test is quick."""
    if collection_path.suffix != ".py" or not in_slow_folder(collection_path) or runs_slow(collection_path, config):
        return None
    return "pytest.mark.quick" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = config.getoption("--every")
    left_out: set[pytest.Item] = set()
    for cases in grouped(items, lambda item: (item.path, name_of(item))):
        part = cases[0].get_closest_marker("part")
        if part is not None and len(cases) >= FEW and not every:
            left_out |= set(cases) - set(cases[:: part.args[0]])
    for group in grouped([i for i in items if i not in left_out], sampled_with):
        mark_slow(group)
    left_out |= {i for i in items if i.get_closest_marker("slow") and not runs_slow(i.path, config)}
    config.hook.pytest_deselected(items=[i for i in items if i in left_out])
    items[:] = [i for i in items if i not in left_out]


def grouped(items: Sequence[pytest.Item], key: Callable[[pytest.Item], Hashable]) -> Iterable[list[pytest.Item]]:
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups.values()


def name_of(item: pytest.Item) -> str:
    """Returns the name of a test, without that of the case."""
    return getattr(item, "originalname", item.name)


def sampled_with(item: pytest.Item) -> Hashable:
    """Returns what the tests share of which one in n is quick: the test, or in a slow folder the file."""
    quick = item.get_closest_marker("quick")
    if quick is not None and in_slow_folder(item.path):
        return item.path, quick.args
    return item.path, name_of(item)


def mark_slow(group: Sequence[pytest.Item]) -> None:
    """Marks the slow ones among tests of which one in n is quick."""
    quick = group[0].get_closest_marker("quick")
    if quick is not None:
        slow = set(group) - set(group[:: quick.args[0]])
    else:
        slow = set(group) if in_slow_folder(group[0].path) else set[pytest.Item]()
    for item in slow:
        item.add_marker(pytest.mark.slow)


def in_slow_folder(path: Path) -> bool:
    return any(folder in path.parents for folder in SLOW_FOLDERS)


def runs_slow(path: Path, config: pytest.Config) -> bool:
    """Returns True if slow tests of a file run: all do, or the command names the file, or the slow folder it is in."""
    if config.getoption("--every") or "slow" in config.getoption("-m"):
        return True
    named = named_paths(config)
    folders = [folder for folder in SLOW_FOLDERS if folder in path.parents]
    return path in named or any(folder in (name, *name.parents) for name in named for folder in folders)


@functools.cache
def named_paths(config: pytest.Config) -> list[Path]:
    return [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--every"):
        terminalreporter.write_line(
            'Slow tests and further cases were left out; --every runs them all, -m "slow or not slow" the slow tests.'
        )

"""The emulated devices, shared fixtures, and which tests a run takes.

Two switches say how much runs:

- The mark `slow`. By default the tests without it run: unit, api, filecheck, regressions, and a part of equivalence.
  All of equivalence, models and system is slow, but for what `slow(but_one_in=n)` leaves quick. A slow test runs with
  `-m "slow or not slow"`, with `--every`, and where the command names its file or its folder. In a run without slow
  tests XLA optimizes little, and modules are not tried in another process first.
- `--every`. Runs the slow tests, too, each in every case, on every mesh (`tests.generators.oracles`).

`--further` leaves out the tests of which the default run takes the same cases; `.ci/run` has had such a run before.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections.abc import Generator, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import jaxlib.version
import pytest

pytest.register_assert_rewrite("tests.generators")

# XLA up to JAX 0.10 compiles small programs in half of the time without its emitters of fusions; later ones have no
# other. XLA reads the flags when the first devices start.
if jaxlib.version.__version_info__ < (0, 11):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

import jaxmesh as jm  # noqa: E402
from jaxmesh import ttnn  # noqa: E402
from jaxmesh.frontends.stablehlo import shardy  # noqa: E402
from jaxmesh.jaxprs.guarded_passes import run_passes  # noqa: E402
from jaxmesh.ttnn import beyond  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.generators.further_cases import scaled_names  # noqa: E402
from tests.generators.quick_compilation import quick_compilation  # noqa: E402

# Listings are as wide as the terminal that runs the tests otherwise.
os.environ["COLUMNS"] = "120"

SLOW_FOLDERS = [ROOT / "tests" / name for name in ("equivalence", "models", "system")]
AS_FOR_USERS = [ROOT / "tests" / name for name in ("benchmarks", "system")]
"""The folders whose programs XLA optimizes as it does for a user."""

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
    """Lets XLA optimize little, outside of AS_FOR_USERS; in quick runs, no other process runs Shardy's passes."""
    if "as_for_users" in request.fixturenames:
        yield
        return
    if not runs_slow(request.path, request.config):
        monkeypatch.setattr(shardy, "guarded_passes", run_passes)
    with contextlib.nullcontext() if set(AS_FOR_USERS) & set(request.path.parents) else quick_compilation():
        yield


@pytest.fixture
def as_for_users() -> None:
    """For tests whose programs XLA optimizes, and whose modules another process partitions."""


# --- which tests run -------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=None, help="cases per random test, instead of its own number")
    parser.addoption("--every", action="store_true", help="every test, in every case, on every mesh")
    parser.addoption("--further", action="store_true", help="no tests of which the default run takes the same cases")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "beyond: jaxmesh.ttnn emulates also what the real library refuses",
        "slow: runs with `--every`, with a `-m` that names slow, or where the command names the file or its folder; "
        "of `slow(but_one_in=n)` one in n of the test's cases, or of a slow folder's file, is quick",
    ):
        config.addinivalue_line("markers", line)
    if config.getoption("--every"):
        os.environ["JAXMESH_EVERY"] = "1"
    cases = config.getoption("--cases")
    if cases is not None:
        # Workers of pytest-xdist inherit the environment; strategies read it when they are imported.
        os.environ["JAXMESH_CASES"] = str(cases)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files of slow folders unread in which no test is quick, and with `--further` files without more cases."""
    if collection_path.suffix != ".py":
        return None
    if config.getoption("--further") and collection_path.name.startswith("test_"):
        return not (in_slow_folder(collection_path) or has_further_cases(collection_path)) or None
    if not in_slow_folder(collection_path) or runs_slow(collection_path, config):
        return None
    return "but_one_in" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What was imported stays, and most that tests make dies without the collector; it would take a tenth of the time.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    left_out = {i for group in grouped(items) for i in slow_ones(group) if not runs_slow(i.path, config)}
    if config.getoption("--further"):
        left_out |= {i for group in grouped(items) for i in without_further_cases(group)}
    config.hook.pytest_deselected(items=[i for i in items if i in left_out])
    items[:] = [i for i in items if i not in left_out]


def has_further_cases(path: Path) -> bool:
    """Returns True if a file has tests or cases that run with `--every` alone."""
    return "mark.slow" in path.read_text() or any(name.startswith("test_") for name in scaled_names(path))


def without_further_cases(group: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Returns the tests of a group of which the default run takes the same cases."""
    item = group[0]
    grows = item.config.getoption("--every") and getattr(item, "originalname", "") in scaled_names(item.path)
    return set() if grows or in_slow_folder(item.path) else set(group) - slow_ones(group)


def grouped(items: Sequence[pytest.Item]) -> Iterable[list[pytest.Item]]:
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(sampled_with(item), []).append(item)
    return groups.values()


def sampled_with(item: pytest.Item) -> Hashable:
    """Returns what the tests share of which one in n is quick: the test, or in a slow folder the file."""
    if in_slow_folder(item.path) and (sample := one_in(item)):
        return item.path, sample
    return item.path, getattr(item, "originalname", item.name), one_in(item)


def one_in(item: pytest.Item) -> int:
    """Returns n where one in n is quick; 0 where all are slow, 1 where none is."""
    mark = item.get_closest_marker("slow")
    if mark is None:
        return int(not in_slow_folder(item.path))
    return mark.kwargs.get("but_one_in", 0)


def slow_ones(group: Sequence[pytest.Item]) -> set[pytest.Item]:
    sample = one_in(group[0])
    return set(group) - set(group[::sample] if sample else ())


def in_slow_folder(path: Path) -> bool:
    return any(folder in path.parents for folder in SLOW_FOLDERS)


def runs_slow(path: Path, config: pytest.Config) -> bool:
    """Returns True if slow tests of a file run: all do, or the command names the file, or the slow folder it is in."""
    if config.getoption("--every") or "slow" in config.getoption("-m"):
        return True
    holding = [name for name in named_paths(config) if name in path.parents]
    return path in named_paths(config) or any(
        folder in (name, *name.parents) for name in holding for folder in SLOW_FOLDERS
    )


@functools.cache
def named_paths(config: pytest.Config) -> list[Path]:
    return [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--every"):
        terminalreporter.write_line(
            'Slow tests and further cases were left out; --every runs them all, -m "slow or not slow" the slow tests.'
        )

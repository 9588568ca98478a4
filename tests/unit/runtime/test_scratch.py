"""Temporary folders go with their process, however it ends, and so do the processes that work in them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxmesh.runtime.scratch import make_folder, remove_folder, run_in, temporary_folder

WORK = """
import os, sys, time
from pathlib import Path
from jaxmesh.runtime.scratch import make_folder, remove_folder, run_in, temporary_folder
temporary = Path(sys.argv[1])
folder = make_folder("a-", temporary)
(folder / "in").mkdir()
(folder / "in" / "file").touch()
"""
WRITES = [sys.executable, "-S", "-c", "import os\nwhile True:\n  open(f'{os.urandom(4).hex()}', 'w').close()"]
"""A command that writes into its folder until it is killed."""


def start(code: str, temporary: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", WORK + code, str(temporary)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("ends", ["os.kill(os.getpid(), 9)", "os._exit(3)", "os.abort()", "sys.exit()"])
@pytest.mark.slow(but_one_in=4)
def test_a_folder_goes_however_its_process_ends(tmp_path: Path, ends: str) -> None:
    with start(ends, tmp_path):
        pass
    wait_until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.slow
def test_what_works_in_a_folder_ends_before_it_goes(tmp_path: Path) -> None:
    with start(f"run_in(folder, {WRITES!r}, 600, cwd=folder)", tmp_path) as owner:
        wait_until(lambda: any(len(list(f.iterdir())) > 9 for f in tmp_path.iterdir()))
        owner.kill()
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_only_what_is_left_goes(tmp_path: Path) -> None:
    with start("remove_folder(folder); print(make_folder('b-', temporary), flush=True)", tmp_path) as owner:
        other = Path(first_line(owner))
    kept = tmp_path / "a-kept"
    kept.mkdir()
    wait_until(lambda: not other.exists())
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.slow
def test_a_forked_process_has_folders_of_its_own(tmp_path: Path) -> None:
    forks = """
if os.fork() == 0:
    make_folder("b-", temporary)
    os._exit(0)
os.wait()
print(0, flush=True)
time.sleep(600)
"""
    with start(forks, tmp_path) as owner:
        first_line(owner)
        wait_until(lambda: [p.name[:2] for p in tmp_path.iterdir()] == ["a-"])
        owner.kill()
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_folder_is_private(tmp_path: Path) -> None:
    with temporary_folder("a-", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        make_folder("a-", tmp_path / "none")


def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    folder = make_folder("a-", tmp_path)
    code = f"import subprocess; subprocess.run({WRITES!r})"
    with pytest.raises(subprocess.TimeoutExpired):
        run_in(folder, [sys.executable, "-S", "-c", code], 1.0, cwd=folder)
    remove_folder(folder)
    time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_ends(tmp_path: Path) -> None:
    code = "import sys; print(3); print(4, file=sys.stderr); sys.exit(5)"
    with temporary_folder("a-", tmp_path) as folder:
        done = run_in(folder, [sys.executable, "-S", "-c", code], 60.0)
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "4\n", 5)

"""The simulated chip: its Python environment, and the process of ttnn that calls it.

The environment has ttnn, a compiler of kernels, and the simulator `wolfpine`, which is a child of the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from jaxmesh.analysis.environments import cache_folder, clean_environment, private_folder
from jaxmesh.analysis.judge.environment import COMPILER, PROGRAM, TTNN
from jaxmesh.analysis.machines import MACHINES
from jaxmesh.analysis.upstream.environment import find_plugin
from jaxmesh.analysis.upstream.worker import with_assets
from jaxmesh.errors import ChipError
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.scratch import end_with, kill_group, make_folder, remove_folder

CHIP = replace(
    TTNN, name="the simulated chip", requirement="wolfpine", tested="2.2", beside=(f"ttnn=={TTNN.tested}",),
    variable="JAXMESH_CHIP_PYTHON", command="chip-env", megabytes=1300, error=ChipError,
    question=TTNN.question.replace('version("ttnn")', 'version("wolfpine")').replace('"ttnn")', '"framework")'),
)  # fmt: skip
_SIMULATOR, _SFPI = Path("sim", "blackhole"), Path("runtime", "sfpi")
_RUNNER = Path(__file__).with_name("runner.py")


def find_environment(python: str | os.PathLike[str] | None = None) -> tuple[Path, Path, str]:
    """Returns `python`, else the Python in `JAXMESH_CHIP_PYTHON`, else the one from `chip-env`; the folder of its
    simulator of a Blackhole, and the versions of ttnn, the simulator and the compiler of kernels.

    Raises:
      ChipError: no Python was found, or it cannot be started, or a package lacks what is needed.
    """
    own, why = CHIP.find(python)
    answer, library = CHIP.ask(own, why), replace(CHIP, name="ttnn", question=TTNN.question).ask(own, why)
    simulator, compiler = Path(answer["folder"]) / _SIMULATOR, Path(library["folder"]) / _SFPI / "compiler"
    if not simulator.is_dir():
        raise ChipError(f"wolfpine {answer['version']} does not have {str(simulator)!r}; {CHIP.get}.")
    tools, cores = compiler / "bin", compiler / "riscv-tt-elf" / "lib" / "bh-ilp32"
    if not (tools / COMPILER).is_file() or (tools / PROGRAM).exists() or not cores.is_dir():
        why = "lacks a compiler of kernels for Blackhole, which `jaxmesh upstream-env` has"
        raise ChipError(f"{str(compiler)!r} {why}; {CHIP.get}.")
    said = subprocess.run([tools / COMPILER, "--version"], capture_output=True, text=True, check=False).stdout
    versions = library["version"], answer["version"], said.partition("sfpi:")[2].partition("[")[0]
    return own, simulator, "ttnn {}, wolfpine {}, sfpi {}".format(*versions)


def make_environment(folder: Path, version: str, python: str | os.PathLike[str] | None = None) -> str:
    """Creates a virtual environment with ttnn, the simulator, and the compiler of kernels that upstream's unpacks;
    returns the versions of all three.

    Raises:
      ChipError: no supported Python was found, or pip cannot install a package, or a package lacks what is needed.
      UpstreamError: Tenstorrent's compiler was not found, or does not start.
    """
    return find_environment(CHIP.install(folder, version, python, _add_compiler))[2]


def _add_compiler(folder: Path) -> None:
    target = next(folder.glob("lib/python3*/site-packages")) / "ttnn" / _SFPI

    def copy(assets: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        if (assets / _SFPI).is_dir():
            shutil.copytree(assets / _SFPI, target)

    with_assets(find_plugin(), next(iter(MACHINES.values())), copy)
    for path in target.rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)


class Chip:
    """One simulated Blackhole with one core for kernels, whose process starts with the first call, until `close()`.

    A process that stands still for a number of seconds is killed, and the next call starts another one.
    """

    def __init__(self, python: str | os.PathLike[str] | None = None, seconds: float = 120.0) -> None:
        self._seconds = seconds
        self._python, self._simulator, self.versions = find_environment(python)
        self._running: tuple[subprocess.Popen[bytes], Any] | None = None
        self.folder = make_folder("jaxmesh-chip-")

    def call(self, source: str, names: Mapping[str, Any]) -> tuple[str, list[Any], float]:
        """Returns how a printed call failed, empty if it did not, its results as arrays of NumPy, and its seconds; the
        names in it have values as the runner takes them.

        Raises:
          ChipError: the process does not start.
        """
        link = (self._running or self._start())[1]
        with contextlib.suppress(ConnectionError):  # If the process has ended, so says the answer.
            link.send((source, names))
        failed, results, spent = self._answer(link, self._seconds)
        return failed, [np.frombuffer(data, dtype).reshape(shape) for data, shape, dtype in results], spent

    def close(self) -> None:
        """Ends the process, and removes its folder."""
        self._end()
        remove_folder(self.folder)

    def _start(self) -> tuple[subprocess.Popen[bytes], Any]:
        link, other = Pipe()
        with progress("the simulated chip starts"), (self.folder / "log").open("wb") as log:
            self._running = running = subprocess.Popen(
                [self._python, _RUNNER, "calls", str(other.fileno())], cwd=self.folder, env=self._variables(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[other.fileno()], start_new_session=True,
            ), link  # fmt: skip
            end_with(self.folder, running[0].pid)
            other.close()
            if failed := self._answer(link, 180.0)[0]:
                raise ChipError(f"the simulated chip ({self.versions}) does not start: it {failed}; {CHIP.get}.")
        return running

    def _variables(self) -> dict[str, str]:
        """Returns the environment of the process; writes the folder that ttnn starts the simulator in."""
        simulator = self.folder / "blackhole"
        shutil.copytree(self._simulator, simulator, dirs_exist_ok=True)
        (simulator / "run.sh").write_text(f'#!/bin/sh\nexec "{self._python.absolute()}" -u "{_RUNNER}" "$@"\n')
        (simulator / "run.sh").chmod(0o755)
        return clean_environment() | {
            "TT_METAL_SIMULATOR": str(simulator),
            "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(simulator / "cluster_descriptor.yaml"),
            "TT_METAL_SLOW_DISPATCH_MODE": "1",
            "TT_METAL_DISABLE_SFPLOADMACRO": "1",
            # One core takes a tenth of the time of 130, since most of them do nothing.
            "TT_METAL_CORE_GRID_OVERRIDE_TODEPRECATE": "0,0",
            "TT_METAL_CACHE": str(private_folder(cache_folder() / "chip-kernels")),
            "TT_LOGGER_LEVEL": "off",
            "LOGURU_LEVEL": "ERROR",
        }

    def _answer(self, link: Any, seconds: float) -> tuple[str, list[Any], float]:
        try:
            if link.poll(seconds):
                return link.recv()
            failed = f"stands still: no answer in {seconds:g} s"
        except (EOFError, ConnectionError):
            lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
            failed = f"ended: {lines[-1].strip() if lines else 'it printed nothing'}"
        self._end()
        return failed, [], 0.0

    def _end(self) -> None:
        if self._running is not None:
            process, link = self._running
            self._running = None
            kill_group(process.pid)
            process.wait()
            link.close()

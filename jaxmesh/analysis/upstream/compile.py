"""Compiles StableHLO text with Tenstorrent's own compiler, for a machine that is only described."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxmesh.analysis.machines import DEFAULT, MACHINES, Machine, machine_named
from jaxmesh.analysis.upstream.environment import Plugin, find_plugin
from jaxmesh.analysis.upstream.result import UpstreamProgram, UpstreamRefusal
from jaxmesh.analysis.upstream.worker import compile_on_worker
from jaxmesh.errors import ArgumentTypeError, MeshError, ParseError
from jaxmesh.jaxprs.source_locations import resolve

SECONDS = 600.0
"""The default time limit of a program, in seconds."""
_PARTITIONS = re.compile(r"mhlo\.num_partitions = ([0-9]+)")
_MESH = re.compile(r"sdy\.mesh @[^=\n]*= <\[([^\]\n]*)\]")
_STAGE = re.compile(r"(.+?)_[0-9]{6,}\.mlir")
_DIAGNOSTIC = re.compile(r"^(loc\(.*\)|\S+:[0-9]+:[0-9]+): error: (.*)$", re.MULTILINE)
_NO_PROGRAM = re.compile("Failed to parse|MLIR module must have a main function")
_UNPARSED = re.compile(r"(?<!\S)-:([0-9]+):[0-9]+: error: ([^\n]*?)(?:\. If this is intended\b[^\n]*)?$", re.MULTILINE)
"""The line and the reason of an error of MLIR's parser, without advice to those who call it."""
_PROBE = """module {
  func.func public @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
    return %x : tensor<32x32xf32>
  }
}"""


def compile_text(
    stablehlo: str,
    *,
    cluster: str = DEFAULT,
    options: Mapping[str, str] | None = None,
    plugin: str | os.PathLike[str] | None = None,
    timeout: float = SECONDS,
    meanwhile: Callable[[], object] | None = None,
) -> UpstreamProgram:
    """Compiles a StableHLO text with Tenstorrent's own compiler; needs no board.

    Args:
      stablehlo: a module of the dialects stablehlo, chlo, sdy and func, with the shardings of its arguments.
      cluster: a machine in `jaxmesh.analysis.machines`, in any case.
      options: compiler options of tt-xla.
      plugin: the path of the plugin's shared library, or of a Python that has it; by default `JAXMESH_UPSTREAM_PYTHON`,
        or the environment that `jaxmesh upstream-env` created.
      timeout: the time limit in seconds, without that of the compiler's start.
      meanwhile: a function to call in this process while the compiler works in another one.

    Returns:
      The texts of all stages, TTIR, TTNN and the flatbuffer; or the texts as far as the compiler came, and its refusal.

    Raises:
      UpstreamError: the compiler was not found, does not start, crashed, or took too long.
      ArgumentValueError: no machine has this name.
      MeshError: the program needs more devices than the machine has.
      ParseError: the text is no StableHLO.
    """
    if not isinstance(stablehlo, str):
        raise ArgumentTypeError(f"compile_text takes StableHLO text, got {type(stablehlo).__name__}.")
    machine, count = machine_named(cluster), _devices(stablehlo)
    if count > machine.devices:
        raise MeshError(
            f"the program is for {count} devices, and {machine.name} has {machine.devices}; name a larger cluster."
        )
    found = find_plugin(plugin)
    job = {"count": count, "options": {str(k): str(v) for k, v in (options or {}).items()}}

    def read(folder: Path, answer: Mapping[str, Any], log: str) -> UpstreamProgram:
        return _result(folder, found, machine, answer.get("refused"), log)

    return compile_on_worker(found, machine, stablehlo, job, timeout, meanwhile, read)


def check_plugin(plugin: str | os.PathLike[str]) -> Plugin:
    """Returns a plugin that compiled a program; raises as `compile_text`."""
    compile_text(_PROBE, cluster=next(iter(MACHINES)), plugin=plugin)
    return find_plugin(plugin)


def _devices(text: str) -> int:
    """Returns the number of devices of a module: as it says, else as its largest mesh has.

    >>> _devices('sdy.mesh @mesh = <["y"=2, "x"=4]>'), _devices("module {}")
    (8, 1)
    """
    said = _PARTITIONS.search(text)
    if said is not None:
        return int(said[1])
    meshes = [[int(n) for n in re.findall(r"=\s*([0-9]+)", axes)] for axes in _MESH.findall(text)]
    return max(map(math.prod, meshes), default=1)


def _result(folder: Path, plugin: Plugin, machine: Machine, refused: str | None, log: str) -> UpstreamProgram:
    texts = sorted((folder / "irs").glob("*.mlir"), key=lambda p: p.stat().st_mtime_ns)
    stages = {found[1]: p.read_text(errors="replace") for p in texts if (found := _STAGE.fullmatch(p.name))}
    about: dict[str, Any] = {"plugin": str(plugin), "cluster": machine.name, "log": log}
    if refused is None:
        flatbuffer = (folder / "program.ttnn").read_bytes()
        return UpstreamProgram(stages, flatbuffer=flatbuffer, **about)
    if not stages and _NO_PROGRAM.search(refused):
        first = _UNPARSED.search(refused)
        reason = f"line {first[1]}: {first[2]}" if first else " ".join(refused.split())
        raise ParseError(f"{reason}; the compiler cannot parse this as StableHLO.")
    return UpstreamProgram(stages, refusal=_refusal(refused, log), **about)


def _refusal(refused: str, log: str) -> UpstreamRefusal:
    """Returns the refusal: the first diagnostic of the compiler with its source line, else JAX's message."""
    first = _DIAGNOSTIC.search(log)
    if first is None:
        return UpstreamRefusal(" ".join(refused.partition(": ")[2].split()) or refused, "", "", log or refused)
    place, reason = first[1], first[2].strip()
    inner = place[len("loc(") : -1] if place.startswith("loc(") else json.dumps(place)
    name = re.match(r'"((?:[^"\\]|\\.)*)"\(', inner)
    source = resolve(inner, {})
    return UpstreamRefusal(reason, "" if source.startswith("-:") else source, name[1] if name else "", log)

"""The options of `ttmlir-opt` that `jaxmesh opt` accepts, so that one RUN line serves both.

A pass or pipeline of upstream is an option here if `jaxmesh opt` does the same work. Its sub-options, as in
`--ttir-to-ttnn-backend-pipeline="mesh-shape=1,2 optimization-level=0"`, are accepted with the values that describe
the behaviour here; any other value is wrong usage and never ignored.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jaxmesh as jm
from jaxmesh.cli.options import parse_mesh

_WORD = re.compile(r"(?P<name>[\w-]+)(?:=(?P<value>\S+))?")
_SYSTEM = {"mesh-shape": None, "system-desc-path": None}
"""Options with any value: the mesh, and a description of chips that jaxmesh ignores."""
_BACKEND: Mapping[str, str | None] = _SYSTEM | {
    "optimization-level": "0",
    "enable-const-eval": None,
    "enable-const-eval-inputs-to-system-memory": "true",
    "enable-cpu-hoisted-const-eval": "false",
    "enable-trace": "false",
    "enable-ttnn-decomposition-pass": None,
    "composite-resolution": None,
    "mock-system-desc-arch": None,
    "enable-fusing-pass": "true",
    "enable-implicit-broadcast-folding-pass": "true",
}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pass or pipeline of upstream.

    Attributes:
      does: the attribute of the parsed arguments that it sets; None if it changes nothing here.
      options: its sub-options, each with its only valid value; None for any value.
      help: a description for `--help`.
      language: the language of the printed program; MLIR if empty.
    """

    does: str | None
    options: Mapping[str, str | None]
    help: str
    language: str = ""


_ON_HOST: Mapping[str, str | None] = {"enable-cpu-hoisted-const-eval": None}
"""Sub-options of the pipelines to Python, which has text for the host's processor."""
_TOPOLOGY: Mapping[str, str | None] = {"mesh-topology": None}
_EMIT: Mapping[str, str | None] = {"tuplify-input-if-empty": None}
"""Sub-options of the pipelines to Python and C++; every function takes its arguments as one list here."""
_PYTHON = _EMIT | {
    "target-module": "true",
    "split-files": None,
    "load-input-tensors-from-disk": None,
    "tensor-load-directory": None,
    "tensor-load-file-prefix": None,
}
_AS_UPSTREAM = "--ttir-to-ttnn with layouts in types; arguments that no mesh_shard reads are on the devices"
_EMITTED = "its result as ttmlir-translate prints it: the dialect between has no text here"

PIPELINES: Mapping[str, Pipeline] = {
    "--ttir-to-ttnn-backend-pipeline": Pipeline("ttir_to_ttnn", _BACKEND, _AS_UPSTREAM),
    "--ttir-to-ttnn-runtime-pipeline": Pipeline("ttir_to_ttnn", _BACKEND, _AS_UPSTREAM),
    "--ttir-to-ttnn-common-pipeline": Pipeline("ttir_to_ttnn", _BACKEND, _AS_UPSTREAM),
    "--ttnn-common-to-runtime-pipeline": Pipeline(None, {}, "nothing: no operation is moved to the host's processor"),
    "--ttir-to-emitpy-pipeline": Pipeline(
        "ttir_to_ttnn", _BACKEND | _ON_HOST | _PYTHON | _TOPOLOGY, _EMITTED, "python"
    ),
    "--ttir-to-emitc-pipeline": Pipeline("ttir_to_ttnn", _BACKEND | _EMIT, _EMITTED, "cpp"),
    "--ttnn-common-to-emitpy-pipeline": Pipeline(None, _PYTHON, _EMITTED, "python"),
    "--ttnn-common-to-emitc-pipeline": Pipeline(None, _EMIT, _EMITTED, "cpp"),
    "--convert-ttnn-to-emitpy": Pipeline(None, {}, _EMITTED, "python"),
    "--convert-ttnn-to-emitc": Pipeline(None, {}, _EMITTED, "cpp"),
    "--stablehlo-to-ttir-pipeline": Pipeline("stablehlo_to_ttir", {}, "--stablehlo-to-ttir, as ttmlir-opt calls it"),
    "--stablehlo-pipeline": Pipeline(
        None, {"mesh-shape": None, "automatic-arg-analysis": "true"}, "names the mesh; StableHLO is always partitioned"
    ),
    "--convert-ttnn-to-ttir": Pipeline(
        "ttnn_to_ttir", {}, "ops of TTNN that are marked for the D2M compiler as ops of TTIR, with their layouts"
    ),
    "--const-eval-hoist-transform": Pipeline(
        "hoists", {}, "what depends on parameters and constants alone as functions that load_cached calls"
    ),
    "--ttnn-layout": Pipeline(None, {}, "nothing: a value without a layout has the one that its operation gives"),
    "--ttnn-workaround": Pipeline(None, {}, "nothing: a program of TTNN is printed as it is"),
    "--ttnn-decompose-layouts": Pipeline(None, {}, "nothing: a program of TTNN is printed as it is"),
    "--canonicalize": Pipeline(None, {}, "brings TTIR into its canonical form, before it is lowered or printed"),
    "--ttcore-register-device": Pipeline(None, _SYSTEM, "names the mesh"),
    "--ttcore-mark-functions-as-forward": Pipeline(None, {}, "nothing: every function is one that a device runs"),
    "--ttcore-wrap-device-module": Pipeline(None, {}, "nothing: functions stand in one module"),
    "--ttcore-unwrap-device-module": Pipeline(None, {}, "nothing: functions stand in one module"),
}
FLAGS: Mapping[str, str] = {
    "--split-input-file": "the pieces of a file are always read one by one",
    "--mlir-print-local-scope": "no text has aliases",
}
"""Options that describe the default behaviour."""


def add_pipelines(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `ttmlir-opt`."""
    group = parser.add_argument_group("options of ttmlir-opt")
    for name, pipeline in PIPELINES.items():
        group.add_argument(
            name, nargs="?", const="", metavar="OPTIONS", type=_reader(name, pipeline.options), help=pipeline.help
        )
    for name, text in FLAGS.items():
        group.add_argument(name, action="store_true", help=text)


def as_written_here(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of `ttmlir-opt` in the spelling of this command line: two dashes, a `=` for options.

    >>> as_written_here(["-split-input-file", "--ttcore-register-device", "a.mlir"])
    ['--split-input-file', '--ttcore-register-device=', 'a.mlir']
    """
    doubled = [f"-{a}" if re.match(r"-[a-z][\w-]", a) else a for a in arguments]
    return [f"{a}=" if a in PIPELINES else a for a in doubled]


def apply_pipelines(arguments: argparse.Namespace) -> None:
    """Sets the options of `jaxmesh opt` that correspond to the options of `ttmlir-opt`; all must name one mesh."""
    arguments.upstream = arguments.hoists = arguments.ttnn_to_ttir = arguments.target_module = arguments.ring = False
    arguments.promotes = arguments.const_eval = arguments.on_host = arguments.split_files = False
    arguments.load = ""
    arguments.language = ""
    for name, pipeline in PIPELINES.items():
        sub_options: Mapping[str, str] | None = getattr(arguments, name.lstrip("-").replace("-", "_"))
        if sub_options is None:
            continue
        if pipeline.does is not None:
            setattr(arguments, pipeline.does, True)
        arguments.upstream |= pipeline.does == "ttir_to_ttnn"
        if pipeline.does == "ttir_to_ttnn":
            arguments.const_eval = sub_options.get("enable-const-eval", "true") == "true"
        arguments.language = pipeline.language or arguments.language
        if pipeline.language == "python":
            arguments.split_files = sub_options.get("split-files", "true") == "true"
            arguments.on_host = sub_options.get("enable-cpu-hoisted-const-eval", "true") == "true"
            if sub_options.get("load-input-tensors-from-disk") == "true":
                folder = sub_options.get("tensor-load-directory", "")
                arguments.load = f"{folder}{'/' if folder else ''}{sub_options.get('tensor-load-file-prefix', 'arg')}"
        arguments.target_module |= "target-module" in sub_options
        arguments.promotes |= sub_options.get("composite-resolution") == "force-promote"
        arguments.ring |= "ring" in sub_options.get("mesh-topology", "").split(",")
        if "mesh-shape" in sub_options:
            sizes = sub_options["mesh-shape"].replace(",", "x")
            if arguments.mesh is not None and parse_mesh(arguments.mesh) != parse_mesh(sizes):
                raise jm.MeshError(
                    f"{name} names the mesh {sizes}, but --mesh or another option {arguments.mesh}; name one mesh."
                )
            arguments.mesh = sizes


def _reader(name: str, allowed: Mapping[str, str | None]) -> Callable[[str], dict[str, str]]:
    """Returns a function that parses the sub-options of a pipeline."""

    def read(text: str) -> dict[str, str]:
        values: dict[str, str] = {}
        for word in text.strip("'\"").split():
            part = _WORD.fullmatch(word)
            if part is None or part["name"] not in allowed:
                raise argparse.ArgumentTypeError(
                    f"{word!r} is not among {', '.join(allowed) or 'its options: it does not have any'}"
                )
            value, only = part["value"] or "true", allowed[part["name"]]
            if only is not None and value != only:
                raise argparse.ArgumentTypeError(f"{part['name']} is {only} here, got {value}; leave it out")
            values[part["name"]] = value
        return values

    return read

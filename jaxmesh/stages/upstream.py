"""A program as Tenstorrent's own compiler compiles it, whose texts are programs again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from jaxmesh.analysis.upstream import UpstreamProgram
from jaxmesh.analysis.upstream.compile import compile_text
from jaxmesh.errors import ArgumentValueError
from jaxmesh.frontends.mlir.module import choose, load_text
from jaxmesh.stages.read_mlir import decode_function, import_program
from jaxmesh.validate import quote

T = TypeVar("T")
READ = ("ttnn", "ttir")
"""The stages of the compiler that are programs for devices."""


@dataclass(frozen=True, eq=False, repr=False)
class UpstreamResult(UpstreamProgram, Generic[T]):
    """A program as Tenstorrent's compiler compiled or refused it; see `UpstreamProgram` for its attributes."""

    make: Callable[..., T] = field(kw_only=True)

    def program(self, dialect: str = "ttnn") -> T:
        """Returns the `"ttnn"` or `"ttir"` text as a traced program, which lowers, runs and is judged like any other.

        Raises:
          UpstreamError: the compiler refused the program before this text.
          VerifyError, MissingRuleError, UnsupportedError, ParseError: as of `jaxmesh.from_mlir`.
        """
        if dialect not in READ:
            raise ArgumentValueError(f"program takes {' or '.join(map(repr, READ))}, got {quote(dialect)}.")
        file = load_text(self.text(dialect))
        return import_program(file, decode_function(file, choose(file, None)), None, self.make)


def ask_upstream(stablehlo: str, make: Callable[..., T], **options: Any) -> UpstreamResult[T]:
    """Compiles a StableHLO text; see `compile_text` for options and errors, and `import_program` for `make`."""
    made = compile_text(stablehlo, **options)
    return UpstreamResult(made.stages, made.flatbuffer, made.refusal, made.plugin, made.cluster, made.log, make=make)

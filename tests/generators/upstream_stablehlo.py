"""tt-mlir's test files with StableHLO: which functions become TTNN, and whose collectives are the expected ones.

`python -m tests.generators.upstream_stablehlo CHECKOUT [PART]` reads the files of a checkout whose path has PART in it.
A function that becomes no TTNN is printed with its error; so is, of the programs with Shardy's annotations that
upstream's pipeline reads, one whose collectives are in other numbers than in the CHECK lines.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

import jaxmesh as jm
from jaxmesh.frontends.mlir.module import load_text, public_functions
from jaxmesh.sharding.mesh import emulate
from jaxmesh.stages.read_mlir import decode_function, import_program

COLLECTIVES = "all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute|all_slice|mesh_partition"
EXPECTED = re.compile(r"CHECK(-NEXT|-SAME|-DAG|-COUNT-(\d+))?:")
PIPELINE = re.compile(r"stablehlo-pipeline|stablehlo-to-ttir|ttir-to-ttnn")


def pieces(file: Path) -> Iterator[str]:
    """Yields the modules of a file, each with the file's RUN lines."""
    text = file.read_text()
    runs = "\n".join(line for line in text.splitlines() if "RUN:" in line)
    for number, piece in enumerate(re.split(r"(?m)^[ \t]*// ?-----[^\n]*$", text)):
        if re.search(r"\bfunc\.func", piece):
            yield f"{runs}\n{piece}" if number else piece


def expected(piece: str) -> tuple[Counter[str], set[str]]:
    """Returns how many collectives of each kind the CHECK lines expect, and which kinds they exclude."""
    wanted, excluded = Counter[str](), set[str]()
    for line in piece.splitlines():
        found, check = re.findall(rf"(?:stablehlo|ttir|ttnn|sdy)\.({COLLECTIVES})\b", line), EXPECTED.search(line)
        if "CHECK-NOT" in line:
            excluded.update(found)
        elif check is not None:
            wanted.update(found * int(check[2] or 1))
    return wanted, excluded - set(wanted)


def texts(piece: str) -> Iterator[tuple[str, str | Exception]]:
    """Yields the functions of a module: their names, and their TTIR if they become TTNN, else the error."""
    try:
        source = load_text(piece)
    except jm.errors.JaxmeshError as error:
        yield "", error
        return
    for function in public_functions(source) or [f for f in source.functions if f.has_body]:
        try:
            traced = import_program(source, decode_function(source, function), None, jm.Traced)
            traced.lower().as_text(strict=False)
            yield function.name, traced.as_text()
        except Exception as error:
            yield function.name, error


def main(checkout: str, part: str = "") -> int:
    emulate(8)
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    kinds, programs, bare = Counter[str](), Counter[str](), 0
    for file in sorted(f for f in Path(checkout, "test").rglob("*.mlir") if part in str(f)):
        text = file.read_text()
        if not re.search(r"\b(?:stablehlo|chlo|sdy)\.\w", text) or "expected-error" in text:
            continue
        pipeline = any(PIPELINE.search(line) for line in text.splitlines() if "RUN:" in line)
        for piece in pieces(file):
            made = list(texts(piece))
            for name, result in made:
                kinds[type(result).__name__ if isinstance(result, Exception) else "TTNN"] += 1
                if isinstance(result, Exception):
                    bare += not isinstance(result, jm.errors.JaxmeshError)
                    print(f"{file.relative_to(checkout)} @{name}: {type(result).__name__}: {str(result)[:200]}")
            wanted, excluded = expected(piece)
            if pipeline and "sdy." in piece and (wanted or excluded):
                programs[compared(file.name, wanted, excluded, made)] += 1
    print(f"functions: {dict(kinds)}, {bare} errors without a name; programs with collectives: {dict(programs)}")
    return 1 if bare else 0


def compared(file: str, wanted: Counter[str], excluded: set[str], made: list[tuple[str, Any]]) -> str:
    if any(isinstance(result, Exception) for _, result in made):
        return "not read"
    found = Counter[str](c for _, text in made for c in re.findall(rf"ttir\.({COLLECTIVES})", text))
    if all(found[c] == n for c, n in wanted.items()) and not excluded & set(found):
        return "as expected"
    print(f"{file}: {dict(found)}, expected {dict(wanted)}, none of {sorted(excluded)}")
    return "other"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Runs the `.mlir` files of this folder by their RUN line, in this process.

    // RUN: jaxmesh opt %s OPTIONS | filecheck %s        the output matches the CHECK lines
    // RUN: jaxmesh opt %s OPTIONS --verify-diagnostics  each piece fails as its `expected-error` line says

Pieces are separated by `// -----`. `// expected-error@+N {{text}}` or
`expected-warning` stands N lines above the line that is at fault.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options

from jaxmesh.cli.main import main
from jaxmesh.dialects import textual, ttir as ttir_dialect, ttnn as ttnn_dialect
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.frontends.stablehlo import shardy
from jaxmesh.jaxprs import guarded_passes
from jaxmesh.passes.lowering import LOWERING
from jaxmesh.passes.pipeline import TTIR_PIPELINE, ttnn_pipeline
from tests import FILECHECK
from tests.generators.ttir_cases.basic import UNARY

FILES = sorted(FILECHECK.rglob("*.mlir"))
RUN = re.compile(r"(?m)^// RUN: jaxmesh opt(?P<options>[^|]*?)(?P<check> \| filecheck %s)?\n")
DIAGNOSTICS = "--verify-diagnostics"
EXPECTED = re.compile(r"// expected-(error|warning)@\+(\d+) \{\{(.*)\}\}")


def opt(path: Path, options: list[str]) -> tuple[str, str]:
    """What `jaxmesh opt` prints, and its error."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), contextlib.suppress(SystemExit):
        main(["opt", str(path), *options])
    return out.getvalue(), error.getvalue()


def filecheck(path: Path, text: str, folder: Path) -> str:
    """What does not match the CHECK lines of a file; empty if all do."""
    output = folder / "output.mlir"
    output.write_text(text)
    complaint = io.StringIO()
    with contextlib.redirect_stdout(complaint), contextlib.redirect_stderr(complaint):
        code = Matcher.from_opts(parse_argv_options(["filecheck", str(path), f"--input-file={output}"])).run()
    return (complaint.getvalue() or f"exit code {code}") if code else ""


def assert_fails_as_expected(piece: str, options: list[str], folder: Path) -> None:
    lines = piece.splitlines()
    ((at, match),) = [(n, m) for n, line in enumerate(lines, 1) if (m := EXPECTED.search(line))]
    file = folder / "piece.mlir"
    file.write_text(piece)
    _, error = opt(file, options)
    assert f"jaxmesh: {match[1]}: line {at + int(match[2])}: " in error, error
    assert match[3] in error, error


def assert_warns_as_expected(text: str, error: str) -> None:
    lines = enumerate(text.splitlines(), 1)
    expected = [(n + int(m[2]), m[3]) for n, line in lines if (m := EXPECTED.search(line)) and m[1] == "warning"]
    found = error.splitlines()
    assert len(found) == len(expected), error
    for (line, words), warning in zip(expected, found, strict=True):
        assert warning.startswith(f"jaxmesh: warning: line {line}: "), warning
        assert words in warning


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(FILECHECK)))
def test_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    if "would end the process" in text:
        # Quick tests run all passes in their own process.
        monkeypatch.setattr(shardy, "guarded_passes", guarded_passes.guarded_passes)
    run = RUN.search(text)
    assert run is not None, "the file has no RUN line"
    options = shlex.split(run["options"])
    options.remove("%s")
    if DIAGNOSTICS in options:
        options.remove(DIAGNOSTICS)
        for piece in text.split("// -----\n"):
            assert_fails_as_expected(piece, options, tmp_path)
        return
    assert run["check"], "the output is not checked"
    output, error = opt(path, options)
    assert_warns_as_expected(text, error)
    assert not filecheck(path, output, tmp_path)


def test_a_wrong_output_is_found(tmp_path: Path) -> None:
    path = FILECHECK / "passes" / "lower-mesh-shard.mlir"
    output, _ = opt(path, ["--ttir-to-ttnn"])
    assert "error" in filecheck(path, output.replace("[<shard, 0 : i32>]", "[<shard, 1 : i32>]"), tmp_path)


def test_every_pass_has_a_file() -> None:
    passes = {p.name for p in (*LOWERING, *TTIR_PIPELINE, *ttnn_pipeline(strict=True))}
    # A text has no calls left to inline, and of a text every result's residency is declared.
    assert {p.stem for p in (FILECHECK / "passes").glob("*.mlir")} == passes - {"inline-transfers", "place-results"}


def test_every_op_without_a_call_has_a_line() -> None:
    text = "".join(path.read_text() for path in FILES if "upstream" in path.parts)
    known = [name for name, row in textual.OPS.items() if Trait.OPAQUE not in row.traits]
    assert known
    assert [name for name in known if f'"{name}"' not in text] == []


@pytest.mark.parametrize(("dialect", "ops"), [("ttir", ttir_dialect.OPS), ("ttnn", ttnn_dialect.OPS)])
def test_every_op_has_a_line(dialect: str, ops: dict[str, OpDef]) -> None:
    """Functions of one operand are printed alike; `test_identity.py` reads and prints each of them."""
    text = "".join(p.read_text() for p in FILES if dialect in p.parts or "passes" in p.parts)
    printed = {name for name, definition in ops.items() if Trait.LATER not in definition.traits}
    assert printed - UNARY.keys() <= set(re.findall(rf'(?m)^ *(?:%\S+ = )?"{dialect}\.(\w+)"', text))

# ruff: noqa: E501
"""Mutates texts of strangers and reads them in processes that may die.

`python -m tests.generators.faults.mutated_texts --seconds 3600 --seed 1 [--folder FOUND]` mutates the texts of
`corpus()` and prints each text that ends the process, runs longer than `SECONDS`, takes more than `MEGABYTES`, or raises
an error without a name; `--folder` keeps them as files. A text that is read is lowered and printed, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests import FILECHECK

SECONDS = 30
"""The time that one text may take, which a full machine may need for a text of many functions."""
MEGABYTES = 1500
"""The memory that one text may take beside that of the process."""
LONGEST = 5000
"""The characters of the longest message."""

SHARDED = """module {
  sdy.mesh @mesh = <["y"=2, "x"=4]>
  func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y":(1)2, ?}p1, {"x"}]>},
      %b: tensor<4x8xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\\22x\\22}, {}]>"}})
      -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"y", "x"}, {}], replicated={}> : tensor<8x8xf32>
    %2 = stablehlo.add %1, %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {?}]>]>} : tensor<8x8xf32>
    %3 = call @f(%2) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %3 : tensor<8x8xf32>
  }
  func.func private @f(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{"y"}, {}]>]
        manual_axes={"y"} (%x: tensor<4x8xf32>) {
      %1 = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %2 = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
      sdy.return %1 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""
ANNOTATED = """module @SyncTensorsGraph attributes {mhlo.num_partitions = 8 : i32} {
  func.func @main(%a: tensor<8x4x4x2xf32> {mhlo.sharding = "{devices=[2,1,1,1,4]<=[8] last_tile_dim_replicate}"},
      %w: tensor<3x3x2x6xf32> {mhlo.sharding = "{devices=[2,4,1,1]<=[2,4]T(1,0)}"}) -> tensor<8x4x4x6xf32> {
    %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{replicated}"} : (tensor<8x4x4x2xf32>) -> tensor<8x4x4x2xf32>
    %1 = stablehlo.convolution(%0, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>]}
      : (tensor<8x4x4x2xf32>, tensor<3x3x2x6xf32>) -> tensor<8x4x4x6xf32>
    %2 = stablehlo.iota dim = 1 : tensor<8x4x4x6xf32>
    %3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<8x4x4x6xf32>
    %5 = stablehlo.multiply %1, %2 : tensor<8x4x4x6xf32>
    %6 = stablehlo.add %5, %4 {mhlo.sharding = "{devices=[8,1,1,1]0,1,2,3,4,5,6,7}"} : tensor<8x4x4x6xf32>
    return %6 : tensor<8x4x4x6xf32>
  }
}
"""
NUMBERS = ("0", "-1", "1", "3", "4294967296", "1000000000000000000", "4611686018427387904", "200000000", "1e999")
TOKENS = (
    "{", "}", "(", ")", "<", ">", "[", "]", '"', "->", ":", ",", "%0", "@main", "@mesh", "x", "?", "=", "loc(", '"",',
    "tensor<0x4xf32>", "tensor<*xf32>", "dense<>", "dense<0>", "array<i64>", "unit", "\0", "\\", "\\00", "\\FF", "\x1b[31m",
    "é", "\u202e", "#sdy.sharding<@mesh, []>", "affine_map<()->()>", "!stablehlo.token", "T(1,1)", "{manual}", "i4", "{}",
    "#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>", "complex<f32>", "f8E4M3FN", "!quant.uniform<i8:f32, 0.1>", "none",
)  # fmt: skip
ENCODINGS = ("utf-16", "latin-1", "utf-8-sig")


def corpus() -> list[str]:
    """Returns our texts, and texts as upstream's compiler, JAX and torch-xla write them."""
    files = [path.read_text() for path in sorted(FILECHECK.rglob("*.mlir"))]
    pieces = [piece for text in files for piece in re.split(r"(?m)^// -----.*$", text) if "func.func" in piece]
    return [p for p in pieces if len(p) < 20_000] + [SHARDED, ANNOTATED] * 12


def mutate(draw: random.Random, texts: Sequence[str]) -> str:
    """Returns a text of the corpus with one to three changes."""
    text = draw.choice(texts)
    for _ in range(draw.randint(1, 3)):
        text = _change(draw, text, texts)
    return text


def _change(draw: random.Random, text: str, texts: Sequence[str]) -> str:
    start = draw.randrange(len(text) + 1)
    end = min(len(text), start + draw.choice((0, 1, 2, 5, 20, 200)))
    part = text[start:end]
    match draw.choice(
        ("token", "token", "number", "number", "number", "word", "truncate", "repeat", "splice", "deep", "code")
    ):
        case "token":
            return text[:start] + draw.choice(TOKENS) + text[draw.choice((start, end)) :]
        case "number":
            return _replaced(draw, text, r"(?<![\w%@])-?[0-9]+", draw.choice(NUMBERS))
        case "word":
            words = re.findall(r'"[^"\n]*"|[\w.]+', draw.choice(texts)) or [""]
            return _replaced(draw, text, r'"[^"\n]*"|[\w.]+', draw.choice(words))
        case "truncate":
            return text[:start]
        case "repeat":
            return text[:start] + part * draw.choice((2, 30, 3000)) + text[end:]
        case "splice":
            other = draw.choice(texts)
            return text[:start] + other[start:end] + text[start:]
        case "deep":
            opening = draw.choice(("[", "{", "(", "<", "tuple<", "#a = [", "- ", "callsite("))
            return text[:start] + opening * draw.choice((10, 1000, 20_000)) + text[start:]
        case _:
            return text[:end].encode("utf-8", "replace").decode(draw.choice(ENCODINGS), "replace") + text[end:]


def _replaced(draw: random.Random, text: str, pattern: str, new: str) -> str:
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    at = draw.choice(found)
    return text[: at.start()] + new + text[at.end() :]


@dataclass(frozen=True)
class Find:
    """A text that does not end in a program or in a named error, and what happens."""

    text: str
    why: str


class Reader:
    """A process that reads texts, and is started again after it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill() if process.poll() is None else None
        process.communicate()
        return process.returncode

    def read(self, text: str) -> Find | None:
        """Reads one text; returns what is wrong, or None."""
        if self._process is None:
            command = [sys.executable, "-m", __spec__.name if __spec__ else "", "--reader"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
            self._answer(120)
        stdin: Any = self._process.stdin
        stdin.write(json.dumps(text).encode() + b"\n")
        stdin.flush()
        answer = self._answer(SECONDS)
        if answer is None:
            running = self._process.poll() is None
            code = self._end()
            return Find(text, f"runs for more than {SECONDS} s" if running else f"ends the process: {code}")
        if answer["megabytes"] > MEGABYTES:
            self._end()
            return Find(text, f"takes {answer['megabytes']} MB")
        return Find(text, answer["wrong"]) if answer["wrong"] else None

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        assert self._process is not None
        stdout: Any = self._process.stdout
        # An exit closes the pipe, which is then readable, too.
        ready, _, _ = select.select([stdout], [], [], seconds)
        line = stdout.readline() if ready else b""
        if ready and not line:
            self._process.wait()
        return json.loads(line) if line else None


def finds(seconds: float, seed: int) -> Iterator[Find | None]:
    """Yields for each mutated text what is wrong with it, or None, until the time is over."""
    draw, texts, end = random.Random(seed), corpus(), time.monotonic() + seconds
    with Reader() as reader:
        while time.monotonic() < end:
            yield reader.read(mutate(draw, texts))


# --- the process -----------------------------------------------------------------------------------------------------


def wrong(text: str) -> str:
    """Reads, lowers and prints a text; returns what is wrong with the error, or an empty text."""
    import jaxmesh as jm

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = jm.from_mlir(text + "\n")
            for dialect in ("ttir", "ttnn"):
                stage: Any = traced if dialect == "ttir" else traced.lower()
                stage.as_text(dialect)
            compile(traced.lower().as_text("python"), "main.py", "exec")
            traced.lower().as_text("cpp")
    except jm.JaxmeshError as error:
        message = str(error)
        return f"a message of {len(message)} characters" if len(message) > LONGEST else ""
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} at {frame.filename}:{frame.lineno}"
    return ""


def _serve() -> None:
    import jaxmesh as jm

    jm.emulate(8)
    out, sys.stdout = sys.stdout, sys.stderr
    print("{}", file=out, flush=True)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for line in sys.stdin:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = wrong(json.loads(line))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        print(json.dumps({"wrong": answer, "megabytes": grown}), file=out, flush=True)


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reader", action="store_true")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.reader:
        _serve()
        return 0
    number = count = 0
    for number, find in enumerate(finds(arguments.seconds, arguments.seed), 1):
        if find is None:
            continue
        count += 1
        print(f"{number}: {find.why}", flush=True)
        if arguments.folder is not None:
            arguments.folder.mkdir(parents=True, exist_ok=True)
            (arguments.folder / f"{arguments.seed}-{number}.mlir").write_text(
                f"// {' '.join(find.why.split())}\n{find.text}", encoding="utf-8", errors="replace"
            )
    print(f"{number} texts, {count} finds")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(_main())

"""Texts in the layout of tt-xla's export_path, made by jaxmesh from plain programs, and errors planted in them.

`python -m tests.generators.diagnosed [FOLDER]` plants errors in every program, or in the texts of a folder of folders,
and says which are named at the planted operation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.generators.plain_programs import CASES, Case, jitted

_OP = re.compile(r'^\s*%(?P<result>\w+) = "(?P<op>[\w.]+)"\((?P<operands>[^)]*)\)(?P<rest>.*)$')
_TYPE = re.compile(r"-> (tensor<[^>]*>)(?P<after>.*)$")
Texts = dict[str, str]


def exported(case: Case) -> Texts:
    """Returns the texts of a program by stage."""
    plain = jax.jit(case.fun, **case.jax_options()).lower(*case.args)
    traced = jitted(case).trace(*case.args)
    return {
        "shlo_frontend": plain.as_text("stablehlo", debug_info=True),
        "ttir": traced.as_text(debug_info=True),
        "ttnn": traced.lower().as_text(debug_info=True, strict=False),
    }


def write_folder(texts: Mapping[str, str], folder: Path) -> Path:
    """Writes texts as tt-xla's export_path does."""
    (folder / "irs").mkdir(parents=True, exist_ok=True)
    for number, (stage, text) in enumerate(texts.items()):
        (folder / "irs" / f"{stage}_{1795531310770 + number}.mlir").write_text(text)
    return folder


@dataclass(frozen=True)
class Planted:
    """A text with an error.

    Attributes:
      kind: the kind of the error.
      texts: the texts.
      lines: the lines of the text where the error may be named.
      rounding: True if it is none, but a rounding.
    """

    kind: str
    texts: Texts
    lines: frozenset[int]
    rounding: bool = False


def _ops(text: str) -> list[tuple[int, re.Match[str]]]:
    return [(i, m) for i, line in enumerate(text.split("\n")) if (m := _OP.match(line))]


def _renamed(lines: list[str], old: str, new: str, start: int = 0) -> list[str]:
    pattern = re.compile(rf"%{old}\b(?!\s*=)")
    return [pattern.sub(f"%{new}", line) if i >= start else line for i, line in enumerate(lines)]


def plant(texts: Texts, stage: str) -> Iterator[Planted]:
    """Yields every error of every kind that can be planted in a text."""
    text = texts[stage]
    lines, ops = text.split("\n"), _ops(text)
    made = {m["result"]: i for i, m in ops}

    def changed(kind: str, new: list[str], *at: int, rounding: bool = False) -> Planted:
        return Planted(kind, {**texts, stage: "\n".join(new)}, frozenset(i + 1 for i in at), rounding)

    for number, (i, m) in enumerate(ops):
        name, line = m["op"].partition(".")[2], lines[i]
        operand = m["operands"].split(",")[0].strip().lstrip("%")
        if name == "all_reduce":
            new = _renamed(lines, m["result"], operand, i)
            del new[i]
            yield changed("dropped all_reduce", new, *_makers(lines, made, operand))
            swapped = re.sub(r"cluster_axis = (\d)", lambda n: f"cluster_axis = {(int(n[1]) or 2) - 1}", line)
            yield changed("wrong cluster_axis", [*lines[:i], swapped, *lines[i + 1 :]], i)
        if name == "slice_static" and (shifted := _shifted(line)):
            yield changed("shifted slice", [*lines[:i], shifted, *lines[i + 1 :]], i)
        if name == "pad" and (wrong := _other_padding(line)):
            yield changed("wrong pad", [*lines[:i], wrong, *lines[i + 1 :]], i)
        if name == "all_gather" and number + 1 < len(ops):
            j, other = ops[number + 1]
            if other["op"] == m["op"] and f"%{m['result']}" in other["operands"] and (both := _swapped(line, lines[j])):
                new = list(lines)
                new[i], new[j] = both
                yield changed("swapped gathers", new, i, j)
        if name in ("mesh_shard", "distribute_tensor") and operand.startswith("arg") and "full_to_shard" in line:
            yield changed("permuted weight", *_permuted(lines, i, m, stage, text))
        if "xf32>" in line and name in ("dot_general", "matmul", "add", "multiply", "tanh", "exp", "subtract"):
            yield changed("no rounding", *_scaled(lines, i, m, stage))
            yield changed("rounding", *_rounded(lines, i, m, stage), rounding=True)


def _makers(lines: list[str], made: dict[str, int], value: str) -> list[int]:
    """Returns the lines of the operation of a value, and of those that it is a reshape of."""
    found: list[int] = []
    while value in made:
        found.append(made[value])
        m = _OP.match(lines[made[value]])
        assert m is not None
        if m["op"].partition(".")[2] not in ("reshape", "typecast", "to_layout", "to_device", "permute", "all_reduce"):
            break
        value = m["operands"].split(",")[0].strip().lstrip("%")
    return found


def _shifted(line: str) -> str | None:
    begins, ends, step = (
        [int(n) for n in re.findall(r"(-?\d+) : i32", re.search(rf"{k} = \[([^\]]*)\]", line)[1])]  # type: ignore[index]
        for k in ("begins", "ends", "step")
    )
    shape = [int(n) for n in re.search(r": \(tensor<([\dx]+)x", line)[1].split("x")]  # type: ignore[index]
    for d, (b, e, n) in enumerate(zip(begins, ends, shape, strict=True)):
        by = 1 if e < n else -1 if b > 0 else 0
        if by and step[d] == 1:
            begins[d], ends[d] = b + by, e + by
            for key, values in (("begins", begins), ("ends", ends)):
                line = re.sub(rf"{key} = \[[^\]]*\]", f"{key} = [{', '.join(f'{v} : i32' for v in values)}]", line)
            return line
    return None


def _other_padding(line: str) -> str | None:
    found = re.search(r"padding = array<i32: ([^>]*)>", line)
    numbers = [int(n) for n in found[1].split(",")] if found else []
    for d in range(0, len(numbers), 2):
        if numbers[d] != numbers[d + 1]:
            numbers[d], numbers[d + 1] = numbers[d + 1], numbers[d]
            return re.sub(r"padding = array<i32: [^>]*>", f"padding = array<i32: {', '.join(map(str, numbers))}>", line)
    return None


def _swapped(first: str, second: str) -> tuple[str, str] | None:
    """Returns two gathers of one dim over two axes in the other order."""
    dims = [re.search(r"all_gather_dim = (\d+)", x)[1] for x in (first, second)]  # type: ignore[index]
    axes = [int(re.search(r"cluster_axis = (\d+)", x)[1]) for x in (first, second)]  # type: ignore[index]
    if dims[0] != dims[1] or axes[0] == axes[1]:
        return None
    dim = int(dims[0])
    shapes = [[int(n) for n in s.split("x")] for x in (first, second) for s in re.findall(r"tensor<([\dx]+)x\w", x)]
    begin, middle, end = shapes[0][dim], shapes[1][dim], shapes[3][dim]
    new = begin * end // middle
    kind = re.search(r"tensor<[\dx]+x(\w+)>", first)[1]  # type: ignore[index]
    old_type = f"tensor<{'x'.join(map(str, shapes[1]))}x{kind}"
    shapes[1][dim] = new
    new_type = f"tensor<{'x'.join(map(str, shapes[1]))}x{kind}"
    first = first.replace(f"cluster_axis = {axes[0]}", f"cluster_axis = {axes[1]}")
    second = second.replace(f"cluster_axis = {axes[1]}", f"cluster_axis = {axes[0]}")
    a, _, b = first.rpartition(old_type)
    return a + new_type + b, second.replace(old_type, new_type, 1)


def _permuted(lines: list[str], i: int, m: re.Match[str], stage: str, text: str) -> tuple[list[str], int]:
    """Exchanges the shards of an argument between the first two rows, or columns, of the mesh."""
    sizes = [int(n) for n in re.search(r'<"mesh" = ([\dx]+)>', text)[1].split("x")]  # type: ignore[index]
    dims = [int(n) for n in re.search(r"shard_dims = array<i64: ([^>]*)>", lines[i])[1].split(",")]  # type: ignore[index]
    axis = next((a for a, d in enumerate(dims) if d >= 0 and sizes[a] > 1), 0)
    ids = np.arange(np.prod(sizes)).reshape(sizes)
    pairs = np.stack([ids, np.roll(ids, 1, axis)], -1).reshape(-1, 2).tolist()
    kind = _TYPE.search(lines[i])
    assert kind is not None
    new = _renamed(lines, m["result"], "planted", i + 1)
    pairs_text = f"dense<{pairs}> : tensor<{len(pairs)}x2xi64>"
    new.insert(
        i + 1,
        f'    %planted = "{stage}.collective_permute"(%{m["result"]}) <{{source_target_pairs = {pairs_text}}}> : '
        f"({kind[1]}) -> {kind[1]}{kind['after']}",
    )
    return new, i + 1


def _scaled(lines: list[str], i: int, m: re.Match[str], stage: str) -> tuple[list[str], int]:
    """Multiplies a value by a number as near to 1 as the rounding of bfloat16."""
    kind = _TYPE.search(lines[i])
    assert kind is not None
    new = _renamed(lines, m["result"], "planted", i + 1)
    shape = ", ".join(kind[1][len("tensor<") : -len("xf32>")].split("x"))
    new.insert(
        i + 1,
        f'    %scale = "ttir.full"() <{{fill_value = 1.00390625 : f32, shape = array<i32: {shape}>}}> : () -> '
        f"{kind[1]}{kind['after']}",
    )
    new.insert(
        i + 2,
        f'    %planted = "ttir.multiply"(%{m["result"]}, %scale) : ({kind[1]}, {kind[1]}) -> {kind[1]}{kind["after"]}',
    )
    return new, i + 2


def _rounded(lines: list[str], i: int, m: re.Match[str], stage: str) -> tuple[list[str], int]:
    """Rounds a value to bfloat16."""
    kind = _TYPE.search(lines[i])
    assert kind is not None
    narrow, after = kind[1].replace("xf32", "xbf16"), kind["after"]
    new = _renamed(lines, m["result"], "planted", i + 1)
    new.insert(i + 1, f'    %narrow = "{stage}.typecast"(%{m["result"]}) : ({kind[1]}) -> {narrow}{after}')
    new.insert(i + 2, f'    %planted = "{stage}.typecast"(%narrow) : ({narrow}) -> {kind[1]}{after}')
    return new, i + 1


# --- the outcome -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a diagnosis says of a planted error, and whether the error changes the results at all."""

    planted: Planted
    diagnosis: Any

    @property
    def is_named(self) -> bool:
        """Whether a rounding is not called wrong, or an error is named where it is."""
        if self.planted.rounding:
            return self.diagnosis.verdict in ("right", "less precise")
        return self.diagnosis.verdict == "wrong" and self.diagnosis.line in self.planted.lines

    @property
    def text(self) -> str:
        d = self.diagnosis
        return f"{self.planted.kind}, lines {sorted(self.planted.lines)}: {d.verdict} {d.op} line {d.line} {d.cause}"


def outcomes(texts: Texts, stage: str, seed: int = 0) -> Iterator[Outcome]:
    """Plants errors in one stage alone, and diagnoses each."""
    from jaxmesh.analysis.diagnose import diagnose

    for planted in plant(texts, stage):
        alone = {k: t for k, t in planted.texts.items() if k == stage or k.startswith("shlo")}
        yield Outcome(planted, diagnose(alone, seed=seed))


def texts_of_folder(folder: Path) -> Texts:
    """Returns the texts of a folder of export_path."""
    return {
        stage: path.read_text()
        for stage in ("shlo_frontend", "shlo_compiler", "ttir", "ttnn")
        for path in sorted((folder / "irs").glob(f"{stage}_[0-9]*.mlir"))
    }


def main() -> None:
    programs = (
        {f.name: texts_of_folder(f) for f in sorted(Path(sys.argv[1]).iterdir())}
        if len(sys.argv) > 1
        else {c.name: exported(c) for c in CASES if c.text}
    )
    counts: dict[str, list[int]] = {}
    for name, texts in programs.items():
        for outcome in outcomes(texts, "ttir") if "ttir" in texts else ():
            row = counts.setdefault(outcome.planted.kind, [0, 0])
            row[0] += outcome.is_named
            row[1] += 1
            if not outcome.is_named:
                print(name, "|", outcome.text, outcome.diagnosis.stages, flush=True)
    print(counts, sum(n for n, _ in counts.values()), "of", sum(n for _, n in counts.values()))


if __name__ == "__main__":
    main()

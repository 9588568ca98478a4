"""The search for a program that Tenstorrent's compiler compiles right, and what it changed."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from jaxmesh.analysis.diagnose import Diagnosis, diagnose
from jaxmesh.analysis.diagnose.diagnosis import LESS_PRECISE, NOT_COMPARABLE, REFUSED, RIGHT, WRONG
from jaxmesh.analysis.repair.substitutes import SUBSTITUTES, Substitute
from jaxmesh.analysis.upstream import UpstreamProgram
from jaxmesh.drawing.html import framed, table
from jaxmesh.drawing.text_layout import align_columns, duration
from jaxmesh.errors import ArgumentTypeError, JaxmeshError
from jaxmesh.jaxprs.source_locations import short_location
from jaxmesh.validate import as_path, write_whole

_MESH = re.compile(r"sdy\.mesh @\S+ = <\[[^\]\n]*\]>")
_OPENED = re.compile(r"^module\b.*\{\n", re.MULTILINE)
_FUNCTION = re.compile(r" \([^()]*\)$")
PARTITION = "partitioned by jaxmesh: every placement and every collective is explicit"


@dataclass(frozen=True, slots=True)
class RepairChange:
    """One change of a program by a repair.

    Attributes:
      source: the user's source line, as `file:line:column`; empty if it is not known.
      what: what was changed, and by what it was replaced.
      reason: why.
    """

    source: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompiledCost:
    """The cost of a compiled program.

    Attributes:
      sent: the bytes that all devices send.
      operations: how many TTNN operations it has on the devices.
      seconds: the lower bound of its time; None if there is none.
    """

    sent: int
    operations: int
    seconds: float | None

    def __str__(self) -> str:
        least = "unknown" if self.seconds is None else duration(self.seconds)
        return f"{self.sent:,} B among devices, {self.operations} operations, at least {least}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that computes the user's in another form.

    Attributes:
      text: its StableHLO text.
      function: it as a function of JAX.
      changes: what is changed, without the reasons.
      whole: the numbers of the arguments that nothing reads and that it takes whole.
      elsewhere: the numbers of the results in another order of axes than asked, which a change says.
    """

    text: str
    function: Any
    changes: tuple[RepairChange, ...] = ()
    whole: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Repair:
    """A repaired program; true if the compiler compiles it right.

    Attributes:
      before: the diagnosis of the program as the user wrote it.
      diagnosis: the diagnosis of the repaired program: its compiled texts against the user's program unsharded.
      changes: what was changed; empty if the program was right, or no change makes it right.
      text: the StableHLO text, which tt-xla takes.
      function: the program as a function of JAX, with the user's arguments and their shardings.
      upstream: the program as the compiler compiled it.
      reason: what stays wrong, and why; empty if the program is right.
      costs: the costs before and after, of what was compiled.
    """

    before: Diagnosis
    diagnosis: Diagnosis
    changes: tuple[RepairChange, ...]
    text: str
    function: Any
    upstream: Any
    reason: str = ""
    costs: Mapping[str, CompiledCost] = field(default_factory=dict[str, CompiledCost])

    def __bool__(self) -> bool:
        return bool(self.diagnosis)

    @property
    def verdict(self) -> str:
        """The verdict on the repaired program, in the words of `jaxmesh.diagnose`."""
        return self.diagnosis.verdict

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns the changes as rows: the source line, the change, the reason."""
        return [(_FUNCTION.sub("", short_location(c.source)), c.what, c.reason) for c in self.changes]

    @property
    def heading(self) -> str:
        """The outcome in one line."""
        if self.before.verdict == self.verdict and not self.changes:
            return f"unchanged: {self.verdict}"
        return f"{'repaired' if self else 'not repaired'}: {self.before.verdict} before, {self.verdict} after"

    def __str__(self) -> str:
        lines = [self.heading, *(f"  {line}" for line in align_columns(self.rows()))]
        lines += [f"  {when}: {cost}" for when, cost in self.costs.items()]
        lines += [f"  what stays: {self.reason}"] if self.reason else []
        return "\n".join(lines + [f"  not exercised: {text}" for text in self.diagnosis.unexercised])

    def __repr__(self) -> str:
        return f"Repair({self.heading})"

    def _repr_html_(self) -> str:
        more = [(when, str(cost)) for when, cost in self.costs.items()]
        more += [("what stays", self.reason)] if self.reason else []
        more += [("not exercised", text) for text in self.diagnosis.unexercised]
        return framed(self.heading, table(self.rows(), ("source", "change", "reason")), table(more))

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes the repaired program, what the compiler made of it, and this summary; returns the files.

        Raises:
          FolderError: the files cannot be written.
        """
        home = as_path("save", folder, "folder")
        files = [*self.upstream.save(home), home / "repaired.mlir", home / "repair.txt"]
        write_whole(files[-2], self.text)
        write_whole(files[-1], f"{self}\n")
        return files


def in_short(found: Diagnosis) -> str:
    """Returns a diagnosis in a line: the verdict, the operation, and the cause if each is known."""
    known = [part for part in (found.verdict, found.op, found.cause) if part]
    return ": ".join(known) if len(known) > 1 else str(found).partition("\n")[0]


def with_whole(text: str, numbers: Sequence[int]) -> str:
    """Removes the shardings of some arguments, named as MLIR names them, from a StableHLO text.

    >>> with_whole('%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}]>})', [0])
    '%arg0: tensor<4xf32> {})'
    """
    for number in numbers:
        text = re.sub(
            rf"(%arg{number}: tensor<[^>]*> \{{[^\n]*?)sdy\.sharding = #sdy\.sharding<[^>\n]*>(?:, )?",
            r"\1",
            text,
            count=1,
        )
    return text


_RESULTS = re.compile(r"(@main\(.*?\) -> )(.*)", re.MULTILINE)
_TYPE = re.compile(r"tensor<[^>]*>(?: \{(?:[^{}]|\{[^{}]*\})*\})?")


def with_open_results(text: str, numbers: Sequence[int]) -> str:
    """Removes the shardings that some results are asked for from a StableHLO text.

    >>> with_open_results('@main() -> (tensor<4xf32> {a = 1, sdy.sharding = #sdy.sharding<@m, [{"y"}]>}) {', [0])
    '@main() -> (tensor<4xf32> {a = 1}) {'
    """
    found = _RESULTS.search(text)
    if found is None or not numbers:
        return text
    count = itertools.count()

    def opened(one: re.Match[str]) -> str:
        return _RESULT_SHARDING.sub("", one[0]) if next(count) in numbers else one[0]

    return text[: found.start(2)] + _TYPE.sub(opened, found[2]) + text[found.end(2) :]


_RESULT_SHARDING = re.compile(r"(?:, )?sdy\.sharding = #sdy\.sharding<[^>\n]*>")


def diagnose_further(compiled: object, args: Sequence[object], seed: int) -> Diagnosis:
    """Returns the diagnosis for some arguments; if they show no error, for drawn ones, too, which may show one."""
    found = diagnose(compiled, *args, seed=seed)
    if not args or found.verdict == WRONG or not found:
        return found
    drawn = diagnose(compiled, seed=seed)
    return drawn if drawn.verdict == WRONG else replace(found, unexercised=drawn.unexercised)


def prove(compiled: UpstreamProgram, original: str, args: Sequence[object], seed: int) -> Diagnosis:
    """Returns the diagnosis of a compiled program against another program with global shapes, unsharded."""
    if compiled.refusal is not None:
        return Diagnosis(REFUSED, source=compiled.refusal.source, cause=str(compiled.refusal), pcc=float("nan"))
    mesh = _MESH.search(compiled.stages.get("shlo_compiler", ""))
    if mesh is not None and _MESH.search(original) is None:
        # GSPMD's shardings do not name mesh axes.
        original = _OPENED.sub(lambda found: f"{found[0]}  {mesh[0]}\n", original, count=1)
    try:
        return diagnose_further({**compiled.stages, "shlo_frontend": original}, args, seed)
    except ArgumentTypeError:
        raise
    except JaxmeshError as error:
        return Diagnosis(NOT_COMPARABLE, cause=str(error), pcc=float("nan"))


@dataclass(frozen=True, slots=True)
class LineChange:
    """A change of the operations of one source line.

    Attributes:
      substitutes: the replacements of operations; none for constraints.
      whole: whether operands and results are whole along all dims, and not only those that an operation mixes.
      stepwise: whether operands are gathered along one mesh axis after the other, the minor one first.
    """

    substitutes: tuple[Substitute, ...] = ()
    whole: bool = False
    stepwise: bool = False

    def next(self, found: Diagnosis) -> LineChange | None:
        """Returns the next larger change, for the diagnosis of this one."""
        if self.substitutes:
            return LineChange()
        if not self.stepwise and "all_gather" in found.op:
            return replace(self, stepwise=True)
        return None if self.whole else LineChange(whole=True)


class RepairSteps(Protocol):
    """The steps of a search, which the two compilers take."""

    def primitives(self, line: str) -> frozenset[str]:
        """Returns the names of JAX's primitives on a source line."""
        ...

    def of_lines(self, changes: Mapping[str, LineChange]) -> Candidate | None:
        """Returns the program with changes at some source lines; None if no operation of the last line changes."""
        ...

    def partitioned(self, substitutes: Sequence[Substitute]) -> Candidate:
        """Returns the program partitioned by jaxmesh, with substitutes in place of some operations."""
        ...

    def compile(self, text: str) -> Any:
        """Compiles a StableHLO text."""
        ...

    def judge(self, candidate: Candidate, made: object) -> Diagnosis:
        """Compares a compiled candidate with the user's program."""
        ...

    def cost(self, made: object) -> tuple[float, float]:
        """Returns the bytes that all devices send in a compiled candidate, and its least time in seconds; without one,
        the same of jaxmesh's own partition."""
        ...


_Tried = tuple[Candidate, Any, Diagnosis]
_LINES = 6
"""The most changes of single lines that are compiled."""


def search(before: Diagnosis, compiled: UpstreamProgram, steps: RepairSteps, original: Candidate) -> Repair:
    """Tries programs in the order of least change until one is compiled right.

    First the operations change that the diagnosis names, then jaxmesh partitions the whole program: where those do not
    do, or send more.

    Args:
      before: the diagnosis of the user's program.
      compiled: the user's program as the compiler compiled it.
      steps: makes, compiles and judges other forms of it.
      original: the user's program.
    """
    if before.verdict == RIGHT:
        return Repair(before, before, (), original.text, original.function, compiled)
    tried = _by_lines(before, compiled, steps)
    right = [row for row in tried if row[2].verdict == RIGHT]
    if right and all(ours <= theirs for ours, theirs in zip(steps.cost(right[0][1]), steps.cost(None), strict=True)):
        return tried_best(before, compiled, original, right, "")
    whole, why = _partitioned(steps)
    right += [row for row in whole if row[2].verdict == RIGHT]
    best = [min(right, key=lambda row: steps.cost(row[1]))] if right else whole or tried
    return tried_best(before, compiled, original, best, why)


def _partitioned(steps: RepairSteps) -> tuple[list[_Tried], str]:
    """Partitions the whole program, with more substitutes until it is right; returns also why it cannot."""
    used, tried = list[Substitute](), list[_Tried]()
    while not tried or (tried[-1][2].verdict != RIGHT and used != (used := _more(used, tried[-1][2], steps))):
        try:
            candidate = steps.partitioned(used)
        except JaxmeshError as error:
            return tried, f"jaxmesh does not partition it: {error}"
        made = steps.compile(candidate.text)
        tried.append((candidate, made, steps.judge(candidate, made)))
    return tried, ""


def _by_lines(before: Diagnosis, compiled: UpstreamProgram, steps: RepairSteps) -> list[_Tried]:
    """Changes the operations of the lines that diagnoses name, one after the other."""
    refusal = compiled.refusal
    found = before if before.source or refusal is None else replace(before, source=refusal.source, cause=str(refusal))
    changes, reasons, tried = dict[str, LineChange](), dict[str, str](), list[_Tried]()
    # Constraints make the compiler send more.
    constrains = before.verdict != LESS_PRECISE and steps.cost(None)[0] >= (0 if refusal else steps.cost(compiled)[0])
    while len(tried) < _LINES and found.verdict != RIGHT and found.source:
        last = changes.pop(found.source, None)
        change = LineChange(tuple(_more((), found, steps))) if last is None else last.next(found)
        if change is None or not (change.substitutes or constrains):
            break
        changes[found.source] = change
        reasons.setdefault(found.source, found.cause or found.op)
        candidate = steps.of_lines(changes)
        if candidate is None:
            continue
        candidate = replace(candidate, changes=_with_reasons(candidate.changes, reasons))
        made = steps.compile(candidate.text)
        found = steps.judge(candidate, made)
        tried.append((candidate, made, found))
    return tried


def _with_reasons(changes: Sequence[RepairChange], reasons: Mapping[str, str]) -> tuple[RepairChange, ...]:
    """Returns the changes with the reason of each line at its first."""
    first = {c.source: number for number, c in reversed(list(enumerate(changes)))}
    return tuple(
        replace(c, reason=c.reason or (reasons.get(c.source, "") if first[c.source] == number else ""))
        for number, c in enumerate(changes)
    )


def _more(used: Sequence[Substitute], found: Diagnosis, steps: RepairSteps) -> list[Substitute]:
    """Returns the substitutes, and further ones for the operation that a diagnosis names, else for its line."""
    about, there = f"{found.op} {found.cause}", steps.primitives(found.source)
    rest = [c for c in SUBSTITUTES if c not in used]
    named = [c for c in rest if re.search(c.sign, about)]
    return [*used, *(named or [c for c in rest if c.exact and there.intersection(c.primitives)])]


def tried_best(
    before: Diagnosis,
    compiled: UpstreamProgram,
    original: Candidate,
    tried: Sequence[tuple[Candidate, object, Diagnosis]],
    why: str,
) -> Repair:
    """Returns the repair of the best candidate; the user's program if it is as good."""
    right = [row for row in tried if row[2].verdict == RIGHT] or [row for row in tried if row[2]]
    if before.verdict == LESS_PRECISE and (not right or right[0][2].verdict == LESS_PRECISE):
        return Repair(before, before, (), original.text, original.function, compiled)
    if right:
        candidate, made, found = right[0]
        reasons = before.cause or before.op
        where = before.source or ("" if compiled.refusal is None else compiled.refusal.source)
        changes = tuple(replace(c, source=c.source or where) for c in candidate.changes)
        if not any(c.reason for c in changes):
            changes = _with_reasons(changes, {changes[0].source: reasons})
        return Repair(before, found, changes, candidate.text, candidate.function, made)
    if not tried:
        known = [str(compiled.refusal)] if compiled.refusal is not None else []
        return Repair(before, before, (), original.text, original.function, compiled, "; ".join([*known, why]))
    candidate, made, found = tried[-1]
    what = found.cause if found.verdict == REFUSED else in_short(found)
    return Repair(before, found, candidate.changes, candidate.text, candidate.function, made, why or what)

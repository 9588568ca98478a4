"""Finds the first wrong operation of a program that Tenstorrent's compiler has compiled."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.culprit import Culprit, decided_by_rounding, find_culprit
from jaxmesh.analysis.diagnose.diagnosis import (
    LESS_PRECISE,
    NOT_COMPARABLE,
    ORDER,
    REFUSED,
    RIGHT,
    WRONG,
    Diagnosis,
    freed_diagnosis,
    less_precise,
    named,
    worst_of,
    wrong_diagnosis,
)
from jaxmesh.analysis.diagnose.earlier import EarlierText
from jaxmesh.analysis.diagnose.functions import as_main, named_errors, one_program, only, programs
from jaxmesh.analysis.diagnose.hidden import revealing
from jaxmesh.analysis.diagnose.limits import limited, nearest
from jaxmesh.analysis.diagnose.loops import is_opaque, written_out
from jaxmesh.analysis.diagnose.matching import Globals
from jaxmesh.analysis.diagnose.reference import Reference, bounded, declare, run_draws, run_program
from jaxmesh.analysis.diagnose.region import INSIDE, REGION
from jaxmesh.analysis.diagnose.rounding import error_of
from jaxmesh.analysis.diagnose.stage import read_after_free
from jaxmesh.analysis.diagnose.texts import StageTexts, chosen, graphs, texts_of
from jaxmesh.analysis.diagnose.tracking import Track, track
from jaxmesh.analysis.diagnose.unread import Unread, follow, otherwise_in
from jaxmesh.analysis.environments import cache_folder
from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.analysis.upstream import UpstreamProgram, compile_text, refused_or_given
from jaxmesh.errors import ArgumentValueError, JaxmeshError, ParseError, UnsupportedError
from jaxmesh.frontends.mlir.source import read
from jaxmesh.jaxprs.compat import undisturbed
from jaxmesh.jaxprs.program_cache import kept_programs
from jaxmesh.runtime.progress import progress

Compile = Callable[..., Any]
"""Compiles a StableHLO text: a function that returns an object with `stages`, `ttir`, `ttnn` and `refusal`."""
_SHOWN = 4
"""The operations without explanation that are listed."""


def diagnose(
    source: Any,
    *args: Any,
    seed: int = 0,
    compiler: Compile | None = None,
    cluster: str | None = None,
    graph: int | None = None,
    function: str | None = None,
) -> Diagnosis:
    """Compares what Tenstorrent's compiler printed with the unsharded program, value by value.

    The program with global shapes runs unsharded. The texts with local shapes, TTIR and TTNN, run on emulated devices.
    The first operation whose operands the devices hold rightly and whose result they do not is the wrong one.

    Args:
      source: a folder as tt-xla's `export_path` writes it; a mapping from stage (`shlo_frontend`, `shlo_compiler`,
        `ttir`, `ttnn`) to text; what `lowered.upstream()` returned; or the path of a StableHLO file, which is compiled
        first.
      args: the arguments, with global shapes; by default random ones.
      seed: the seed of random arguments.
      compiler: a function that compiles the text of a StableHLO file; by default Tenstorrent's compiler.
      cluster: the machine for which Tenstorrent's compiler compiles a file, in any case; by default `t3000`.
      graph: the number of the one graph to compare, of several in the folder or the file, from 1 on.
      function: the name of the function to compare, alone; by default each public one that no other one calls.

    Returns:
      The diagnosis; of several programs that with the worst verdict, and the verdict of each function of a file.

    Raises:
      MissingFileError: there is no such folder or file.
      ParseError: the folder lacks the program with global shapes, or every text with local shapes; or a text does
        not parse.
      ArgumentValueError: there is no such graph or function; `args` are given for several functions; or `cluster` for
        texts that are compiled.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> f, x = lambda x: jnp.tanh(x) * 2, jnp.ones((4, 8))
    >>> texts = {"shlo_frontend": jax.jit(f).lower(x).as_text("stablehlo"), "ttir": jm.jit(f).trace(x).as_text()}
    >>> jm.diagnose(texts).verdict
    'right'
    >>> jm.diagnose({**texts, "ttir": texts["ttir"].replace("ttir.tanh", "ttir.sin")}).op
    'ttir.sin'
    """
    path: Any = source
    with progress("diagnose"), undisturbed(), kept_programs(cache_folder() / "programs"):
        if isinstance(source, (str, os.PathLike)) and Path(path).is_file():
            with named_errors(Path(path)):
                found = chosen(graphs(read(Path(path))), graph, function, str(path), str)
                if args:
                    one_program(found[0], function, str(path))
                asked = (function, args or None, seed, compiler, cluster or DEFAULT)
                return worst_of(named(_diagnose_functions(t, *asked), path) for t in found)
        source = refused_or_given(source)
        if isinstance(source, UpstreamProgram):
            source = _outcome(source, "")
        if isinstance(source, Diagnosis):
            return source
        found = texts_of(source, graph, function)
        if cluster is not None:
            raise ArgumentValueError(
                f"cluster={cluster!r} (--cluster) is the machine for which a StableHLO file is compiled, and the texts "
                "are compiled already; leave it out, or give the StableHLO file."
            )
        return worst_of(named(_diagnose_draws(t, args or None, seed), t.path) for t in found)


def _diagnose_functions(text: str, function: str | None, *asked: Any) -> Diagnosis:
    """Compares the programs of a StableHLO text, each alone; returns the worst diagnosis, with the verdict of each."""
    names = programs(text) if function is None else [function]
    found = {n: _diagnose_file(only(text, n), n, *asked) for n in names or [None]}
    verdicts = {f"@{n}": d.verdict for n, d in found.items()} if len(found) > 1 else {}
    worst = worst_of(found.values())
    return replace(worst, stages={**verdicts, **worst.stages})


def _diagnose_file(
    text: str, name: str | None, args: Sequence[Any] | None, seed: int, compiler: Compile | None, cluster: str
) -> Diagnosis:
    """Compares a StableHLO text of one public function with what is compiled of it; runs the program while the compiler
    works elsewhere."""
    early: list[Reference] = []

    def run() -> None:
        # An operation that jaxmesh cannot run may be another one in the text that the compiler prints.
        with contextlib.suppress(UnsupportedError, ParseError):
            early.extend(run_draws(text, "", args, seed))

    compiled = compile_file(
        as_main(text, name), compiler or functools.partial(compile_text, cluster=cluster, meanwhile=run)
    )
    if isinstance(compiled, Diagnosis):
        return compiled
    (texts,) = texts_of({**compiled, "shlo_frontend": text} if early else compiled)
    return _diagnose_draws(texts, args, seed, early)


def compile_file(text: str, compiler: Compile) -> Mapping[str, str] | Diagnosis:
    """Compiles a StableHLO text; returns its texts by stage, or the diagnosis that the compiler refuses it."""
    with progress("compiling"):
        return _outcome(compiler(text), text)


def _outcome(compiled: Any, frontend: str) -> Mapping[str, str] | Diagnosis:
    """Returns the texts of a compiled program by stage, or the diagnosis that the compiler refuses it."""
    if compiled.refusal:
        return Diagnosis(REFUSED, cause=str(compiled.refusal), pcc=float("nan"))
    stages = {"shlo_frontend": frontend, **compiled.stages, "ttir": compiled.ttir, "ttnn": compiled.ttnn}
    return {name: str(stage) for name, stage in stages.items() if stage}


def _diagnose_draws(
    texts: StageTexts, args: Sequence[Any] | None, seed: int, early: Sequence[Reference] = ()
) -> Diagnosis:
    """Compares a program for each draw of its arguments; returns the worst diagnosis."""
    worst, unexercised, runs = Diagnosis(RIGHT), tuple[str, ...](), list[Track]()
    try:
        for reference in early or run_draws(texts.frontend, texts.compiler, args, seed):
            found, runs = _diagnose(texts, reference)
            unexercised = tuple(reference.unexercised)
            worst = worst_of((found, worst))
            if worst.verdict == WRONG:
                break
        others = revealing(texts, runs, seed) if args is None and worst.verdict == RIGHT else ()
        worst = next((d for d, _ in (_diagnose(texts, r) for r in others) if d.verdict == WRONG), worst)
    except UnsupportedError as error:
        return Diagnosis(NOT_COMPARABLE, cause=str(error), pcc=float("nan"))
    except ParseError as error:
        if not texts.compiler:
            raise
        # The partitioned program does not parse, and the program states shardings, too.
        found = _diagnose_draws(replace(texts, compiler=""), args, seed, early)
        return replace(found, stages={"shlo_compiler": f"not read: {error}", **found.stages})
    return replace(worst, unexercised=unexercised)


def _diagnose(texts: StageTexts, reference: Reference) -> tuple[Diagnosis, list[Track]]:
    """Compares a program for the arguments of a run; returns the diagnosis, and the runs of the stages."""
    with bounded(texts, reference):
        try:
            declare(reference, texts.compiler)
            _check_numbers(reference)
            pool = Globals.of(reference)
        except UnsupportedError as error:
            return Diagnosis(NOT_COMPARABLE, cause=str(error), pcc=float("nan")), []
        runs: dict[str, Track | str] = {}
        found: Diagnosis | None = None
        for name, text in texts.stages.items():
            run = runs[name] = follow(name, text, reference, pool)
            found = _judge(texts, name, run, runs) if isinstance(run, Track) else None
            if found is not None:
                break
    if found is None:
        made = {name: otherwise_in(name, text, reference) for name, text in texts.stages.items()}
        found = _without_errors(runs, {"shlo_compiler": reference.otherwise, **made})
    rest = {n: r.not_explained for n, r in runs.items() if isinstance(r, Track) and r.not_explained}
    return replace(found, unexplained=rest), [r for r in runs.values() if isinstance(r, Track)]


def _judge(texts: StageTexts, name: str, run: Track, runs: dict[str, Track | str]) -> Diagnosis | None:
    """Returns the diagnosis of a stage with an error; None for a right stage."""
    if run.unread:
        taken = Unread(run, texts.stages[name], functools.partial(_rounded, texts, run)).result()
        runs[name] = taken.track if isinstance(taken, Culprit) else taken or _missing(run)
        if isinstance(taken, Culprit):
            return wrong_diagnosis(taken.track, taken, {n: _summary(r) for n, r in runs.items()}, lambda: taken)
        if taken is not run:
            return None if taken is None else _freed(taken, runs)
    if not run.is_right and _computes_from_rounded(texts, name, run):
        run.outputs = [replace(o, limit=max(o.limit, o.error)) for o in run.outputs]
    run.outputs = limited(run, functools.partial(_rounded, texts, run))
    stages = [r for n, r in runs.items() if n != name and isinstance(r, Track) and r.is_right]

    @functools.cache
    def earlier() -> EarlierText | str | None:
        return EarlierText.of_stage(stages[0]) if stages else _partitioned(texts, run)

    def first() -> Culprit:
        return find_culprit(run, None if isinstance(known := earlier(), str) else known)

    def outermost() -> Culprit:
        return nearest(run, first) or first()

    def found(culprit: Culprit, outer: Callable[[], Culprit]) -> Diagnosis:
        said = {"shlo_compiler": known} if isinstance(known := earlier(), str) else dict[str, str]()
        return wrong_diagnosis(run, culprit, said | {n: _summary(r) for n, r in runs.items()}, outer)

    if run.is_right and (culprit := nearest(run, first)) is not None:
        return found(culprit, first)
    while not run.is_right:
        # A wrong operation within a loop says more than the loop, which takes long to look at.
        inner, outer = _inside(texts, run, stages), functools.cache(outermost)
        culprit = inner or outer()
        fixed = decided_by_rounding(culprit, functools.partial(_rounded, texts, run, inner is not None))
        if not any(fixed):
            return found(culprit, outer)
        run.decided = run.decided or culprit
        rows = zip(run.outputs, fixed, strict=True)
        run.outputs = [replace(o, limit=max(o.limit, o.error)) if f else o for o, f in rows]
    return _freed(run, runs)


def _freed(run: Track, runs: Mapping[str, Track | str]) -> Diagnosis | None:
    use = read_after_free(run.stage)
    return None if use is None else freed_diagnosis(run.stage, use, {n: _summary(r) for n, r in runs.items()})


def _missing(run: Track) -> str:
    return f"not comparable without {_listed(run.unread)}, which is not read"


def _partitioned(texts: StageTexts, run: Track, inside: bool = False, tests: bool = False) -> EarlierText | str | None:
    """Returns the partitioned program, if it is right, or why it is not read; with the values `inside` its loops, and
    their `tests`."""
    if REGION not in texts.compiler and len(run.stage.coordinates) > 1:
        # It is not partitioned.
        return None
    try:
        found = run_program(texts.compiler, "", run.reference.inputs, 0, inside=inside, tests=tests)
    except JaxmeshError as error:
        return f"not read: {error}"
    made, wanted, scale = found.values, run.reference.values, run.pool.scale
    # This program has the results alone, without the tests of loops.
    rows = zip(found.outputs, run.reference.outputs, run.outputs, strict=False)
    if any(v.array.dtype == np.uint64 or (inside and v.op in INSIDE) for v in made):
        # The stages have them as pairs, or what is within the operation.
        return None
    is_right = all(error_of(made[a].array, wanted[b].array, scale(b)) <= o.limit for a, b, o in rows)
    return EarlierText.of_partitioned(found, run.stage.mesh) if is_right else None


def _listed(unread: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{name} (line {line})" for line, name in unread)


def _inside(texts: StageTexts, run: Track, stages: Sequence[Track]) -> Culprit | None:
    """Returns the wrong operation of an iteration or a branch, if the text has any and is wrong there."""
    if not _opaque(run):
        return None
    # If all iterations are right, a loop goes round too often, or not often enough.
    for tests in (False, True):
        reference = run_program(texts.frontend, texts.compiler, run.reference.inputs, 0, inside=True, tests=tests)
        followed, *known = (_written_out(r, reference) for r in (run, *stages[:1]))
        if followed is run:
            return None
        if not followed.is_right:
            break
    else:
        return None
    earlier = EarlierText.of_stage(known[0]) if known else _partitioned(texts, followed, inside=True, tests=tests)
    if known and _opaque(known[0]) > _opaque(followed):
        # Its loops are too long to be written out, and their values are not known.
        earlier = None
    return find_culprit(followed, None if isinstance(earlier, str) else earlier)


def _opaque(run: Track) -> int:
    return sum(map(is_opaque, run.stage.text.program.ops))


def _written_out(run: Track, reference: Reference) -> Track:
    """Returns the run of a stage whose loops are written out; the same run without loops."""
    found = written_out(run.stage, run.placed, reference.rounds)
    if found is None:
        return run
    stage, tests = found
    results = [*reference.results, *[None] * len(tests)]
    reference = replace(reference, outputs=[*reference.outputs, *tests], results=results)
    return track(stage, reference, Globals.of(reference), run.placed)


def _rounded(texts: StageTexts, run: Track, inside: bool, unit: float, seed: int) -> Reference:
    """Runs the program with other roundings, for the same arguments."""
    return run_program(texts.frontend, texts.compiler, run.reference.inputs, seed, inside=inside, unit=unit)


def _computes_from_rounded(texts: StageTexts, name: str, run: Track) -> bool:
    """Returns True if the devices compute what the program does from the values on that they hold rounded."""
    if not run.rounded:
        return False
    again = run_program(texts.frontend, texts.compiler, run.reference.inputs, 0, run.rounded)
    followed = follow(name, texts.stages[name], again, Globals.of(again))
    return isinstance(followed, Track) and followed.is_right


def _check_numbers(reference: Reference) -> None:
    for number, output in enumerate(reference.outputs):
        array = reference.values[output].array
        if array.dtype.kind in "fc" and array.size and bool(np.isnan(array).all()):
            raise UnsupportedError(
                f"result {number} of the unsharded program is NaN everywhere; give arguments that suit the program."
            )


def _verdict(run: Track | str) -> str:
    if isinstance(run, str):
        return NOT_COMPARABLE
    if not run.is_right:
        return WRONG if run.decided is None else LESS_PRECISE
    return RIGHT if all(o.error <= o.exact for o in run.outputs) else LESS_PRECISE


def _summary(run: Track | str) -> str:
    if isinstance(run, str):
        return run
    count, rest = len(run.known), run.not_explained
    shown = f"; not explained: {', '.join(rest[:_SHOWN])}{' ...' if len(rest) > _SHOWN else ''}" if rest else ""
    limit = max((o.limit for o in run.outputs), default=0.0)
    given = f"; only if what is not read is {', '.join(run.given)} of the unsharded program" if run.given else ""
    given += f"; not read: {_listed(run.unread)}" if run.unread else ""
    return (
        f"{_verdict(run)}, pcc {run.pcc:.6g}, an error above {limit:.1e} of the largest magnitude is seen, {count} of "
        f"{count + len(run.unexplained)} values explained{shown}{given}"
    )


def _without_errors(runs: Mapping[str, Track | str], otherwise: Mapping[str, Sequence[str]]) -> Diagnosis:
    verdict = max((_verdict(run) for run in runs.values()), key=ORDER.index)
    unread = [f"{name} is {run}" for name, run in runs.items() if isinstance(run, str)]
    pccs = [run.pcc for run in runs.values() if isinstance(run, Track)]
    stages = {name: _summary(run) for name, run in runs.items()}
    for name, said in otherwise.items():
        if said:
            op, cause = "func.return" if name == "shlo_compiler" else "func.func", "; ".join(said)
            stages |= {name: f"wrong, {cause}"} if name in stages else {}
            return Diagnosis(WRONG, name, op, cause=cause, stages=stages, pcc=min(pccs, default=1.0))
    if verdict == LESS_PRECISE:
        return less_precise(next(r for r in runs.values() if isinstance(r, Track) and _verdict(r) == verdict), stages)
    return Diagnosis(verdict, cause="; ".join(unread), stages=stages, pcc=min(pccs, default=float("nan")))

"""Finds passages that a reader has to read twice: in docstrings, comments and error messages.

The patterns are habits, not laws. A pronoun or a relative clause replaces a noun, or a negated noun replaces a negated
verb; a sentence is long; the docstring of a function does not begin with a verb.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST = 32
"""The words of a sentence."""

HABITS = {
    "a pronoun for a noun": r"\b(?:those|that|ones?) (?:that|which|of|who|whose)\b(?! the kind)",
    "of which": r"\b(?:by|from|in|of|over|to|with) wh(?:ich|om)\b",
    "a negated noun": r"\b(?:are|gives|has|have|holds|is|knows|says|takes) (?:no|none)\b",
    "a clause for a noun": r"(?:^|[.:;] )(?:What|Whatever|Whether|Which|Who)\b",
    "an adverb for a noun": r"\b(?:all the same|as it is|as they are|for good|of its own|so itself)\b",
}
VERBS = frozenset({
    "accept", "add", "align", "allocate", "append", "apply", "arrange", "ask", "assert", "assign", "begin", "bind",
    "broadcast", "build", "cache", "call", "cancel", "cast", "change", "check", "choose", "clear", "close", "collect",
    "combine", "compare", "compile", "compute", "concatenate", "connect", "convert", "copy", "count", "create", "cut",
    "decide", "decode", "decompose", "defer", "define", "delete", "derive", "describe", "determine", "distribute",
    "draw", "drop", "emit", "emulate", "enable", "encode", "end", "ensure", "enter", "estimate", "evaluate", "execute",
    "exit", "expand", "explain", "export", "extend", "extract", "fail", "fill", "filter", "find", "flatten", "fold",
    "follow", "format", "free", "fuse", "gather", "generate", "get", "give", "group", "guard", "handle", "hoist",
    "implement", "import", "infer", "initialise", "inline", "insert", "install", "interpret", "iterate", "join",
    "judge", "keep", "launch", "leave", "legalise", "let", "list", "load", "locate", "log", "lower", "make", "map",
    "mark", "match", "materialise", "measure", "merge", "move", "name", "normalise", "note", "number", "open", "order",
    "pad", "parse", "partition", "pass", "perform", "permute", "pick", "place", "plan", "poll", "prepare", "print",
    "propagate", "prove", "put", "query", "raise", "read", "rebuild", "recognise", "record", "reduce", "refuse",
    "register", "release", "remove", "rename", "render", "reorder", "repeat", "replace", "report", "represent",
    "require", "reset", "reshape", "reshard", "resolve", "restore", "return", "reuse", "rewrite", "rotate", "round",
    "run", "save", "scan", "select", "send", "set", "shard", "share", "show", "skip", "slice", "sort", "split", "stack",
    "start", "stop", "store", "strip", "substitute", "sum", "swap", "take", "tell", "test", "trace", "transfer",
    "transform", "translate", "transpose", "traverse", "try", "turn", "undo", "unflatten", "unroll", "unwrap", "update",
    "use", "validate", "verify", "visit", "wait", "walk", "warn", "widen", "wrap", "write", "yield",
})  # fmt: skip
"""The verbs that begin docstrings of functions, in the third person."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A passage with a habit: its line, the habit, and an excerpt."""

    line: int
    habit: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class _Passage:
    line: int
    text: str
    is_function: bool = False


def findings_of(path: Path) -> list[Finding]:
    """Returns the findings in a file, in no particular order."""
    source = path.read_text(encoding="utf-8")
    passages = [*_docstrings(ast.parse(source)), *_messages(ast.parse(source)), *_comments(source)]
    return [finding for passage in passages for finding in _judge(passage)]


def _judge(passage: _Passage) -> Iterator[Finding]:
    text = " ".join(passage.text.split())
    for habit, pattern in HABITS.items():
        if match := re.search(pattern, text):
            yield Finding(passage.line, habit, text[max(0, match.start() - 30) : match.end() + 30])
    for sentence in re.split(r"(?<=[.:;]) ", text):
        if len(sentence.split()) > LONGEST:
            yield Finding(passage.line, "a long sentence", sentence[:70])
    if passage.is_function and text and not _begins_with_verb(text):
        yield Finding(passage.line, "no verb first", text[:70])


def _begins_with_verb(text: str) -> bool:
    """Returns True for a verb in the third person, and for an example alone.

    >>> _begins_with_verb("Copies a row."), _begins_with_verb("The row."), _begins_with_verb("Matches rows.")
    (True, False, True)
    """
    first = re.split(r"[^\w]", text, maxsplit=1)[0].lower()
    stems = (first.removesuffix("s"), first.removesuffix("es"), first.removesuffix("ies") + "y")
    return text.startswith(">>>") or (first.endswith("s") and not VERBS.isdisjoint(stems))


# --- passages --------------------------------------------------------------------------------------------------------


def _docstrings(tree: ast.Module) -> Iterator[_Passage]:
    """Yields docstrings; of a function or a class only the prose before its sections and examples."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        if not isinstance(node, ast.Module):
            text = re.split(r"\n\s*(?:Args|Attributes|Raises|Returns|Yields|>>>)", text)[0]
        is_function = not isinstance(node, (ast.Module, ast.ClassDef)) and not _is_property(node)
        yield _Passage(node.body[0].lineno, text, is_function)


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    return not names.isdisjoint({"property", "cached_property"})


def _messages(tree: ast.Module) -> Iterator[_Passage]:
    """Yields the texts of raised errors, with X in the place of each value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield _Passage(node.lineno, " ".join(_texts(node.exc)))


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _comments(source: str) -> Iterator[_Passage]:
    """Yields comments, adjacent lines as one, without those for tools and the headings of sections."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(?:noqa|type:|fmt:|pyright|-|!)", token.string):
            continue
        if block and token.start[0] != last + 1:
            yield _Passage(first, " ".join(block))
            block = []
        first = token.start[0] if not block else first
        last = token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield _Passage(first, " ".join(block))

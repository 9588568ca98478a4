"""One pass over TTIR text before MLIR's own parser sees it: guards it, and rewrites what it cannot read.

MLIR parses any *generic* op of a dialect it does not know, but no custom assembly. The few custom spellings in TTIR
files are rewritten to generic ops, on the same lines, so that line numbers stay the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from jaxmesh.errors import ParseError
from jaxmesh.frontends.mlir.quantization import without_spaces

MAX_DEPTH = 128
"""MLIR's parser and printer recurse per bracket and per alias; their stack ends at some thousands."""

MAX_DIGITS = 400
"""MLIR reads a number in quadratic time, and crashes on one of 200,000 digits."""

MAX_AFFINE = 4096
"""Characters of an affine map: `d0 + d1 + ...` nests without brackets, and MLIR recurses over it."""

MAX_RESULTS = 9999
"""MLIR makes room for as many results as a name like `%0#5` counts."""

PROPERTIES = "jaxmesh.properties"
"""Holds all properties of an op as one dictionary: bindings cannot list those of an unregistered op."""

DIALECTS = ("ttir.", "ttnn.", "ttcore.", "tt.")

_LIST = r'[^][(){}"\n]{0,300}+'
_OP = (
    rf'"(?:ttir|ttnn)\.\w++"\([%\w\#,\ ]{{0,300}}+\)(?:\ <\{{{_LIST}(?:\[{_LIST}\]{_LIST}){{0,20}}+\}}>)?+'
    rf"(?:\ \{{{_LIST}\}})?+"
    r'\ :\ \([^(){}"\n]{0,900}+\)\ ->\ (?:\([^(){}"\n]{0,300}+\))?+[^(){}"\n]{0,300}+(?:(?<=\ loc)\([\#\w]*+\))?+\n'
)
"""An op without nested brackets, to the end of its line."""
_FLAT = r'[^][(){}<>"/\#!\s]*+'
_WORDS = rf"{_FLAT}(?:(?:\ |<[\w.,\ +\-]{{0,99}}+>|(?<=-)>){_FLAT}){{0,300}}+"
_ROUND = rf"(?<!loc)(?<!loc\ )(?<!loc\ \ )\({_WORDS}(?:\[{_WORDS}\]{_WORDS}){{0,20}}+\)"
_PRETTY = (
    rf"(?:(?:stablehlo|chlo)\.\w++|call\ @\w++)(?:{_WORDS}(?:\[{_WORDS}\]|\{{{_WORDS}\}}|{_ROUND})){{0,50}}+"
    rf"{_WORDS}(?:(?<=\ loc)\([\#\w]*+\))?+\n"
)
"""An op of StableHLO in its own form, without strings, aliases and nested brackets, to the end of its line."""
_TOKEN = re.compile(
    rf"""
    (?=["/\-<>=\#{{}}()\[\]!lat0-9?])(?:  # so that all else is passed over at once
    (?P<plain>{_OP}(?:\ *+(?:%\w++(?::\d++)?+\ =\ )?+{_OP}){{0,999}}+)
  | (?P<pretty>=\ {_PRETTY}(?:\ *+(?:%\w++(?::\d++)?+\ =\ )?+{_PRETTY}){{0,999}}+)
    """
    r"""
  | (?P<defined>(?<=\n)(?P<name>\#\w++)\ =\ loc\(
      (?P<inside>(?:"[^"\\\n\#]*+")?+[\w\ :\#]*+(?P<nested>\([\w\ :\#]*+\))?+)\)(?=\n))
  | (?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*")
  | (?P<endless>")
  | (?P<comment>//[^\n]*)
  | (?P<arrow>->|>=|<=|\#-\})
  | (?P<metadata>\{-\#)
  | (?P<properties>\)\s*<\s*\{)
  | (?P<leaf><[\w.,\ ]{0,99}+>)
  | (?P<open>[\[({<])
  | (?P<close>[\])}>])
  | (?P<alias>(?<![\w$.\-%@"])[#!][A-Za-z_$][\w$.\-]*)
  | (?P<place>(?<=[\w>)]\ )loc\((?P<where>\#\w++)\)(?=\n))
  | (?P<location>(?<![\w$.\-%@\#!"])loc\s*\()
  | (?P<affine>(?<![\w$.\-%@\#!"])affine_(?:map|set)\s*<)
  | (?P<module>(?<![\w$.\-%@\#!"])(?:ttcore|tt)\.(?:device|cpu)_module\b\s*(?:attributes\s*\{[^{}]*\}\s*)?\{)
  | (?P<device>(?<![\w$.\-%@\#!"])(?:ttcore|tt)\.device\s*@[\w$.\-]+\s*=\s*)
  | (?P<empty>(?<![\w$.\-%@\#!"])(?:ttir|ttnn)\.empty\s*\(\s*\)\s*(?:\{[^{}"]*\}\s*)?:(?!\s*\())
  | (?P<layout>(?<![\w$.\-%@\#!"])ttir\.to_layout\s+%[\w\#]+,\s*%[\w\#]+\s*:\s*(?=tensor<))
  | (?P<cached>(?<![\w$.\-%@\#!"])(?:ttcore|tt)\.load_cached\s*\(\s*
      (?P<callee>@(?:[\w$.\-]+|"[^"\\\n]*"))\s*,\s*\[(?P<given>[%\w\#,\s]*)\]\s*\))
  | (?P<rank>(?<![\w.])(?:[0-9?]{1,20}x){129})
  | (?P<digits>[0-9.]{401,}|0x[0-9A-Fa-f]{401,})
    )
    """,
    re.VERBOSE,
)
_PLACE = re.compile(r" loc\(([\#\w]*)\)\n")
_RESULT = re.compile(r"%[\w$.\-]+(?:#|:[ \t]*)0*[1-9][0-9]{4}")
_DEFINITION = re.compile(r"(?m)^#(\w+)[ \t]*=[ \t]*(\S.*?)[ \t]*$")
_INTO = re.compile(r"tensor<[^\n]*>(?P<into>\s+into\s+)tensor<[^\n]*>(?P<arrow>\s+->\s+)(?=tensor<)")
_BITS = re.compile(r'dense<"0x(?P<digits>[0-9A-Fa-f]+)">\s*:\s*tensor<(?P<shape>(?:[0-9]{1,9}x)+)i1>')
_EQUALS = re.compile(r"\s*=")
_ANGLES = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|->|[<>]')
_ALIAS = re.compile(r"(?:#[\w$.\-]+)?")
_METADATA = re.compile(r'\s*(\#-\}|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|//[^\n]*|[\w$.\-]+|[{}:,])\s*')
_BLOB = re.compile(r'"0x([0-9A-Fa-f]*)"')
_ESCAPE = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|.)")
_CLOSES = {")": "(", "]": "[", "}": "{", ">": "<"}
_NO_LOCATION_BEFORE = "=,[(<{"


@dataclass(slots=True)
class _Bracket:
    """An open bracket: its character, its start, what its rewriting appends or erases at its end, and the start of the
    inside of a location."""

    opening: str
    start: int
    suffix: str = ""
    erase: bool = False
    inside: int = 0


@dataclass(slots=True)
class _Scanner:
    """The state of one pass."""

    text: str
    first_line: int
    stack: list[_Bracket] = field(default_factory=list[_Bracket])
    edits: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    last_string: str = ""
    skip_to: int = 0
    resources: dict[str, str] = field(default_factory=dict[str, str])
    locations: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    defining: str | None = None
    depths: dict[str, int] = field(default_factory=dict[str, int])

    def line(self, at: int) -> int:
        return self.first_line + self.text.count("\n", 0, at)

    def refuse(self, at: int, why: str) -> ParseError:
        return ParseError(f"line {self.line(at)}: {why}")

    def push(self, opening: str, start: int, suffix: str = "", *, erase: bool = False, inside: int = 0) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise self.refuse(start, f"brackets nest more than {MAX_DEPTH} deep; no TTIR program does.")
        self.stack.append(_Bracket(opening, start, suffix, erase, inside))
        if self.defining is not None:
            self.deepen(start, 0)

    def deepen(self, at: int, depth: int) -> None:
        """Checks the depth of aliases, which nest without brackets, as in `#b = [#a]`."""
        name, depth = self.defining, len(self.stack) + depth
        assert name is not None
        if depth > MAX_DEPTH:
            raise self.refuse(at, f"alias {name} nests more than {MAX_DEPTH} deep; no TTIR program does.")
        if depth > self.depths[name]:
            self.depths[name] = depth

    def add_location(self, bracket: _Bracket, location: str) -> None:
        if bracket.erase:
            self.locations.append((bracket.start, location))
        elif self.defining is not None and not self.stack:
            self.aliases[self.defining] = location

    def blank(self, start: int, end: int) -> None:
        """Removes a part, its line ends kept."""
        self.edits.append((start, end, "\n" * self.text.count("\n", start, end) or " "))
        self.skip_to = end


@dataclass(frozen=True)
class Rewritten:
    """Text for MLIR's parser, with what was taken out of it.

    Attributes:
      text: for the parser.
      resources: the hex digits of the resource blobs, which the bindings cannot read.
      locations: by line of the file, the location of the op on it, as it is written inside of `loc(...)`. The locations
        that the parser itself gives to ops are then their lines in the text.
      aliases: the locations that the text defines by name, such as `#loc1`.
    """

    text: str
    resources: dict[str, str]
    locations: dict[int, str]
    aliases: dict[str, str]

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """The attributes that the text defines by name, each on one line."""
        return dict(_DEFINITION.findall(self.text))

    @cached_property
    def quantizes(self) -> bool:
        """True if the text has quantized types."""
        return "!quant." in self.text


def rewrite(text: str, first_line: int) -> Rewritten:
    """Rewrites a text so that MLIR's parser reads it without crashing, every op on its line.

    >>> rewrite("%0 = ttir.empty() : tensor<2xf32>", 1).text
    '%0 = "ttir.empty"() : () -> tensor<2xf32>'
    """
    text = _BITS.sub(_as_bytes, without_spaces(text))
    scan = _Scanner(text, first_line)
    nul = text.find("\0")
    if nul >= 0:
        raise scan.refuse(nul, "a NUL character; MLIR text has none.")
    if many := _RESULT.search(text):
        raise scan.refuse(many.start(), f"an op with more than {MAX_RESULTS} results.")
    for token in _TOKEN.finditer(text):
        if token.start() >= scan.skip_to:
            _take(scan, token)
    return Rewritten(_edit(text, scan.edits), scan.resources, dict(_by_line(scan)), scan.aliases)


def _as_bytes(constant: re.Match[str]) -> str:
    """Returns a constant of truth values with a byte for each; upstream's MLIR writes a bit, this one wants bytes.

    >>> _BITS.sub(_as_bytes, 'dense<"0x0501"> : tensor<3x3xi1>')
    'dense<"0x010001000000000001"> : tensor<3x3xi1>'
    """
    digits, count = constant["digits"], math.prod(map(int, constant["shape"].split("x")[:-1]))
    if count < 2 or len(digits) != 2 * -(-count // 8):
        return constant[0]
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(digits), np.uint8), count=count, bitorder="little")
    return constant[0].replace(digits, bits.tobytes().hex())


def _by_line(scan: _Scanner) -> Iterator[tuple[int, str]]:
    line, at = scan.first_line, 0
    for start, location in sorted(scan.locations):
        line, at = line + scan.text.count("\n", at, start), start
        yield line, location


def _take(scan: _Scanner, token: re.Match[str]) -> None:
    start, end = token.span()
    match token.lastgroup:
        case "plain" | "pretty":
            _plain(scan, token)
        case "open":
            scan.push(token.group(), start)
        case "close":
            _close(scan, token.group(), start)
        case "string":
            scan.last_string = token.group()
            _check_escapes(scan, token)
        case "properties":
            _close(scan, ")", start)
            scan.push("<", end - 2)
            wrap = scan.last_string[1:].startswith(DIALECTS)
            scan.push("{", end - 1, "}" if wrap else "")
            if wrap:
                scan.edits.append((end, end, f"{PROPERTIES} = {{"))
        case "place" if not (scan.stack and scan.stack[-1].opening == "("):
            scan.locations.append((start, token["where"]))
            scan.edits.append((start, end, " "))
        case "location":
            before = scan.text[max(0, start - 64) : start].rstrip()[-1:]
            # MLIR reads the locations of arguments. Locations of ops would take the place of their lines.
            in_parentheses = bool(scan.stack) and scan.stack[-1].opening == "("
            scan.push("(", start, erase=before not in _NO_LOCATION_BEFORE and not in_parentheses, inside=end)
        case "affine":
            if scan.text.find(")>", end, end + MAX_AFFINE) < 0 and len(scan.text) - end > MAX_AFFINE:
                raise scan.refuse(start, f"an affine map or set of more than {MAX_AFFINE} characters.")
            scan.push("<", start)
        case "module":
            name = token.group().split("attributes")[0].rstrip("{").strip()
            lines = "\n" * token.group().count("\n")
            scan.edits.append((start, end, f'"{name}"() ({{{lines}'))
            scan.push("{", start, ") : () -> ()")
        case "device":
            scan.blank(start, _after_attribute(scan.text, end))
        case "empty":
            name = token.group().split("(")[0].strip()
            lines = "\n" * token.group().count("\n")
            scan.edits.append((start, end, f'"{name}"(){lines} : () ->'))
        case "layout":
            _to_layout(scan, start, end)
        case "cached":
            lines = "\n" * (token.group().count("\n") - token["given"].count("\n"))
            attributes = f"{{callee = {token['callee']}}}"
            scan.edits.append((start, end, f'"ttcore.load_cached"({token["given"]}){lines} {attributes}'))
            scan.skip_to = end
        case "alias":
            _alias(scan, token.group(), start, end)
        case "defined" if not scan.stack:
            # JAX defines a location for each op.
            name, level = token["name"], 2 if token["nested"] else 1
            scan.defining, scan.depths[name], scan.aliases[name] = name, level, token["inside"].strip()
            for alias in re.findall(r"#\w+", token["inside"]):
                scan.deepen(start, level + scan.depths.get(alias, 0))
        case "metadata":
            scan.blank(start, _metadata(scan, end))
        case "endless":
            raise scan.refuse(start, "a string that does not end on its line.")
        case "rank":
            # MLIR reads dims in quadratic time too: some seconds for 20,000.
            raise scan.refuse(start, "a type of more than 128 dims; no tensor has more than a handful.")
        case "digits":
            raise scan.refuse(start, f"a number of more than {MAX_DIGITS} digits.")
        case _:
            pass


def _plain(scan: _Scanner, token: re.Match[str]) -> None:
    """Rewrites lines of ops without nested brackets, as most lines of a file are, in one step."""
    text, start = token.group(), token.start()
    if " loc(" in text:
        scan.locations += [(start + m.start(), m[1]) for m in _PLACE.finditer(text)]
        text = _PLACE.sub("\n", text)
    text = text.replace("<{", f"<{{{PROPERTIES} = {{").replace("}>", "}}>")
    scan.edits.append((*token.span(), text))


def _to_layout(scan: _Scanner, start: int, end: int) -> None:
    """Rewrites `ttir.to_layout %0, %1 : A into B -> C`, with its types on one line, as a generic op."""
    types = _INTO.match(scan.text, end)
    if types is None:
        return
    operands = scan.text[start:end].partition("layout")[2].rpartition(":")[0].strip()
    scan.edits.append((start, end, f'"ttir.to_layout"({operands}) : ('))
    scan.edits.append((*types.span("into"), ", "))
    scan.edits.append((*types.span("arrow"), ") -> "))


def _check_escapes(scan: _Scanner, token: re.Match[str]) -> None:
    """Checks that a string is UTF-8: the bindings end the process over others."""
    text = token.group()
    if "\\" not in text:
        return
    try:
        _ESCAPE.sub(lambda m: bytes([int(m.group(1) or b"20", 16)]), text.encode("utf-8", "surrogatepass")).decode()
    except UnicodeDecodeError:
        raise scan.refuse(token.start(), f"the string {text[:40]} is not UTF-8.") from None


def _alias(scan: _Scanner, name: str, start: int, end: int) -> None:
    if not scan.stack and _EQUALS.match(scan.text, end):
        scan.defining, scan.depths[name] = name, 1
    elif scan.defining is not None and name != scan.defining:
        scan.deepen(start, scan.depths.get(name, 0))


def _close(scan: _Scanner, bracket: str, at: int) -> None:
    """Closes the innermost bracket of its sort; what is left open inside is a mistake that MLIR reports."""
    opening = _CLOSES[bracket]
    if opening == "<" and (not scan.stack or scan.stack[-1].opening != "<"):
        return
    while scan.stack:
        opened = scan.stack.pop()
        if opened.opening != opening:
            continue
        if opened.inside:
            scan.add_location(opened, scan.text[opened.inside : at].strip())
        if opened.erase:
            scan.blank(opened.start, at + 1)
        elif opened.suffix:
            # Inside the closing brace for properties, behind it for a module.
            scan.edits.append((at + 1, at + 1, opened.suffix))
        return


def _after_attribute(text: str, at: int) -> int:
    """Returns the end of `#alias`, or of `#x.device<...>` or `<...>` with balanced angles."""
    name = _ALIAS.match(text, at)
    assert name is not None
    at = name.end()
    if text[at : at + 1] != "<":
        return at
    depth = 0
    for token in _ANGLES.finditer(text, at):
        depth += {"<": 1, ">": -1}.get(token.group(), 0)
        if depth == 0:
            return token.end()
    return len(text)


def _metadata(scan: _Scanner, at: int) -> int:
    """Reads the blobs of `{-# ... #-}` and gives its end; MLIR's parser crashes on a broken one."""
    before = ["", ""]
    while True:
        token = _METADATA.match(scan.text, at)
        if token is None:
            raise scan.refuse(at, "expected the end '#-}' of the file's metadata, a name, a string or a bracket.")
        at = token.end()
        word = token.group(1)
        if word == "#-}":
            return at
        blob = _BLOB.fullmatch(word) if before[1] == ":" else None
        if blob is not None:
            scan.resources[before[0].strip('"')] = blob.group(1)
        before = [before[1], word]


def _edit(text: str, edits: list[tuple[int, int, str]]) -> str:
    if not edits:
        return text
    parts: list[str] = []
    at = 0
    # A blanked part may hold earlier edits; it wins.
    for start, end, new in sorted(edits, key=lambda e: e[:2]):
        if start >= at:
            parts += [text[at:start], new]
            at = end
    return "".join([*parts, text[at:]])

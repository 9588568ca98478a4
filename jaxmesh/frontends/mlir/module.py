"""The functions of a TTIR file, with the mesh and the boundary that the file declares for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxmesh.errors import MeshError, ParseError, VerifyError
from jaxmesh.frontends.mlir.attributes import entries
from jaxmesh.frontends.mlir.source import Piece, RunLine, parse, run_lines

MAX_DEVICES = 65536
"""More devices than any system has: a size in a file that is no mesh."""

_MESHES = ("ttcore.meshes", "tt.meshes")
_MESH = re.compile(r'<\s*"?([^"<>=]*?)"?\s*=\s*([0-9]+(?:\s*x\s*[0-9]+)*)\s*[,>]')
_LONGEST = 2000
"""Characters of an attribute that are looked at; none of those read here is longer."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')
_ARGUMENT = re.compile(r"(%[\w$.-]+)\s*:")
_NAMED = re.compile(r'loc\((?:"(?P<name>[^"\\]+)"[()]|(?P<alias>#\w+)\))')
_ALIAS = re.compile(r'^(?P<alias>#\w+) = loc\("(?P<name>[^"\\]+)"[()]', re.MULTILINE)
_PREFERRED = ("main", "forward")


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One function of a file, whose text is `text`; it has a body or is called. `home` is the operation around it."""

    name: str
    line: int
    operation: ir.Operation
    piece: Piece
    public: bool
    home: ir.Operation
    text: str

    def argument_names(self) -> list[str]:
        """Returns the names that the locations of the arguments give, as JAX writes them, else such as `%arg0`."""
        count = len(self.operation.attributes["function_type"].value.inputs)
        text = "".join(self.text.splitlines(True)[self.line - 1 :])
        begin = re.search(rf'@"?{re.escape(self.name)}"?\(', text)
        head = text[begin.end() : _closing(text, begin.end())] if begin else ""
        parts = _ARGUMENT.split(head)[1:]
        written, aliases = parts[::2], {m["alias"]: m["name"] for m in _ALIAS.finditer(self.text)}
        located = [_NAMED.search(part) for part in parts[1::2]]
        known = [m and (m["name"] or aliases.get(m["alias"])) for m in located]
        for names in ([name or own for name, own in zip(known, written, strict=True)], written):
            if len(names) == len({*names}) == count:
                return names
        return [f"%arg{i}" for i in range(count)]

    @property
    def says_public(self) -> bool:
        """Returns True if its visibility is written out."""
        return self.public and "sym_visibility" in self.operation.attributes

    @property
    def has_body(self) -> bool:
        """Returns True if it is more than a declaration."""
        return len(self.operation.regions[0].blocks) > 0

    def __repr__(self) -> str:
        return f"@{self.name} (line {self.line})"


@dataclass(frozen=True, slots=True)
class DeclaredMesh:
    """A mesh that a file names, and where."""

    sizes: tuple[int, ...]
    where: str


Named = Mapping[tuple[int, str], Sequence[Function]]
"""The functions of a file, by the identity of their piece and their name."""


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file."""

    functions: tuple[Function, ...]
    named: Named
    run_lines: tuple[RunLine, ...]
    text: str


def load_text(text: str) -> Source:
    """Parses text."""
    functions = tuple(
        _function(op, piece, text)
        for piece in parse(text)
        for op in outermost(piece.module.operation, lambda op: op.name == "func.func")
    )
    named: dict[tuple[int, str], list[Function]] = {}
    for f in functions:
        named.setdefault((id(f.piece), f.name), []).append(f)
    return Source(functions, named, tuple(run_lines(text)), text)


def outermost(root: ir.Operation, wanted: Callable[[ir.Operation], bool]) -> list[ir.Operation]:
    """Returns the outermost operations that satisfy `wanted`, in order; does not descend into a match."""
    found: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if not wanted(operation):
            return ir.WalkResult.ADVANCE
        found.append(operation)
        return ir.WalkResult.SKIP

    # A walk hands out plain operations; iterating over a block would look for a Python class of each.
    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def operations(owner: ir.Operation, *, deep: bool = False) -> list[ir.Operation]:
    """Returns the operations directly inside an operation's regions, or at any depth, in pre-order."""
    seen: list[ir.Operation] = []
    skip, advance = ir.WalkResult.SKIP, ir.WalkResult.ADVANCE

    def visit(operation: ir.Operation) -> ir.WalkResult:
        seen.append(operation)
        return advance if deep or len(seen) == 1 else skip

    owner.walk(visit, ir.WalkOrder.PRE_ORDER)
    return seen[1:]


def producer(value: ir.Value, *names: str) -> ir.Operation | None:
    """Returns the operation that has a value as a result; None for an argument of a block, and for other `names`."""
    if isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    return None if names and op.name not in names else op


def _closing(text: str, start: int) -> int:
    """Returns where the bracket closes that opens before `start`; brackets in strings do not count."""
    depth = 1
    for match in _BRACKETS.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth:
            return match.start()
    return len(text)


def _function(operation: ir.Operation, piece: Piece, text: str) -> Function:
    attributes = operation.attributes
    visibility = attributes["sym_visibility"].value if "sym_visibility" in attributes else "public"
    name = attributes["sym_name"].value
    assert operation.parent is not None
    return Function(name, line_of(operation, piece), operation, piece, visibility == "public", operation.parent, text)


def line_of(operation: ir.Operation, piece: Piece) -> int:
    """Returns the line of the file where an operation stands; its locations were removed before parsing."""
    return piece.offset + operation.location.start_line


def choose(source: Source, name: str | None) -> Function:
    """Returns the function of a name, or of `name@line`; by default the only public one, `main` or `forward`."""
    bodies = [f for f in source.functions if f.has_body]
    if not bodies:
        raise ParseError("line 1: the file has no function with a body; write func.func @main(...) { ... }.")
    if name is not None:
        named = [f for f in bodies if f.name == name or f"{f.name}@{f.line}" == name]
        count = f"{len(named)} functions" if named else "no function"
        return _only(named, f"the file has {count} @{name}", bodies)
    public = public_functions(source)
    for found in (public, *([f for f in public if f.name == preferred] for preferred in _PREFERRED)):
        if len(found) == 1:
            return found[0]
    return _only(public, f"the file has {len(public)} public functions", public or bodies)


def _only(found: Sequence[Function], why: str, bodies: Sequence[Function]) -> Function:
    if len(found) == 1:
        return found[0]
    listed = ", ".join(map(repr, bodies[:20])) + (", ..." if len(bodies) > 20 else "")
    line = found[0].line if found else bodies[0].line
    raise ParseError(f"line {line}: {why}; give func= one of {listed}, or name@line.")


def public_functions(source: Source) -> list[Function]:
    """Returns the functions that can be called from outside, except the evaluations of constants."""
    return [f for f in source.functions if f.public and f.has_body and "const_eval" not in f.operation.attributes]


# --- the mesh --------------------------------------------------------------------------------------------------------


def declared_mesh(function: Function, runs: Sequence[RunLine]) -> DeclaredMesh | None:
    """Returns the mesh of a function's module, else of the RUN lines of its file."""
    operation: ir.Operation | None = function.operation
    while operation is not None:
        for name in _MESHES:
            if name in operation.attributes:
                sizes = _module_mesh(str(operation.attributes[name])[:_LONGEST], line_of(operation, function.piece))
                if sizes is not None:
                    return sizes
        operation = operation.parent
    return _run_mesh(runs)


def _module_mesh(text: str, line: int) -> DeclaredMesh | None:
    """Returns the first mesh, as upstream does."""
    found = _MESH.findall(text)
    if not found:
        if re.search(r"<\s*\[\s*\]\s*>", text):
            return None
        raise VerifyError(
            f"line {line}: a module's meshes are written ttcore.meshes = "
            f'#ttcore.meshes<[<"mesh" = 2x4>]>, got {text[:100]}.'
        )
    names = [name for name, _ in found]
    if len(set(names)) != len(names):
        raise VerifyError(f"line {line}: two meshes of a module have the same name: {', '.join(names)}.")
    sizes = tuple(int(n[:20]) for n in re.split(r"\s*x\s*", found[0][1]))
    check_sizes(sizes, f"line {line}: ttcore.meshes")
    return DeclaredMesh(sizes, f"line {line}: ttcore.meshes")


def check_sizes(sizes: Sequence[int], where: str) -> None:
    """Checks that a mesh can have these sizes."""
    # A list in a text may hold anything.
    whole = bool(sizes) and all(type(n) is int for n in sizes)
    if not whole or min(sizes) < 1 or math.prod(sizes) > MAX_DEVICES:
        named = "x".join(f"{n!s:.20}" for n in sizes[:9])
        raise VerifyError(f"{where} names the mesh {named}; a mesh has 1 to {MAX_DEVICES} devices.")


def _run_mesh(runs: Sequence[RunLine]) -> DeclaredMesh | None:
    different = {r.sizes: r for r in runs}
    if len(different) > 1:
        listed = ", ".join(f"{'x'.join(map(str, r.sizes))} (line {r.line})" for r in different.values())
        raise MeshError(f"line {runs[0].line}: the RUN lines name different meshes: {listed}; choose one with mesh=.")
    for run in different.values():
        check_sizes(run.sizes, f"line {run.line}: mesh-shape")
        return DeclaredMesh(run.sizes, f"line {run.line}: mesh-shape of a RUN line")
    return None


# --- the boundary ----------------------------------------------------------------------------------------------------

_SHARDINGS = frozenset({"shard_status", "runtime_tensor_sharding", "local_shape"})
_STATUS = re.compile(r"\b(presharded|unsharded)\b")
_ROLE = re.compile(r"<(input|parameter|constant)>")
_LOCAL = re.compile(r"local_shape\s*=\s*(tensor<[^<>]*(?:<[^<>]*>[^<>]*)?>)")


@dataclass(frozen=True, slots=True)
class BoundaryAttributes:
    """The attributes of one argument or result: its status, its local type if that is written apart, its axes, and what
    it is: `input`, `parameter`, `constant`."""

    status: str | None
    local: ir.Type | None
    varying: tuple[int, ...] | None = None
    role: str = ""


def boundary_attributes(function: Function, which: str, count: int) -> list[BoundaryAttributes]:
    """Returns the boundary attributes of the arguments (`arg_attrs`) or of the results (`res_attrs`) of a function."""
    attributes = function.operation.attributes
    if which not in attributes:
        return [BoundaryAttributes(None, None)] * count
    listed, known = list(attributes[which]), dict[ir.Attribute, BoundaryAttributes]()
    # MLIR has each attribute once.
    for dictionary in dict.fromkeys(listed):
        known[dictionary] = _parse_attributes(dictionary)
    return [known[dictionary] for dictionary in listed]


def _parse_attributes(dictionary: ir.Attribute) -> BoundaryAttributes:
    status, local, varying, role = None, None, None, ""
    for name, attribute in entries(dictionary):
        if name == "jaxmesh.varying":
            varying = _axes(str(attribute)[:_LONGEST])
            continue
        if name == "ttcore.argument_type" and (said := _ROLE.search(str(attribute)[:_LONGEST])):
            role = said[1]
        if not name.startswith(("ttcore.", "tt.")) or name.split(".")[1] not in _SHARDINGS:
            continue
        text = str(attribute)[:_LONGEST]
        if found := _STATUS.search(text):
            status = found.group(1)
        elif name.endswith("shard_status"):
            raise VerifyError(f"{name} is presharded or unsharded, got {text[:60]}.")
        if shape := _LOCAL.search(text):
            local = _type(shape.group(1), dictionary.context)
    return BoundaryAttributes(status, local, varying, role)


_AXES = re.compile(r"array<i64(?::\s*([0-9]{1,9}(?:,\s*[0-9]{1,9})*))?>")


def _axes(text: str) -> tuple[int, ...]:
    found = _AXES.fullmatch(text)
    if found is None:
        raise VerifyError(f"jaxmesh.varying lists mesh axes as array<i64: 0, 1>, got {text[:60]}.")
    return tuple(map(int, found.group(1).split(","))) if found.group(1) else ()


def _type(text: str, context: ir.Context) -> ir.Type:
    try:
        return ir.Type.parse(text, context)
    except ir.MLIRError:
        raise VerifyError(f"local_shape {text[:60]} is not a tensor type.") from None

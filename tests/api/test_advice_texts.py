"""The advice of errors about texts, and of the command line, works: each piece is followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli import main
from tests.api import test_advice as known, test_advice_prose as prose, test_advice_sweep as sweep
from tests.api.test_advice import Case, X, mesh
from tests.api.test_advice_names import PACKAGE, text_of as spelled
from tests.api.test_advice_prose import read
from tests.generators.faults.wrong_calls_cli import make_files

lax: Any = jax.lax
KIND = "tensor<4x8xf32>"
QUANT = "tensor<4x8x!quant.uniform<i8:f32, 1.0>>"
DEFAULT = object()


def one(op: str, attributes: str = "", kinds: str = f"({KIND}) -> {KIND}", operands: str = "%x", **options: Any) -> Any:
    """Reads a function of one op."""
    given, result = f" <{{{attributes}}}>" if attributes else "", kinds.rpartition("-> ")[2]
    ends = ", ".join(
        f"{o}: {k}"
        for o, k in zip(operands.split(", "), re.findall(r"tensor<[^>]*>+", kinds.partition(") ->")[0]), strict=True)
    )
    return read(f'%0 = "{op}"({operands}){given} : {kinds}\nreturn %0 : {result}', f"({ends}) -> {result}", **options)


def python(op: str, attributes: str = "", **options: Any) -> str:
    return one(op, attributes, **options).lower().as_text("python")


def hlo(line: str, kinds: str = f"(%x: {KIND}) -> {KIND}", more: str = "", name: str = "%0") -> Any:
    """Reads a function of StableHLO."""
    result = kinds.rpartition("-> ")[2]
    text = f"module {{\n{more}\nfunc.func @main{kinds} {{\n{line}\nreturn {name} : {result}\n}} }}"
    return jm.from_mlir(text, mesh=mesh())


def constant(value: str, kind: str) -> Any:
    return read(f'%0 = "ttir.constant"() <{{value = {value}}}> : () -> {kind}\nreturn %0 : {kind}', f"() -> {kind}")


def text_of(f: Any, *args: Any, language: Any = "python", **options: Any) -> str:
    return jm.jit(f, mesh=mesh()).lower(*(args or (X,))).as_text(language, **options)


def explicit() -> Any:
    return jax.make_mesh((2, 4), ("y", "x"))


def products(end: P) -> Any:
    """Returns a function whose result is the product of parts along x, which stay parts, or are reduced."""
    here = NamedSharding(explicit(), P(None, "x")), NamedSharding(explicit(), P("x", None))
    return jm.jit(
        lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=P()) if end == P() else a @ b,
        in_shardings=here, out_shardings=NamedSharding(explicit(), end), mesh=explicit(),
    )  # fmt: skip


def steps(count: int, limit: int) -> str:
    """Returns the text of a loop that is unrolled, as it splits what it computes."""

    def step(i: Any, c: Any) -> Any:
        return jm.shard_to_full(jnp.sin(jm.full_to_shard(c, P("y"))), P("y"))

    return text_of(lambda x: lax.fori_loop(0, count, step, x), unroll_limit=limit)


def gathered(size: int) -> Any:
    wide, wider = "tensor<4x16xf32>", f"tensor<4x{16 * size}xf32>"
    op = '"ttir.all_gather"(%{}) <{{all_gather_dim = 1 : si32, cluster_axis = 1 : ui32}}> : ({}) -> {}'
    return read(
        f"%0 = {op.format('x', KIND, wide)}\n%1 = {op.format('0', wide, wider)}\nreturn %1 : {wider}",
        f"(%x: {KIND}) -> {wider}", mesh=None,
    )  # fmt: skip


def activated(function: str) -> Any:
    attribute = f"activations = [#ttnn.unary_with_param<op_type = {function}>]"
    return one("ttnn.add", attribute, f"({KIND}, {KIND}) -> {KIND}", "%x, %y")


def loaded(path: str) -> str:
    return read(
        f'%0 = "ttnn.load_tensor"() <{{file_path = "{path}"}}> : () -> {KIND}\nreturn %0 : {KIND}', f"() -> {KIND}"
    ).lower().as_text("python")  # fmt: skip


def until(limit: int | None = None) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        def step(c: Any) -> Any:
            return c[0] + 1, jm.full_to_shard(jnp.sin(jm.shard_to_full(c[1], P("y"))), P("y"))

        def goes_on(c: Any) -> Any:
            more = lax.psum(c[1].sum(), "y") > 0.5
            return more if limit is None else (c[0] < limit) & more

        return jm.shard_to_full(lax.while_loop(goes_on, step, (0, jm.full_to_shard(x, P("y"))))[1], P("y"))

    return f


def manual(local: str) -> Any:
    return hlo(
        f'%1 = stablehlo.custom_call @SPMDFullToShardShape(%x) : ({KIND}) -> tensor<{local}xf32>\n'
        f'%0 = stablehlo.custom_call @SPMDShardToFullShape(%1) {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, '
        f'[{{"y"}}, {{}}]>]>}} : (tensor<{local}xf32>) -> {KIND}',
        f'(%x: {KIND} {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{}}]>}}) -> {KIND}',
        'sdy.mesh @mesh = <["y"=2, "x"=4]>',
    )  # fmt: skip


def sorted_by(sharding: str) -> Any:
    return hlo(
        f'%0:2 = "stablehlo.sort"(%x, %x) ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):'
        f'\n%1 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>\nstablehlo.return %1 : '
        f'tensor<i1>\n}}) {{dimension = 1 : i64, mhlo.sharding = "{sharding}"}} : ({KIND}, {KIND}) -> ({KIND}, {KIND})',
        name="%0#0",
    )  # fmt: skip


def on_platforms(**more: Any) -> str:
    return text_of(lambda x: lax.platform_dependent(x, cpu=lambda v: v + 1, tpu=lambda v: v, **more))


GSPMD = """func.func public @main(%a: tensor<6x8xf32> {mhlo.sharding = "{devices=[3,1]<=[3]}"}) -> tensor<6x8xf32> {
  %0 = stablehlo.add %a, %a : tensor<6x8xf32>
  return %0 : tensor<6x8xf32>
}"""
CASES = [
    Case("no function", lambda: jm.from_mlir("module {}"), {
        "write func.func @main(...) { ... }": lambda: read("return %x : tensor<4x8xf32>")}),
    Case("a sharding of another mesh", lambda: jm.from_mlir(GSPMD, mesh=mesh()), {
        "give mesh= the mesh that it was written for": lambda: jm.from_mlir(GSPMD, mesh=jm.make_mesh((3,), ("a",)))}),
    Case("two functions", lambda: jm.from_mlir(
        "func.func @a() { return }\nfunc.func @b() { return }", mesh=mesh()), {
        "give func= one of": lambda: jm.from_mlir(
            "func.func @a() { return }\nfunc.func @b() { return }", mesh=mesh(), func="a"),
        "or name@line": lambda: jm.from_mlir(
            "func.func @a() { return }\nfunc.func @b() { return }", mesh=mesh(), func="b@2")}),
    Case("RUN lines of two meshes", lambda: jm.from_mlir(
        "// RUN: ttmlir-opt mesh-shape=2,4 %s\n// RUN: ttmlir-opt mesh-shape=1,8 %s\nfunc.func @a() { return }"), {
        "choose one with mesh=": lambda: jm.from_mlir(
            "// RUN: ttmlir-opt mesh-shape=2,4 %s\n// RUN: ttmlir-opt mesh-shape=1,8 %s\nfunc.func @a() { return }",
            mesh=mesh())}),
    Case("no return", lambda: jm.from_mlir(
        f'func.func @main(%x: {KIND}) {{ %0 = "ttir.neg"(%x) : ({KIND}) -> {KIND} }}', mesh=mesh()), {
        "write one": lambda: jm.from_mlir("func.func @main() {\nreturn\n}", mesh=mesh())}),
    Case("bytecode", lambda: jm.from_mlir(b"ML\xefR\x01".decode("latin1")), {}),
    Case("no text and no file", lambda: jm.from_mlir("none.mlir"), {
        "give the path of a .mlir file": lambda: (
            Path("a.mlir").write_text("func.func @a() { return }"), jm.from_mlir("a.mlir", mesh=mesh())),
        "or its text": lambda: jm.from_mlir("func.func @a() { return }", mesh=mesh())}),
    Case("a device for a file", lambda: jm.from_mlir(Path("/dev/zero")), {
        "name a file": lambda: (
            Path("a.mlir").write_text("func.func @a() { return }"), jm.from_mlir(Path("a.mlir"), mesh=mesh()))}),
    Case("a long name", lambda: jm.from_mlir(Path("a" * 300)), {}),
    Case("a type of no JAX", lambda: one("ttir.neg", kinds="(tensor<4xi7>) -> tensor<4xi7>"), {
        "cast it to one that has": lambda: one("ttir.neg", kinds="(tensor<4xi8>) -> tensor<4xi8>")}),
    Case("a dim of no size", lambda: one("ttir.neg", kinds="(tensor<?xf32>) -> tensor<?xf32>"), {
        "give every dim its size": lambda: one("ttir.neg", kinds="(tensor<4xf32>) -> tensor<4xf32>")}),
    Case("an op of another dialect", lambda: one("other.neg"), {
        "lower the file to TTIR first": lambda: one("ttir.neg")}),
    Case("quantized numbers", lambda: one("ttir.exp", kinds=f"({QUANT}) -> {QUANT}"), {
        "put a ttir.dequantize in front of it and a ttir.quantize behind": lambda: read(
            f'%0 = "ttir.dequantize"(%x) : ({QUANT}) -> {KIND}\n%1 = "ttir.exp"(%0) : ({KIND}) -> {KIND}\n'
            f'%2 = "ttir.quantize"(%1) : ({KIND}) -> {QUANT}\nreturn %2 : {QUANT}', f"(%x: {QUANT}) -> {QUANT}")}),
    Case("a constant beyond its type", lambda: constant("dense<300> : tensor<4xi32>", "tensor<4xui8>"), {
        "declare the result as int32 and add a ttir.typecast": lambda: read(
            '%0 = "ttir.constant"() <{value = dense<300> : tensor<4xi32>}> : () -> tensor<4xi32>\n'
            '%1 = "ttir.typecast"(%0) : (tensor<4xi32>) -> tensor<4xui8>\nreturn %1 : tensor<4xui8>',
            "() -> tensor<4xui8>")}),
    Case("another mesh than the file's", lambda: read(
        "return %x : tensor<4x8xf32>", "(%x: tensor<4x8xf32>) -> tensor<4x8xf32>",
        mesh=AbstractMesh((8,), ("x",))) and jm.from_mlir(
            'module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} { func.func @a() { return } }',
            mesh=AbstractMesh((8,), ("x",))), {
        "Give a mesh of the file's shape, or none": lambda: [jm.from_mlir(
            'module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} { func.func @a() { return } }',
            mesh=m) for m in (mesh(), None)]}),
    Case("a custom call", lambda: hlo(f'%0 = stablehlo.custom_call @mine(%x) : ({KIND}) -> {KIND}'), {
        "Write it with StableHLO's ops": lambda: hlo(f"%0 = stablehlo.tanh %x : {KIND}")}),
    Case("bits of the machine", lambda: hlo(
        "%0, %1 = stablehlo.rng_bit_generator %x, algorithm = DEFAULT : (tensor<3xui64>) -> (tensor<3xui64>, "
        "tensor<4xui32>)", "(%x: tensor<3xui64>) -> tensor<4xui32>", name="%1") , {}),
    Case("an unreduced sharding", lambda: products(P(unreduced={"x"})).lower(X, X).as_text(), {
        "the program runs as JAX runs it": lambda: jax.block_until_ready(products(P(unreduced={"x"}))(X, X)),
        "Reduce inside of the program": lambda: products(P()).lower(X, X).as_text()}),
    Case("complex numbers", lambda: text_of(lambda x: x, X + 1j), {}),
    Case("a long loop", lambda: steps(200, 100), {
        "Raise unroll_limit": lambda: steps(200, 2000),
        "or make the loop shorter": lambda: steps(20, 100)}),
    Case("platforms without a default", lambda: on_platforms(), {
        "Give it a default": lambda: on_platforms(default=lambda v: v * 2)}),
    Case("a type that the real ttnn lacks", lambda: text_of(
        lambda x: x + x, X.astype(np.int16)), {
        "Convert it to one that it has (astype)": lambda: text_of(lambda x: x + x, X.astype(np.int32))}),
    Case("gathers over axes of two sizes", lambda: gathered(4), {"correct one op": lambda: gathered(2)}),
    Case("an activation of no op", lambda: activated("heaviside"), {
        "write the activation as a separate op": lambda: activated("relu")}),
    Case("an activation with parameters", lambda: activated("relu, params = [2.0 : f32]"), {
        "write it as a separate op": lambda: activated("relu")}),
    Case("a file of another folder", lambda: loaded("/etc/passwd"), {
        "name a file in the folder, such as tensors/weights.tensorbin": lambda: loaded("tensors/weights.tensorbin")}),
    Case("a type that C++ lacks", lambda: text_of(
        lambda x: x, jnp.ones(8, jnp.float8_e8m0fnu), language="cpp", strict=False), {
        "Convert to a listed element type (astype)": lambda: text_of(lambda x: x, jnp.ones(8, jnp.bfloat16))}),
    Case("a loop whose end the devices know, which splits", lambda: text_of(until()), {
        "a number of iterations that is static": lambda: steps(3, 100),
        "or a static limit: (i < 8) & condition": lambda: text_of(until(8))}),
    Case("a shard of another type", lambda: manual("4x8"), {"correct the type or the sharding": lambda: manual("2x8")}),
    Case("one sharding for two results", lambda: sorted_by("{devices=[2,1]<=[2]}"), {
        "give each result a sharding over mesh axes": lambda: sorted_by("{{replicated}, {replicated}}")}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_is_in_the_message_and_works(case: Case) -> None:
    known.test_advice_is_in_the_message_and_works(case)


# --- the command line ------------------------------------------------------------------------------------------------

LINES: list[tuple[str, str, tuple[str, ...]]] = [
    ("opt {}/no_ops.mlir --stablehlo-to-ttir", "leave the option out", ("opt {}/no_ops.mlir",)),
    ("opt {}/good.mlir --mesh 2xa", "write for example --mesh 2x4", ("opt {}/good.mlir --mesh 2x4",)),
    ("opt {}/bare.mlir --mesh 0x8", "leave the axis out, or write 1 for it",
     ("opt {}/bare.mlir --mesh 8", "opt {}/bare.mlir --mesh 1x8")),
    ("opt {}/bare.mlir --mesh 64x64", "write a smaller mesh, for example --mesh 2x4", ("opt {}/bare.mlir --mesh 2x4",)),
    ("run {}/good.mlir --out {}/none/o.npz", "name another", ("run {}/good.mlir --out {}/o.npz",)),
    ("run {}/wide.mlir", "use `jaxmesh opt` to verify it", ("opt {}/wide.mlir",)),
    ("run {}/good.mlir --inputs {}/twice.npz", "leave one out", ("run {}/good.mlir --inputs {}/good.npz",)),
    ("run {}/good.mlir --inputs {}/dtype.npz", "convert it", ("run {}/good.mlir --inputs {}/good.npz",)),
    ("run {}/good.mlir --inputs {}/text.npz", "write one with np.savez", ("run {}/good.mlir --inputs {}/good.npz",)),
    ("run {}/presharded.mlir --inputs {}/differ.npz", "give these devices equal arrays",
     ("run {}/presharded.mlir --inputs {}/equal.npz",)),
    ("translate {}/good.mlir --to python --out {}/o --inputs {}/good.npz --make-inputs zeros", "leave one out",
     ("translate {}/good.mlir --to python --out {}/o --inputs {}/good.npz",
      "translate {}/good.mlir --to python --out {}/o --make-inputs zeros")),
    ("run {}/model --mesh 2x4", "leave it out", ("run {}/model",)),
    ("run {}/key", "export the program again, or correct the file", ("run {}/model",)),
    ("run {}/no_text", "export the program again", ("run {}/model",)),
    ("run {}/folder", "give a folder that lowered.export wrote", ("run {}/model",)),
    ("translate {}/good.mlir --to python --seed 3", "give --out DIR, too",
     ("translate {}/good.mlir --to python --seed 3 --out {}/o",)),
    ("translate {}/good.mlir --to ttnn --out {}/good.npz", "name another",
     ("translate {}/good.mlir --to ttnn --out {}/o",)),
    ("demo --out {}/good.npz", "name another", ()),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    make_all(folder)
    return folder


def make_all(folder: Path) -> None:
    """Writes every file that the lines name."""
    make_files(folder)
    (folder / "bare.mlir").write_text(
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    )
    (folder / "no_ops.mlir").write_text((folder / "good.mlir").read_text())
    (folder / "wide.mlir").write_text(
        'module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 20x40>]>} { '
        + (folder / "bare.mlir").read_text() + " }"
    )  # fmt: skip
    here = "{jaxmesh.varying = array<i64>, ttcore.shard_status = #ttcore.shard_status<presharded>}"
    (folder / "presharded.mlir").write_text(
        'module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {\n'
        f"func.func @main(%x: tensor<4xf32> {here}) -> (tensor<4xf32> {here}) {{ return %x : tensor<4xf32> }} }}"
    )
    equal = np.ones((8, 4), np.float32)
    np.savez(folder / "equal.npz", arg0=equal)
    np.savez(folder / "differ.npz", arg0=equal * np.arange(8, dtype=np.float32)[:, None])


@pytest.mark.parametrize(("wrong", "words", "right"), LINES, ids=[wrong for wrong, *_ in LINES])
def test_the_advice_of_a_command_works(
    wrong: str, words: str, right: tuple[str, ...], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(wrong.replace("{}", str(files)).split()) == main.USAGE
    assert words in capsys.readouterr().err
    for line in right:
        assert main.main(line.replace("{}", str(files)).split()) == 0, capsys.readouterr().err


# --- no advice is left out -------------------------------------------------------------------------------------------

VERBS = (
    "pass|use|give|ask|set|raise|install|call|make|move|put|write|name|pad|take|read|import|trace|lower|leave|add|"
    "remove|choose|split|cast|run|export|print|open|reduce|gather|convert|reshape|map|wrap|mark|declare|change|keep|"
    "switch|enable|start|define|copy|merge|rename|clip|look|say|tell|correct|free|replicate|compute|record|join|derive|"
    "pickle|compare|distribute|drop|try"
)
ADVISES = re.compile(rf"(?:[.;] |, or )(?:{VERBS})\b", re.IGNORECASE)
ELSEWHERE = {
    "add one in jaxmesh/": "for developers", "Add its meaning in": "for developers", "define it in": "for developers",
    "lower it in jaxmesh/": "for developers", "Define it there": "for developers", "Lower it with": "for developers",
    "make the groups an axis": "of equations that JAX's typing refuses first", "write that with mesh_shard": "likewise",
    "pip uninstall": "of an installation: tests/system/test_installation.py",
    "chmod u+rx": "of permissions, which a superuser does not need",
    "analysis/environments.py": "of environments: tests/unit/analysis/judge/test_environment.py",
    "analysis/judge/": "of the real ttnn: tests/system/test_judge.py, tests/system/test_cpp_declarations.py",
    "analysis/upstream/": "of Tenstorrent's compiler: tests/unit/analysis/upstream/test_compile.py",
    "stages/joined_tensors.py": "of Tenstorrent's compiler", "print it as text with ttmlir-opt": "of tt-mlir's tools",
    "standard input is closed": "of a process: tests/api/test_command_contract.py",
    "--on ttnn": "of the real ttnn: tests/unit/analysis/judge/test_environment.py, tests/api/test_advice.py",
    "must be empty": "of activations that are no list of functions, which no compiler prints",
    "with a reduction other than a sum": "of an attribute of a later Shardy, which the tested versions do not parse",
    "cannot be executed": "of ops of tt-mlir: tests/unit/frontends/mlir/test_operations_without_meaning.py",
    "has no call": "of attributes: tests/unit/emit/test_calls_without_meaning.py",
    "make those of it first": "of complex numbers, refused before, with the same advice",
    "correct the attribute": "of enums, which the readers of texts check before",
    "which writes to an argument": "of a branch that writes: tests/unit/frontends/mlir/test_dumps.py",
    "Shardy would end": "of modules that end a process: tests/unit/frontends/stablehlo/test_text.py",
    "Reduce the predicate": "tests/unit/passes/mesh_shard/test_verify.py",
    "copy it first with ttnn.assign": "of ops in place: tests/unit/emit/mlir/test_identity.py",
    "runtime/distributed/": "of several processes: tests/system/test_processes.py",
    "was forked from": "of several processes: tests/system/test_threads.py",
    "free space there": "of a full disk", "Export it again": "of exports in other processes: "
    "tests/api/test_mesh_tensor_exports.py",
    "from_torch takes a dense": "of torch: tests/system/test_torch.py",
}  # fmt: skip
"""Words, or files, of errors whose advice needs more than this process, and where it is followed."""


def raised(files: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """Yields the messages of all cases."""
    for case in (*known.CASES, *sweep.CASES, *prose.CASES, *CASES):
        yield sweep.message(case)
    for wrong, *_ in LINES:
        main.main(wrong.replace("{}", str(files)).split())
        yield capsys.readouterr().err


def advising() -> Iterator[tuple[str, str]]:
    """Yields file and text of each `raise` that advises something; `_` stands for a value."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                text = " ".join(filter(None, map(spelled, node.exc.args)))
                if ADVISES.search(text):
                    yield str(path.relative_to(PACKAGE)), text


def test_every_advice_is_followed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages, found = list(raised(files, capsys)), [": ".join(row) for row in advising()]
    assert len(found) > 180
    left = [
        text
        for text in found
        if not any(re.search(".*".join(map(re.escape, text.partition(": ")[2].split("_"))), m, re.S) for m in messages)
    ]
    elsewhere = {**ELSEWHERE, **sweep.ELSEWHERE}
    assert [text for text in left if not any(words in text for words in elsewhere)] == []
    # What is followed elsewhere is not followed here.
    assert [words for words in ELSEWHERE if not any(words in text for text in left)] == []

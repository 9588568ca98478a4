"""Every mistake in a TTIR file is a named error with its line."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

import jaxmesh as jm
from jaxmesh.frontends.mlir.preprocess import MAX_AFFINE
from tests.generators.mlir_texts import FILES, join, program, shard, split

GOOD = (FILES / "matmul_2x4.mlir").read_text()

MUTATIONS: list[tuple[str, str, type[Exception], int, str]] = [
    ('"ttir.matmul"', '"ttir.mat_mul"', jm.MissingRuleError, 12, r"ttir\.mat_mul .*jaxmesh/dialects/ttir/"),
    ('"ttir.matmul"', '"stablehlo.tan"', jm.ParseError, 12, ""),
    ('"ttir.matmul"', '"other.matmul"', jm.MissingRuleError, 12, r"other\.matmul is no op of TTIR"),
    ("cluster_axis = 1 : ui32", "cluster = 1 : ui32", jm.VerifyError, 13, "no attribute 'cluster'"),
    ("cluster_axis = 1 : ui32", "cluster_axis = 2 : ui32", jm.VerifyError, 13, "ttir.all_reduce.*2"),
    ("reduce_type<sum>", "reduce_type<product>", jm.JaxmeshError, 13, "product"),
    ("transpose_b = false", "transpose_b = 3 : i32", jm.VerifyError, 12, "transpose_b.*bool"),
    ("%0, %1)", "%1)", jm.ParseError, 12, "expected 1 operand type|number of operands"),
    ("array<i64: 0, 1>", "array<i64: 0, 2>", jm.VerifyError, 9, "names dim 2"),
    ("array<i64: 0, 1>", "array<i64: 0>", jm.VerifyError, 9, r"\[0\] has 1 entries.*2 axes"),
    ("array<i64: 0, 1>", "array<i64: 0, 1, -1>", jm.VerifyError, 9, r"\[0, 1, -1\] has 3 entries"),
    ("array<i64: 0, 1>", "array<i64: 0, -1>", jm.VerifyError, 9, r"float32\[8, 8\].*declared type is float32\[8, 2\]"),
    ("array<i64: 0, 1>", '"x"', jm.VerifyError, 9, "lists of integers"),
    ("shard_dims = array<i64: 0, 1>, ", "", jm.VerifyError, 9, "needs the attribute 'shard_dims'"),
    ("shard_dims = array<i64: 0, 1>, ", "shard_dims = array<i64: 0, 1>, extra = 1, ", jm.VerifyError, 9, "'extra'"),
    ("shard_type<devices>", "shard_type<maximal>", jm.UnsupportedShardTypeError, 9, "maximal"),
    ("shard_type<devices>", "shard_type<some>", jm.VerifyError, 9, "'some' is no ShardType"),
    ("shard_direction<full_to_shard>", "shard_direction<up>", jm.VerifyError, 9, "'up' is no ShardDirection"),
    ('"mesh" = 2x4>]>} {\n  ttcore', '"mesh" = 2x0>]>} {\n  ttcore', jm.MeshError, 0, ""),
    ("builtin.module attributes {ttcore.meshes", "builtin.module attributes {ttcore.other", jm.JaxmeshError, 0, "ok"),
    ("return %5", "return %4", jm.ParseError, 15, "type of return operand|different type|expects different"),
    ("tensor<16x8xf32>", "tensor<16x?xf32>", jm.UnsupportedError, 8, "unknown size"),
    ("tensor<16x8xf32>", "tensor<*xf32>", jm.UnsupportedError, 8, "no ranked tensor"),
    ("tensor<16x8xf32>", "tensor<16x8xi7>", jm.UnsupportedError, 8, "i7 has no JAX type"),
    ("tensor<16x8xf32>", "tensor<16x8xtf32>", jm.UnsupportedError, 8, "tf32 has no JAX type"),
    ("tensor<16x8xf32>", "memref<16x8xf32>", jm.UnsupportedError, 8, "no ranked tensor"),
    ("tensor<16x8xf32>", "tensor<17x8xf32>", jm.VerifyError, 9, "17.*2"),
    ("shard_status<unsharded>} loc", "shard_status<half>} loc", jm.VerifyError, 8, "presharded or unsharded, got"),
    ("ttir.empty()", "ttir.emptyy()", jm.ParseError, 11, "Dialect `ttir'.*generic"),
    ("ttir.empty()", "ttir.empty() {a = {}}", jm.ParseError, 11, "--mlir-print-op-generic"),
    ("%3 = ", "%2 = ", jm.ParseError, 12, "redefinition of SSA value"),
    ("#loc1 = loc(", "#loc1 = lok(", jm.ParseError, 20, ""),
]


@pytest.mark.parametrize(
    ("old", "new", "error", "line", "words"), MUTATIONS, ids=[f"{o[:24]} -> {n[:24]}" for o, n, *_ in MUTATIONS]
)
def test_a_mutation_of_a_good_file(old: str, new: str, error: type[Exception], line: int, words: str) -> None:
    assert old in GOOD
    if words == "ok":
        jm.from_mlir(GOOD.replace(old, new, 1))
        return
    text = GOOD.replace(old, new) if old.startswith("tensor") else GOOD.replace(old, new, 1)
    if line == 0:
        text = re.sub(r"builtin.module attributes \{.*?\} \{", "builtin.module {", text)
        with pytest.raises(jm.VerifyError, match=r"line 4: .*2x0"):
            jm.from_mlir(text)
        return
    with pytest.raises(error, match=rf"^line {line}: .*({words})"):
        jm.from_mlir(text)


def lines_of(*lines: str, mesh: str | None = "2x4", arguments: str = "%x: tensor<8x8xf32>") -> str:
    return program(mesh, arguments, "tensor<8x8xf32>", *lines, "return %x : tensor<8x8xf32>")


def test_d8_the_documented_example_contradicts_itself() -> None:
    full, local = "tensor<4096x16384xf32>", "tensor<8192x16384xf32>"
    text = program(
        "2x1",
        f"%x: {full} {{ttcore.shard_status = #ttcore.shard_status<presharded>}}",
        local,
        join("%0", "%x", [1, -1], [2, 1], f"{full} -> {local}"),
        f"return %0 : {local}",
    )
    with pytest.raises(jm.VerifyError, match=r"line 3: .*float32\[4096, 32768\].*float32\[8192, 16384\]"):
        jm.from_mlir(text)


def test_d9_a_maximum_over_devices() -> None:
    text = lines_of(
        split("%0", "%x", [0, 1], [2, 4], "tensor<8x8xf32> -> tensor<4x2xf32>"),
        '%1 = "ttir.all_reduce"(%0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<nothing>}> '
        ": (tensor<4x2xf32>) -> tensor<4x2xf32>",
    )
    with pytest.raises(jm.VerifyError, match=r"line 4: ttir.all_reduce.*nothing"):
        jm.from_mlir(text)


@pytest.mark.parametrize("dims", [[], [0], [0, 1, 2], [0, 0, 1]])
def test_r17_shard_dims_has_one_entry_per_mesh_axis(dims: list[int]) -> None:
    text = lines_of(split("%0", "%x", dims, [2, 4], "tensor<8x8xf32> -> tensor<4x2xf32>").replace("i64: >", "i64>"))
    with pytest.raises(jm.VerifyError, match=rf"line 3: .*{len(dims)} entries and the mesh y=2, x=4 has 2 axes"):
        jm.from_mlir(text)


def test_r4_an_uneven_split() -> None:
    text = lines_of(
        split("%0", "%w", [1, 0], [4, 2], "tensor<130x129xf32> -> tensor<33x65xf32>"),
        arguments="%x: tensor<8x8xf32>, %w: tensor<130x129xf32>",
    )
    with pytest.raises(jm.VerifyError, match=r"line 3: .*(130|129)"):
        jm.from_mlir(text)


def test_r31_a_full_value_is_split_once() -> None:
    text = lines_of(
        split("%0", "%x", [0, 1], [2, 4], "tensor<8x8xf32> -> tensor<4x2xf32>"),
        split("%1", "%0", [0, 1], [2, 4], "tensor<4x2xf32> -> tensor<2x1xf32>"),
    ).replace("tensor<2x1xf32>", "tensor<2x1xf32>")
    with pytest.raises((jm.ReplicationError, jm.VerifyError), match=r"line 4: ttir.mesh_shard"):
        jm.from_mlir(text)


def test_a_replicate_form_with_dims() -> None:
    text = lines_of(shard("%0", "%x", "full_to_shard", [0, 1], [1], "tensor<8x8xf32> -> tensor<8x8xf32>", "replicate"))
    with pytest.raises(jm.VerifyError, match=r"line 3: .*'replicate'.*\[0, 1\]"):
        jm.from_mlir(text)


def test_lines_in_later_pieces_and_after_rewriting() -> None:
    text = f"{GOOD}// -----\n\n\n{GOOD.replace('@main', '@other').replace('ttir.matmul', 'ttir.matmult')}"
    line = GOOD.count("\n") + 3 + 12
    assert text.splitlines()[line - 1].strip().startswith('%3 = "ttir.matmult"')
    with pytest.raises(jm.MissingRuleError, match=rf"^line {line}: ttir.matmult"):
        jm.from_mlir(text, func="other")
    jm.from_mlir(text, func="main")
    broken = f"{GOOD}// -----\n\nfunc.func @f( {{"
    with pytest.raises(jm.ParseError, match=rf"^line {len(broken.splitlines())}: "):
        jm.from_mlir(broken, func="main")


def test_an_error_in_a_called_function_has_its_own_line() -> None:
    text = """func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = "ttir.neg"(%x) <{what = 1 : i32}> : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    with pytest.raises(jm.VerifyError, match=r"^line 2: ttir.neg has no attribute 'what'"):
        jm.from_mlir(text)


def function(name: str, body: str, visibility: str = "") -> str:
    kind = "tensor<2xf32>"
    return f"func.func {visibility} @{name}(%x: {kind}) -> {kind} {{\n{body}\nreturn %0 : {kind}\n}}\n"


def call(name: str, out: str = "%0", x: str = "%x") -> str:
    return f"{out} = call @{name}({x}) : (tensor<2xf32>) -> tensor<2xf32>"


def test_recursion() -> None:
    text = function("main", call("a")) + function("a", call("b"), "private") + function("b", call("a"), "private")
    with pytest.raises(jm.VerifyError, match=r"line \d+: func.call: .*calls itself \(@main -> @a -> @b -> @a\)"):
        jm.from_mlir(text)
    with pytest.raises(jm.VerifyError, match=r"calls itself"):
        jm.from_mlir(function("main", call("main")))


def test_calls_that_stand_for_too_many_ops() -> None:
    twice = [function(f"f{i}", call(f"f{i + 1}", "%1") + "\n" + call(f"f{i + 1}", "%0", "%1")) for i in range(40)]
    last = function("f40", '%0 = "ttir.neg"(%x) : (tensor<2xf32>) -> tensor<2xf32>')
    with pytest.raises(jm.VerifyError, match=r"line \d+: .*inlined, make \d+ ops"):
        jm.from_mlir("".join(twice) + last, func="f0")
    deep = [function(f"f{i}", call(f"f{i + 1}")) for i in range(150)]
    last = function("f150", '%0 = "ttir.neg"(%x) : (tensor<2xf32>) -> tensor<2xf32>')
    with pytest.raises(jm.VerifyError, match=r"nest more than 100 deep"):
        jm.from_mlir("".join(deep) + last, func="f0")
    jm.from_mlir("".join(deep) + last, func="f100")


def test_calls_of_what_is_not_there() -> None:
    declared = "func.func private @f(tensor<2xf32>) -> tensor<2xf32>\n" + function("main", call("f"))
    with pytest.raises(jm.UnsupportedError, match=r"line 3: func.call: calls @f, which is declared without a body"):
        jm.from_mlir(declared)
    with pytest.raises(jm.ParseError, match=r"line 2: .*@?f"):
        jm.from_mlir(function("main", call("f")))


def test_a_call_with_another_number_of_values_than_the_function_takes() -> None:
    for given in ("", "%x, %x"):
        kinds = ", ".join(["tensor<2xf32>"] * given.count("%"))
        cached = f'%0 = "ttcore.load_cached"({given}) {{callee = @f}} : ({kinds}) -> tensor<2xf32>'
        text = function("main", cached) + function("f", '%0 = "ttir.neg"(%x) : (tensor<2xf32>) -> tensor<2xf32>')
        count = given.count("%")
        with pytest.raises(
            jm.VerifyError, match=f"line 2: ttcore.load_cached: passes {count} values to @f, which takes 1"
        ):
            jm.from_mlir(text, func="main")


def test_which_function() -> None:
    neg = '%0 = "ttir.neg"(%x) : (tensor<2xf32>) -> tensor<2xf32>'
    two = function("a", neg) + function("b", neg)
    with pytest.raises(jm.ParseError, match=r"2 public functions; give func= one of @a \(line 1\), @b \(line 5\)"):
        jm.from_mlir(two)
    with pytest.raises(jm.ParseError, match=r"no function @c; give func= one of @a"):
        jm.from_mlir(two, func="c")
    assert "forward" in repr(jm.from_mlir(two + function("forward", neg)))
    assert "main" in repr(jm.from_mlir(two + function("forward", neg) + function("main", neg)))
    split_file = function("f", neg) + "// -----\n" + function("f", neg)
    with pytest.raises(jm.ParseError, match=r"2 functions @f; .*name@line"):
        jm.from_mlir(split_file, func="f")
    assert "f" in repr(jm.from_mlir(split_file, func="f@6"))
    with pytest.raises(jm.ParseError, match=r"line 1: .*no function with a body"):
        jm.from_mlir("module {}\n")


def test_branches_and_regions() -> None:
    text = "func.func @main() {\n cf.br ^a\n^a:\n return }"
    with pytest.raises((jm.UnsupportedError, jm.ParseError), match=r"line [12]: "):
        jm.from_mlir(text)
    text = 'func.func @main() {\n "ttir.neg"() ({ "ttir.x"() : () -> () }) : () -> ()\n return }'
    with pytest.raises(jm.VerifyError, match=r"line 2: ttir.neg: has a region"):
        jm.from_mlir(text)


RESOURCE = """func.func @main() -> tensor<2xf32> {
  %0 = "ttir.constant"() <{value = dense_resource<b> : tensor<2xf32>}> : () -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        ("", "line 2: ttir.constant: dense_resource<b> has no data"),
        ('{-# dialect_resources: { builtin: { b: "0x040000000000803F" } } #-}', "holds 4 bytes, but .* has 8"),
        ('{-# dialect_resources: { builtin: { b: "0x0400" } } #-}', "line 2: .*holds 0 bytes"),
        ('{-# dialect_resources: { builtin: { b: "0x040000000000803F0" } } #-}', "line 2: .*9 hex digits"),
        (
            '{-# dialect_resources: { builtin: { c: "0x040000000000803F00000040" } } #-}',
            "dense_resource<b> has no data",
        ),
    ],
)
def test_blobs(blob: str, words: str) -> None:
    with pytest.raises(jm.ParseError, match=words):
        jm.from_mlir(RESOURCE + blob)


CONSTANT = 'func.func @main() {{\n%0 = "ttir.constant"() <{{value = {}}}> : () -> {}\nreturn }}'


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("dense<[1.0, 2.0]> : tensor<2xf32>", "tensor<3xf32>", r"value has shape \[2\].*\[3\]"),
        (
            "dense<(1.0, 2.0)> : tensor<2xcomplex<f32>>",
            "tensor<2xcomplex<f32>>",
            "'value' is of a kind that is not read",
        ),
        ("array<bf16: 1.0>", "tensor<1xbf16>", "'value' is of a kind that is not read"),
        ("[array<bf16: 1.0>]", "tensor<1xbf16>", "kind that is not read"),
        ("{a = array<bf16: 1.0>}", "tensor<1xbf16>", "kind that is not read"),
        ('dense<"a"> : tensor<2x!tf.string>', "tensor<2xf32>", "ttir.constant"),
        ("sparse<[[0]], [1.0]> : tensor<2xf32>", "tensor<2xf32>", "ttir.constant"),
        ("3 : i32", "tensor<2xf32>", "ttir.constant"),
    ],
)
def test_constants(value: str, kind: str, words: str) -> None:
    with pytest.raises(jm.JaxmeshError, match=rf"^line 2: .*{words}"):
        jm.from_mlir(CONSTANT.format(value, kind))


CONFIGS = [
    ("mapper_config", "#ttnn.mesh_mapper_config<placements = [<shard>]>", "known spelling"),
    ("mapper_config", "#ttnn.mesh_mapper_config<placements = [<split, 0>]>", "known spelling"),
    ("mapper_config", "#ttnn.mesh_mapper_config<placements = [<shard, 0>], mesh_shape_override = [a]>", "no integer"),
    ("mapper_config", "#ttnn.mesh_mapper_config<placements = [<shard, 0>]>", "2"),
    ("mapper_config", "#ttnn.mesh_mapper_config<placements = [<shard, 0>, <shard, 0>]>", "unique"),
    ("mapper_config", "3 : i32", "known spelling"),
    ("composer_config", "#ttnn.mesh_mapper_config<placements = [<shard, 0>]>", "'mapper_config'; it is missing"),
]


@pytest.mark.parametrize(("name", "config", "words"), CONFIGS)
def test_configs(name: str, config: str, words: str) -> None:
    text = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x2>]>}} {{
    func.func @main(%x: tensor<4x4xf32>) -> tensor<2x4xf32> {{
      %d = "ttnn.get_device"() : () -> !ttnn.device
      %0 = "ttnn.distribute_tensor"(%x, %d) <{{{name} = {config}}}> : (tensor<4x4xf32>, !ttnn.device) -> tensor<2x4xf32>
      return %0 : tensor<2x4xf32>
    }} }}"""
    with pytest.raises(jm.VerifyError, match=rf"^line 4: ttnn.distribute_tensor.*{words}"):
        jm.from_mlir(text)


def test_a_device_of_another_mesh() -> None:
    text = (FILES / "ttnn.mlir").read_text()
    with pytest.raises(jm.MeshMismatchError, match=r"line 5: ttnn.get_device: .*\(2, 2\).*\(4, 1\)"):
        jm.from_mlir(text, jm.make_mesh((4, 1)))


@pytest.mark.parametrize(
    ("meshes", "words"),
    [
        ('[<"a" = 2x4>, <"a" = 1x8>]', "same name: a, a"),
        ('[<"a" = 0x4>]', "0x4"),
        ('[<"a" = 99999999999x99999999999>]', "1 to 65536 devices"),
        ("[<2x4>]", "are written"),
        ("whatever", "are written"),
    ],
)
def test_meshes(meshes: str, words: str) -> None:
    text = lines_of().replace('[<"mesh" = 2x4>]', meshes)
    with pytest.raises(jm.VerifyError, match=rf"^line 1: .*{words}"):
        jm.from_mlir(text)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    cases: list[tuple[bytes, str]] = [
        (b"module {\n\xff }", "line 2: byte 0xff is not UTF-8"),
        (b"ML\xefR\x01", "line 1: this is MLIR bytecode"),
        (b"module {\n \0 }", "line 2: a NUL character"),
        (b"\xef\xbb\xbfmodule {\n", "line 1|line 2"),
    ]
    for data, words in cases:
        path = tmp_path / "x.mlir"
        path.write_bytes(data)
        with pytest.raises(jm.ParseError, match=words):
            jm.from_mlir(path)
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    jm.from_mlir(path)


def test_errors_are_of_one_line_and_name_no_internals() -> None:
    cases: list[Any] = [GOOD.replace('"ttir.matmul"', '"ttir.sum"'), GOOD.replace("8x2", "2x8"), "module {", "%"]
    for text in cases:
        with pytest.raises(jm.JaxmeshError) as caught:
            jm.from_mlir(text)
        assert re.match(r"line \d+: ", str(caught.value))
        assert "jaxlib" not in str(caught.value)


@pytest.mark.parametrize(("blanks", "fits"), [(MAX_AFFINE - 100, True), (MAX_AFFINE + 1, False)])
def test_a_long_affine_map(blanks: int, fits: bool) -> None:
    """The end of a map is searched for in so many characters, however long the rest of the file is."""
    function = "func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> { return %arg0 : tensor<4xf32> }"
    text = f"#map = affine_map<(d0) -> (d0{' ' * blanks})>\n{function}\n// {'x' * 2 * MAX_AFFINE}\n"
    with contextlib.nullcontext() if fits else pytest.raises(jm.JaxmeshError, match=f"line 1: .* {MAX_AFFINE} char"):
        jm.from_mlir(text, jm.make_mesh((1,), ("x",)))

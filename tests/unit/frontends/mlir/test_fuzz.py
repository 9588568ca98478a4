"""No text ends the process, hangs, or gives anything but a program or an error with a line."""

from __future__ import annotations

import re
import warnings
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import jaxmesh as jm
from tests.generators.mlir_texts import FILES
from tests.generators.oracles import cases

CORPUS = [path.read_text() for path in sorted(FILES.glob("*.mlir"))]
TOKENS = [
    "{", "}", "(", ")", "<", ">", "[", "]", '"', "->", ":", ",", "%0", "%arg0", "#loc", "tensor<", "x", "?", "*", "f32",
    "i64", "-1", "18446744073709551616", "9223372036854775807", "0x", "dense<", "affine_map<", "loc(", '"ttir.',
    "ttcore.device_module {", "ttir.empty() : ", "// -----\n", "\n", "\0", "\\", "@", "::", "^bb0", "{-#", "#-}",
    "dense_resource<", "complex<", "array<", "unit", "=", "<{", "}>", "bf16", "\u00e9", "mod", "//", "memref<", "none",
    "stablehlo.add", '"\\FF"', "tensor<0x4xf32>", "tensor<f32>", "module", "func.func", "private", "nan", "1e999",
]  # fmt: skip


def outcome(text: Any) -> str:
    """Imports a text; gives the error's message, if any, after checking its form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jm.ShardShapeWarning)
        warnings.simplefilter("ignore", jm.DeviationWarning)
        try:
            jm.from_mlir(text)
        except jm.JaxmeshError as error:
            message = str(error)
        else:
            return ""
    assert re.search(r"\bline [0-9]+\b", message), message
    assert len(message) < 5000
    return message


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(CORPUS))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 2, 5, 20, 200])))
        how = draw(st.sampled_from(["insert", "delete", "repeat", "number", "truncate", "splice"]))
        if how == "number":
            digits = list(re.finditer(r"-?\d+", text))
            at = draw(st.sampled_from(digits)) if digits else None
            new = draw(st.sampled_from(["0", "-1", "1", "3", "7", "4294967296", "1000000000000000000"]))
            text = text if at is None else text[: at.start()] + new + text[at.end() :]
        elif how == "truncate":
            text = text[:start]
        elif how == "splice":
            text = text[:start] + draw(st.sampled_from(CORPUS))[start:end] + text[start:]
        elif how == "repeat":
            text = text[:start] + text[start:end] * draw(st.sampled_from([2, 30])) + text[end:]
        else:
            text = text[:start] + (draw(st.sampled_from(TOKENS)) if how == "insert" else "") + text[end:]
    return text + "\n"


@cases(150)
@given(mutated())
def test_mutations(text: str) -> None:
    outcome(text)


@cases(100)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    outcome(text + "\n")


def op(attribute: str) -> str:
    return f'func.func @main() {{\n"ttir.x"() <{{v = {attribute}}}> : () -> ()\nreturn }}\n'


CHAIN = "\n".join(["#a0 = [1]"] + [f"#a{i + 1} = [#a{i}]" for i in range(5000)]) + "\n"
WIDE = "\n".join(["#a0 = [1]"] + [f"#a{i + 1} = [#a{i}, #a{i}]" for i in range(100)]) + "\n"
ONE_LINE = " ".join(["#a0 = [1]"] + [f"#a{i + 1} = [#a{i}]" for i in range(5000)])
TYPES = "\n".join(["!a0 = tuple<i1>"] + [f"!a{i + 1} = tuple<!a{i}>" for i in range(5000)]) + "\n"

REFUSED = {
    "empty": ("\n", "line 1: .*no function"),
    "deep list": (op("[" * 20000 + "]" * 20000), "line 2: brackets nest more than 128"),
    "deep and open": (op("[" * 20000), "line 2: brackets nest more than 128"),
    "deep angles": (op("tensor<" * 5000), "line 2: brackets nest more than 128"),
    "deep types": (f"func.func @f(%x: {'tuple<' * 5000}i1{'>' * 5000}) {{ return }}\n", "line 1: brackets nest"),
    "deep regions": ("module {\n" * 5000 + "}" * 5000, "line 129: brackets nest"),
    "deep location": (
        f"module {{}} loc({'callsite(' * 9000}unknown{' at unknown)' * 9000})\n",
        "line 1: brackets nest",
    ),
    "deep functions": (f"func.func private @f() -> {'(() -> ' * 5000}()\n", "line 1: brackets nest"),
    "negations": (op(f"affine_map<(d0) -> ({'- ' * 100000}d0)>"), "line 2: an affine map"),
    "sums": (op(f"affine_map<(d0, d1) -> (d0{' + d1 mod 3' * 50000})>"), "line 2: an affine map"),
    "open affine": (op("affine_map<" + "d" * 9999), "line 2: an affine map"),
    "alias chain": (CHAIN + op("#a5000"), r"line \d+: alias #a\d+ nests more than 128"),
    "alias chain in a line": (ONE_LINE + "\n" + op("#a5000"), r"line 1: alias #a\d+ nests more than 128"),
    "alias of itself": ("#a = [#a]\n" + op("#a"), "line 1: undefined symbol alias"),
    "alias without value": ("#a = \n" + op("#a"), "line "),
    "type alias chain": (TYPES + op("!a5000"), r"line \d+: alias !a\d+ nests more than 128"),
    "doubling aliases": (WIDE + op("#a100").replace("ttir.x", "ttir.neg"), "items; no TTIR program"),
    "long integer": (op("9" * 100000), "line 2: a number of more than"),
    "long float": (op(f"1.{'9' * 100000} : f32"), "line 2: a number of more than"),
    "long hex": (op(f"0x{'9' * 100000}"), "line 2: a number of more than"),
    "open string": ('module {\n "', "line 2: a string that does not end"),
    "open strings": ('"\\' * 100000 + "\n", "line 1: a string that does not end"),
    "huge rank": (f"func.func @f(%x: tensor<{'1x' * 20000}f32>) {{ return }}\n", "line 1: .*more than 128 dims"),
    "a long config": (
        'func.func @f(%x: tensor<2xf32>) {\n%0 = "ttnn.distribute_tensor"(%x) <{mapper_config = '
        f"#ttnn.mesh_mapper_config<placements = [{'<shard, 0>,' * 100000}]>}}> "
        ": (tensor<2xf32>) -> tensor<2xf32>\nreturn }\n",
        "line 2: ",
    ),
    "open metadata": ('module {}\n{-# dialect_resources: { builtin: { b: "0x04', "line 2: expected the end"),
    "metadata in metadata": ("module {}\n{-# {-# #-} #-}", "line 2: expected the end"),
    "nul": ("module {\n\0}\n", "line 2: a NUL"),
    "wrong hex size": (op(f'dense<"0x{"00" * 1000000}"> : tensor<4xf32>'), "line 2: .*hex data size"),
    "a string of no UTF-8": ('func.func @"\\FF"() { return }\n', "line 1: the string .* is not UTF-8"),
    "a key of no UTF-8": (op("{}").replace("v =", '"\\C3" ='), "line 2: the string .* is not UTF-8"),
    "odd hex": (op('dense<"0x0"> : tensor<4xf32>'), "line 2: "),
    "two symbols": ("func.func @f() { return }\nfunc.func @f() { return }\n", "line 2: redefinition of symbol"),
    "no type of function": ('"func.func"() ({}) : () -> ()\n', "line 1: .*requires attribute"),
    "wrong attributes of function": (
        '"func.func"() <{function_type = i32, sym_name = 3}> ({}) : () -> ()\n',
        "line 1: ",
    ),
    "many results": ('%0:99999999999 = "ttir.x"() : () -> ()\n', "line 1: "),
    "cycle": ('func.func @f() {\n%0 = "ttir.neg"(%0) : (f32) -> f32\nreturn }\n', "line 2: .*dominate"),
    "only quotes": ('"' * 10001 + "\n", "line 1: a string that does not end"),
    "only marks": ("// -----\n" * 300, "no function"),
    "custom form": ("func.func @f() {\n%0 = ttir.add %a, %b : f32\nreturn }\n", "line 2: .*--mlir-print-op-generic"),
    "surrogate": ("module { \udcff }\n", "line 1: byte 0x"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_would_end_the_process_or_hang(name: str) -> None:
    text, words = REFUSED[name]
    assert re.search(words, outcome(text)), outcome(text)


def kind_of(dims: str) -> str:
    return f"func.func @main(%x: tensor<{dims}xf32>) -> tensor<{dims}xf32> {{\n"


HUGE = "1000000000000000000x1000000000000000000"
TAKEN = {
    "depth 100": op("[" * 100 + "]" * 100).replace("ttir.x", "ttir.zeros"),
    "a long name": f'func.func @"{"n" * 100000}"(%x: tensor<f32>) -> tensor<f32> {{ return %x : tensor<f32> }}\n',
    "a hostile name": 'func.func @"\\00\\n{}<>// -----"(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }\n',
    "escapes": r'func.func @"\C3\A9 \\FF \" \n"(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }' + "\n",
    "a long comment": f"// {'{' * 100000}\n" + kind_of("2") + "return %x : tensor<2xf32> }\n",
    "a long string": kind_of("2").replace("{\n", f'attributes {{a.b = "{"{" * 100000}"}} {{\n')
    + "return %x : tensor<2xf32> }\n",
    "many arguments": f"func.func @f({', '.join(f'%a{i}: tensor<f32>' for i in range(500))}) {{ return }}\n",
    "shared aliases": WIDE.replace("5000", "100") + "func.func @f() { return }\n",
}


@pytest.mark.parametrize("name", [n for n in TAKEN if n != "depth 100"])
def test_what_is_odd_but_legal(name: str) -> None:
    assert outcome(TAKEN[name]) == ""


def test_attributes_nest_to_the_limit() -> None:
    assert outcome(TAKEN["depth 100"]).startswith("line 2: ttir.zeros")


@pytest.mark.parametrize("name", ["neg", "exp", "sum", "softmax", "reshape", "transpose", "matmul", "argmax", "concat"])
def test_huge_shapes(name: str) -> None:
    body = f'%0 = "ttir.{name}"(%x) : (tensor<{HUGE}xf32>) -> tensor<{HUGE}xf32>\n'
    outcome(kind_of(HUGE) + body + f"return %0 : tensor<{HUGE}xf32> }}\n")


def test_huge_splits() -> None:
    for dims in ("0, 1", "0, 0", "-1, -1"):
        text = CORPUS[0].replace("16x8", HUGE).replace("array<i64: 0, 1>", f"array<i64: {dims}>")
        outcome(text)

"""Emitted C++ against the real declarations of ttnn's C++ API, which the compiler's environment has.

It skips without the compiler, as `test_upstream.py`, and without g++.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.judge.declarations import CppVerdict, check_text
from jaxmesh.analysis.upstream.environment import UPSTREAM
from jaxmesh.cli.main import main
from jaxmesh.dialects.program import Port
from jaxmesh.emit.cpp.printer import SOURCE, cpp_text
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, MissingRuleError, UnsupportedError, UpstreamError
from tests.generators.cpp_texts import joined
from tests.generators.drafts import to_ttnn
from tests.generators.real_ttnn.functions import DTYPES, lowered_functions
from tests.generators.suite.all_programs import PROGRAMS
from tests.generators.ttir_cases import CASES
from tests.generators.ttir_cases.program import cases_program

DIFFER = {
    "ttnn::global_avg_pool2d": "the function has gone from ttnn; EmitC still prints it",
}
"""The calls that upstream's own EmitC prints, and that no declaration fits."""
MESH = jm.make_mesh((2, 4), ("y", "x"))


@pytest.fixture(autouse=True)
def declarations() -> None:
    if not os.environ.get(UPSTREAM.variable) and not UPSTREAM.folder.exists():
        pytest.skip(f"no compiler: {UPSTREAM.variable} is not set, and upstream-env has made no {UPSTREAM.folder}")
    if shutil.which("g++") is None:
        pytest.skip("no g++")


def verdict_of(texts: dict[str, str]) -> tuple[CppVerdict, dict[str, list[str]]]:
    """The verdict on texts, and the functions that are refused, by the name of their text."""
    text, names = joined(texts)
    found, refused = check_text(text), dict[str, list[str]]()
    for refusal in found.refusals:
        (function,) = re.findall(r"\bttnn::[\w:]+(?=\()", refusal.text) or [refusal.text]
        refused.setdefault(names[refusal.line - 1], []).append(function)
    return found, refused


def test_the_programs_of_the_suite_are_accepted() -> None:
    texts = dict[str, str]()
    for entry in PROGRAMS:
        # ttnn opens meshes of two dims.
        if len(entry.sizes) <= 2:
            texts[entry.name] = entry.lowered.as_text("cpp")
    found, refused = verdict_of(texts)
    assert not refused, str(found)
    assert len(texts) > 60
    assert found.calls > 1000


def test_each_op_is_accepted_or_differs_for_a_reason() -> None:
    texts = dict[str, str]()
    for number, case in enumerate(CASES):
        if case.is_printed_in_ttnn:
            program, _ = cases_program([case])
            program.arguments = [Port(a.value, True) for a in program.arguments]
            program.results = [Port(r.value, True) for r in program.results]
            try:
                texts[f"{case.name} {number}"] = cpp_text(to_ttnn(program))
            except (MissingRuleError, UnsupportedError):
                continue  # The real library has no such type, which other tests hold.
    found, refused = verdict_of(texts)
    assert {f for functions in refused.values() for f in functions} == set(DIFFER), str(found)
    assert len(texts) > 400


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_the_functions_of_jax_are_accepted_but_for_a_type_that_ttnn_lacks() -> None:
    lowered = {dtype: lowered_functions(dtype) for dtype in DTYPES}
    text, _ = joined({dtype: stage.as_text("cpp", strict=False) for dtype, (_, stage) in lowered.items()})
    found = check_text(text)
    assert {r.reason.partition(";")[0] for r in found.refusals} == {
        "'INT16' is not a member of 'tt::tt_metal::DataType'"
    }, str(found)
    assert sum(len(names) for names, _ in lowered.values()) > 800


def program_text() -> str:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ w) + x.sum(1, keepdims=True)
        return jax.nn.softmax(jnp.concatenate([h, h], 1)[:, 4:].reshape(64, -1))

    lowered = jm.jit(layer, mesh=MESH, in_shardings=(P("y", "x"), P("x"))).lower(
        jax.ShapeDtypeStruct((64, 128), jnp.float32), jax.ShapeDtypeStruct((128, 256), jnp.float32)
    )
    assert lowered.judge(language="cpp")
    return lowered.as_text("cpp")


FAULTS = {
    "no such function": ("ttnn::tanh(", "ttnn::hyperbolic(", "hyperbolic"),
    "no such namespace": ("::ttnn::distributed::distribute_tensor(", "::ttnn::mesh::distribute_tensor(", "mesh"),
    "another order": (r"ttnn::softmax\((\w+), 1, ", r"ttnn::softmax(1, \1, ", "softmax"),
    "a missing argument": (r"ttnn::concat\((\w+), 1, ", r"ttnn::concat(1, ", "concat"),
    "an argument too many": (r"ttnn::sum\((\w+), ", r"ttnn::sum(\1, \1, ", "sum"),
    "a number for a tensor": (r"ttnn::matmul\((\w+), (\w+), ", r"ttnn::matmul(\1, 7, ", "matmul"),
    "a tensor for a number": (r"ttnn::all_reduce\((\w+), 1, ", r"ttnn::all_reduce(\1, \1, ", "all_reduce"),
    "a type of the memory": (r"(ttnn::tanh\(\w+, )::ttnn::MemoryConfig\{.*?\}", r"\1::ttnn::Shape({1})", "tanh"),
    "an element type": (r"(ttnn::matmul\(.*?)::ttnn::DataType::FLOAT32", r"\1::ttnn::DataType::FLOAT33", "FLOAT33"),
    "a layout": (r"(ttnn::to_layout\(\w+, )::ttnn::Layout::TILE", r"\1::ttnn::Layout::BLOCK", "BLOCK"),
    "a layout for an element type": (
        r"(ttnn::matmul\(.*?)::ttnn::DataType::FLOAT32",
        r"\1::ttnn::Layout::TILE",
        "matmul",
    ),
    "a string": (r"ttnn::softmax\((\w+), 1, ", r'ttnn::softmax(\1, "rows", ', "softmax"),
    "a mapper for a composer": ("create_mesh_composer(", "create_mesh_mapper(", "create_mesh_mapper"),
    "a composer's config": (r"(MeshComposerConfig\{)\{0, 1\}", r'\1{"rows"}', "MeshComposerConfig"),
    "no mapper": (r"distribute_tensor\((\w+), \w+\)", r"distribute_tensor(\1)", "distribute_tensor"),
    "a placement": ("MeshMapperConfig::Shard{0}", "MeshMapperConfig::Split{0}", "Split"),
    "a pointer for a reference": (r"create_mesh_mapper\(\w+, ", "create_mesh_mapper(v4, ", "create_mesh_mapper"),
    "another result": (r"::ttnn::Tensor (\w+) = ttnn::tanh", r"::std::vector<::ttnn::Tensor> \1 = ttnn::tanh", "tanh"),
    "a result of nothing": (
        r"ttnn::deallocate\((\w+), false\);",
        r"::ttnn::Tensor z = ttnn::deallocate(\1, false);",
        "void",
    ),
    "dims as numbers": (r"::ttsl::SmallVector<int32_t>\{1\}, false", "::ttnn::Shape({1}), false", "sum"),
    "a shape as a tensor": (r"ttnn::reshape\((\w+), ::std::vector<int32_t>\{.*?\}", r"ttnn::reshape(\1, \1", "reshape"),
    "a field of the config": (".math_fidelity = ", ".fidelity = ", "fidelity"),
    "a number beyond the type": ("Shard{0}", "Shard{4294967295u}", "narrowing"),
    "a fraction for a size": ("::ttnn::Shape({1, 256})", "::ttnn::Shape({1, 64.5f})", "narrowing"),
    "a fraction for a mesh": ("MeshShape({2, 1})", "MeshShape({2.5, 1})", "narrowing"),
    "a fraction for a dim": (r"ttnn::softmax\((\w+), 1, ", r"ttnn::softmax(\1, 1.5, ", "changes value"),
    "a number for a placement": (r"Placement\{.*?\}\}", "Placement{3}", "Placement"),
    "a number in a list of tensors": ("util_create_vec(v28, v28)", "util_create_vec(v28, 3)", "util_create_vec"),
    "a tensor for a shape": ("::ttnn::Shape({1, 256})", "::ttnn::Shape(v26)", "Shape"),
    "an index past the end": ("v1[1]", "::std::get<2>(::std::array<::ttnn::Tensor, 2>{})", "static assertion failed"),
    "a mapper of another kind": (
        "create_mesh_mapper(v6, v5)",
        "create_mesh_mapper(v6, *::std::make_unique<::ttnn::distributed::MeshMapperConfig>(7, 8, 9))",
        "could not convert",
    ),
}
OTHERS = {
    "a mesh for a config": ("distribute rows", r"(create_mesh_mapper\(\w+), \w+", r"\1, *v3", "create_mesh_mapper"),
    "a composer of tensors": (
        "distribute rows",
        r"aggregate_tensor\((\w+), (\w+)",
        r"aggregate_tensor(\2, \1",
        "Tensor",
    ),
    "a mapper's result": (
        "distribute rows",
        "unique_ptr<::ttnn::distributed::TensorToMesh>",
        "vector<int32_t>",
        "mapper",
    ),
    "a composer for a mapper": ("distribute rows", "::TensorToMesh>", "::MeshToTensor>", "create_mesh_mapper"),
    "a device by value": ("distribute rows", r"MeshDevice\* (\w+) =", r"MeshDevice \1 =", "MeshDevice"),
    "numbers for a span": ("distribute replicated", r"make_const_span\(v9\)", "make_const_span(9)", "make_const_span"),
    "too few bounds": ("distribute replicated", r"ttsl::make_const_span\(v10\), ", "", "slice"),
    "a topology": ("all_to_all, tiled", "Topology::Linear", "Topology::Chain", "Chain"),
    "a coordinate": (
        "all_to_all, tiled",
        r"::ttnn::MeshCoordinate\(.*?\}\), ::ttnn::M",
        "1, ::ttnn::M",
        "point_to_point",
    ),
    "coordinates behind the topology": (
        "all_to_all, tiled",
        r"(::ttnn::MeshCoordinate\(\S+ uint32_t>\{0, 0\}\)), (\S+Linear)",
        r"\2, \1",
        "point_to_point",
    ),
    "an axis by its name": ("psum_scatter, tiled", r"(reduce_scatter\(\w+), 3", r'\1, "x"', "reduce_scatter"),
    "a memory for an axis": (
        "pmax",
        r"(all_gather\(\w+, 0), 1, (::ttnn::MemoryConfig\S+ \S+ \S+)",
        r"\1, \2 1,",
        "all_gather",
    ),
    "another namespace": ("all_gather, tiled", "ttnn::all_gather(", "ttnn::ccl::all_gather(", "all_gather"),
    "an operation in no namespace": ("pmean", "= ttnn::divide(", "= ::divide(", "divide"),
    "a number without a shape": ("pmean", r"ttnn::full\(::ttnn::Shape\(\{\}\), ", "ttnn::full(", "full"),
    "a list as a tensor": (
        "top-k sampling",
        r"::std::vector<::ttnn::Tensor> (\w+) = ttnn::topk",
        r"::ttnn::Tensor \1 = ttnn::topk",
        "topk",
    ),
    "a list of tensors used": ("top-k sampling", r"ttnn::log\(\w+,", "ttnn::log(v15,", "log"),
    "nothing for a tensor": ("mixture of experts", r"ttnn::relu\(\w+,", "ttnn::relu(::std::nullopt,", "relu"),
    "a type for an optional tensor": (
        "attention",
        r"(layer_norm\(\w+, \S+) ::std::nullopt",
        r"\1 ::ttnn::DataType::FLOAT32",
        "layer_norm",
    ),
    "the order of cumsum": ("mixture of experts", r"(cumsum\(\w+), 0, (\S+),", r"\1, \2, 0,", "cumsum"),
    "an enum of another type": ("fsdp with gradients", "SigmoidMode::ACCURATE", "GeluVariant::ACCURATE", "sigmoid"),
    "an enumerator": ("fsdp with gradients", "SigmoidMode::ACCURATE", "SigmoidMode::EXACT", "EXACT"),
    "pads without their ends": ("slices, joins, pads, picks", "{{0, 0}, {0, 0}, {1, 2}}", "{{0, 0, 0}}", "PadSpecDim"),
    "a dim for its list": ("slices, joins, pads, picks", r"(ttnn::permute\(\w+), \S+ \S+ \S+", r"\1, v33,", "permute"),
    "a tensor forgotten": ("slices, joins, pads, picks", r"ttnn::where\((\w+), \w+, \w+,", r"ttnn::where(\1,", "where"),
    "a tensor that is not there": ("attention", r"ttnn::softmax\(\w+", "ttnn::softmax(v999", "v999"),
}
"""Faults in programs of the suite."""
DECLARED = {
    "another order": "ttnn::softmax(const Tensor&, int",
    "another result": "ttnn::Tensor ttnn::tanh(const Tensor&",
    "a number beyond the type": "struct Shard { int dim = 0;",
    "a field of the config": "math_fidelity",
    "a memory for an axis": "ttnn::all_gather(",
}
"""Parts of the declarations that refusals show."""
UNDECLARED = {
    "no such function",
    "no such namespace",
    "another namespace",
    "an operation in no namespace",
    "an index past the end",
}
"""Faults in names that ttnn does not declare, and in calls of the standard library alone."""


def test_planted_faults_are_named_at_their_lines_with_a_declaration() -> None:
    programs, texts, planted = {e.name: e for e in PROGRAMS}, dict[str, str](), dict[str, int]()
    layer = program_text()
    faults = {name: (layer, *row) for name, row in FAULTS.items()}
    faults |= {name: (programs[first].lowered.as_text("cpp"), *row) for name, (first, *row) in OTHERS.items()}
    for name, (text, pattern, other, _) in faults.items():
        wrong, count = re.subn(pattern if "\\" in pattern else re.escape(pattern), other, text, count=1)
        assert count == 1, name
        texts[name] = wrong
        (planted[name],) = [
            i for i, (a, b) in enumerate(zip(text.splitlines(), wrong.splitlines(), strict=True)) if a != b
        ]
    whole, names = joined(texts)
    found, shown, wrongly = check_text(whole), dict[str, str](), dict[str, list[str]]()
    for name, (*_, about) in faults.items():
        # The include is not repeated, and a namespace begins.
        line = names.index(name) + planted[name] + 1
        mine = [r for r in found.refusals if r.line == line and about in f"{r.reason} {r.text}"]
        if not mine or bool(mine[0].declarations) != (name not in UNDECLARED):
            wrongly[name] = [str(r) for r in found.refusals if names[r.line - 1] == name]
        shown[name] = str(mine[:1])
    assert not wrongly
    assert {name: shown[name] for name, declared in DECLARED.items() if declared not in shown[name]} == {}


def test_a_refusal_names_the_line_of_the_user() -> None:
    def layer(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    lowered = jm.jit(layer, mesh=MESH).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    text = cpp_text(lowered.default_program(), sources=True)
    assert SOURCE in text
    found = check_text(text.replace("ttnn::tanh(", "ttnn::tan_h(").replace("ttnn::ones(", "ttnn::uns("))
    refusal, of_inputs = found.refusals
    assert not of_inputs.source
    assert Path(__file__).name in refusal.source
    assert "refused (2): " in str(found)
    assert not found
    assert found.to_dict()["refusals"][0]["source"] == refusal.source


def test_the_command_refuses_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.mlir"
    lowered = jm.jit(lambda x: x * 2, mesh=MESH, in_shardings=P("y")).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    for text in (lowered.as_text("stablehlo"), lowered.as_text("ttnn")):
        file.write_text(text)
        assert main(["translate", str(file), "--to", "cpp", "--check-api"]) == 0
        printed = capsys.readouterr()
        calls = len(re.findall(r"\bttnn::[\w:]+\(", printed.out))
        assert re.fullmatch(
            rf"accepted: {calls} calls, .* in jax-tt-plugin [\d.]+, read by g\+\+ [\d.]+\n", printed.err
        )
        assert "ttnn::multiply(" in printed.out
    assert main(["translate", str(file), "--to", "python", "--check-api"]) == 2
    assert main(["translate", str(file), "--to", "cpp", "--out", str(tmp_path / "exported")]) == 0
    found = check_text((tmp_path / "exported" / "main.cpp").read_text())
    assert found, str(found)


def test_no_compiler_and_another_language_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = jm.jit(lambda x: x * 2, mesh=MESH).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    with pytest.raises(ArgumentValueError, match=r"python.*cpp"):
        lowered.judge(language="rust")  # pyright: ignore
    with pytest.raises(ArgumentTypeError, match=r"neither cluster nor resident"):
        lowered.judge("n300", language="cpp")  # pyright: ignore
    monkeypatch.setattr("jaxmesh.analysis.judge.declarations.COMPILER", "no-such-compiler")
    with pytest.raises(UpstreamError, match="no-such-compiler is not on the path; install"):
        lowered.judge(language="cpp")


def test_headers_that_are_not_those_of_ttnn_are_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("jaxmesh.analysis.judge.declarations.headers_of", lambda _: tmp_path)
    with pytest.raises(UpstreamError, match=r"cannot read the declarations.*ttnn/device.hpp: No such file"):
        check_text('#include "ttnn-precompiled.hpp"\nint f() { return ttnn::tanh(); }')
    with pytest.raises(UpstreamError, match=r"took more than 0.0001 s; in Python, timeout="):
        check_text("", timeout=0.0001)

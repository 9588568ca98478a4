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
from jaxmesh.errors import ArgumentValueError, MissingRuleError, UnsupportedError, UpstreamError
from tests.generators.cpp_texts import joined
from tests.generators.drafts import to_ttnn
from tests.generators.suite.all_programs import PROGRAMS
from tests.generators.ttir_cases import CASES
from tests.generators.ttir_cases.program import cases_program

DIFFER = {
    "ttnn::update_cache": "the position is a number in C++, and a tensor in the dialect; EmitC prints the tensor, too",
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
}


def test_planted_faults_are_named_at_their_lines() -> None:
    text, texts, planted = program_text(), dict[str, str](), dict[str, int]()
    for name, (pattern, other, _) in FAULTS.items():
        wrong, count = re.subn(pattern if "\\" in pattern else re.escape(pattern), other, text, count=1)
        assert count == 1, name
        texts[name] = wrong
        (planted[name],) = [
            i for i, (a, b) in enumerate(zip(text.splitlines(), wrong.splitlines(), strict=True)) if a != b
        ]
    whole, names = joined(texts)
    found = check_text(whole)
    for name, (_, _, about) in FAULTS.items():
        mine = [r for r in found.refusals if names[r.line - 1] == name]
        # The include is not repeated, and a namespace begins.
        begins = names.index(name)
        assert any(r.line - 1 == begins + planted[name] and about in f"{r.reason} {r.text}" for r in mine), (name, mine)
    by_name = {names[r.line - 1]: r for r in found.refusals}
    assert any("ttnn::softmax" in d for d in by_name["another order"].declarations)


def test_a_refusal_names_the_line_of_the_user() -> None:
    def layer(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    lowered = jm.jit(layer, mesh=MESH).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    text = cpp_text(lowered.default_program(), sources=True)
    assert SOURCE in text
    found = check_text(text.replace("ttnn::tanh(", "ttnn::tan_h("))
    (refusal,) = found.refusals
    assert Path(__file__).name in refusal.source
    assert "refused: 1 of" in str(found)
    assert not found
    assert found.to_dict()["refusals"][0]["source"] == refusal.source


def test_the_command_refuses_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.mlir"
    lowered = jm.jit(lambda x: x * 2, mesh=MESH, in_shardings=P("y")).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    file.write_text(lowered.as_text("stablehlo"))
    assert main(["translate", str(file), "--to", "cpp", "--check-api"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("accepted: ")
    assert "ttnn::multiply(" in printed.out
    assert main(["translate", str(file), "--to", "python", "--check-api"]) == 2


def test_no_compiler_and_another_language_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = jm.jit(lambda x: x * 2, mesh=MESH).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    with pytest.raises(ArgumentValueError, match=r"python.*cpp"):
        lowered.judge(language="rust")  # pyright: ignore
    monkeypatch.setattr("jaxmesh.analysis.judge.declarations.COMPILERS", ("no-such-compiler",))
    with pytest.raises(UpstreamError, match="install g"):
        lowered.judge(language="cpp")

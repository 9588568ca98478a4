"""Texts as people have them: several graphs, sections one after the other, no locations; and settings around a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.diagnose import argument_types
from jaxmesh.analysis.diagnose.functions import programs, public_names
from jaxmesh.errors import ArgumentValueError
from jaxmesh.frontends.mlir.source import split
from tests.generators.diagnosed import exported, write_folder
from tests.generators.plain_programs import MESH, Case, W, X

X48 = jnp.ones((4, 8))
A = (
    '#dram = 1\n#loc1 = loc("a")\nmodule @a {\n  f #dram #loc1 #loc3\n}\n'
    '#loc = loc(unknown)\n#loc2 = loc("x")\n#loc3 = loc(#loc2)\n'
)
B = "module @b {\n  f\n} loc(#loc)\n#loc = loc(unknown)\n"
C = "#new = 3\nmodule @c {\n f #new\n} loc(#loc)\n#loc = loc(unknown)\n"
D = "module @d {\n}\n"


@pytest.mark.parametrize("parts", [[A, A], [A, B], [A, C], [B, C], [B, B, B], [C, C, A, B], [A, D, A], [D]])
def test_sections_have_the_names_that_they_use(parts: list[str]) -> None:
    found = list(split("".join(parts)))
    whole = "".join(parts)
    assert "".join(text for text, _ in found) == whole
    wanted = [A, D + A] if D in parts and len(parts) > 1 else parts
    assert [text for text, _ in found] == wanted
    assert [line for _, line in found] == [1 + whole[: whole.index(t, sum(map(len, wanted[:i])))].count("\n")
                                           for i, t in enumerate(wanted)]  # fmt: skip


def texts(fun: Callable[..., Any], **renamed: str) -> dict[str, str]:
    """Returns the texts of a program; in those of the compiler an operation has another name."""
    made = {
        "shlo_frontend": jax.jit(fun).lower(X48).as_text("stablehlo"),
        "ttir": jm.jit(fun).trace(X48).as_text(),
    }
    for old, new in renamed.items():
        made["ttir"] = made["ttir"].replace(f"ttir.{old}", f"ttir.{new}")
    return made


RIGHT, WRONG = texts(lambda x: jnp.tanh(x) * 2), texts(lambda x: jnp.sin(x) + 1, sin="cos")
BOTH = {stage: RIGHT[stage] + WRONG[stage] for stage in RIGHT}


def test_each_graph_can_be_asked_for(tmp_path: Path) -> None:
    for source in (BOTH, write_folder(BOTH, tmp_path)):
        assert jm.diagnose(source).verdict == "wrong"
        assert jm.diagnose(source, graph=1).verdict == "right"
        found = jm.diagnose(source, graph=2)
        assert (found.verdict, found.op) == ("wrong", "ttir.cos")
        line = BOTH["ttir"].splitlines()[found.line - 1]
        assert '"ttir.cos"' in line
        with pytest.raises(ArgumentValueError, match="has no graph 3; it has the graphs 1: @main, 2: @main"):
            jm.diagnose(source, graph=3)
        with pytest.raises(ArgumentValueError, match="has no function @other"):
            jm.diagnose(source, function="other")


def test_the_function_of_a_file_with_several() -> None:
    named = {stage: text.replace("@main", "@second") for stage, text in WRONG.items()}
    named["ttir"] = named["ttir"].replace('@"<lambda>"', "@second")
    first = {**RIGHT, "ttir": RIGHT["ttir"].replace('@"<lambda>"', "@main")}
    source = {stage: first[stage] + named[stage] for stage in first}
    assert jm.diagnose(source, function="main").verdict == "right"
    assert jm.diagnose(source, function="second").op == "ttir.cos"


def test_lines_of_a_file_without_locations_have_its_name(tmp_path: Path) -> None:
    path = tmp_path / "model.mlir"
    path.write_text(BOTH["shlo_frontend"])

    def compiler(text: str) -> Any:
        made = WRONG if "sine" in text else RIGHT
        return SimpleNamespace(refusal="", stages={}, ttir=made["ttir"], ttnn="")

    found = jm.diagnose(path, compiler=compiler)
    number = 1 + next(i for i, s in enumerate(BOTH["shlo_frontend"].splitlines()) if "sine" in s)
    assert found.source.startswith(f"{path}:{number}:")
    assert f"(model.mlir:{number})" in found.expected
    assert jm.diagnose(path, compiler=compiler, graph=1).verdict == "right"


# --- functions of a file ---------------------------------------------------------------------------------------------

FUNCTIONS = """module @several {
  func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %0 = stablehlo.tanh %x : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
  func.func @"a turn"(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = call @shared(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func @shared(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.sine %x : tensor<8xf32>
    return %0 : tensor<8xf32> loc("of @main")
  }
}
"""


class Compiling:
    """Compiles as Tenstorrent's compiler does, the one public function, which is @main; a sine becomes a cosine."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> Any:
        assert programs(text) == public_names(text) == ["main"]
        self.texts.append(text)
        ttir = jm.from_mlir(text).as_text().replace("ttir.sin", "ttir.cos")
        return SimpleNamespace(refusal="", stages={}, ttir=ttir, ttnn="")


def test_each_function_that_nobody_calls_is_a_program(tmp_path: Path) -> None:
    path, compiler = tmp_path / "several.mlir", Compiling()
    path.write_text(FUNCTIONS)
    found = jm.diagnose(path, compiler=compiler)
    assert (found.verdict, found.op) == ("wrong", "ttir.cos")
    assert list(found.stages.items())[:2] == [("@main", "right"), ("@a turn", "wrong")]
    assert "(several.mlir:11)" in found.expected
    assert len(compiler.texts) == 2
    with pytest.raises(ArgumentValueError, match=r"the functions @main, @a turn.*choose it with --func main"):
        jm.diagnose(path, X48, compiler=compiler)


def test_a_function_of_a_file_is_compiled_alone(tmp_path: Path) -> None:
    path, compiler = tmp_path / "several.mlir", Compiling()
    for text, first in ((FUNCTIONS, "main"), (FUNCTIONS.replace("@main", "@first"), "first")):
        path.write_text(text)
        assert jm.diagnose(path, X48, compiler=compiler, function=first).verdict == "right"
        for name in ("a turn", "shared"):
            found = jm.diagnose(path, X48[0], compiler=compiler, function=name)
            assert (found.verdict, found.op) == ("wrong", "ttir.cos")
            assert [a.shape for a in argument_types(path, function=name)] == [(8,)]
            assert not any(stage.startswith("@") for stage in found.stages)
            assert "11" in found.expected
    assert all(text.count("\n") == FUNCTIONS.count("\n") for text in compiler.texts)


# --- settings --------------------------------------------------------------------------------------------------------

SPLIT = exported(Case("split", lambda x, w: jnp.tanh(x @ w).sum(0), (X, W), (P("y"), P(None, "x"))))
SINE = {**SPLIT, "ttir": SPLIT["ttir"].replace("ttir.tanh", "ttir.sin")}
OTHER = [jax.make_mesh((2, 4), ("data", "model"), axis_types=(t,) * 2) for t in (AxisType.Auto, AxisType.Explicit)]


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize(
    "settings",
    [
        *(lambda m=m: jax.set_mesh(m) for m in OTHER),
        *(lambda m=m: jax.sharding.use_abstract_mesh(m.abstract_mesh) for m in OTHER),
        lambda: jax.enable_x64(True),
        lambda: jax.transfer_guard("disallow"),
        lambda: jax.debug_nans(True),
        lambda: jax.numpy_dtype_promotion("strict"),
    ],
)
def test_a_diagnosis_is_the_same_anywhere(settings: Callable[[], AbstractContextManager[None]]) -> None:
    with settings():
        assert jm.diagnose(SPLIT).verdict == "right"
        found = jm.diagnose(SINE)
        assert (found.verdict, found.op) == ("wrong", "ttir.sin")


@pytest.mark.filterwarnings("ignore:.with mesh:DeprecationWarning")
def test_arguments_of_a_mesh_with_explicit_axes() -> None:
    with jax.set_mesh(OTHER[1]):
        args = [jax.device_put(x, NamedSharding(OTHER[1], P("data"))) for x in (X, W)]
        assert jm.diagnose(SPLIT, *args).verdict == "right"
    with MESH:
        assert jm.diagnose(SINE, *args).op == "ttir.sin"


def test_threads_diagnose_at_once() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda t=t: found.append(jm.diagnose(t).verdict)) for t in (SPLIT, SINE) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["right", "right", "wrong", "wrong"]


# --- reproductions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["ttir", "ttnn"])
def test_a_part_of_a_text_is_run_again(stage: str) -> None:
    wrong = {"shlo_frontend": SPLIT["shlo_frontend"], stage: SPLIT[stage].replace(f"{stage}.tanh", f"{stage}.sin")}
    small = jm.minimize(jm.diagnose(wrong))
    assert small is not None
    assert small.operations == 1
    again = jm.diagnose({"shlo_frontend": small.stablehlo, stage: small.compiled})
    assert (again.verdict, again.op) == ("wrong", f"{stage}.sin")
    assert str(small).startswith("reproduction, 1 operation, run again from the text, and wrong again")


def test_a_part_that_is_not_wrong_again_is_not_shown() -> None:
    found = jm.diagnose(SINE)
    assert jm.minimize(found, compiler=lambda _: SimpleNamespace(refusal="no rule", stages={})) is None


def test_a_part_with_another_error_is_not_shown() -> None:
    def compiler(text: str) -> Any:
        made = jm.from_mlir(text).as_text().replace("ttir.tanh", "ttir.cos")
        return SimpleNamespace(refusal=None, stages={}, ttir=made, ttnn="")

    assert jm.minimize(jm.diagnose(SINE), compiler=compiler) is None

"""Source lines are the user's: frames of an installed package are passed over, at every stage of a program."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import source_info_util
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.diagnose.source_lines import SourceLines
from jaxmesh.analysis.record.source_path import Walk
from jaxmesh.jaxprs import source_locations, user_frames, walk
from jaxmesh.jaxprs.source_locations import named_scopes, resolve, source_line, source_location
from jaxmesh.jaxprs.trees import parameter_names

LIBRARY = '''\
"""A library of layers, as it is installed."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass
class Dense:
    w: jax.Array
    scaled: object = None

    def __post_init__(self):
        self.scaled = self.w * 2.0

    def __call__(self, x):
        return _dot(x, self.scaled)


def _dot(x, w):
    return jnp.tanh(jnp.dot(x, w))


@jax.jit
def compiled(x):
    return jnp.sin(x) + 1.0


def train(x, w):
    return jnp.sum(compiled(Dense(w)(x)))
'''
MODEL = """\
import jax
from tests_fake_layers import Dense, compiled


@jax.named_scope("block")
def model(params, x):
    first = Dense(params["first"])
    second = Dense(params["second"])
    x = first(x)
    with jax.named_scope("head"):
        x = second(x)
    return compiled(x).sum()
"""
FIRST, SECOND, HEAD, LAST = (f"model.py:{line} (model)" for line in (9, 11, 7, 12))
MESH = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
PARAMS = {"first": jnp.ones((8, 16)), "second": jnp.ones((16, 8))}
X = jnp.ones((4, 8))


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The model, in a file of the user's, and the library that it calls, in a folder of installed packages."""
    folder = tmp_path_factory.mktemp("environment")
    packages, own = folder / "lib" / "site-packages", folder / "project"
    (packages / "tests_fake_layers").mkdir(parents=True)
    own.mkdir()
    (packages / "tests_fake_layers" / "__init__.py").write_text(LIBRARY)
    (own / "model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(packages))
        patch.syspath_prepend(str(own))
        importlib.invalidate_caches()
        yield SimpleNamespace(model=importlib.import_module("model"), library=sys.modules["tests_fake_layers"])
    for name in ("model", "tests_fake_layers"):
        del sys.modules[name]


def partitioned(modules: Any) -> Any:
    """The gradients with shardings: JAX's MLIR carries the locations through the partitioner."""
    specs = {"first": P(None, "x"), "second": P("x", None)}
    program = jm.jit(jax.grad(modules.model.model), mesh=MESH, in_shardings=(specs, P("y")))
    return program.lower(PARAMS, X)


def lines(eqns: Any) -> set[str]:
    return {source_locations.short_location(source_line(e)) for e in eqns}


def test_lines_are_of_the_model_alone_with_and_without_the_partitioner(modules: Any) -> None:
    traced = jax.make_jaxpr(jax.grad(modules.model.model))(PARAMS, X)
    assert {FIRST, SECOND, LAST} <= lines(traced.eqns)
    for row in (*traced.eqns, *walk.all_eqns(partitioned(modules).jaxpr)):
        assert "tests_fake_layers" not in source_line(row)
    explained = partitioned(modules).explain()
    found = {source_locations.short_location(row.line) for row in explained if row.moves}
    assert FIRST in found
    # One line of the library computes both layers, at two lines of the model.
    assert {FIRST, SECOND} <= lines(walk.all_eqns(partitioned(modules).jaxpr))


def test_estimates_recordings_and_locations_name_the_model(modules: Any) -> None:
    lowered = partitioned(modules)
    text = lowered.as_text("ttnn", debug_info=True)
    assert "tests_fake_layers" not in text
    assert 'model.py":9:' in text
    costs = [source_locations.short_location(line.line) for line in lowered.estimate("t3000").lines]
    assert {FIRST, SECOND} <= set(costs)
    assert len(costs) == len(set(costs))
    here = Walk()
    places = {here.place(e).line for e in walk.all_eqns(lowered.jaxpr)}
    assert FIRST in places
    assert not [p for p in places if "tests_fake_layers" in p]


def test_an_equation_of_a_compiled_function_has_the_line_of_its_call(modules: Any) -> None:
    (call,) = [e for e in jax.make_jaxpr(modules.model.model)(PARAMS, X).eqns if e.primitive.name in ("jit", "pjit")]
    assert source_locations.short_location(source_line(call)) == LAST
    inner = walk.open_jaxpr(next(iter(walk.sub_jaxprs(call)))).eqns[0]
    assert source_locations.short_location(source_line(inner, source_line(call))) == LAST


def test_an_option_keeps_the_lines_of_packages(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tanh, *_) = [e for e in jax.make_jaxpr(modules.model.model)(PARAMS, X).eqns if e.primitive.name == "tanh"]
    assert source_location(tanh).function == "model"
    monkeypatch.setenv(user_frames.SWITCH, "1")
    assert source_location(tanh).function == "_dot"
    assert "tests_fake_layers" in source_line(tanh)


def test_packages_in_the_folder_of_pythons_library_are_packages(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a virtual environment, JAX takes packages for a part of Python's library."""
    known = source_info_util.is_user_filename
    monkeypatch.setattr(source_info_util, "is_user_filename", lambda f: known(f) and "site-packages" not in f)
    user_frames._is_outside.cache_clear()
    assert lines(walk.all_eqns(partitioned(modules).jaxpr)) - {""} == {FIRST, SECOND, HEAD, LAST, "model.py:8 (model)"}
    monkeypatch.setenv(user_frames.SWITCH, "1")
    traced = jax.make_jaxpr(modules.model.model)(PARAMS, X)
    assert "_dot" in {source_location(e).function for e in traced.eqns}
    monkeypatch.undo()
    user_frames._is_outside.cache_clear()


def test_a_program_of_a_package_has_the_outermost_line_of_the_package(modules: Any) -> None:
    traced = jax.make_jaxpr(modules.library.train)(X, PARAMS["first"])
    assert {source_location(e).function for e in traced.eqns} == {"train"}


def test_code_that_a_package_generates_is_passed_over(modules: Any) -> None:
    """The library multiplies in `__post_init__`, which the generated `__init__` of a dataclass calls."""
    scaled = [e for e in jax.make_jaxpr(modules.model.model)(PARAMS, X).eqns if e.primitive.name == "mul"]
    assert source_locations.short_location(source_line(scaled[0])) == HEAD


def test_scopes_survive_the_partitioner_and_derivatives(modules: Any) -> None:
    plain = {named_scopes(e) for e in jax.make_jaxpr(jax.grad(modules.model.model))(PARAMS, X).eqns}
    found = {named_scopes(e) for e in walk.all_eqns(partitioned(modules).jaxpr)}
    assert {("block",), ("block", "head")} == plain
    assert plain | {()} == found


def test_scopes_of_a_loop_of_a_checkpoint_and_of_a_call() -> None:
    @jax.checkpoint
    def block(x: Any) -> Any:
        with jax.named_scope("attention"):
            return jnp.sin(x)

    @jax.jit
    def call(x: Any) -> Any:
        with jax.named_scope("mlp"):
            return jnp.cos(x)

    @jax.named_scope("net")
    def net(x: Any) -> Any:
        y = jax.lax.scan(lambda c, _: (block(c), None), x, None, length=2)[0]
        return call(y).sum()

    lowered = jm.jit(jax.grad(net), mesh=MESH, in_shardings=P("y")).lower(jnp.ones(8))
    found = {(e.primitive.name, named_scopes(e, ("net",))) for e in walk.all_eqns(lowered.jaxpr)}
    assert ("sin", ("net", "attention")) in found
    assert ("sin", ("net", "mlp")) in found
    assert {scopes for _, scopes in found} == {("net",), ("net", "attention"), ("net", "mlp")}


def test_a_cell_of_a_notebook_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = pytest.importorskip("IPython.core.compilerop").CachingCompiler()
    code = "import jax\n\ndef cell(x):\n    return jax.lax.sin(x)\n"
    name, scope = compiler.cache(code, number=7), dict[str, Any]()
    exec(compile(code, name, "exec"), scope)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler)))
    (sin,) = jax.make_jaxpr(scope["cell"])(1.0).eqns
    assert source_locations.short_location(source_line(sin)) == "In[7]:4 (cell)"
    assert source_locations.source_location(sin).file == "In[7]"
    location = f'"{name}":4:11'
    assert resolve(location, {}) == "In[7]:4:11"
    assert SourceLines.of(f"%0 = x loc({location})").at(1) == "In[7]:4:11"
    assert user_frames.source_code("In[7]", 4) == "    return jax.lax.sin(x)\n"


def test_errors_name_the_users_line(modules: Any) -> None:
    (tanh, *_) = [e for e in jax.make_jaxpr(modules.model.model)(PARAMS, X).eqns if e.primitive.name == "tanh"]
    error = str(source_locations.missing_rule(tanh, "it has none", "rules.py"))
    assert "model.py:9:" in error
    assert "tests_fake_layers" not in error


def test_files_with_names_beyond_ascii_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modèle.py").write_text("import jax.numpy as jnp\ndef f(x, w):\n    return jnp.sin(x @ w)\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("modèle")
    lowered = jm.jit(module.f, mesh=MESH, in_shardings=(P(None, "x"), P("x"))).lower(X, jnp.ones((8, 8)))
    (product,) = [e for e in walk.all_eqns(lowered.jaxpr) if e.primitive.name == "dot_general"]
    assert source_locations.short_location(source_line(product)) == "modèle.py:3 (f)"


def test_names_of_parameters() -> None:
    def f(params: Any, x: Any, *rest: Any, scale: float = 1.0) -> Any:
        return params, x, rest, scale

    assert parameter_names(f, 2) == ("params", "x")
    assert parameter_names(f, 4) == ("params", "x", "rest[0]", "rest[1]")
    assert parameter_names(lambda x: x, 2) == ()  # pyright: ignore[reportUnknownLambdaType]
    traced = jm.jit(lambda params, x, n: params["w"] + x * n, mesh=MESH, static_argnums=2).trace({"w": X}, X, 3)
    assert traced._boundary.paths == ["params['w']", "x"]
    assert jm.jit(f, mesh=MESH).trace({"w": X}, x=X)._boundary.paths == ["params['w']", "x"]


def test_locations_of_other_compilers_name_the_users_line() -> None:
    inner, outer = '"lib/site-packages/flax/linear.py":298:7', '"model.py":9:4'
    assert resolve(f"callsite({inner} at {outer})", {}) == "model.py:9:4"
    assert resolve(f'callsite({inner} at "lib/site-packages/flax/apply.py":3:1)', {}) == (
        "lib/site-packages/flax/apply.py:3:1"
    )

"""`jm.jit` beside `jax.jit`: the type, text and traceback of errors of the user and of JAX."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from tests.generators.as_jax_jit import (
    AUTO,
    EXPLICIT,
    PACKAGE,
    W1,
    Outcome,
    X,
    anew,
    auto,
    explicit,
    filtering,
    outcome,
    put,
    same,
)

BIG = 40
"""The most lines that a traceback of a small program has when JAX removes its frames."""


@pytest.fixture(params=["remove_frames", "quiet_remove_frames", "off", "tracebackhide"])
def mode(request: pytest.FixtureRequest) -> Generator[str]:
    with filtering(request.param):
        yield request.param


# --- the errors ------------------------------------------------------------------------------------------------------


def mapped(body: Callable[..., Any], mesh: Any = AUTO) -> Callable[..., Any]:
    return jax.shard_map(body, mesh=mesh, in_specs=P("y"), out_specs=P("y"))


def undefined(x: Any) -> Any:
    return x + undefined_name  # noqa: F821


def undefined_in_a_body(x: Any) -> Any:
    return mapped(lambda v: v + undefined_name)(x)  # noqa: F821


def gathers_along_no_axis(x: Any) -> Any:
    return mapped(lambda v: lax.all_gather(v, "z"))(x)


def index_along_no_axis(x: Any) -> Any:
    return mapped(lambda v: v + lax.axis_index("modle"))(x)


def sums_along_a_misspelt_axis(x: Any) -> Any:
    return mapped(lambda v: lax.psum(v, "modle"))(x)


def sums_outside_of_a_map(x: Any) -> Any:
    return lax.psum(x, "x")


def constrains_along_a_misspelt_axis(x: Any) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(AUTO, P("modle")))


def constrains_by_a_misspelt_spec(x: Any) -> Any:
    return lax.with_sharding_constraint(x, P("modle"))


def constrains_unevenly(x: Any) -> Any:
    return lax.with_sharding_constraint(x[:3], auto("y"))


def branches_on_a_bool(flag: Any) -> Any:
    if flag:
        return flag + 1
    return flag


def branches_on_a_sum(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def makes_a_float(x: Any) -> Any:
    return float(x.sum())


def makes_an_array(x: Any) -> Any:
    return np.asarray(x) + 1


def multiplies_other_shapes(x: Any) -> Any:
    return x @ jnp.ones((3, 3))


def moves_to_a_device(x: Any) -> Any:
    return jax.device_put(x, jax.devices()[3]) + 1


def moves_to_the_sharding_of_a_device(x: Any) -> Any:
    return jax.device_put(x, jax.sharding.SingleDeviceSharding(jax.devices()[3])) + 1


def raises_its_own(x: Any) -> Any:
    try:
        raise KeyError("mine")
    except KeyError as error:
        raise RuntimeError(f"of {x.shape}") from error


def raises_within_another(x: Any) -> Any:
    try:
        return x.nothing
    except AttributeError:
        return {}["key"]


def stops(x: Any) -> Any:
    raise SystemExit(3)


def asserts(x: Any) -> Any:
    assert x.shape == (1, 1), "a shape"


def returns_a_string(x: Any) -> Any:
    return {"a": x, "b": "text"}


def returns_an_object(x: Any) -> Any:
    return x, object()


def replicates_what_varies(x: Any) -> Any:
    return jax.shard_map(lambda v: v, mesh=AUTO, in_specs=P("y"), out_specs=P())(x)


def splits_unevenly(x: Any) -> Any:
    return mapped(lambda v: v)(x[:3])


def scans_another_type(x: Any) -> Any:
    return lax.scan(lambda c, _: (c.astype(jnp.int32), None), x, None, 3)


def differentiates_a_row(x: Any) -> Any:
    return jax.grad(lambda x: x[0])(x)


ERRORS = [
    undefined, undefined_in_a_body, gathers_along_no_axis, index_along_no_axis, sums_along_a_misspelt_axis,
    sums_outside_of_a_map, constrains_along_a_misspelt_axis, branches_on_a_bool,
    branches_on_a_sum, makes_a_float, makes_an_array, multiplies_other_shapes, raises_its_own,
    raises_within_another, stops, asserts, returns_a_string, returns_an_object, replicates_what_varies,
    splits_unevenly, scans_another_type, differentiates_a_row,
]  # fmt: skip


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize("f", ERRORS)
def test_errors_of_a_function(f: Callable[..., Any]) -> None:
    """The type, text, chain and frames are those of JAX, in a program over one device and over a mesh."""
    with filtering("remove_frames"):
        same(f, X)
        over = same(f, X, in_shardings=auto("y"))
        on_mesh = same(f, put(X, auto("y")))
    with filtering("quiet_remove_frames"):
        same(f, X)
    assert over.error is not None
    assert on_mesh.error is not None


@pytest.mark.parametrize("f", [undefined, gathers_along_no_axis, multiplies_other_shapes, raises_its_own])
def test_frames_in_every_mode(f: Callable[..., Any], mode: str) -> None:
    made = same(f, X, in_shardings=auto("y"))
    theirs = outcome(jax.jit(anew(f)), X)
    inner = any(name.startswith(PACKAGE) for name, *_ in made.frames)
    if mode in ("off", "tracebackhide"):
        # All frames stay; with tracebackhide they are marked.
        assert inner
        assert len(made.frames) > len(made.users_frames)
    else:
        assert not inner
        # One note says where mesh axes have names in a program that splits tensors by hand.
        assert [n for n in notes(made) if n not in notes(theirs) and "jaxmesh.full_to_shard" not in n] == []


def notes(made: Outcome) -> list[str]:
    return list(getattr(made.error, "__notes__", []))


@pytest.mark.parametrize(
    "stage",
    ["trace", "lower", "eval_shape"],
)
@pytest.mark.parametrize("f", [sums_along_a_misspelt_axis, branches_on_a_sum])
def test_errors_of_the_stages(f: Callable[..., Any], stage: str) -> None:
    with filtering("remove_frames"):
        theirs, mine = (outcome(getattr(jit(anew(f)), stage), X) for jit in (jax.jit, jm.jit))
    assert (type(mine.error), str(mine.error)) == (type(theirs.error), str(theirs.error))
    assert mine.users_frames == theirs.users_frames
    assert not [name for name, *_ in mine.frames if name.startswith(PACKAGE)]


def test_undefined_names_are_name_errors() -> None:
    for f in (undefined, undefined_in_a_body):
        error = same(f, X).error
        assert type(error) is NameError
        assert str(error) == "name 'undefined_name' is not defined"
        assert error.__cause__ is None
        assert error.__context__ is None


def test_a_wrong_axis_in_a_body_is_a_name_error_that_names_it() -> None:
    for f, name in ((gathers_along_no_axis, "z"), (index_along_no_axis, "modle")):
        error = same(f, X).error
        assert type(error) is NameError
        assert f"unbound axis name: {name}" in str(error)


def test_a_sum_over_a_wrong_axis_names_it_where_jax_fails_an_assertion() -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))

    def f(x: Any) -> Any:
        return lax.psum(x, "modle")

    mapped = jm.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P())
    for call in (mapped, jm.jit(mapped), jm.jit(mapped).lower):
        with pytest.raises(AssertionError) as raised:
            call(X)
        assert "Found an unbound axis name: modle. The axes of the mesh are: y, x." in raised.value.__notes__


def test_a_traced_bool_names_the_function_and_the_argument() -> None:
    error = same(branches_on_a_bool, np.bool_(True)).error
    assert type(error) is jax.errors.TracerBoolConversionError
    place = f"function {branches_on_a_bool.__name__} at {__file__}:{branches_on_a_bool.__code__.co_firstlineno}"
    assert place in str(error)
    assert "argument flag" in str(error)
    with pytest.raises(jax.errors.TracerBoolConversionError, match="argument flag"):
        jm.jit(branches_on_a_bool, mesh=AUTO, in_shardings=P())(np.bool_(True))


def test_the_whole_text_of_messages_with_names_is_jaxs() -> None:
    for f, args in ((branches_on_a_bool, (np.bool_(True),)), (makes_a_float, (X,)), (makes_an_array, (X,))):
        theirs, mine = (outcome(jit(anew(f)), *args) for jit in (jax.jit, jm.jit))
        assert str(mine.error) == str(theirs.error)


def test_a_shape_mismatch_is_told_in_few_lines() -> None:
    for mode in ("remove_frames", "quiet_remove_frames"):
        with filtering(mode):
            error = same(multiplies_other_shapes, X, in_shardings=auto("y")).error
        assert type(error) is TypeError
        assert error is not None
        chain = error.__cause__ is None
        lines = traceback.format_exception(type(error), error, error.__traceback__, chain=chain)
        assert len("".join(lines).splitlines()) <= BIG


FIRST, FOURTH = (put(X, jax.devices()[i]) for i in (0, 3))


@pytest.mark.parametrize(
    ("x", "options", "raises"),
    [
        pytest.param(X, {}, False, id="host"),
        pytest.param(FOURTH, {}, False, id="there already"),
        pytest.param(FIRST, {}, True, id="committed"),
        pytest.param(X, {"in_shardings": auto("y")}, True, id="in_shardings"),
        pytest.param(put(X, auto("y", "x")), {}, True, id="auto"),
        pytest.param(put(X, explicit("y")), {}, True, id="explicit"),
    ],
)
def test_a_move_to_another_device(x: Any, options: dict[str, Any], raises: bool) -> None:
    """As in JAX: a device alone is a hint that the mesh outweighs, the sharding of a device is an error."""
    with filtering("remove_frames"):
        assert same(moves_to_a_device, x, **options).error is None
        error = same(moves_to_the_sharding_of_a_device, x, **options).error
    assert (type(error) is ValueError) == raises
    assert not raises or "incompatible devices" in str(error)


def test_an_uneven_constraint_is_dropped_as_by_jax_with_a_warning() -> None:
    whole = pytest.warns(errors.ReplicatedProgramWarning)
    with whole, pytest.warns(errors.DroppedShardingWarning, match="does not divide"):
        assert same(constrains_unevenly, X, in_shardings=auto("y")).error is None


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("f", [constrains_by_a_misspelt_spec, *ERRORS[:7]])
def test_errors_under_set_mesh(f: Callable[..., Any], mesh: Any) -> None:
    with jax.set_mesh(mesh):
        assert same(f, X).error is not None


def test_a_misspelt_spec_under_the_mesh_that_is_given() -> None:
    with jax.set_mesh(AUTO):
        theirs = outcome(jax.jit(anew(constrains_by_a_misspelt_spec)), X)
    mine = outcome(jm.jit(anew(constrains_by_a_misspelt_spec), mesh=AUTO), X)
    assert (type(mine.error), str(mine.error)) == (type(theirs.error), str(theirs.error))
    assert "modle" in str(mine.error)


def conflicting(a: Any, b: Any) -> Any:
    return jnp.sin(a) + jnp.cos(b)


def test_sharding_type_errors_end_at_the_users_line(mode: str) -> None:
    made = same(conflicting, put(X, explicit("y", "x")), put(X, explicit("x", "y")))
    assert made.users_frames[-1][2] == "conflicting"


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((X,), {"in_shardings": auto(None, None, "x")}),
        ((X,), {"in_shardings": (auto("y"), auto())}),
        ((X[:3],), {"in_shardings": auto("y")}),
        ((X[:, :3],), {"out_shardings": auto(None, "x")}),
        ((X,), {"out_shardings": (auto(), auto(), auto())}),
        ((X,), {"donate_argnums": 0, "static_argnames": "y"}),
        ((put(X, auto("y")),), {"in_shardings": auto("x")}),
        ((put(X, auto("y")), put(W1, jax.devices()[3])), {}),
        ((X, X, X), {}),
        ((), {}),
        (("text",), {}),
        ((object(),), {}),
        (([1, None, "text"],), {}),
        ((jax.ShapeDtypeStruct((2,), np.float32),), {}),
    ],
    ids=range(14),
)
def test_wrong_calls(args: Any, options: Any) -> None:
    """The class of the error is a subclass of JAX's: jaxmesh says in its own words what an argument is."""

    def f(x: Any, y: Any = None) -> Any:
        return x

    theirs, mine = (outcome(j(anew(f), **options), *args) for j in (jax.jit, jm.jit))
    if theirs.error is None:
        assert mine.error is None
        return
    assert isinstance(mine.error, type(theirs.error))
    if not isinstance(mine.error, jm.JaxmeshError):
        # The newest JAX adds the line of the call.
        assert mine.first_line.split(" at source:")[0] == theirs.first_line.split(" at source:")[0]


# --- no code of the user runs within a handler of all errors ---------------------------------------------------------


def catches_all(path: Path) -> list[str]:
    """The places of a file that catch every error: handlers of `Exception`, `BaseException` or all, and `suppress`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[ast.expr | None] = []
        if isinstance(node, ast.ExceptHandler):
            names = list(node.type.elts) if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "suppress":
            names = list(node.args)
        wide = [n for n in names if n is None or ast.unparse(n).split(".")[-1] in ("Exception", "BaseException")]
        found += [f"{path}:{getattr(node, 'lineno', 0)}"] * bool(wide)
    return found


def test_no_handler_of_all_errors_where_code_of_the_user_runs() -> None:
    files = [p for room in ("frontends/jax", "stages") for p in sorted((Path(PACKAGE) / room).rglob("*.py"))]
    assert len(files) > 10
    assert [place for path in files for place in catches_all(path)] == []


def test_the_count_finds_handlers(tmp_path: Path) -> None:
    text = "try:\n    f()\nexcept (ValueError, Exception):\n    pass\ntry:\n    f()\nexcept:\n    pass\n"
    (tmp_path / "odd.py").write_text(text + "with contextlib.suppress(Exception), suppress(BaseException):\n    f()\n")
    assert len(catches_all(tmp_path / "odd.py")) == 4

"""The columns of a program: which files and lines its operations are of."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxmesh as jm


def doubled(x: Any) -> Any:
    return jnp.tanh(x * 2)


def test_a_source_line_is_shown_without_its_folder() -> None:
    page = jm.jit(doubled, mesh=jm.make_mesh((2, 4))).lower(np.ones((8, 8), np.float32))._repr_html_()
    number = inspect.getsourcelines(doubled)[1] + 1
    assert f"{Path(__file__).name}:{number}" in page
    assert "return jnp.tanh(x * 2)" in page
    assert str(Path(__file__).parent) not in page

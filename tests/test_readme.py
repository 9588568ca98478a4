"""The README's Python runs, and the texts it shows are what the programs print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import jax
import pytest

import jaxmesh as jm

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def test_the_examples_run_and_print_the_texts() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec("\n".join(blocks("python")), {"__name__": "readme"})
    printed = re.sub(r"\s+", " ", out.getvalue())
    upper, lower = blocks("text")[:2]
    if jax.__version__.startswith("0.10."):
        for part in [*upper.split("..."), lower]:
            assert re.sub(r"\s+", " ", part).strip() in printed
    for line in re.findall(r"mapper_config=.*|composer_config=.*", lower):
        assert line in printed


def test_the_error_is_the_one_shown() -> None:
    source = blocks("python")[0].replace('lax.psum(jnp.tanh(x @ w1) @ w2, "x")', "jnp.tanh(x @ w1) @ w2")
    with pytest.raises(jm.ReplicationError) as caught:
        exec(source, {"__name__": "readme"})
    shown = re.sub(r"\s+", " ", blocks("text")[2]).strip().removeprefix("jaxmesh.errors.ReplicationError: ")
    assert str(caught.value) == shown


def test_quick_start_has_its_two_blocks() -> None:
    section = re.search(r"^## Quick start\s*$(.*?)(?=^## )", README, re.M | re.S)
    assert section is not None
    assert len(re.findall(r"^```bash\n", section[1], re.M)) == 2

"""The values that options of the commands take."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import jaxmesh as jm
from jaxmesh.cli.options import MAX_DEVICES, check_out, parse_mesh, seed_of


def test_a_mesh_is_sizes_joined_by_x() -> None:
    assert [parse_mesh(text) for text in ("8", "2x4", "1x2x4")] == [(8,), (2, 4), (1, 2, 4)]
    assert parse_mesh(f"{MAX_DEVICES}x1") == (MAX_DEVICES, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "positive integers joined by 'x', got ''"),
        ("2,4", "write for example --mesh 2x4"),
        ("-2x4", "positive integers"),
        ("0x4", "sizes of at least 1, got '0x4'"),
        (f"{MAX_DEVICES}x2", f"at most {MAX_DEVICES} devices.*with {2 * MAX_DEVICES}"),
    ],
)
def test_other_meshes_are_named(text: str, words: str) -> None:
    with pytest.raises(jm.MeshError, match=words):
        parse_mesh(text)


def test_a_seed_is_a_natural_number() -> None:
    assert seed_of("012") == 12
    for text in ("-1", "1.0", "", "9" * 19):
        with pytest.raises(argparse.ArgumentTypeError, match="non-negative integer of at most 18 digits"):
            seed_of(text)


def test_a_path_is_checked_before_the_work(tmp_path: Path) -> None:
    check_out(tmp_path / "new.npz")
    for path in (tmp_path, tmp_path / "no folder" / "new.npz"):
        with pytest.raises(jm.JaxmeshError, match="a file in a folder that exists"):
            check_out(path)

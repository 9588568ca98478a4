"""Colours of pieces differ for every kind of sight, and texts have contrast on them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from jaxmesh.drawing.colors import PALETTE, contrast, piece_colors, rgb, text_on

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHTS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(color: str, sight: str) -> np.ndarray[Any, Any]:
    """CIE Lab (D65) of a colour as a kind of sight sees it."""
    c = np.array(rgb(color)) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    seen = np.clip(SIGHTS[sight] @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    t = xyz / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHTS)
def test_few_colors_differ_for_every_sight(sight: str) -> None:
    seen = {c: lab(c, sight) for c in PALETTE}
    for a, b in itertools.combinations(PALETTE, 2):
        # Just noticeable is about 2.3.
        assert np.linalg.norm(seen[a] - seen[b]) >= 15, (a, b)


@pytest.mark.parametrize("sight", SIGHTS)
def test_many_colors_are_ordered_in_lightness(sight: str) -> None:
    light = [lab(c, sight)[0] for c in piece_colors(32)]
    assert all(a < b + 0.5 for a, b in itertools.pairwise(light))
    assert light[-1] - light[0] > 60


def test_text_has_contrast_on_every_fill() -> None:
    for count in (1, 8, 9, 64, 512):
        colors = piece_colors(count)
        assert len(colors) == count
        assert len(set(colors)) == count or count > 256
        assert all(contrast(text_on(c), c) >= 4.5 for c in colors)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)  # as WCAG gives it

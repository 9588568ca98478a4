"""Colours that colour-blind readers can distinguish, and the colour of text on each.

Few pieces get the palette of Okabe and Ito (Color Universal Design, 2008); many get the scale `viridis` of Smith and
van der Walt (2015), which is ordered in lightness. No picture relies on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

Rgb = tuple[int, int, int]

PALETTE = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#505050")
"""Okabe and Ito's colours, with a dark grey instead of black, which is invisible on a dark page."""

_VIRIDIS = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725",
)  # fmt: skip


def rgb(color: str) -> Rgb:
    """Returns the red, green and blue of `#rrggbb`, 0 to 255.

    >>> rgb("#56b4e9")
    (86, 180, 233)
    """
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def luminance(color: str) -> float:
    """Returns the relative luminance of WCAG 2.1, 0 (black) to 1 (white)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in rgb(color))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Returns the contrast ratio of WCAG 2.1, 1 to 21; text needs 4.5.

    >>> round(contrast("#000000", "#ffffff"), 1)
    21.0
    """
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def text_on(fill: str) -> str:
    """Returns black or white, whichever has more contrast on a fill; at least 4.5.

    >>> text_on("#f0e442"), text_on("#440154")
    ('#000000', '#ffffff')
    """
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, fill))


def piece_colors(count: int) -> Sequence[str]:
    """Returns a colour for each of `count` pieces: the palette, or even steps of the scale.

    >>> piece_colors(2)
    ['#56b4e9', '#e69f00']
    """
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    return [_scale(i / (count - 1)) for i in range(count)]


def _scale(fraction: float) -> str:
    """Returns the colour at a position on the scale, 0 to 1."""
    position = fraction * (len(_VIRIDIS) - 1)
    left = min(int(position), len(_VIRIDIS) - 2)
    low, high = rgb(_VIRIDIS[left]), rgb(_VIRIDIS[left + 1])
    return "#" + "".join(f"{round(a + (b - a) * (position - left)):02x}" for a, b in zip(low, high, strict=True))

"""Pictures of placements: SVG, HTML and text, built from strings, without a plotting library and without scripts."""

"""Pictures of who holds what: SVG, HTML, and text, made of strings; no plotting library, no scripts."""

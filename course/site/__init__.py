"""The site: chapters, notebooks, lab pages and the engine's reference in one place, offline.

    python -m course.site               build it into out/book
    python -m course.site --serve       and show it on http://localhost:8000

The sources are laid out in `out/book-source` as they lie in the repository, so that the links which
work on a forge work here; the reference is written there from the engine's docstrings. Then Sphinx
with MyST-NB and furo makes pages of them. Warnings are errors.
"""

"""Opened pages of the site: how large a screen is, and what a page complains of."""

from __future__ import annotations

from typing import Any

PHONE, TABLET = {"width": 390, "height": 844}, {"width": 834, "height": 1112}
DESKTOP = {"width": 1400, "height": 900}


def page(browser: Any, url: str, **options: Any) -> tuple[Any, list[str]]:
    """An open page without a network, and everything that it complains of."""
    context = browser.new_context(offline=True, **options)
    opened, complaints = context.new_page(), []
    opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda request: complaints.append(request.url))
    opened.goto(url)
    return opened, complaints

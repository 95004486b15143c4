"""The alert rules as text, with links to their runbooks that somebody can click: who has alerts has no checkout."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

RULES = Path(__file__).resolve().parent / "prometheus" / "alert_rules.yml"
_LINK, _PAGE = "runbook_url: ", "operations.md"
_NOT_IN_URLS = set(" \"'<>#?{}\\^`|")


def alert_rules(docs_url: str | None = None) -> str:
    """The rules; each links to its section of the operations page below `docs_url`, or, without, in the repository.

    Raises:
        ValueError: `docs_url` is no address of a folder on the web.
    """
    rules = RULES.read_text(encoding="utf-8")
    if docs_url is None:
        return rules
    return rules.replace(f"{_LINK}docs/{_PAGE}", f"{_LINK}{_folder(docs_url)}/{_PAGE}")


def _folder(docs_url: str) -> str:
    try:
        parts = urlsplit(docs_url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        is_web = False
    if not is_web or not docs_url.isprintable() or set(docs_url) & _NOT_IN_URLS:
        raise ValueError(f"{docs_url!r:.200}: expected the address of the folder of {_PAGE}, as in https://HOST/docs")
    return docs_url.rstrip("/")

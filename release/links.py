"""A hook of mkdocs: what pages link outside of docs/ is in the repository, and no part of the site.

SITE_REPOSITORY names where that is, such as ``https://github.com/OWNER/infercanary/blob/main``. Without it, such links
are their words alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*])*)\]\(([^)\s:]+)\)")


def outside(markdown: str, page: Path, repository: str) -> str:
    """Lead links out of ``docs/`` to the repository.

    Args:
        markdown: A page.
        page: Its file.
        repository: A web address without a slash at its end; empty for none.

    Returns:
        The page.

    Raises:
        ValueError: A link leads nowhere.
    """
    docs = ROOT / "docs"

    def replaced(match: re.Match[str]) -> str:
        path, hash_, anchor = match[2].partition("#")
        target = (page.parent / path).resolve()
        if not path or (target.is_relative_to(docs.resolve()) and not target.is_dir()):
            return match[0]
        if not target.exists():
            raise ValueError(f"{page}: {match[2]} leads nowhere")
        if target.is_dir() and target.is_relative_to(docs.resolve()):
            return f"[{match[1]}]({path.rstrip('/')}/README.md{hash_}{anchor})"
        if not repository:
            return match[1]
        return f"[{match[1]}]({repository}/{target.relative_to(ROOT.resolve())}{hash_}{anchor})"

    return _LINK.sub(replaced, markdown)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """As mkdocs calls it.

    Args:
        markdown: Of the page.
        page: Of mkdocs.

    Returns:
        The page with links that a site can have.
    """
    return outside(markdown, Path(page.file.abs_src_path), os.environ.get("SITE_REPOSITORY", ""))

"""Hook of mkdocs: changes links to files outside of docs/, which the site lacks, to links to the repository.

SITE_REPOSITORY is the repository's address, such as ``https://github.com/OWNER/infercanary/blob/main``.
Without it, such links become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*])*)\]\(([^)\s:]+)\)")


def outside(markdown: str, page: Path, repository: str) -> str:
    """Change links to files outside of ``docs/`` to links to the repository.

    Args:
        markdown: Text of a page.
        page: File of the page.
        repository: Web address without a slash at its end; empty to remove these links.

    Raises:
        ValueError: The target of a link does not exist.
    """
    docs = ROOT / "docs"

    def replaced(match: re.Match[str]) -> str:
        path, hash_, anchor = match[2].partition("#")
        target = (page.parent / path).resolve()
        if not path or (target.is_relative_to(docs.resolve()) and not target.is_dir()):
            return match[0]
        if not target.exists():
            raise ValueError(f"{page}: the link {match[2]} leads to no file")
        if target.is_dir() and target.is_relative_to(docs.resolve()):
            return f"[{match[1]}]({path.rstrip('/')}/README.md{hash_}{anchor})"
        if not repository:
            return match[1]
        return f"[{match[1]}]({repository}/{target.relative_to(ROOT.resolve())}{hash_}{anchor})"

    return _LINK.sub(replaced, markdown)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with links that work on the site. Called by mkdocs."""
    return outside(markdown, Path(page.file.abs_src_path), os.environ.get("SITE_REPOSITORY", ""))

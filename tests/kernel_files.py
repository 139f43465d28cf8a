"""Files of the kernel, such as those of control groups, written into a folder."""


def tree(root, files):
    """Write files; ``files`` has their contents by path in the folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def parsed(text):
    """Parse lines ``path = content`` to a dictionary; ``;`` ends a line of the content."""
    pairs = (line.partition(" =") for line in text.splitlines() if line)
    return {path: content.strip().replace("; ", "\n") + "\n" for path, _, content in pairs}

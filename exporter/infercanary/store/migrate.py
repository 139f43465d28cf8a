"""Makes the tables of a store, or brings them up to date: ``python -m infercanary.store.migrate LOCATION``."""

from __future__ import annotations

import sys
from contextlib import closing


def main(arguments: list[str]) -> int:
    """Open the store, which brings it to the schema of today.

    Args:
        arguments: The location alone.

    Returns:
        An exit code: 0, or 2 with one line on the standard error.
    """
    if len(arguments) != 1:
        print("usage: python -m infercanary.store.migrate postgresql://OWNER@HOST/DATABASE", file=sys.stderr)
        return 2
    try:
        from infercanary.store.base import StoreError
        from infercanary.store.kinds import open_store
    except ModuleNotFoundError as error:
        fix = "in a checkout: pip install '.[exporter,postgres]'"
        print(f"infercanary.store.migrate needs the module `{error.name}`; {fix}", file=sys.stderr)
        return 2
    try:
        with closing(open_store(arguments[0])) as store:
            store.canaries(())
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    print("the schema is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

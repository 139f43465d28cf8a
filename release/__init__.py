"""Additional files of a release: bill of materials, hashes, and pinned images."""

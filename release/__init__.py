"""What a release is made of besides the packages: its bill of materials, and pinned images."""

"""The experiment before a deploy: two images take turns on this host until the answer is clear. ``infercanary ab``."""

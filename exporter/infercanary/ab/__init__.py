"""``infercanary ab``: an experiment before a deploy. Two images take turns on this host until the answer is clear."""

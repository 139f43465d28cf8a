"""``infercanary ab``: an experiment before a deploy, in which two images take turns on this host until the answer is
clear.
"""

"""Documents, and renderers that turn them into text and JSON. HTML and the other formats are in
``infercanary.pages``.
"""

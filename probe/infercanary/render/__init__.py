"""Documents and their plain renderers: text and JSON. HTML and the other formats are in ``infercanary.pages``."""

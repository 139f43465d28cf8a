"""Documents, and their renderers to text and JSON. HTML and the other formats are in ``infercanary.pages``."""

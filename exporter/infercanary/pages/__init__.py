"""Views of a document that need the exporter's libraries: HTML from templates, charts, Markdown, JUnit and CSV."""

"""Results for people: the sentence, and documents as HTML, Markdown, JUnit and CSV."""

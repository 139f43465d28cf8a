"""Results for users: the sentence, and documents as HTML, Markdown, JUnit and CSV."""

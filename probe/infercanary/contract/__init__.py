"""What probe and exporter share: the report, the journal, and every word that both know."""

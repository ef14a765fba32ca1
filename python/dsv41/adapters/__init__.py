"""What an engine's own code lacks, one file per change; nothing here runs at import."""

"""The fitted output head: its conversations, its fit, and the committed result."""

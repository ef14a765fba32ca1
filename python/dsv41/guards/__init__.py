"""The rules for requests and answers that the engine plugin and the local server share.

Every module here is pure: it imports nothing of this package but `errors`, and nothing outside
the standard library, so that it runs unchanged inside any engine's process.
"""

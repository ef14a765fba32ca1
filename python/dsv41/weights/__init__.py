"""The checkpoint's files: fetched at a pinned revision, and compared with what was published.

`published` knows what the files should be, `check` reads them, `receipt` remembers what was read,
`hub` is the program that runs where the hub's own client is, `fetch` starts it on a node.
"""

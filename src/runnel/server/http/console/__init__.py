"""The web console: its files, the figures that its pages show, and what operators do with them.

`sampling` takes a sample of the broker and keeps some hours of it, `pages` makes one view of a sample, and `updates`
(server-sent events) and `live` (the connection of an open page) send it. `records`, `letters` and `actions` answer the
requests of a page.
"""

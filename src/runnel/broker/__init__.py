"""The broker in this process: topics as logs, subscribers as cursors on them.

The data's way: topic → log (and timeline) → cursor → flow → subscription.
"""

"""Checking: find damage (scan, verify, scrub), and repair it."""

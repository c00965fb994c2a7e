"""Cleaning: which records are live, which segments are worth rewriting, and the jobs that rewrite them."""

"""Runs untrusted programs where they can harm nothing."""

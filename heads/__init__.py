"""The built-in heads, each a plug-in like a stranger's: found through its entry point, never imported by the core."""

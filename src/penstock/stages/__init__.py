"""The work itself."""

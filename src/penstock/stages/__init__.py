"""The stages: the code that executes steps, one module for each kind."""

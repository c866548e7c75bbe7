"""Data types and state machines. This package imports no other package of Penstock."""

"""The Model Context Protocol: search and documents as tools and resources of an agent."""

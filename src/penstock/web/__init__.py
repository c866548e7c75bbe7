"""The dashboard: pages made on the server, which work without JavaScript."""

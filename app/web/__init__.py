"""The web layer: sign-in, security, REST routes, downloads, connections, addresses and the theme."""

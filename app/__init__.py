"""What a person uses: the web pages, the REST API and the command `lathe`. No torch."""

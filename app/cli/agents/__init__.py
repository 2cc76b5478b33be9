"""`lathe mcp`: Lathe as tools of an agent, by the Model Context Protocol over standard input and output."""

"""What the configuration of an agent needs to start `lathe mcp`. No library: the command's help lists the agents."""

ENTRIES = {
    "claude-code": "claude mcp add lathe -- {command} mcp\n",
    "codex": '# in ~/.codex/config.toml\n[mcp_servers.lathe]\ncommand = {command}\nargs = ["mcp"]\n',
    "cursor": '{{"mcpServers": {{"lathe": {{"command": {command}, "args": ["mcp"]}}}}}}\n',
}
"""What to run, or to write, by the agent."""

"""How chats become text with loss: settings, template, reasoning of earlier turns, and the weight of each turn. No torch."""

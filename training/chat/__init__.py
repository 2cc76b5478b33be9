"""How chats become text with loss: the settings, the template, reasoning of earlier turns, and the weight of each turn. No torch."""

"""Jobs of OpenAI's fine-tuning API as the settings of runs."""

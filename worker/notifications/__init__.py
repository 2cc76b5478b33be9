"""Delivers notifications: checks addresses, writes messages, sends them by HTTP and SMTP, and retries."""

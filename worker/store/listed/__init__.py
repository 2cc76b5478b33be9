"""The history as a list: its filter, order, groups and pages."""

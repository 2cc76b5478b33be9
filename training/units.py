"""Formats bytes, for pages, commands, messages and records."""

NONE = "-"
"""Shown in place of a missing number."""


def byte_size(size: float | None) -> str:
    """Bytes in binary units: "812 bytes", "1.5 GiB", "512 MiB"."""
    if size is None:
        return NONE
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    if unit == "bytes":
        return f"{value:.0f} {'byte' if value == 1 else 'bytes'}"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
